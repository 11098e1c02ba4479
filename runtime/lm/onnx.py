"""A drafter exported to ONNX, run by ONNX Runtime: installs from wheels alone on small boards.

Two forms of graph are read. Outrider's own export takes past keys and values and gives back the
grown ones; these stay inside ONNX Runtime (as OrtValues bound to the next step), so that a step
copies nothing but its row of logits. They are never written to: a fork shares them, and a cut waits
until the next feed needs shorter ones. Graphs of onnxruntime-genai's builder write into one buffer
of the whole context in place: a cut costs nothing, a fork copies. Its runtime is not needed.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from outrider.protocol.errors import BackendError, SettingError
from outrider.runtime.extras import hint
from outrider.runtime.lm.base import ListedLM, Rows, check_feed

MODEL_FILE = "model.onnx"
FACTS_FILE = "outrider_onnx.json"
KNOWN_BAD = ("1.21.",)
"""Versions (by prefix) whose ARM wheels die with an illegal instruction on a Raspberry Pi 4."""

PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "dml": "DmlExecutionProvider",
    "webgpu": "WebGpuExecutionProvider",
}
"""What a graph can be built for, and ONNX Runtime's name of it."""

_CPU = PROVIDERS["cpu"]
_OPTIONAL = "position_ids"  # some graphs of the builder count positions themselves
_MASKED = np.finfo(np.float32).min
_CHUNK_IDS = 512
_CHUNK_LOGITS = 16 * 2**20  # floats: the graph computes every row of a chunk, wanted or not


