"""``outrider bench endpoint``: what the endpoint adds to ``outrider run``; how soon it is ready.

The same answers, in turn, from a client of the library as ``outrider run`` uses it and from
``outrider serve`` in a process of its own, over HTTP. Drafter, policy, cloud and text are the same.
The embedded target is *paced*, so that what is measured is not lost in the noise of the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from rich.console import Console

from outrider.benchmarks.embedded import DOMAINS, cloud, models, prompts
from outrider.benchmarks.meta import emit
from outrider.edge_client.answer import Answer, Piece
from outrider.edge_client.client import EdgeClient
from outrider.edge_client.policy import Fixed
from outrider.protocol.errors import BackendError, OutriderError
from outrider.protocol.request import Request
from outrider.runtime.hub.resolve import resolve
from outrider.runtime.lm.drafter import Drafter
from outrider.runtime.lm.factory import load_lm
from outrider.runtime.text.tokenizer import Tokenizer, load_tokenizer

STEP_MS = 25.0
DRAFT = 4
REAL = "qwen2.5-coder"
STARTS = 3


@dataclass(frozen=True, slots=True)
class Timed:
    """One answer: seconds to its first token, seconds a token after that, and its text."""

    first: float
    each: float
    text: str


@dataclass(frozen=True, slots=True)
class Start:
    """Until it was ready: seconds, and those on a processor. A busy machine adds to the first."""

    seconds: float
    processor: float


@contextlib.contextmanager
def serving(url: str, pack: Path, *more: str) -> Iterator[tuple[dict[str, Any], Start]]:
    """``outrider serve`` for as long as the block lasts: what it said, and what that took.

    Raises:
        BackendError: it did not start.
    """
    command = [sys.executable, "-m", "outrider.cli.main", "serve", "--cloud", url, "--port", "0"]
    command += ["--json", "--with-stdin", "--draft-model", str(pack), *more]
    env = {k: v for k, v in os.environ.items() if not k.startswith("OUTRIDER_")}
    started = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env | {"OUTRIDER_CONFIG": os.devnull},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - started
        if not line:
            _, errors = process.communicate(timeout=10)
            raise BackendError(f"outrider serve did not start: {errors.decode()[-500:]}")
        yield json.loads(line), Start(seconds, _processor_seconds(process.pid))
    finally:
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def endpoint(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and shorter answers.")] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on standard output.")
    ] = False,
) -> None:
    """What the endpoint adds to `outrider run` a token and to the first one; how soon it is ready.

    The target is paced. Example: outrider bench endpoint --quick --json
    """
    result = asyncio.run(measure(Console(stderr=True).print, quick=quick))
    if json_output:
        emit(result)
    else:
        Console().print_json(data=result)


async def measure(say: Callable[[str], None], *, quick: bool) -> dict[str, Any]:
    """Run the measurements; the JSON object of the command."""
    tokens, each = (48, 1) if quick else (96, 4)
    with cloud(STEP_MS, lookup=0) as paced:
        fixed = ("--policy", "fixed", "--draft-max", str(DRAFT))
        with serving(paced.url, models() / "drafter", *fixed) as (ready, _):
            pairs = await _pairs(paced.url, ready["url"], tokens, each, say)
    same = all(a.text == b.text for a, b in pairs)
    loaded = _ready(say)
    return {
        "pair": f"embedded ({paced.backend})",
        "paced_ms": STEP_MS,
        "answers": len(pairs),
        "tokens": tokens,
        "same_text": same,
        "run_ms_per_token": _median([a.each for a, _ in pairs]) * 1e3,
        "endpoint_ms_per_token": _median([b.each for _, b in pairs]) * 1e3,
        "throughput_ratio": _median([a.each / b.each for a, b in pairs]),
        "run_ttft_ms": _median([a.first for a, _ in pairs]) * 1e3,
        "ttft_added_ms": _median([b.first - a.first for a, b in pairs]) * 1e3,
        **loaded,
    }


async def _pairs(
    url: str, base: str, tokens: int, each: int, say: Callable[[str], None]
) -> list[tuple[Timed, Timed]]:
    """The same answers both ways, in turn; the first pair only warms both up."""
    tokenizer = load_tokenizer(models() / "drafter")
    drafter = Drafter(load_lm(models() / "drafter", "auto").lm, tokenizer.size, tokenizer.eos)
    texts = [text for domain in DOMAINS for text in prompts(domain)[: each + 1]]
    pairs = []
    try:
        async with EdgeClient(url, tokenizer, drafter, Fixed(DRAFT)) as edge:
            for text in texts:
                ours = await _direct(edge, tokenizer, text, tokens)
                theirs = await asyncio.to_thread(_over_http, base, text, tokens)
                pairs.append((ours, theirs))
                added = (theirs.first - ours.first) * 1e3
                say(f"{1 / ours.each:.1f} and {1 / theirs.each:.1f} tok/s, {added:+.1f} ms first")
    finally:
        drafter.close()
    return pairs[1:]


async def _direct(edge: EdgeClient, tokenizer: Tokenizer, text: str, tokens: int) -> Timed:
    """As ``outrider run`` does it, from the text on."""
    started = time.perf_counter()
    ids = tuple(tokenizer.encode_prompt(text))
    session = edge.session()
    times: list[float] = []
    answer: Answer | None = None
    request = Request(ids=ids, max_tokens=tokens, ignore_eos=True)
    async for event in edge.stream(session, request):
        if isinstance(event, Piece) and event.text:
            times.append(time.perf_counter())
        elif isinstance(event, Answer):
            answer = event
    edge.machine.close(session)
    assert answer is not None
    return _timed(started, times, tokens, answer.text)


def _over_http(base: str, text: str, tokens: int) -> Timed:
    """As an app does it: a connection, a request, a stream."""
    place = urlsplit(base)
    body = {"prompt": text, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    started = time.perf_counter()
    link = http.client.HTTPConnection(place.netloc, timeout=120)
    link.request("POST", f"{place.path}/completions", json.dumps(body | {"stream": True}))
    response = link.getresponse()
    if response.status != 200:
        raise BackendError(f"the endpoint answered {response.status}: {response.read()[:500]!r}")
    times: list[float] = []
    parts: list[str] = []
    while line := response.readline():
        if line.startswith(b"data: {"):
            part = json.loads(line[6:])["choices"][0]["text"]
            if part:
                times.append(time.perf_counter())
                parts.append(part)
    link.close()
    return _timed(started, times, tokens, "".join(parts))


def _timed(started: float, times: list[float], tokens: int, text: str) -> Timed:
    if len(times) < 2:
        raise BackendError("an answer came in one piece: nothing to measure")
    return Timed(times[0] - started, (times[-1] - times[0]) / (tokens - 1), text)


def _ready(say: Callable[[str], None]) -> dict[str, Any]:
    """Seconds from the start of the process until it can answer, warm; with a real pack if any."""
    try:
        pack, target = _real()
    except OutriderError as error:
        say(f"the 0.5B pack is not here, the embedded one takes its place: {error}")
        with cloud() as unpaced:
            times = _starts(unpaced.url, models() / "drafter")
        name = "embedded"
    else:
        from outrider.cli.child import CloudChild

        arguments = ["--model", str(target), "--ctx-size", "512", "--max-sessions", "1"]
        with CloudChild(arguments) as child:
            times = _starts(child.ready["url"], pack)
        name = pack.name
    say(f"ready after {', '.join(f'{start.seconds:.2f}' for start in times)} s with {name}")
    return {
        "ready_s": min(start.seconds for start in times[1:]),
        "ready_processor_s": min(start.processor for start in times[1:]),
        "ready_first_s": times[0].seconds,
        "ready_pack": name,
    }


def _real() -> tuple[Path, Path]:
    """The real pair's drafter and target, where they were pulled."""
    drafter = resolve(REAL)
    targets = sorted(drafter.parent.glob("*1.5b*.gguf"))
    if not targets:
        raise BackendError(f"{drafter.parent} has no 1.5B target")
    return drafter, targets[0]


def _starts(url: str, pack: Path) -> list[Start]:
    times = []
    for _ in range(STARTS):
        with serving(url, pack) as (_, start):
            times.append(start)
    return times


def _processor_seconds(pid: int) -> float:
    """What a process has used of processors, itself and the kernel for it. Linux."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _median(values: list[float]) -> float:
    return statistics.median(values)
