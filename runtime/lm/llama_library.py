"""The llama.cpp library itself: import it lazily, keep it quiet, load weights, explain failures.

llama.cpp reports why something failed only in its log. The log is therefore caught: nothing is
printed, and the last complaints end up in the error that the user sees.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import ctypes
import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from outrider.protocol.errors import BackendError
from outrider.runtime.extras import hint

_WARNING, _ERROR, _CONTINUES = 3, 4, 5  # ggml's log levels
_MAGIC = b"GGUF"
_complaints: collections.deque[str] = collections.deque(maxlen=12)
_T = TypeVar("_T")
_loading = threading.Lock()  # one load at a time, so that complaints belong to it


@functools.cache
def library() -> Any:
    """Import llama.cpp's C API, once, with its log caught.

    Raises:
        BackendError: it is not installed, or its shared library does not load here.
    """
    try:
        import llama_cpp.llama_cpp as api
    except ImportError as error:
        raise BackendError(
            f"llama.cpp is not installed ({error}): {hint('edge-llama')}, or use the ONNX backend"
        ) from error
    except (OSError, RuntimeError) as error:
        raise BackendError(
            f"llama-cpp-python is installed but its library does not load here ({error}); "
            "build it again on this machine: pip install --force-reinstall --no-cache-dir "
            "--no-binary llama-cpp-python llama-cpp-python"
        ) from error
    api.llama_log_set(_log_callback(api), ctypes.c_void_p(0))
    api.llama_backend_init()
    return api


@functools.cache  # the library keeps the pointer: the callback must live as long as the process
def _log_callback(api: Any) -> Any:
    last = [0]

    def receive(level: int, text: bytes | None, _data: object) -> None:
        if level != _CONTINUES:
            last[0] = level
        if text and last[0] in (_WARNING, _ERROR):
            _complaints.append(text.decode("utf-8", "replace").strip())

    return api.llama_log_callback(receive)


@contextlib.contextmanager
def complaints() -> Iterator[collections.deque[str]]:
    """Collect what llama.cpp logs as warnings and errors inside the block."""
    with _loading:
        _complaints.clear()
        yield _complaints


def forget_complaints() -> collections.deque[str]:
    """Start anew, without waiting: lines of a load in another thread may get mixed in."""
    if not _loading.locked():
        _complaints.clear()
    return _complaints


def reason(lines: collections.deque[str]) -> str:
    """The first two distinct complaints as one clause, empty if there were none.

    The first ones name the cause; the last only say that loading failed.
    """
    bare = [line.partition("error loading model: ")[2] or line for line in lines if line]
    return ": " + "; ".join(list(dict.fromkeys(bare))[:2]) if bare else ""


class Weights:
    """A GGUF file loaded by llama.cpp: weights and vocabulary, or the vocabulary alone."""

    def __init__(self, path: Path, handle: Any) -> None:
        api = library()
        self.path = path
        self.handle = handle
        self.vocab = api.llama_model_get_vocab(handle)
        self.free = weakref.finalize(self, api.llama_model_free, handle)

    def metadata(self, key: str) -> str | None:
        """A metadata value as text, or None if the file does not have the key."""
        api = library()
        size = 256
        while True:
            buffer = ctypes.create_string_buffer(size)
            n = api.llama_model_meta_val_str(self.handle, key.encode(), buffer, size)
            if n < 0:
                return None
            if n < size:
                return buffer.raw[:n].decode("utf-8", "replace")
            size = int(n) + 1


def open_weights(path: str | Path, *, vocab_only: bool = False, gpu_layers: int = 0) -> Weights:
    """Load a GGUF file.

    Raises:
        BackendError: no such file, not a GGUF file, cut short, or an architecture that the
        installed llama.cpp does not know; says which, in llama.cpp's own words where it has any.
    """
    path = Path(path)
    check_is_gguf(path)
    api = library()
    params = api.llama_model_default_params()
    params.vocab_only = vocab_only
    params.n_gpu_layers = gpu_layers
    stopped = threading.Event()
    go_on = api.llama_progress_callback(lambda _done, _data: not stopped.is_set())
    params.progress_callback = go_on
    with complaints() as lines:
        handle = apart(
            lambda: api.llama_model_load_from_file(os.fsencode(path), params), stopped.set
        )
        if not handle:
            raise BackendError(f"llama.cpp cannot load {path}{reason(lines)}")
    return Weights(path, handle)


def apart(call: Callable[[], _T], stop: Callable[[], None] | None = None) -> _T:
    """Run native code that takes long in a thread of its own, and wait for it.

    Python runs signal handlers in the main thread only, and there not before native code comes
    back, or inside a callback, where what they raise is lost. Here the main thread is free to take
    them. If one raises, ``stop`` is called, the native code is waited for, and the error goes on.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    outcome: concurrent.futures.Future[_T] = concurrent.futures.Future()

    def work() -> None:
        if not outcome.set_running_or_notify_cancel():
            return
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    try:
        threading.Thread(target=work, daemon=True, name="llama.cpp").start()
        return outcome.result()
    except BaseException:
        if not outcome.cancel():
            if stop is not None:
                stop()
            concurrent.futures.wait([outcome])
        raise


def check_is_gguf(path: Path) -> None:
    """Refuse what is visibly not a GGUF file, before the library sees it."""
    if not path.exists():
        raise BackendError(f"no such file: {path}")
    if path.is_dir():
        raise BackendError(f"{path} is a folder; give the .gguf file inside it")
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise BackendError(f"cannot read {path}: {error}") from error
    if magic != _MAGIC:
        raise BackendError(f"{path} is not a GGUF file (it starts with {magic!r}, not {_MAGIC!r})")


def end_tokens(weights: Weights) -> frozenset[int]:
    """Every token that ends generation by the file's own account (end of text, of turn...)."""
    api = library()
    size = api.llama_vocab_n_tokens(weights.vocab)
    is_end = api.llama_vocab_is_eog
    return frozenset(i for i in range(size) if is_end(weights.vocab, i))


def usable_size(weights: Weights) -> int:
    """Ids below this are tokens; those at the end that the file marks unused are padding rows."""
    api = library()
    size = int(api.llama_vocab_n_tokens(weights.vocab))
    while size and api.llama_vocab_get_attr(weights.vocab, size - 1) & api.LLAMA_TOKEN_ATTR_UNUSED:
        size -= 1
    return size
