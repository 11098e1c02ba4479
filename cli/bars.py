"""Progress bars on standard error, for whatever moves bytes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Bars:
    """A bar for each long thing on a terminal; nothing at all elsewhere."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> None:
        if not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._progress.start()

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def report(self, name: str, done: int, size: int) -> None:
        """Move the bar of this name."""
        if self._progress is None:
            return
        if name not in self._tasks:
            # What an earlier run left does not count as speed.
            self._tasks[name] = self._progress.add_task(name[-40:], total=size, completed=done)
        self._progress.update(self._tasks[name], completed=done)