class Facts(msgspec.Struct, frozen=True):
    """``outrider_onnx.json``: the shape of the model that lies beside it."""

    format: int
    layers: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    quantization: str = "none"
    source_sha256: str = ""
    provider: str = "cpu"


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether ONNX Runtime can be imported on this machine, and what happened."""

    ok: bool
    version: str
    detail: str


def probe(module: str = "onnxruntime", timeout: float = 60.0) -> Probe:
    """Import ONNX Runtime in a child process, which may die without taking this one along."""
    code = f"import {module}; print({module}.__version__)"
    try:
        child = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Probe(False, "", f"importing {module} took longer than {timeout:g} s")
    version = child.stdout.strip().splitlines()[-1] if child.stdout.strip() else ""
    if child.returncode < 0:
        detail = f"importing {module} died with signal {-child.returncode}"
        if child.returncode == -4:
            detail += " (illegal instruction: this build is not for this processor)"
        return Probe(False, version, detail)
    if child.returncode != 0:
        complaint = (child.stderr.strip().splitlines() or ["no reason given"])[-1]
        return Probe(False, version, f"importing {module} failed: {complaint}")
    if version.startswith(KNOWN_BAD):
        return Probe(False, version, f"{module} {version} is known to crash on some ARM boards")
    return Probe(True, version, f"{module} {version}")


class OnnxLM(ListedLM):
    """One sequence of an ONNX decoder with explicit past keys and values."""

    def __init__(self, graph: Graph, n_ctx: int) -> None:
        """An empty sequence of at most ``n_ctx`` ids; see :meth:`load`."""
        super().__init__(graph.name, graph.facts.vocab_size, n_ctx)
        self.graph = graph
        self.providers = graph.providers
        self.note = graph.note
        self._past = graph.fresh(n_ctx)  # may hold more positions than _ids after a cut, not fewer
        self._held = 0

    @classmethod
    def load(
        cls,
        path: str | Path,
        n_ctx: int = 0,
        *,
        threads: int = 1,
    ) -> OnnxLM:
        """Load a folder with ``model.onnx`` and ``outrider_onnx.json``, or that ``.onnx`` file.

        ``n_ctx`` 0 is what the model was trained for, which is also the most allowed. The model
        runs on the execution provider that it was built for; where ONNX Runtime lacks that one, on
        the processor, and ``note`` says so.

        Raises:
            SettingError: a number out of range.
            BackendError: a file is missing or broken, or its graph is not of the expected form.
        """
        for setting, value, least in (("n_ctx", n_ctx, 0), ("threads", threads, 1)):
            if value < least:
                raise SettingError(f"{setting} is {value}; it must be at least {least}")
        graph = _open(Path(path), threads)
        most = graph.facts.max_position_embeddings
        return cls(graph, min(n_ctx or most, most))

    def feed(self, ids: Sequence[int], rows: int = 1) -> Rows:
        self._check_open()
        check_feed(self, ids, rows, len(self._ids))
        past, start = self._past, len(self._ids)
        if self._held > start:
            past = self.graph.shorten(past, start)
        out = np.empty((rows, self.row_width), np.float32)
        first_row = len(ids) - rows
        step = max(1, min(_CHUNK_IDS, _CHUNK_LOGITS // self.row_width))
        for begin in range(0, len(ids), step):
            chunk = ids[begin : begin + step]
            logits, past = self.graph.run(chunk, start + begin, past)
            wanted = max(first_row - begin, 0)
            if wanted < len(chunk):
                out[max(begin - first_row, 0) :][: len(chunk) - wanted] = logits[wanted:]
        # Only now, so that a failure above leaves the sequence as it was.
        self._ids.extend(map(int, ids))
        self._past, self._held = past, len(self._ids)
        return out

    def fork(self) -> OnnxLM:
        self._check_open()
        twin = OnnxLM(self.graph, self.n_ctx)
        twin._ids = list(self._ids)
        twin._past, twin._held = self.graph.copy(self._past), self._held
        return twin

    def close(self) -> None:
        super().close()
        self._past, self._held = [], 0


class Graph:
    """The session and its bindings. Keys and values travel as lists of OrtValues, by layer."""

    def __init__(self, session: Any, facts: Facts, name: str) -> None:
        self.facts = facts
        self.name = name
        self.providers: list[str] = session.get_providers()
        self.note = _fallback(facts, self.providers)
        self._session = session
        self._binding = session.io_binding()
        layers = range(facts.layers)
        self._inputs = [f"past_key_values.{i}.{k}" for i in layers for k in ("key", "value")]
        self._outputs = [f"present.{i}.{k}" for i in layers for k in ("key", "value")]
        self._value = _runtime().OrtValue.ortvalue_from_numpy
        self._given = {value.name: value.type for value in session.get_inputs()}
        half = "float16" in self._given.get("past_key_values.0.key", "")
        self._kv = np.float16 if half else np.float32

    def run(self, ids: Sequence[int], start: int, past: list[Any]) -> tuple[Rows, list[Any]]:
        """Evaluate ``ids`` at positions ``start``...: logits ``[len(ids), vocab]``, grown past."""
        binding = self._binding
        binding.clear_binding_outputs()  # or this run would write over the last one's results
        feeds = self._feeds(ids, start)
        held = [self._value(array) for array in feeds.values()]  # borrow the arrays' memory
        for name, value in zip(feeds, held, strict=True):
            binding.bind_ortvalue_input(name, value)
        for name, value in zip(self._inputs, past, strict=True):
            binding.bind_ortvalue_input(name, value)
        binding.bind_output("logits")
        self._bind_present(past)
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:  # its exceptions share no base class of their own
            raise BackendError(f"{self.name}: ONNX Runtime failed: {_first_line(error)}") from error
        logits, *present = binding.get_outputs()
        rows = logits.numpy()[0].astype(np.float32, copy=False)
        return rows, self._grown(past, present)

    def fresh(self, n_ctx: int) -> list[Any]:  # noqa: ARG002 - it grows with the text
        """The keys and values of an empty sequence."""
        return [self._value(self._zeros(0)) for _ in self._inputs]

    def copy(self, past: list[Any]) -> list[Any]:
        """The same for a second sequence: they are never written to."""
        return past

    def shorten(self, past: list[Any], length: int) -> list[Any]:
        """Copies of the keys and values of the first ``length`` positions."""
        return [self._value(np.ascontiguousarray(value.numpy()[:, :, :length])) for value in past]

    def _feeds(self, ids: Sequence[int], start: int) -> dict[str, NDArray[Any]]:
        n = len(ids)
        return {
            "input_ids": np.asarray(ids, np.int64)[None],
            "position_ids": np.arange(start, start + n, dtype=np.int64)[None],
            "attention_bias": causal_bias(n, start),
        }

    def _bind_present(self, past: list[Any]) -> None:  # noqa: ARG002
        for name in self._outputs:
            self._binding.bind_output(name)

    def _grown(self, past: list[Any], present: list[Any]) -> list[Any]:  # noqa: ARG002
        return present

    def _zeros(self, length: int) -> NDArray[Any]:
        facts = self.facts
        return np.zeros((1, facts.kv_heads, length, facts.head_dim), self._kv)


class BuilderGraph(Graph):
    """A graph of onnxruntime-genai's builder: grouped attention over one buffer of the context.

    ``attention_mask`` says by its length how much of the buffer is text.
    """

    def fresh(self, n_ctx: int) -> list[Any]:
        return [self._value(self._zeros(n_ctx)) for _ in self._inputs]

    def copy(self, past: list[Any]) -> list[Any]:
        return [self._value(value.numpy().copy()) for value in past]

    def shorten(self, past: list[Any], length: int) -> list[Any]:  # noqa: ARG002
        """Nothing to do: what lies behind the text is written over."""
        return past

    def _feeds(self, ids: Sequence[int], start: int) -> dict[str, NDArray[Any]]:
        n = len(ids)
        feeds: dict[str, NDArray[Any]] = {
            "input_ids": np.asarray(ids, np.int64)[None],
            "attention_mask": np.ones((1, start + n), np.int64),
        }
        if "position_ids" in self._given:
            feeds["position_ids"] = np.arange(start, start + n, dtype=np.int64)[None]
        return feeds

    def _bind_present(self, past: list[Any]) -> None:
        for name, value in zip(self._outputs, past, strict=True):
            self._binding.bind_ortvalue_output(name, value)

    def _grown(self, past: list[Any], present: list[Any]) -> list[Any]:  # noqa: ARG002
        """The same buffers, as the values that keep their memory alive."""
        return past


def causal_bias(n: int, past: int) -> NDArray[np.float32]:
    """Additive mask ``[1, 1, n, past + n]``: position i sees the past and the new up to itself."""
    bias = np.zeros((1, 1, n, past + n), np.float32)
    if n > 1:
        bias[0, 0, :, past:][np.triu_indices(n, 1)] = _MASKED
    return bias


@functools.cache
def _runtime() -> Any:
    """Import ONNX Runtime, once."""
    try:
        import onnxruntime
    except ImportError as error:
        raise BackendError(f"ONNX Runtime is not installed ({error}): {hint('edge')}") from error
    return onnxruntime


def _fallback(facts: Facts, providers: Sequence[str]) -> str:
    """What to say when a graph does not run where it was built for."""
    wanted = PROVIDERS[facts.provider]
    if wanted in providers:
        return ""
    return (
        f"built for {facts.provider}, but this ONNX Runtime does not have {wanted}: it runs on the "
        "processor, slower"
    )


def _open(path: Path, threads: int) -> Graph:
    """Read the facts, make the session and check that the one describes the other."""
    model = path / MODEL_FILE if path.is_dir() else path
    if not model.is_file():
        raise BackendError(f"no such file: {model}")
    facts = _read_facts(model.parent / FACTS_FILE)
    ort = _runtime()
    wanted = PROVIDERS.get(facts.provider)
    if wanted is None:
        raise BackendError(
            f"{model.parent / FACTS_FILE} says provider {facts.provider!r}; it must be one of "
            f"{', '.join(PROVIDERS)}"
        )
    there = ort.get_available_providers()
    providers = [name for name in dict.fromkeys((wanted, _CPU)) if name in there]
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # A spinning thread takes a small board's cores from the other processes of the demo.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session = ort.InferenceSession(str(model), options, providers=providers)
    except Exception as error:  # its exceptions share no base class of their own
        raise BackendError(f"ONNX Runtime cannot load {model}: {_first_line(error)}") from error
    built = any(value.name == "attention_mask" for value in session.get_inputs())
    _check_form(session, facts, model, built)
    return (BuilderGraph if built else Graph)(session, facts, model.parent.name or model.stem)


def _read_facts(path: Path) -> Facts:
    try:
        facts = msgspec.json.decode(path.read_bytes(), type=Facts)
    except FileNotFoundError:
        raise BackendError(
            f"no such file: {path}; it comes with a model exported by Outrider and says its shape"
        ) from None
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        raise BackendError(f"cannot read {path}: {error}") from error
    if facts.format != 1:
        raise BackendError(
            f"{path} has format {facts.format}; this version of Outrider reads format 1"
        )
    sizes = (facts.layers, facts.kv_heads, facts.head_dim, facts.vocab_size)
    if min(*sizes, facts.max_position_embeddings) < 1:
        raise BackendError(f"{path} gives a size that is less than 1")
    return facts


def _check_form(session: Any, facts: Facts, model: Path, built: bool) -> None:
    """Refuse a graph whose inputs and outputs are not those that the facts promise."""
    kv: list[object] = [facts.kv_heads] if built else [facts.kv_heads, facts.head_dim]
    inputs: dict[str, list[object]] = {"input_ids": []}
    inputs |= {"attention_mask": []} if built else {"position_ids": [], "attention_bias": []}
    outputs: dict[str, list[object]] = {"logits": [facts.vocab_size]}
    for i in range(facts.layers):
        for kind in ("key", "value"):
            inputs[f"past_key_values.{i}.{kind}"] = kv
            outputs[f"present.{i}.{kind}"] = kv
    for what, promised, values in (
        ("input", inputs, session.get_inputs()),
        ("output", outputs, session.get_outputs()),
    ):
        found = {value.name: value.shape for value in values}
        lacking = [name for name in promised if name not in found]
        surplus = [
            name for name in found if name not in promised and not (built and name == _OPTIONAL)
        ]
        if lacking or surplus:
            raise BackendError(
                f"{model} is not a model exported by Outrider for {facts.layers} layers: "
                f"{what}s missing: {', '.join(lacking) or 'none'}; "
                f"unexpected: {', '.join(surplus) or 'none'}"
            )
        for name, sizes in promised.items():
            fixed = [size for size in found[name] if isinstance(size, int) and size > 1]
            # A size of 1 reads like a free one: neither side's counts.
            if fixed and sizes and fixed != [size for size in sizes if size != 1]:
                raise BackendError(
                    f"{model}: {what} {name} has sizes {fixed}, {FACTS_FILE} says {sizes}"
                )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
