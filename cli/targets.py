"""Loading a target, and the draft model beside it, for what the user named."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli import embedded, logs
from outrider.protocol.errors import SettingError

if TYPE_CHECKING:
    from outrider.cloud_server.targets.base import Target
    from outrider.runtime.hub.need import Need
    from outrider.runtime.lm.drafter import Drafter
    from outrider.runtime.text.tokenizer import Tokenizer


def load(
    model: str | None,
    backend: str,
    *,
    dtype: str | None = None,
    device: str | None = None,
    n_ctx: int | None = None,
    slots: int = 1,
    threads: int = 1,
    announce: bool = False,
    verify_width: int = 0,
    device_map: str | None = None,
    tensor_parallel: int = 1,
    tree_leaves: int = 1,
) -> tuple[Any, Tokenizer, str]:
    """(target, its tokenizer, the backend chosen) for what the user named; None is the embedded.

    ``announce``: say what is about to be loaded, and how much memory it will take.
    """
    from outrider.cloud_server.targets.factory import is_gguf, load_target
    from outrider.runtime.hub.need import check_fits
    from outrider.runtime.text.tokenizer import load_tokenizer

    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # progress bars are for a terminal
    model = _named(model, backend)
    if is_gguf(model):
        about = check_gguf(Path(model).expanduser(), n_ctx or 0, slots)
        if announce:
            logs.say(about)
    elif Path(model).expanduser().is_dir() and device in (None, "cpu") and device_map is None:
        check_fits(model, _need(Path(model).expanduser(), n_ctx or 0, slots, dtype))
    target = load_target(
        model, backend=backend, dtype=dtype, device=device, n_ctx=n_ctx, slots=slots,
        threads=threads, verify_width=verify_width, device_map=device_map,
        tensor_parallel=tensor_parallel, tree_leaves=tree_leaves,
    )  # fmt: skip
    place = Path(model).expanduser()
    tokenizer = load_tokenizer(place if place.exists() else _hub_files(model))
    for warning in tokenizer.warnings:
        logs.warn(warning)
    return target, tokenizer, "llama" if target.info.dtype.startswith("gguf") else "transformers"


def load_its_tokenizer(model: str | None, backend: str) -> Tokenizer:
    """The target's tokenizer alone."""
    from outrider.runtime.text.tokenizer import load_tokenizer

    named = _named(model, backend)
    place = Path(named).expanduser()
    return load_tokenizer(place if place.exists() else _hub_files(named))


def _named(model: str | None, backend: str) -> str:
    """A path, or a hub id, for what the user named; None is the embedded target."""
    from outrider.runtime.hub.resolve import resolve_target

    model = resolve_target(str(embedded.target(backend)) if model is None else model)
    place = Path(model).expanduser()
    return str(embedded.gguf_in(place)) if backend == "llama" and place.is_dir() else model


def _need(place: Path, n_ctx: int, slots: int, dtype: str | None) -> Need:
    from outrider.cloud_server.targets.factory import is_gguf
    from outrider.runtime.hub.gguf import read_header
    from outrider.runtime.hub.need import estimate_folder, estimate_gguf

    if is_gguf(str(place)):
        return estimate_gguf(read_header(place), n_ctx, n_seq=slots)
    return estimate_folder(place, n_ctx, n_seq=slots, dtype=dtype)


MOST_SLOTS = 64
"""Answers at once where memory decides."""


def fitting_slots(model: str | None, backend: str, *, dtype: str | None, n_ctx: int) -> int:
    """For how many answers at once the cache of this target fits into memory.

    Raises:
        SettingError: it is not on this disk, so nothing is known of it.
    """
    from outrider.runtime.hub.need import fitting

    place = Path(_named(model, backend)).expanduser()
    if not place.exists():
        raise SettingError(
            f"--max-sessions 0 needs a model on this disk, not {model}: say how many"
        )
    return fitting(_need(place, n_ctx, 1, dtype), MOST_SLOTS)


