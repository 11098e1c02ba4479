"""The real pair, loaded once; answers over real sockets; the report of near-ties."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from outrider.cloud_server.replay import Audit, audit
from outrider.cloud_server.targets.base import Decided, Row, Target
from outrider.edge_client.answer import Answer
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.request import Request
from outrider.runtime.hub.resolve import own_folder
from outrider.runtime.text.tokenizer import Tokenizer

N_CTX = 2304
NAMES = (
    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
)
TOLERANCE = 0.5
"""Logits of one text differ by up to 0.8 (mostly 0.1) between passes of other lengths in this 4-bit
target. The best tokens move together: the largest gap seen was 0.13. At a temperature T the
scores, and so the tolerance, are divided by T."""

ON_THE_WAY = 0.02
"""Seconds that a message may take between two threads of a busy process."""

REPORT = Path(__file__).parents[2] / "build" / "real" / "exactness.json"


@pytest.fixture(scope="session")
def pair() -> tuple[Path, Path]:
    """(drafter, target); the only reason to skip these tests is that the files are not there."""
    folder = own_folder("qwen2.5-coder")
    missing = [name for name in NAMES if not (folder / name).is_file()]
    if missing:
        pytest.skip(f"no {', '.join(missing)} in {folder}: run `make real-pair` first")
    return folder / NAMES[0], folder / NAMES[1]


class Kept(Target):
    """A target that outlives the services made over it, and waits for the drafter.

    On two cores the target is about as fast as the drafter, and an edge that is always overtaken
    never gets to draft. So a pass begins only when the drafter has nothing to do: ``idle``.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self.info = target.info
        self.idle: threading.Event | None = None

    def forward(self, rows: Sequence[Row]) -> list[Decided]:
        if self.idle is not None:
            time.sleep(ON_THE_WAY)  # what was committed last reaches the edge
            self.idle.wait(30)
            time.sleep(ON_THE_WAY)  # and its guesses come here
        return self._target.forward(rows)

    def score(self, row: Row, candidates: Sequence[int]) -> list[tuple[float, float]]:
        return self._target.score(row, candidates)

    def close(self) -> None:
        pass


@pytest.fixture(scope="session")
def tokenizer(pair: tuple[Path, Path]) -> Tokenizer:
    """The target's."""
    from outrider.runtime.text.tokenizer import load_tokenizer

    return load_tokenizer(pair[1])


@pytest.fixture(scope="session")
def drafter_tokenizer(pair: tuple[Path, Path]) -> Tokenizer:
    """The drafter's own."""
    from outrider.runtime.text.tokenizer import load_tokenizer

    return load_tokenizer(pair[0])


@pytest.fixture(scope="session")
def target(pair: tuple[Path, Path]) -> Iterator[Kept]:
    """The 1.5B, one thread."""
    from outrider.cloud_server.targets.llama_cpp import LlamaTarget

    loaded = LlamaTarget.load(pair[1], n_ctx=N_CTX, slots=2, threads=1)
    yield Kept(loaded)
    loaded.close()


@pytest.fixture(scope="session")
def drafter(pair: tuple[Path, Path], drafter_tokenizer: Tokenizer) -> Iterator[Any]:
    """The 0.5B, one thread. ``idle`` is set while it does nothing."""
    from outrider.runtime.lm.drafter import Drafter, Guess
    from outrider.runtime.lm.factory import load_lm

    class Watched(Drafter):
        def __init__(self, *settings: Any) -> None:
            super().__init__(*settings)
            self.idle = threading.Event()
            self.idle.set()

        def draft(self, *arguments: Any, **settings: Any) -> Guess:
            self.idle.clear()
            try:
                return super().draft(*arguments, **settings)
            finally:
                self.idle.set()

    lm = load_lm(pair[0], n_ctx=N_CTX).lm
    yield Watched(lm, drafter_tokenizer.size, drafter_tokenizer.eos)
    lm.close()


Ask = Callable[..., list[Answer]]


@pytest.fixture(scope="session")
def ask(target: Kept, tokenizer: Tokenizer, drafter_tokenizer: Tokenizer, drafter: Any) -> Ask:
    """Answers to requests, each at its draft length, by an edge over a socket of this machine."""
    from outrider.cloud_server.driver import ServiceSettings, Verifier
    from outrider.edge_client.client import EdgeClient
    from outrider.edge_client.policy import Fixed

    async def answers(jobs: Sequence[tuple[Request, int]]) -> list[Answer]:
        verifier = Verifier(target, tokenizer, ServiceSettings(port=0))
        server = await verifier.start()
        found: list[Answer] = []
        try:
            for request, length in jobs:
                policy = Fixed(length)
                target.idle = drafter.idle if length else None
                async with EdgeClient(server.url, drafter_tokenizer, drafter, policy) as edge:
                    async for piece in edge.stream(edge.session(), request):
                        if isinstance(piece, Answer):
                            found.append(piece)
        finally:
            await verifier.stop()
            target.idle = None
        return found

    return lambda *jobs: asyncio.run(answers(jobs))


@pytest.fixture(scope="session")
def judge(target: Target) -> Callable[[Answer, Sampling], Audit]:
    """Replays an answer through the plain target; equal answers once."""
    known: dict[tuple[tuple[int, ...], tuple[int, ...], Sampling], Audit] = {}

    def replay(answer: Answer, sampling: Sampling) -> Audit:
        key = (answer.prompt_ids, answer.ids, sampling)
        if key not in known:
            tolerance = TOLERANCE / (sampling.temperature or 1.0)
            known[key] = audit(target, answer.prompt_ids, answer.ids, sampling, tolerance)
        return known[key]

    return replay


Note = Callable[[str, int | str, Answer, Audit], None]


@pytest.fixture(scope="session")
def note() -> Iterator[Note]:
    """Collects the audits and writes the report at the end: near-ties by draft length."""
    rows: list[dict[str, Any]] = []

    def keep(kind: str, length: int | str, answer: Answer, found: Audit) -> None:
        rows.append(
            {
                "kind": kind,
                "draft_length": length,
                "tokens": found.tokens,
                "identical": found.identical,
                "near_ties": found.near_ties,
                "outside": found.outside,
                "worst_gap": found.worst,
                "acceptance_rate": answer.acceptance_rate,
                "mean_acceptance_length": answer.mean_acceptance_length,
            }
        )

    yield keep
    if not rows:
        return
    totals: dict[str, dict[str, Any]] = defaultdict(lambda: {"tokens": 0, "near_ties": 0})
    for row in rows:
        total = totals[str(row["draft_length"])]
        total["tokens"] += row["tokens"]
        total["near_ties"] += row["near_ties"]
    for total in totals.values():
        total["rate"] = total["near_ties"] / total["tokens"]
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    report = {"tolerance": TOLERANCE, "by_draft_length": totals, "answers": rows}
    REPORT.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
