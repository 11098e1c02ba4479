"""Who gave a value: a flag, the environment or the file. The nearer one counts, each is blamed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from outrider.protocol.errors import SettingError

PREFIX = "OUTRIDER"
_META = "outrider.origins"
_LEVELS = {"COMMANDLINE": 0, "ENVIRONMENT": 1, "DEFAULT_MAP": 2}

EXCLUSIVE = (
    ("api_key", "api_key_file"),
    ("tls_fingerprint", "tls_ca"),
    ("raw", "system"),
    ("prompt", "domain"),
)
"""Parameters of which one makes the other void. ``raw`` is not given where it is false."""

_OTHER_NAMES = {
    "temp": "temperature",
    "repeat_penalty": "repetition_penalty",
    "repeat_last_n": "repetition_window",
}
"""What the sampler calls a flag."""


def of_file(ctx: Any, file: Path, names: list[str]) -> None:
    """Remember that these parameters have their values from ``file``."""
    found = ctx.meta.setdefault(_META, {})
    found |= {name: (2, f"{_canonical(name)!r} in {file}") for name in names}


def of_environment(ctx: Any, names: list[str]) -> None:
    """Remember that these have theirs from the environment, though the parser does not see it."""
    found = ctx.meta.setdefault(_META, {})
    found |= {name: (1, f"{PREFIX}_{name.upper()}") for name in names}


def origin(ctx: Any, name: str) -> tuple[int, str] | None:
    """How near the source of a parameter's value is (0: a flag) and its name; None: a default."""
    source = ctx.get_parameter_source(name)
    if source is None or source.name not in _LEVELS:
        return None
    if source.name == "DEFAULT_MAP":
        found: tuple[int, str] | None = ctx.meta.get(_META, {}).get(name)
        return found
    if source.name == "ENVIRONMENT":
        return 1, f"{PREFIX}_{name.upper()}"
    return 0, _flag(name)


def settle(ctx: Any) -> None:
    """Of two settings that exclude each other, the one from the nearer source counts.

    Raises:
        SettingError: both come from the same.
    """
    for pair in EXCLUSIVE:
        given = [name for name in pair if ctx.params.get(name) not in (None, False, "")]
        if len(given) < 2:
            continue
        (one, here), (other, there) = ((origin(ctx, name) or (3, name)) for name in pair)
        if one == other:
            flags = " and ".join(map(_flag, pair))
            where = "" if one == 0 else f" (here {here}, and {there})"
            raise SettingError(f"{flags} contradict each other: give one{where}")
        name = pair[0] if one > other else pair[1]
        ctx.params[name] = False if ctx.params[name] is True else None


def blame(ctx: Any, error: Any) -> None:
    """Have the complaint about an argument name the source of the value, and in plain words."""
    if isinstance(getattr(error, "message", None), str):
        error.message = error.message.replace("Value error, ", "")
    param = getattr(error, "param", None)
    found = origin(ctx, param.name) if param is not None and param.name else None
    if found is not None and found[0] > 0:
        error.param_hint = found[1]


def blame_setting(ctx: Any, error: SettingError) -> None:
    """The same for a complaint that came later: of the flag, or of the file or address given."""
    text = str(error)
    for name, value in ctx.params.items():
        found = origin(ctx, name)
        if found is None or found[0] == 0 or found[1] in text:
            continue
        called = {name, _OTHER_NAMES.get(name, name)}
        begins = any(re.match(rf"{word} (is|has) ", text) for word in called)
        place = str(value) if isinstance(value, str | Path) else ""
        names_it = re.search(rf"{_flag(name)}(?![\w-])", text)
        if begins or names_it or (re.search(r"[/:]", place) and place in text):
            text += f" (from {found[1]})"
    error.args = (text, *error.args[1:])


def _flag(name: str) -> str:
    return "--" + _canonical(name)


def _canonical(name: str) -> str:
    return name.replace("_", "-")
