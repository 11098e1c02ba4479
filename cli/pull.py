"""``outrider pull``: models from the Hugging Face hub, resumed and checked."""

from __future__ import annotations

import json as jsonlib
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli import logs
from outrider.cli import options as o
from outrider.cli.bars import Bars

if TYPE_CHECKING:
    from outrider.runtime.hub.pull import Pulled


def pull(
    name: Annotated[
        str, typer.Argument(help="owner/repo, owner/repo:QUANT, or an alias for a pair.")
    ],
    file: Annotated[
        str | None, typer.Option("--file", help="Exactly this file of the repository.")
    ] = None,
    *,
    json: o.Json = False,
    verbose: o.Verbose = False,
    config: o.Config = None,  # noqa: ARG001 - its callback reads it
) -> None:
    """Get a model from the Hugging Face hub; goes on where an earlier pull stopped.

    The alias qwen2.5-coder is a pair: drafter and target. Without a QUANT, Q4_K_M is preferred.

    Environment: HF_HOME (the cache), HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE.

    Example: outrider pull Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF:Q8_0
    """
    logs.configure(verbose)
    from outrider.protocol.errors import SettingError
    from outrider.runtime.hub.names import parse
    from outrider.runtime.hub.pull import pull as pull_model

    models = parse(name)
    if file is not None and len(models) > 1:
        raise SettingError(f"--file needs one repository; {name} stands for {len(models)}")
    bars = Bars()
    with bars:
        pulled = [pull_model(model, file, bars.report) for model in models]
    if json:
        print(jsonlib.dumps({"models": [_as_json(one) for one in pulled]}))
    else:
        _print(name, pulled)


def _as_json(pulled: Pulled) -> dict[str, Any]:
    return {
        "repo": pulled.model.repo,
        "role": pulled.model.role,
        "path": str(pulled.path),
        "checked": pulled.checked,
        "note": pulled.note,
        "files": [
            {
                "name": file.name,
                "bytes": file.size,
                "sha256": file.sha256,
                "revision": file.revision,
            }
            for file in pulled.files
        ],
    }


def _print(name: str, pulled: list[Pulled]) -> None:
    from outrider.runtime.lm.memory import MIB

    for one in pulled:
        role = f"{one.model.role}: " if one.model.role else ""
        size = sum(file.size for file in one.files) / MIB
        facts = [f"{size:,.0f} MiB"] if one.files else []
        facts += ["checksum right"] if one.checked else []
        print(f"{role}{one.path}" + (f"  ({', '.join(facts)})" if facts else ""))
        if one.note:
            print(f"  {one.note}", file=sys.stderr)
    if len(pulled) > 1:
        print(f"Use it: outrider cloud serve --model {name}")
        print(f"        outrider run --draft-model {name} 'your prompt'")
