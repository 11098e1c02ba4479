"""Where a setting comes from: flag, then environment, then configuration file, then default.

:class:`Command` gives this to every command. The file is TOML; its keys are flag names without the
dashes in front, at the top for every command that has the flag, or in a table for one command::

    cloud = "wss://verifier.example:8471"
    [run]
    temp = 0.8
    [cloud.serve]
    max-sessions = 4
"""

from __future__ import annotations

import contextlib
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from outrider.cli import origins
from outrider.cli.exits import PipeClosedError
from outrider.protocol.errors import SettingError

NOT_IN_FILE = frozenset({"config", "help", "version"})

ALIASES = {
    "--spec-draft-n-max": "--draft-max",
    "--draft-n": "--draft-max",
    "--spec-draft-p-min": "--draft-p-min",
    "--spec-draft-model": "--draft-model",
    "--model-draft": "--draft-model",
    "--n-predict": "--max-tokens",
    "--predict": "--max-tokens",
    "--temperature": "--temp",
    "--ssl-cert-file": "--ssl-certfile",
    "--ssl-key-file": "--ssl-keyfile",
    "--parallel": "--max-sessions",
    "-np": "--max-sessions",
    "--max-num-seqs": "--max-sessions",
    "--max-model-len": "--ctx-size",
    "--served-model-name": "--alias",
}
"""Names from llama.cpp and vLLM that mean one of our flags. Not shown in the help."""

HINTS = {
    "--draft-min": "a frame is sent however short it is; leave --draft-min out",
    "--spec-draft-n-min": "a frame is sent however short it is; leave it out",
    "--spec-type": "the kind of speculation follows from the drafter; use --draft off for none",
    "--speculative-config": "use --draft-model, --draft-max and --draft-p-min",
    "--gpu-layers": "the drafter runs on the CPU; leave it out",
    "-ngl": "the drafter runs on the CPU; leave it out",
    "-ngld": "the drafter runs on the CPU; leave it out",
    "-hf": "give --model a path, or a hub id for a transformers target",
}
"""Flags that users of other programs type and that have no counterpart here: what to do instead."""


class Command(TyperCommand):
    """A command that takes settings from the environment and the file, and knows old names."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        params: list[Any] = self.params
        for param in params:
            param.show_envvar = False  # the end of the help says how all of them are called

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.auto_envvar_prefix = origins.PREFIX
        try:
            rest: list[str] = super().parse_args(ctx, _modern(args, self))
        except typer.BadParameter as error:
            origins.blame(ctx, error)
            raise
        if not ctx.resilient_parsing:
            origins.settle(ctx)
        return rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            # Typer has a status of its own for this, and we another.
            raise PipeClosedError("the reader of the output is gone") from error
        except typer.BadParameter as error:
            origins.blame(ctx, error)
            raise
        except SettingError as error:
            origins.blame_setting(ctx, error)
            raise


def config_callback(ctx: typer.Context, value: Path | None) -> Path | None:
    """Eager callback of ``--config``: the file becomes the defaults of all other flags."""
    if ctx.resilient_parsing:
        return value
    file = value if value is not None else default_file()
    values: dict[str, Any] = {}
    if file is not None:
        values = values_for(file, ctx.command, _path(ctx), root=ctx.find_root().command)
        origins.of_file(ctx, file, list(values))
    lists = _lists_from_environment(ctx.command)
    origins.of_environment(ctx, list(lists))
    values.update(lists)
    ctx.default_map = values
    return value


def default_file() -> Path | None:
    """``$XDG_CONFIG_HOME/outrider/config.toml`` if there is one."""
    file = usual_file()
    return file if file.is_file() else None


def usual_file() -> Path:
    """Where that is, there or not."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "outrider" / "config.toml"


def write_file(file: Path, values: Mapping[str, str]) -> None:
    """Write texts by flag name, readable for the user alone, whole or not at all.

    A file that is there is kept, its name ending in ``.old``.

    Raises:
        SettingError: it cannot be written.
    """
    lines = [f"{name} = {json.dumps(text, ensure_ascii=False)}\n" for name, text in values.items()]
    new = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(
            os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", -1, "utf-8"
        ) as out:
            out.write("# Written by outrider init. Keys are the names of flags.\n" + "".join(lines))
        if file.exists():
            file.replace(file.with_name(file.name + ".old"))
        new.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink()
        raise SettingError(f"cannot write {file}: {error.strerror or error}") from error


