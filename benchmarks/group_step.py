"""What a step of a group takes beyond its slowest member and one round trip: real processes.

Drafters in processes of their own on this machine's loopback, which stands for the local network.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import Any

from outrider.benchmarks.embedded import models, prompts
from outrider.edge_client.group.members import Member, Table
from outrider.edge_client.group.remote import Lan, RemoteMember, RemoteSettings
from outrider.protocol.decoding.rules import Proposal
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import BackendError
from outrider.runtime.lm.drafter import Drafter
from outrider.runtime.lm.factory import load_lm
from outrider.runtime.net.client import connect
from outrider.runtime.net.link import Tuning
from outrider.runtime.text.fingerprint import describe
from outrider.runtime.text.tokenizer import load_tokenizer

PINGS, ELSEWHERE = 50, 2


class TimedMember(Member):
    """Remembers what its last step took."""

    took = 0.0

    def propose(self, *arguments: Any) -> list[Proposal]:
        """As ever, timed."""
        began = perf_counter()
        found = super().propose(*arguments)
        self.took = perf_counter() - began
        return found


@contextmanager
def _drafter() -> Iterator[str]:
    """``outrider drafter serve`` with the embedded drafter; its address."""
    command = [sys.executable, "-m", "outrider.cli.main", "drafter", "serve"]
    process = subprocess.Popen(
        [*command, "--json", "--with-stdin", "--port", "0", "--max-sessions", "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stdout is not None  # asked for above
        line = process.stdout.readline()
        if not line:
            raise BackendError("the drafter did not start")
        yield str(json.loads(line)["url"])
    finally:
        process.kill()
        process.communicate()


async def _round_trip(url: str) -> float:
    """Seconds: the median of some pings on a connection of its own."""
    async with await connect(url, tuning=Tuning(ping_interval=None)) as link:
        return statistics.median([await link.ping() for _ in range(PINGS)])


def _step(table: Table, members: Sequence[Member], ids: list[int]) -> tuple[float, float]:
    """Seconds of one step, and of that the slowest member's own."""
    sampling = Sampling(temperature=1.0, seed=1)
    began = perf_counter()
    found = table.together(
        range(len(members)),
        lambda m: m.propose(ids, 1, sampling, 2, frozenset()),
        lambda m: m.behind(ids),
    )
    seconds = perf_counter() - began
    if len(found) < len(members):
        return 0.0, 0.0  # somebody was passed by: no sample
    ids.append(found[0][0].id)
    return seconds, max(member.took for member in members)  # type: ignore[attr-defined]


def step_overhead(say: Callable[[str], object], *, steps: int) -> dict[str, Any]:
    """``group_step_overhead_ms`` and what it is made of: medians, and the 95th percentile."""
    tokenizer = load_tokenizer(models() / "target")
    fingerprint = describe(tokenizer).fingerprint()
    here = Drafter(load_lm(models() / "drafter").lm, tokenizer.size)
    with ExitStack() as stack:
        urls = [stack.enter_context(_drafter()) for _ in range(ELSEWHERE)]
        trip = max(asyncio.run(_round_trip(url)) for url in urls)
        lan = Lan()
        away = [
            RemoteMember(
                RemoteSettings(url=url, fingerprint=fingerprint, usable=tokenizer.size), lan
            )
            for url in urls
        ]
        members: list[Member] = [TimedMember("here", here), *away]
        table = Table(members)
        stack.callback(table.close)
        for member in away:
            member.wait(30)
        ids = list(tokenizer.encode_prompt(prompts("scripture")[0]))
        samples = [_step(table, members, ids) for _ in range(steps)][10:]
    over = sorted(1e3 * (whole - own - trip) for whole, own in samples if whole)
    if not over:
        raise BackendError("no step of the group was whole: the machine is too busy to measure")
    found = {
        "group_step_overhead_ms": statistics.median(over),
        "group_step_overhead_p95_ms": over[int(0.95 * len(over))],
        "group_step_ms": 1e3 * statistics.median(w for w, _ in samples if w),
        "group_step_round_trip_ms": 1e3 * trip,
        "group_step_samples": len(over),
    }
    say(f"a step of {1 + ELSEWHERE} members: {found['group_step_overhead_ms']:.2f} ms over")
    return found