def check_gguf(file: Path, n_ctx: int, slots: int) -> str:
    """The line that says what loading takes; refused where there is not that much."""
    from outrider.runtime.hub.gguf import read_header
    from outrider.runtime.hub.need import check_fits, estimate_gguf, mib

    header = read_header(file)
    need = estimate_gguf(header, n_ctx, n_seq=slots)
    check_fits(file.name, need)
    trained = header.number("context_length") or 0
    if not n_ctx and need.n_ctx < trained:
        more = f"; the model would allow {trained} ids: --ctx-size"
    else:
        more = ""
    return (
        f"loading {file.name}: about {mib(need.total)} (weights {mib(need.weights)}, "
        f"cache of {slots} x {need.n_ctx} ids {mib(need.cache)}){more}"
    )


def load_own(model: Path, *, n_ctx: int, threads: int = 1) -> tuple[Drafter, Tokenizer]:
    """The draft model beside the target, and its tokenizer, which is to be compared."""
    from outrider.runtime.hub.need import check_memory
    from outrider.runtime.hub.resolve import resolve
    from outrider.runtime.lm.drafter import Drafter
    from outrider.runtime.lm.factory import load_lm
    from outrider.runtime.text.tokenizer import load_tokenizer

    place = resolve(str(model))
    check_memory(place, n_ctx)
    tokenizer = load_tokenizer(place)
    loaded = load_lm(place, n_ctx=n_ctx, threads=threads)
    return Drafter(loaded.lm, tokenizer.size, tokenizer.eos), tokenizer


Collaborators = Annotated[
    list[str] | None,
    typer.Option(
        "--collaborator",
        metavar="NAME=PATH",
        rich_help_panel="Model",
        help="A further model of the target's vocabulary that edges may name in --collaborate; "
        "may be given several times. Each holds a cache as large as the target's.",
    ),
]


def load_collaborators(
    given: Sequence[str] | None, target: Target, tokenizer: Tokenizer, *, threads: int = 1
) -> Target:
    """The target, with the further models that were named if there are any.

    Raises:
        SettingError: a name that cannot be one, or a model of another vocabulary.
        BackendError: a model does not load.
    """
    if not given:
        return target
    from outrider.cloud_server.own_drafter import check_vocabulary
    from outrider.cloud_server.targets.several import SeveralTargets
    from outrider.runtime.text.fingerprint import describe

    found: dict[str, Target] = {}
    for name, path in _named_paths(given):
        other, its, _ = load(
            path, "auto", n_ctx=target.info.n_ctx, slots=target.info.slots, threads=threads,
            announce=True,
        )  # fmt: skip
        try:
            differing = check_vocabulary(describe(tokenizer), describe(its), what=repr(name))
        except SettingError as error:
            raise SettingError(
                f"--collaborator {name}={path}: {error}. Models of one text need one vocabulary"
            ) from None
        if differing:
            raise SettingError(
                f"--collaborator {name}={path}: its special tokens {sorted(differing)[:8]} mean "
                "other things than the target's. Models of one text need one vocabulary"
            )
        found[name] = other
    return SeveralTargets(target, found)


def _named_paths(given: Sequence[str]) -> list[tuple[str, str]]:
    """Names and places."""
    from outrider.protocol.decoding.combine import SIZES, TARGET

    pairs = [(name.strip(), path.strip()) for name, _, path in (g.partition("=") for g in given)]
    for name, path in pairs:
        if not path or not re.fullmatch(r"[A-Za-z_][\w.:-]*", name) or name in (*SIZES, TARGET):
            raise SettingError(
                f"--collaborator {name}={path}: it must be NAME=PATH, the name a word that is "
                f"none of {', '.join((*SIZES, TARGET))}"
            )
    if len({name for name, _ in pairs}) != len(pairs):
        raise SettingError("--collaborator: two models have one name")
    return pairs


def _hub_files(model: str) -> Path:
    """The folder where the hub's client keeps the small files of a model that it has loaded."""
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model, allow_patterns=["*.json", "*.jinja", "tokenizer*"]))
