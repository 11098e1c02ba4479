"""``outrider bench real``: the real pair on this machine, beside what else can run it.

Three questions. What does a step of the drafter cost beyond llama.cpp's own decode? How much memory
does an edge hold, and does it grow? How many tokens a second come out, against plain cloud
streaming and other programs on the same two files? Whatever the answers are, they are reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Column, Table

from outrider.benchmarks.meta import emit
from outrider.benchmarks.real_parts import EDGE_CTX, PROMPTS
from outrider.edge_client.adaptive import Adaptive
from outrider.edge_client.answer import Answer
from outrider.edge_client.client import EdgeClient
from outrider.edge_client.policy import Fixed, Policy
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import BackendError
from outrider.protocol.request import Request
from outrider.runtime.hub.resolve import resolve
from outrider.runtime.lm.drafter import Drafter
from outrider.runtime.lm.factory import load_lm
from outrider.runtime.lm.llama_library import library
from outrider.runtime.text.tokenizer import load_tokenizer

PAIR = "qwen2.5-coder"
LENGTHS = (2, 4)
ROUNDS = 40
ROUND = 4
ANSWERS = 50
PART_SECONDS = 240.0
"""A part that takes longer is given up, and its row says so."""

MEMORY_SECONDS = 900.0
"""The same for the edge whose memory is watched: nothing is timed there."""

ESTIMATE = "about ten minutes on two quiet cores"

Say = Callable[[str], None]
Times = NDArray[np.float64]


def real(
    json_output: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on standard output.")
    ] = False,
    tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", min=8, help="Tokens an answer.")
    ] = 48,
    answers: Annotated[
        int, typer.Option(min=2, help="Answers over which the edge's memory is watched.")
    ] = ANSWERS,
    others: Annotated[
        bool, typer.Option(help="Run llama-cpp-python and transformers on the same files too.")
    ] = True,
) -> None:
    """The real pair here: overhead of a draft step, memory of an edge, speed beside other programs.

    Needs both models on this machine: outrider pull qwen2.5-coder.

    Example: outrider bench real --json
    """
    result = measure(_sayer(), tokens=tokens, answers=answers, others=others)
    if json_output:
        emit(result)
        return
    console = Console()
    console.print(
        f"draft step: {result['draft_overhead_ms']:.2f} ms beyond the decode of "
        f"{result['draft_decode_ms']:.1f} ms ({result['draft_overhead_ratio']:.1%})"
    )
    console.print(
        f"edge process: {result['edge_rss_mib']:.0f} MiB at {result['edge_n_ctx']} tokens "
        f"of context, {result['edge_rss_growth_mib']:+.1f} in {result['edge_answers']} answers"
    )
    table = Table("", Column("tok/s", justify="right"), Column("accepted", justify="right"))
    for row in result["rows"]:
        rate, accepted = row.get("tokens_per_second"), row.get("acceptance_rate")
        table.add_row(
            row["name"] + (f": {row['error']}" if "error" in row else ""),
            "-" if rate is None else f"{rate:.1f}",
            "-" if accepted is None else f"{accepted:.2f}",
        )
    console.print(table)


def _sayer() -> Say:
    """Progress on standard error, with the time since the start."""
    console, started = Console(stderr=True, highlight=False), time.monotonic()

    def say(text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - started), 60)
        console.print(f"[{minutes}:{seconds:02}] {text}", markup=False)

    say(f"this takes {ESTIMATE}")
    return say


def measure(
    say: Say, *, tokens: int = 48, answers: int = ANSWERS, others: bool = True
) -> dict[str, Any]:
    """All three measurements on the pair; the JSON object of the command.

    Raises:
        BackendError: the models are not on this machine, or a process of ours failed.
    """
    drafter, target = resolve(PAIR, "drafter"), resolve(PAIR, "target")
    say("overhead of a draft step ...")
    overhead = draft_overhead(drafter)
    say(f"memory of an edge over {answers} answers ...")
    memory = edge_memory(drafter, answers)
    say("tokens a second ...")
    rows = asyncio.run(ours(drafter, target, tokens, say))
    if others:
        rows += other_programs(drafter, target, tokens, say)
    return {"drafter": drafter.name, "target": target.name, **overhead, **memory, "rows": rows}


def draft_overhead(path: Path, rounds: int = ROUNDS) -> dict[str, Any]:
    """What a step of the drafter takes beyond the library's decode of that same step.

    The decode is timed where it happens, inside the step: no second run, whose noise would be
    larger than the difference. With one thread a model, all of it is done by the calling thread:
    its processor time counts, which a busy machine does not change, and wall time is given beside.
    """
    tokenizer = load_tokenizer(path)
    drafter = Drafter(load_lm(path, n_ctx=1024).lm, tokenizer.size, tokenizer.eos)
    found: dict[str, Any] = {}
    try:
        for name, sampling in (
            ("", Sampling()),
            ("coupled_", Sampling(temperature=0.8, top_p=0.95, seed=1)),
        ):
            ids = tokenizer.encode_prompt(PROMPTS["code"])
            drafter.prefill(ids, len(ids))
            steps = []
            for _ in range(rounds):
                with _decode_time() as spent:
                    started = _clocks()
                    guess = drafter.draft(ids, len(ids), sampling, ROUND)
                    whole = _clocks() - started
                steps.append(np.array([whole - sum(spent), sum(spent)]) / len(spent))
                ids = [*ids, *guess.tokens]
            # [overhead or decode, processor or wall]
            (own, own_wall), (decode, decode_wall) = np.median(np.array(steps), axis=0)
            found[f"{name}draft_overhead_ms"] = 1e3 * float(own)
            found[f"{name}draft_decode_ms"] = 1e3 * float(decode)
            found[f"{name}draft_overhead_ratio"] = float(own / decode)
            found[f"{name}draft_overhead_wall_ms"] = 1e3 * float(own_wall)
            found[f"{name}draft_decode_wall_ms"] = 1e3 * float(decode_wall)
    finally:
        drafter.close()
    return found


def _clocks() -> Times:
    """Processor time of this thread and wall time, in seconds."""
    return np.array([time.thread_time(), time.perf_counter()])


@contextlib.contextmanager
def _decode_time() -> Iterator[list[Times]]:
    """What each decode of llama.cpp inside the block took."""
    api = library()
    spent: list[Times] = []
    original = api.llama_decode

    def timed(*arguments: Any) -> Any:
        started = _clocks()
        code = original(*arguments)
        spent.append(_clocks() - started)
        return code

    api.llama_decode = timed
    try:
        yield spent
    finally:
        api.llama_decode = original


def edge_memory(drafter: Path, answers: int = ANSWERS, tokens: int = 16) -> dict[str, Any]:
    """Resident memory of an edge process with the drafter, over some answers.

    The cloud is the drafter's own file: nearly every guess is right, as on a good day.
    """
    with _cloud(drafter) as url:
        lines = _run(
            "edge-memory", url, str(drafter), str(answers), str(tokens), limit=MEMORY_SECONDS
        )
    sizes = [line["rss_mib"] for line in lines]
    return {
        "edge_n_ctx": EDGE_CTX,
        "edge_answers": len(sizes) - 1,
        "edge_rss_mib": max(sizes),
        "edge_rss_loaded_mib": sizes[0],
        # The first answer brings in what is needed once; growth is what comes after it.
        "edge_rss_growth_mib": sizes[-1] - sizes[1],
    }


PLAIN = "outrider, plain cloud streaming"


def _ways() -> list[tuple[str, Policy, str]]:
    """How our own pair is run: name, policy, objective."""
    lockstep: list[tuple[str, Policy, str]] = [
        (f"outrider, lockstep {length}", Fixed(length), "cost") for length in LENGTHS
    ]
    return [
        (PLAIN, Fixed(0), "latency"),
        *lockstep,
        ("outrider, adaptive", Adaptive(), "balanced"),
    ]


async def ours(drafter: Path, target: Path, tokens: int, say: Say) -> list[dict[str, Any]]:
    """Plain cloud streaming and drafting at a few lengths, two processes on loopback."""
    tokenizer = load_tokenizer(drafter)
    lm = load_lm(drafter, n_ctx=1024).lm
    rows = []
    try:
        with _cloud(target) as url:
            for name, policy, objective in _ways():
                drafts = name != PLAIN
                guesser = Drafter(lm, tokenizer.size, tokenizer.eos) if drafts else None
                answers = []
                async with EdgeClient(url, tokenizer, guesser, policy) as edge:
                    for prompt in PROMPTS.values():
                        ids = tuple(tokenizer.encode_prompt(prompt))
                        request = Request(
                            max_tokens=tokens, ids=ids, ignore_eos=True, objective=objective
                        )
                        session = edge.session()
                        async for piece in edge.stream(session, request):
                            if isinstance(piece, Answer):
                                answers.append(piece)
                        edge.machine.close(session)
                rows.append(_row(name, answers))
                say(f"{name}: {rows[-1]['tokens_per_second']:.1f} tokens/s")
    finally:
        lm.close()
    return rows


def _row(name: str, answers: list[Answer]) -> dict[str, Any]:
    emitted = sum(len(answer.ids) for answer in answers)
    drafted = sum(answer.drafted for answer in answers)
    return {
        "name": name,
        "tokens": emitted,
        "tokens_per_second": emitted / sum(answer.seconds for answer in answers),
        "acceptance_rate": sum(a.accepted for a in answers) / drafted if drafted else None,
        "passes_per_token": sum(answer.passes or 0 for answer in answers) / emitted,
    }


def other_programs(drafter: Path, target: Path, tokens: int, say: Say) -> list[dict[str, Any]]:
    """The same prompts through other programs; one that cannot load the files says why."""
    rows = []
    for part, mode, name in (
        ("llama-cpp-python", "plain", "llama-cpp-python, plain"),
        ("llama-cpp-python", "lookup", "llama-cpp-python, its prompt look-up"),
        ("llama-cpp-python", "model", "llama-cpp-python, the drafter as its draft model"),
        ("transformers", "plain", "transformers, plain, weights unpacked"),
        ("transformers", "assisted", "transformers, assisted generation, weights unpacked"),
    ):
        row: dict[str, Any] = {"name": name}
        say(f"{name} ...")
        try:
            (line,) = _run(part, str(target), str(drafter), mode, str(tokens))
            row |= {**line, "tokens_per_second": line["tokens"] / line["seconds"]}
            say(f"{name}: {row['tokens_per_second']:.1f} tokens/s")
        except BackendError as error:
            row["error"] = str(error)
            say(f"{name}: {error}")
        rows.append(row)
    return rows


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "outrider.benchmarks.real_parts", *arguments]


def _run(*arguments: str, limit: float = PART_SECONDS) -> list[dict[str, Any]]:
    """The JSON lines of a part.

    Raises:
        BackendError: it failed or took too long; in its last words.
    """
    try:
        done = subprocess.run(
            _command(*arguments), capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        raise BackendError(f"it took more than {limit:.0f} s") from None
    if done.returncode:
        words = done.stderr.strip().splitlines()
        raise BackendError(words[-1][:300] if words else f"exit status {done.returncode}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@contextlib.contextmanager
def _cloud(model: Path) -> Iterator[str]:
    """The address of a verifier in a process of its own, ended when the block is left."""
    process = subprocess.Popen(
        _command("cloud", str(model)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None  # asked for above
        line = process.stdout.readline()
        if not line:
            _, errors = process.communicate(timeout=10)
            raise BackendError(f"the verifier did not start: {errors.strip()[-2000:]}")
        yield json.loads(line)["url"]
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
