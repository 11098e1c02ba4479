"""``outrider bench``: the benchmarks' own commands, imported only when one of them is asked for."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from outrider.protocol.errors import BackendError
from outrider.runtime.extras import hint


class LazyBench(TyperGroup):
    """Stands for ``outrider.benchmarks.app`` in the help and becomes it when it is used."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        return load().make_context(info_name, args, parent, **extra)


def load() -> Any:
    """The benchmarks' own group of commands.

    Raises:
        BackendError: they, or something that they need, are not installed.
    """
    try:
        from outrider.benchmarks.app import app as benchmarks
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("outrider."):
            raise BackendError(f"this installation has no benchmarks ({error.name})") from error
        raise BackendError(f"the benchmarks need {error.name}: {hint('all')}") from error
    return typer.main.get_command(benchmarks)
