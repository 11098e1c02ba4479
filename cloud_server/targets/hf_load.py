"""Open a Hugging Face causal LM, or say in one line why not and what to do about it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.cloud_server.targets import quantized
from outrider.protocol.errors import BackendError
from outrider.runtime.extras import hint
from outrider.runtime.hub.fetch import repo_folder
from outrider.runtime.hub.remote import list_files, quiet

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "bfloat16", "float16")
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
UNLIMITED_CTX = 4096
"""Context for a model whose config states no limit and a user who asked for none."""

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


@dataclass(frozen=True, slots=True)
class Opened:
    """A loaded model and what its files say. ``vocabulary`` is None without a tokenizer.

    ``device`` takes the ids; ``quantized`` is how the weights are, None if they are as they come.
    """

    model: Any
    where: str
    device: torch.device
    quantized: str | None
    name: str
    eos: frozenset[int]
    vocabulary: int | None
    n_ctx: int


WORTH_A_BAR = 500 << 20
"""Weights of fewer bytes load in a moment."""


def require() -> None:
    """Import what this backend needs.

    Raises:
        BackendError: names the extra to install.
    """
    try:
        importlib.import_module("torch")
        importlib.import_module("transformers")
    except ImportError as error:
        raise BackendError(
            f"the transformers backend needs {error.name or 'torch'}: {hint('cloud')}, "
            "or serve a .gguf file on llama.cpp"
        ) from error


def _progress(source: str | Path) -> None:
    """A bar for what takes long, where somebody is watching."""
    from transformers.utils import logging

    small = isinstance(source, Path) and (
        sum(file.stat().st_size for file in source.glob("*.safetensors")) < WORTH_A_BAR
    )
    if small or not sys.stderr.isatty():
        logging.disable_progress_bar()
    else:
        logging.enable_progress_bar()


def parse_dtype(dtype: str) -> torch.dtype:
    """A torch dtype by name, of those that a target can run in."""
    import torch

    if dtype not in DTYPES:
        raise BackendError(f"unknown dtype {dtype!r}; choose one of {', '.join(DTYPES)}")
    value = getattr(torch, dtype)
    assert isinstance(value, torch.dtype)
    return value


def parse_device(device: str) -> torch.device:
    """A torch device that exists here."""
    import torch

    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise BackendError(f"unknown device {device!r}; choose cpu, cuda or cuda:N")
    if device != "cpu":
        if not torch.cuda.is_available():
            raise BackendError(
                f"device {device} was asked for, but this torch ({torch.__version__}) finds no "
                "CUDA GPU; use device cpu, or install a CUDA build of torch and a driver"
            )
        count = torch.cuda.device_count()
        if int(device.partition(":")[2] or 0) >= count:
            raise BackendError(f"device {device} does not exist; there are {count} CUDA devices")
    return torch.device(device)


def open_model(
    model: str,
    dtype: torch.dtype,
    device: torch.device,
    n_ctx: int | None,
    *,
    device_map: str | None = None,
    ranks: int = 1,
) -> Opened:
    """Load a directory (never touching the network) or a hub id.

    ``device_map``: spread the layers over several devices, as transformers has it, instead of
    putting all on ``device``. ``ranks``: share each layer with as many processes of this group.

    Raises:
        BackendError: in one line, what is wrong with which files and what to do.
    """
    local = _locate(model)
    config = _config(model, local)
    limit = _longest(config.get_text_config(decoder=True))
    if n_ctx is not None and (n_ctx < 2 or (limit and n_ctx > limit)):
        span = f"from 2 to {limit}" if limit else "at least 2"
        raise BackendError(f"a context of {n_ctx} ids was asked for; {model} allows {span}")
    kind = quantized.method(config)
    if kind is not None:
        quantized.check(model, kind)
    where = _device_map(device_map, device, kind)
    spread: dict[str, Any] = {"device_map": where}
    if ranks > 1:
        if device_map or kind:
            raise BackendError(
                f"{model}: tensor parallelism does not go with a device map or quantized weights"
            )
        from transformers.distributed import DistributedConfig

        spread = {"distributed_config": DistributedConfig(tp_size=ranks)}
    loaded = _weights(model, local, config, dtype, spread).eval()
    if where is None and ranks == 1:
        loaded = loaded.to(device)
    tokenizer = _tokenizer(model, local)
    vocabulary = None if tokenizer is None else 1 + max(tokenizer.get_vocab().values(), default=-1)
    return Opened(
        model=loaded,
        where=model,
        device=loaded.get_input_embeddings().weight.device,
        quantized=kind,
        name=Path(model).resolve().name if local else model,
        eos=_end_tokens(loaded, tokenizer),
        vocabulary=vocabulary,
        n_ctx=n_ctx or limit or UNLIMITED_CTX,
    )


def _longest(config: Any) -> int | None:
    """Most positions that the model computes alike whoever else is in the pass.

    Some models turn to other rotary frequencies for a longer text, and do so for a whole pass: what
    a token computes would depend on its neighbours and on how far a draft reached. They are served
    up to where that begins.
    """
    limit: int | None = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    for settings in (rope, *(part for part in rope.values() if isinstance(part, dict))):
        if settings.get("rope_type") in ("dynamic", "longrope") and limit is not None:
            first = settings.get("original_max_position_embeddings") or getattr(
                config, "original_max_position_embeddings", None
            )
            limit = min(limit, first or limit)
    return limit


def _device_map(asked: str | None, device: torch.device, kind: str | None) -> Any:
    """What transformers is told; None leaves the model where it is loaded."""
    if asked is None:
        return None if kind is None else {"": device}
    if importlib.util.find_spec("accelerate") is None:
        raise BackendError("a device map needs accelerate: pip install accelerate")
    if asked not in DEVICE_MAPS:
        raise BackendError(f"unknown device map {asked!r}; choose one of {', '.join(DEVICE_MAPS)}")
    return asked


def check_ranks(model: str, ranks: int) -> None:
    """Refuse, from the config alone, a model whose layers so many processes cannot share.

    Raises:
        BackendError: names what does not divide, or there is no such model.
    """
    text = _config(model, _locate(model)).get_text_config(decoder=True)
    for what in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(text, what, None)
        if heads is not None and heads % ranks:
            raise BackendError(f"{model}: its {what} are {heads}, which {ranks} ranks cannot share")


def _locate(model: str) -> bool:
    """True for a directory, False for a hub id; anything else is refused."""
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise BackendError(
                f"{model} has no config.json; give a folder saved by save_pretrained"
            )
        return True
    if path.is_file():
        raise BackendError(
            f"{model} is a file; the transformers backend loads a folder with config.json and "
            "safetensors (for a GGUF file use the llama backend)"
        )
    if not _HUB_ID.fullmatch(model) or model.startswith("."):
        raise BackendError(f"{model} does not exist; give a model folder or a hub id like org/name")
    return False


def one_line(error: BaseException) -> str:
    """What an error says, whole words of it, however long."""
    return textwrap.shorten(str(error), 1000, placeholder=" ...")


@contextlib.contextmanager
def _explained(model: str, what: str) -> Iterator[None]:
    """Turn whatever loading raises (there are many kinds) into one line about ``model``."""
    try:
        yield
    except BackendError:
        raise
    except Exception as error:
        raise BackendError(f"{model}: cannot load {what}: {one_line(error)}") from error


def _config(model: str, local: bool) -> Any:
    from transformers import AutoConfig

    if not local:
        quiet()
        if not repo_folder(model).is_dir():
            list_files(model)  # fails at once, where transformers would try again for long
        try:
            return AutoConfig.from_pretrained(model)
        except Exception as error:
            raise BackendError(
                f"{model} is no folder here and cannot be fetched from the hub "
                f"({one_line(error)}); check the spelling and the network, "
                "or give a folder"
            ) from error
    try:
        json.loads((Path(model).expanduser() / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BackendError(
            f"{model}/config.json is damaged ({error}); copy the model again"
        ) from error
    with _explained(model, "its config"):
        return AutoConfig.from_pretrained(Path(model).expanduser(), local_files_only=True)


def _weights(
    model: str, local: bool, config: Any, dtype: torch.dtype, spread: dict[str, Any]
) -> Any:
    from safetensors import SafetensorError
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM

    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise BackendError(
            f"{model} is no causal language model (its type is {config.model_type}); "
            "a target must predict the next token"
        )
    source = Path(model).expanduser() if local else model
    _progress(source)
    with _explained(model, "its weights"):
        try:
            loaded, report = AutoModelForCausalLM.from_pretrained(
                source,
                config=config,
                dtype=dtype,
                **spread,
                local_files_only=local,
                output_loading_info=True,
            )
        except SafetensorError as error:
            raise BackendError(
                f"{model}: a safetensors file is truncated or damaged ({error}); "
                "copy or download the model again"
            ) from error
        except RuntimeError as error:
            if "mismatched" not in str(error):
                raise
            raise BackendError(
                f"{model}: the weights have other shapes than config.json says; "
                "the two come from different models"
            ) from error
    missing = sorted(report["missing_keys"])
    if missing:  # transformers would go on with random numbers there
        raise BackendError(
            f"{model}: {len(missing)} weights are missing, {missing[0]} for one; the files are "
            f"incomplete or no {type(loaded).__name__}"
        )
    return loaded


def _tokenizer(model: str, local: bool) -> Any:
    """The tokenizer, for its end token and its size; None if the folder has none."""
    from transformers import AutoTokenizer

    if not local:
        try:
            return AutoTokenizer.from_pretrained(model)
        except (OSError, ValueError):
            return None
    folder = Path(model).expanduser()
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        return None
    with _explained(model, "its tokenizer"):
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def _end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that ends generation: config, generation config and tokenizer often disagree."""
    found: set[int] = set()
    for source in (
        model.config.get_text_config(decoder=True),
        model.config,
        getattr(model, "generation_config", None),
        tokenizer,
    ):
        ids = getattr(source, "eos_token_id", None)
        found.update(ids if isinstance(ids, (list, tuple)) else () if ids is None else (ids,))
    return frozenset(int(token) for token in found)