def values_for(file: Path, command: Any, path: tuple[str, ...], *, root: Any) -> dict[str, Any]:
    """What ``file`` says about the flags of the command at ``path``, by parameter name.

    Raises:
        SettingError: the file cannot be read, or has a key that no command knows.
    """
    document = _load(file)
    known = {where: _flags(found) for where, found in _commands(root)}
    everywhere: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, dict):
            continue
        if not any(_canonical(key) in flags for flags in known.values()):
            raise SettingError(f"{file}: no command has a flag named {key!r}")
        everywhere[_canonical(key)] = value
    own: dict[str, Any] = {}
    for where, table in _tables(document, known, file):
        for key, value in table.items():
            if _canonical(key) not in known[where]:
                raise SettingError(
                    f"{file}: outrider {' '.join(where)} has no flag named {key!r} "
                    f"(in table [{'.'.join(where)}])"
                )
            if where == path:
                own[_canonical(key)] = value
    flags = _flags(command)
    return {
        flags[name].name: _checked(file, name, value, flags[name])
        for name, value in (everywhere | own).items()
        if name in flags
    }


def _load(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise SettingError(f"configuration file {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingError(f"configuration file {file}: not UTF-8 at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"configuration file {file}: {error}") from error


def _tables(
    document: Mapping[str, Any], known: Mapping[tuple[str, ...], Any], file: Path
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """The tables of the file with the command that each is about."""
    groups = {where[0] for where in known if len(where) > 1}
    for name, table in document.items():
        if not isinstance(table, dict):
            continue
        if (name,) in known:
            yield (name,), table
        elif name in groups:
            for inner, value in table.items():
                if (name, inner) not in known or not isinstance(value, dict):
                    raise SettingError(f"{file}: there is no command outrider {name} {inner}")
                yield (name, inner), value
        else:
            raise SettingError(f"{file}: there is no command named {name!r}")


def _commands(root: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command under ``root`` that takes settings from the file, with its path."""
    for name, command in root.commands.items():
        if isinstance(command, TyperGroup):
            yield from _commands(command, (*path, name))
        elif isinstance(command, Command):
            yield (*path, name), command


def _flags(command: Any) -> dict[str, Any]:
    """The settable parameters of a command by flag name without dashes."""
    return {
        _canonical(param.name): param
        for param in command.params
        if param.param_type_name == "option" and param.name not in NOT_IN_FILE and not param.hidden
    }


def _checked(file: Path, name: str, value: Any, param: Any) -> Any:
    """Lists only where a flag may be repeated; the value itself may be a secret and is not told."""
    if isinstance(value, list) != bool(param.multiple):
        if param.multiple:
            return [value]
        raise SettingError(f"{file}: {name} takes one value, not a list")
    if isinstance(value, dict):
        raise SettingError(f"{file}: {name} takes a value, not a table")
    if isinstance(value, bool) != bool(param.is_flag):
        takes = "true or false" if param.is_flag else "a value, not true or false"
        raise SettingError(f"{file}: {name} takes {takes}")
    return [str(item) for item in value] if isinstance(value, list) else value


def _lists_from_environment(command: Any) -> dict[str, list[str]]:
    """Flags that may be repeated: one value a line, for a stop text may contain spaces."""
    found = {}
    for param in command.params:
        text = os.environ.get(f"{origins.PREFIX}_{param.name.upper()}")
        if param.param_type_name == "option" and param.multiple and text:
            found[param.name] = text.splitlines()
    return found


def _modern(args: list[str], command: Any) -> list[str]:
    """The arguments with other programs' names of our flags replaced by ours."""
    taken = {name for param in command.params for name in param.opts}
    result: list[str] = []
    for index, arg in enumerate(args):
        if arg == "--":
            return result + args[index:]
        name, equals, value = arg.partition("=")
        if name in HINTS and name not in taken:
            raise SettingError(f"{name} is not a flag here: {HINTS[name]}")
        new = ALIASES.get(name)
        result.append(f"{new}{equals}{value}" if new in taken and name not in taken else arg)
    return result


def _canonical(name: str) -> str:
    return name.replace("_", "-")


def _path(ctx: typer.Context) -> tuple[str, ...]:
    """Names of the commands from the root to this one, the root left out."""
    names: list[str] = []
    here: Any = ctx
    while here.parent is not None:
        names.insert(0, here.info_name or "")
        here = here.parent
    return tuple(names)


def given_as_flag(ctx: typer.Context, *names: str) -> list[str]:
    """Those parameters that were typed on the command line, as flags, to name contradictions."""
    found = []
    for name in names:
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            found.append("--" + name.replace("_", "-"))
    return found
