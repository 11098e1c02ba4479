"""A verifier process for benchmarks: one target, optionally paced, with a record of its passes.

``python -m outrider.benchmarks.paced_cloud --model M --step-ms 25`` times its passes as ``outrider
cloud serve`` does, prints its URL on a line and serves until its standard input closes. To each
line there it answers with one: the passes so far as a JSON list, of each its seconds and, for each
row, the committed length and how many decisions were wanted. (Writing them out one by one would be
part of the rounds that are measured.) ``--own`` names a draft model beside the target, paced to
``--own-step-ms``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.cloud_server.driver import ServiceSettings, Verifier
from outrider.cloud_server.planner import EngineSettings
from outrider.cloud_server.targets.base import Row
from outrider.cloud_server.targets.factory import load_target
from outrider.protocol.errors import OutriderError
from outrider.runtime.lm.factory import load_lm
from outrider.runtime.text.tokenizer import load_tokenizer
from outrider.simulator.paced import PacedDrafter, PacedTarget

REHEARSAL = 1.0
"""Seconds for which the passes are timed at most before the first edge comes."""

READING = 1e4
"""Ids a second that a draft model beside the target reads."""


async def serve(
    model: Path,
    backend: str,
    step: float,
    lookup: int,
    *,
    slots: int,
    each: float,
    step_tokens: int,
    own: Path | None,
    own_step: float,
) -> None:
    """Serve on a free port of this machine until standard input ends."""
    target = load_target(str(model), backend=backend, threads=1, slots=slots)
    passes: list[tuple[float, Sequence[Row]]] = []

    def answer() -> None:
        for _ in sys.stdin:
            print(json.dumps([_pass(*seen) for seen in passes]), flush=True)

    paced = PacedTarget(
        target, step, lambda seconds, rows: passes.append((seconds, rows)), each=each
    )
    engine = EngineSettings(lookup=lookup, step_tokens=step_tokens)
    settings = ServiceSettings(port=0, rehearse=REHEARSAL, engine=engine)
    beside = None
    if own is not None:
        tokenizer = load_tokenizer(own)
        drafter = PacedDrafter(
            load_lm(own).lm, tokenizer.size, tokenizer.eos, step=own_step, rate=READING
        )
        beside = drafter, tokenizer
    service = Verifier(paced, load_tokenizer(model), settings, own=beside)
    server = await service.start()
    print(server.url, flush=True)
    await asyncio.to_thread(answer)
    await service.stop(drain=False)


def _pass(seconds: float, rows: Sequence[Row]) -> dict[str, Any]:
    shapes = [(len(row.ids) - row.want + 1, row.want) for row in rows]
    return {"seconds": seconds, "rows": shapes}


def main() -> None:
    """The command line of the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--step-ms", type=float, default=0.0)
    parser.add_argument("--lookup", type=int, default=EngineSettings().lookup)
    parser.add_argument("--own", type=Path)
    parser.add_argument("--own-step-ms", type=float, default=0.0)
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--each-ms", type=float, default=0.0)
    parser.add_argument("--step-tokens", type=int, default=EngineSettings().step_tokens)
    args = parser.parse_args()
    step, own_step = args.step_ms / 1000, args.own_step_ms / 1000
    try:
        asyncio.run(
            serve(
                args.model,
                args.backend,
                step,
                args.lookup,
                slots=args.slots,
                each=args.each_ms / 1000,
                step_tokens=args.step_tokens,
                own=args.own,
                own_step=own_step,
            )
        )
    except OutriderError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
