"""64 sessions of real client processes over real sockets, with churn: no error that is no stated
refusal, one text for one question, flat memory, pings answered within 100 ms.

Ten minutes; ``OUTRIDER_LOAD_MINUTES`` says otherwise. Figures are written to the file that
``OUTRIDER_LOAD_REPORT`` names. A ping counts against the cloud only where a second, idle server on
the same machine answered the ping sent at the same time quickly: else the machine was busy.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from outrider.runtime.net.client import connect
from outrider.runtime.net.link import Link, Tuning

MINUTES = float(os.environ.get("OUTRIDER_LOAD_MINUTES", "10"))
PROCESSES, SESSIONS = 16, 4
DRAFTING = 4
"""So many of the processes draft."""

CHURN = 6.0
"""Seconds between two client processes that are killed without a word and replaced."""

PING, LATE, QUICK = 0.2, 0.1, 0.03
MODELS = Path(__file__).resolve().parents[2] / "models"
CLIENT = Path(__file__).with_name("load_client.py")

IDLE_SERVER = """
import asyncio
from outrider.runtime.net.server import serve
async def wait(link):
    while True: await link.recv()
async def main():
    server = await serve(wait)
    print(server.url, flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


@dataclass
class Crowd:
    """The client processes, and what those that ended by themselves said."""

    url: str
    end: float
    clients: list[subprocess.Popen[bytes]] = field(default_factory=list)
    reports: list[dict] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    killed: int = 0
    started: int = 0

    def start(self) -> None:
        seconds = max(5.0, self.end - time.monotonic())
        draft = "1" if len(self.clients) % (PROCESSES // DRAFTING) == 0 else "0"
        args = [self.url, str(MODELS), str(SESSIONS), str(seconds), str(self.started), draft]
        self.started += 1
        self.clients.append(
            subprocess.Popen(
                [sys.executable, str(CLIENT), *args],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
        )

    def churn(self, dice: random.Random) -> None:
        """One goes as a power cut would take it, another comes."""
        gone = self.clients.pop(dice.randrange(len(self.clients)))
        gone.send_signal(signal.SIGKILL)
        gone.communicate()
        self.killed += 1
        self.start()

    def collect(self) -> None:
        for client in self.clients:
            out, err = client.communicate(timeout=120)
            lines = out.decode().splitlines()
            if client.returncode or len(lines) != 2:
                self.failed.append(err.decode()[-2000:])
            else:
                self.reports.append(json.loads(lines[1]))


def resident(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGESIZE")


async def both_pings(cloud: Link, idle: Link) -> tuple[float, float]:
    return await asyncio.gather(cloud.ping(), idle.ping())


async def watch(url: str, idle_url: str, pid: int, crowd: Crowd) -> tuple[list, list]:
    """Pings of cloud and idle server together, and the cloud's memory, until the end."""
    pings, memory, dice = [], [], random.Random(7)
    quiet = Tuning(ping_interval=None)
    cloud, idle = await connect(url, tuning=quiet), await connect(idle_url, tuning=quiet)
    next_churn = next_look = time.monotonic() + CHURN
    greeted = time.monotonic()
    while time.monotonic() < crowd.end:
        pings.append(await both_pings(cloud, idle))
        await asyncio.sleep(PING)
        if time.monotonic() > greeted + 5:  # nobody stays without a hello for long
            cloud.abort()
            cloud, greeted = await connect(url, tuning=quiet), time.monotonic()
        if time.monotonic() > next_look:
            memory.append(resident(pid))
            next_look += 2.0
        if time.monotonic() > next_churn and time.monotonic() < crowd.end - 10:
            await asyncio.to_thread(crowd.churn, dice)
            next_churn = time.monotonic() + CHURN
    cloud.abort()
    idle.abort()
    return pings, memory


@pytest.mark.slow
@pytest.mark.timeout(MINUTES * 60 + 300)
def test_load(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    crowd: Crowd | None = None
    log = (tmp_path / "cloud.log").open("wb")
    cloud = subprocess.Popen(
        [sys.executable, "-m", "outrider.cli.main", "cloud", "serve", "--port", "0", "--json",
         "--target-backend", "llama", "--max-sessions", "12", "--ctx-size", "512"],
        stdout=subprocess.PIPE, stderr=log,
    )  # fmt: skip
    idle = subprocess.Popen([sys.executable, "-c", IDLE_SERVER], stdout=subprocess.PIPE)
    try:
        url = json.loads(cloud.stdout.readline())["url"]
        idle_url = idle.stdout.readline().decode().strip()
        crowd = Crowd(url, time.monotonic() + MINUTES * 60)
        for _ in range(PROCESSES):
            crowd.start()
        pings, memory = asyncio.run(watch(url, idle_url, cloud.pid, crowd))
        crowd.collect()
        cloud.send_signal(signal.SIGTERM)
        assert cloud.wait(60) == 0
    finally:
        for process in (cloud, idle, *(crowd.clients if crowd else ())):
            process.kill()
            process.wait()
        log.close()
    check(crowd, pings, memory, (tmp_path / "cloud.log").read_text())


def check(crowd: Crowd, pings: list, memory: list[int], log: str) -> None:
    errors = [error for report in crowd.reports for error in report["errors"]]
    refused = sum((Counter(report["refused"]) for report in crowd.reports), Counter())
    late = [ours for ours, idle in pings if ours > LATE]
    ours_late = [ours for ours, idle in pings if ours > LATE and idle < QUICK]
    ordered = sorted(ours for ours, _ in pings)
    half = len(memory) // 2
    early, recent = statistics.median(memory[half // 2 : half]), statistics.median(memory[half:])
    report = {
        "minutes": MINUTES,
        "processes": PROCESSES,
        "sessions": PROCESSES * SESSIONS,
        "killed": crowd.killed,
        "answers": sum(r.get("answers", 0) for r in crowd.reports),
        "cancelled": sum(r.get("cancelled", 0) for r in crowd.reports),
        "tokens": sum(r.get("tokens", 0) for r in crowd.reports),
        "links": sum(r.get("links", 0) for r in crowd.reports),
        "refused": dict(refused),
        "errors": Counter(errors),
        "pings": len(pings),
        "ping_p50_ms": round(1e3 * ordered[len(ordered) // 2], 2),
        "ping_p99_ms": round(1e3 * ordered[int(0.99 * (len(ordered) - 1))], 2),
        "ping_max_ms": round(1e3 * ordered[-1], 2),
        "idle_server_ping_max_ms": round(1e3 * max(idle for _, idle in pings), 2),
        "pings_over_100_ms": len(late),
        "of_them_with_a_quick_idle_server": len(ours_late),
        "memory_mib_early": round(early / 2**20, 1),
        "memory_mib_late": round(recent / 2**20, 1),
        "memory_mib_most": round(max(memory) / 2**20, 1),
    }
    if place := os.environ.get("OUTRIDER_LOAD_REPORT"):
        Path(place).write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    print(json.dumps(report, indent=1))
    assert crowd.failed == []
    assert errors == []
    assert report["answers"] > 64
    texts: dict[str, list[int]] = {}
    for found in crowd.reports:  # one text for one question, whoever asked
        for prompt, ids in found["texts"].items():
            short, long = sorted([texts.get(prompt, []), ids], key=len)
            assert long[: len(short)] == short
            texts[prompt] = long
    assert "Traceback" not in log
    assert ours_late == []
    assert recent < 1.1 * early + (8 << 20)
