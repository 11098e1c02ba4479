"""``outrider bench quick``: what the stream costs, and what it gains against plain cloud streaming.

Two processes on loopback, the embedded pair. The overhead of a round is everything that is neither
drafting nor the target's pass: both drivers, both codecs, both sockets, the thread hops. The speed
compares lockstep at one draft length with plain cloud streaming of the same verifier, *paced* to a
stated time a pass, on prompts of all three domains. The verifier's own look-up is off in both, so
that the drafter alone makes the difference, and it waits for drafts (objective ``cost``).
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.benchmarks.embedded import DOMAINS, Cloud, cloud, models, prompts
from outrider.edge_client.answer import Answer
from outrider.edge_client.client import EdgeClient
from outrider.edge_client.policy import Fixed
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.request import Request
from outrider.runtime.lm.drafter import Drafter, Guess
from outrider.runtime.lm.factory import load_lm
from outrider.runtime.text.tokenizer import Tokenizer, load_tokenizer

STEP_MS = 25.0
SEED = 20_251


@dataclass(frozen=True, slots=True)
class Span:
    """When a guess began and ended (``perf_counter``), and after how many ids."""

    start: float
    end: float
    length: int


class TimedDrafter(Drafter):
    """A drafter that notes the span of each of its guesses."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.spans: list[Span] = []

    def draft(self, ids: Sequence[int], *args: Any, **kwargs: Any) -> Guess:
        started = time.perf_counter()
        guess = super().draft(ids, *args, **kwargs)
        self.spans.append(Span(started, time.perf_counter(), len(ids)))
        return guess


async def quick(
    draft_max: int, tokens: int, prompts_each: int, backend: str, say: Callable[[str], None]
) -> dict[str, Any]:
    """Run both measurements; the JSON object of the command."""
    tokenizer = load_tokenizer(models() / "drafter")
    loaded = load_lm(models() / "drafter", backend)
    drafter = TimedDrafter(loaded.lm, tokenizer.size, tokenizer.eos)
    try:
        say("round overhead on loopback, unpaced")
        with cloud(lookup=0) as unpaced:
            run = _Run(unpaced, tokenizer, drafter, draft_max, tokens)
            overhead = await run.overhead()
        with cloud(STEP_MS, lookup=0) as paced:
            rows = []
            for temperature, domain in itertools.product((0.0, 1.0), DOMAINS):
                run = _Run(paced, tokenizer, drafter, draft_max, tokens)
                row = await run.compare(domain, temperature, prompts_each)
                say(f"{domain} T={temperature:g}: {row['speedup']:.2f} times cloud streaming")
                rows.append(row)
    finally:
        drafter.close()
    return {
        "drafter": f"{loaded.lm.name} ({loaded.backend})",
        "target": f"embedded ({paced.backend})",
        "draft_max": draft_max,
        "paced_ms": STEP_MS,
        "round_overhead_ms_p50": statistics.median(overhead) * 1e3,
        "round_overhead_ms_p90": statistics.quantiles(overhead, n=10)[-1] * 1e3,
        "rounds": len(overhead),
        "rows": rows,
        "speedup_over_cloud_streaming": min(row["speedup"] for row in rows),
        "all_identical": all(row["identical"] for row in rows),
    }


async def _answer(
    edge: EdgeClient, tokenizer: Tokenizer, prompt: str, request: dict[str, Any]
) -> Answer:
    session = edge.session()
    ids = tuple(tokenizer.encode_prompt(prompt))
    answer: Answer | None = None
    async for piece in edge.stream(
        session, Request(ids=ids, ignore_eos=True, objective="cost", **request)
    ):
        if isinstance(piece, Answer):
            answer = piece
    edge.machine.close(session)
    assert answer is not None  # the stream ends with it or raises
    return answer


@dataclass(frozen=True, slots=True)
class _Run:
    """One verifier, one drafter, one draft length."""

    cloud: Cloud
    tokenizer: Tokenizer
    drafter: TimedDrafter
    draft_max: int
    tokens: int

    async def overhead(self) -> list[float]:
        """Seconds of each round that were neither drafting nor the target's pass.

        A round lasts from the start of one guess to the start of the next. Its pass is the one
        that began at the length from which the guess was made: at each length the cloud commits
        at least one token, so there is one such pass at most.
        """
        overhead: list[float] = []
        request = {"max_tokens": self.tokens}
        async with self._edge(self.draft_max) as edge:
            for prompt in [text for domain in DOMAINS for text in prompts(domain)[:3]]:
                before = len(self.cloud.passes())
                self.drafter.spans.clear()
                await _answer(edge, self.tokenizer, prompt, request)
                passes = [(*p["rows"][0], p["seconds"]) for p in self.cloud.passes()[before:]]
                judged = {length: seconds for length, wanted, seconds in passes if wanted > 1}
                for this, following in itertools.pairwise(self.drafter.spans):
                    if this.length in judged:
                        spent = this.end - this.start + judged[this.length]
                        overhead.append(following.start - this.start - spent)
        return overhead

    async def compare(self, domain: str, temperature: float, count: int) -> dict[str, Any]:
        """Lockstep against plain cloud streaming on the same prompts, in turn."""
        request = {
            "max_tokens": self.tokens,
            "sampling": Sampling(temperature=temperature, seed=SEED),
        }
        plain: list[Answer] = []
        ours: list[Answer] = []
        async with self._edge(0) as streaming, self._edge(self.draft_max) as riding:
            for prompt in prompts(domain)[:count]:
                plain.append(await _answer(streaming, self.tokenizer, prompt, request))
                ours.append(await _answer(riding, self.tokenizer, prompt, request))
        slow, fast = _rate(plain), _rate(ours)
        emitted = sum(len(answer.ids) for answer in ours)
        drafted = sum(answer.drafted for answer in ours)
        return {
            "domain": domain,
            "temperature": temperature,
            "cloud_streaming_tokens_per_second": slow,
            "tokens_per_second": fast,
            "speedup": fast / slow,
            "acceptance_rate": sum(answer.accepted for answer in ours) / max(1, drafted),
            "target_passes_per_token": sum(answer.passes or 0 for answer in ours) / emitted,
            "bytes_up_per_token": sum(answer.bytes_up for answer in ours) / emitted,
            "bytes_down_per_token": sum(answer.bytes_down for answer in ours) / emitted,
            "identical": [a.ids for a in plain] == [a.ids for a in ours],
        }

    def _edge(self, length: int) -> EdgeClient:
        drafter = self.drafter if length else None
        return EdgeClient(self.cloud.url, self.tokenizer, drafter, Fixed(length))


def _rate(answers: list[Answer]) -> float:
    """Tokens a second after the first token, all answers together."""
    tokens = sum(len(answer.ids) - 1 for answer in answers)
    return tokens / sum(answer.seconds - (answer.first_token or 0.0) for answer in answers)
