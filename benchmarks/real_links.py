"""The real pair on links, at its own speed: GGUF files, a process and a thread for each model.

On a machine with two cores drafter and target have one each, and nothing else must run. The target
is a 4-bit model, whose passes over one and over five tokens round differently: an answer is exact
if each token is the plain target's choice there or within ``NEAR`` of it in score.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache

from outrider.benchmarks.embedded import Cloud, cloud
from outrider.benchmarks.real import PAIR
from outrider.benchmarks.real_parts import PROMPTS
from outrider.benchmarks.sockets import Asked, Pair
from outrider.benchmarks.strategies import (
    ADAPTIVE,
    CLOUD,
    NGRAM,
    STREAMING,
    Machine,
    Strategy,
    lockstep,
)
from outrider.cloud_server.replay import audit, plain
from outrider.cloud_server.targets.factory import load_target
from outrider.protocol.decoding.sampling import Sampling
from outrider.runtime.hub.resolve import resolve
from outrider.runtime.lm.drafter import Drafter
from outrider.runtime.lm.factory import load_lm
from outrider.runtime.text.tokenizer import load_tokenizer

STRATEGIES = (CLOUD, NGRAM, lockstep(2), lockstep(4), STREAMING, ADAPTIVE)
LINKS = ("loopback", "lte")

TOKENS = 70
"""Of each of three answers: more than 200 counted."""

N_CTX = 1024

NEAR = 0.5
"""Logits, as in the tests of this pair: between passes of other lengths the best tokens move
together, by less than a third of that as far as was seen."""

HERE = Machine("this one, unpaced", "the real pair at its own speed", 0.0, 0.0, 0.0, 0.0)


@contextlib.contextmanager
def real_pair(tokens: int = TOKENS) -> Iterator[Pair]:
    """Qwen2.5-Coder 0.5B for 1.5B; its target also here, to compare with.

    Raises:
        BackendError: the files are not on this machine.
    """
    files = resolve(PAIR, "drafter"), resolve(PAIR, "target")
    tokenizer = load_tokenizer(files[0])
    target = load_target(str(files[1]), n_ctx=N_CTX, slots=1, threads=1)
    lm = load_lm(files[0], n_ctx=N_CTX).lm
    drafter = Drafter(lm, tokenizer.size, tokenizer.eos)

    @cache
    def exact(ask: Asked, ids: tuple[int, ...]) -> bool:
        return ids == ask.expected[: len(ids)] or (
            audit(target, ask.prompt, ids, ask.sampling, NEAR).exact
        )

    def start(strategy: Strategy) -> contextlib.AbstractContextManager[Cloud]:
        return cloud(backend="llama", lookup=strategy.lookup, model=files[1])

    try:
        load = []
        for text in PROMPTS.values():
            ids = tuple(tokenizer.encode_prompt(text))
            expected = tuple(plain(target, ids, Sampling(), tokens))
            load.append(Asked(ids, Sampling(), expected))
        yield Pair(HERE, f"{PAIR}, T=0", False, tokenizer, drafter, load, start, exact)
    finally:
        target.close()
        drafter.close()
