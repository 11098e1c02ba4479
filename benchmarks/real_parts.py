"""Processes of ``outrider bench real``: the cloud, an edge whose memory is watched, other programs.

``python -m outrider.benchmarks.real_parts PART ARGUMENTS`` prints JSON lines. Each part has a
process of its own, so that its memory and threads are its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from outrider.edge_client.answer import Answer
from outrider.edge_client.client import EdgeClient
from outrider.edge_client.policy import Fixed
from outrider.protocol.request import Request
from outrider.runtime.lm.drafter import Drafter
from outrider.runtime.lm.factory import load_lm
from outrider.runtime.lm.memory import available
from outrider.runtime.text.tokenizer import load_tokenizer

PROMPTS = {
    "code": "def quicksort(values: list[int]) -> list[int]:\n    ",
    "prose": "The old lighthouse keeper climbed the stairs every evening, because",
    "german": "Die Straße führt über die Brücke zum Schloss, und am Abend",
}
CLOUD_CTX = 2048
EDGE_CTX = 4096
ENOUGH_SECONDS = 60.0
"""After so long no further prompt is begun: other programs may be slow."""


def say(**facts: Any) -> None:
    """One JSON line for whoever started this process."""
    print(json.dumps(facts), flush=True)


def cloud(model: str) -> None:
    """Serve a GGUF file with one thread; the address first, then until standard input ends."""
    from outrider.cloud_server.driver import ServiceSettings, Verifier
    from outrider.cloud_server.targets.llama_cpp import LlamaTarget

    async def serve() -> None:
        target = LlamaTarget.load(model, n_ctx=CLOUD_CTX, slots=2, threads=1)
        service = Verifier(target, load_tokenizer(model), ServiceSettings(port=0, rehearse=2.0))
        server = await service.start()
        say(url=server.url)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await service.stop(drain=False)

    asyncio.run(serve())


def edge_memory(url: str, model: str, answers: str, tokens: str) -> None:
    """Resident MiB of an edge after loading and after each answer, a long prompt first."""

    async def work() -> None:
        tokenizer = load_tokenizer(model)
        lm = load_lm(model, n_ctx=EDGE_CTX).lm
        drafter = Drafter(lm, tokenizer.size, tokenizer.eos)
        say(rss_mib=resident(), answer=0)
        words = " ".join(PROMPTS.values())
        async with EdgeClient(url, tokenizer, drafter, Fixed(4)) as edge:
            for number in range(1, int(answers) + 1):
                text = words * 8 if number == 1 else f"{number}. {words}"
                ids = tuple(tokenizer.encode_prompt(text))
                session = edge.session()
                request = Request(max_tokens=int(tokens), ids=ids, ignore_eos=True)
                async for piece in edge.stream(session, request):
                    if isinstance(piece, Answer):
                        say(rss_mib=resident(), answer=number, drafted=piece.drafted)
                edge.machine.close(session)

    asyncio.run(work())


def resident() -> float:
    """MiB of this process in memory, pages of mapped files included."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return float("nan")


# Others are used as their own users use them, and imported by name: nothing here depends on them.


def llama_cpp_python(target: str, drafter: str, mode: str, tokens: str) -> None:
    """llama-cpp-python alone (``plain``), with its prompt look-up, or with the drafter model."""
    api = importlib.import_module("llama_cpp")
    options: dict[str, Any] = {}
    if mode == "lookup":
        speculative = importlib.import_module("llama_cpp.llama_speculative")
        options["draft_model"] = speculative.LlamaPromptLookupDecoding(num_pred_tokens=10)
    elif mode == "model":
        options["draft_model"] = _draft_hook(api, drafter)
    llama = api.Llama(
        target,
        n_ctx=512,
        n_threads=2,
        n_threads_batch=2,
        verbose=False,
        logits_all="draft_model" in options,
        **options,
    )

    def run(prompt: str, count: int) -> int:
        done = llama(prompt, max_tokens=count, temperature=0.0)
        return int(done["usage"]["completion_tokens"])

    _measure(run, int(tokens))


def _draft_hook(api: Any, path: str) -> Any:
    """The drafter behind llama-cpp-python's draft option, which wants ids for ids."""
    import numpy as np

    speculative = importlib.import_module("llama_cpp.llama_speculative")
    inner = api.Llama(path, n_ctx=512, n_threads=2, n_threads_batch=2, verbose=False)

    class ByModel(speculative.LlamaDraftModel):  # type: ignore[name-defined, misc]
        def __call__(self, input_ids: Any, /, **_: Any) -> Any:
            found = []
            for token in inner.generate([int(i) for i in input_ids], temp=0.0):
                found.append(token)
                if len(found) == 4:
                    break
            return np.array(found, dtype=np.intc)

    return ByModel()


def transformers(target: str, drafter: str, mode: str, tokens: str) -> None:
    """transformers' own generation from the same files, alone or with the assistant model.

    It unpacks the weights: to float32, which is the quickest on most CPUs, where there is room.
    """
    torch = importlib.import_module("torch")
    library = importlib.import_module("transformers")
    torch.set_num_threads(2)
    files = [target, drafter] if mode == "assisted" else [target]
    dtype = _unpacked(files)

    def load(path: str) -> Any:
        file = Path(path)
        return library.AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=getattr(torch, dtype)
        ).eval()

    model = load(target)
    assistant = load(drafter) if mode == "assisted" else None
    tokenizer = load_tokenizer(target)  # the same ids as in all other rows

    def run(prompt: str, count: int) -> int:
        ids = torch.tensor([tokenizer.encode_prompt(prompt)])
        with torch.inference_mode():
            done = model.generate(
                ids, max_new_tokens=count, do_sample=False, assistant_model=assistant
            )
        return int(done.shape[1] - ids.shape[1])

    _measure(run, int(tokens), weights=dtype)


UNPACKED = {"float32": 9.0, "bfloat16": 5.0}
"""Bytes of memory for each byte of a 4-bit file, while it is unpacked to this type."""


def _unpacked(files: Sequence[str]) -> str:
    """The type of weights that there is memory for; ends the process if there is for none."""
    size = sum(Path(file).stat().st_size for file in files)
    room = available() or 0
    for dtype, factor in UNPACKED.items():
        if factor * size < room:
            return dtype
    need = UNPACKED["bfloat16"] * size
    sys.exit(f"needs about {need / 2**30:.1f} GiB unpacked, {room / 2**30:.1f} GiB are free")


def _measure(run: Callable[[str, int], int], count: int, **facts: Any) -> None:
    """Warm up, then the prompts while there is time; tokens and seconds, reading included."""
    run("1 + 1 =", 4)
    tokens, prompts, started = 0, 0, time.perf_counter()
    for prompt in PROMPTS.values():
        tokens += run(prompt, count)
        prompts += 1
        if time.perf_counter() - started > ENOUGH_SECONDS:
            break
    seconds = time.perf_counter() - started
    say(tokens=tokens, prompts=prompts, seconds=seconds, rss_mib=resident(), **facts)


PARTS: dict[str, Callable[..., None]] = {
    "cloud": cloud,
    "edge-memory": edge_memory,
    "llama-cpp-python": llama_cpp_python,
    "transformers": transformers,
}


def main(arguments: Sequence[str]) -> None:
    """The command line of the process."""
    with contextlib.suppress(KeyboardInterrupt):
        PARTS[arguments[0]](*arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
