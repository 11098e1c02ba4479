"""A cloud as a child process, for as long as a ``with`` block lasts and never longer."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from time import monotonic
from types import TracebackType
from typing import IO, Any, Self

from outrider.cli.exits import WorkFailedError

START_SECONDS = 180.0
"""Importing torch and loading a model may take this long on a small machine."""

STOP_SECONDS = 10.0


class CloudChild:
    """Runs ``outrider cloud serve`` with ``arguments`` on a free port; ``ready`` is what it said.

    It ends with the block, by its own process id. Should this process die without a chance to say
    so, the end of the pipe to its standard input tells it.
    """

    ready: dict[str, Any]

    def __init__(self, arguments: Sequence[str], *, verbose: bool = False) -> None:
        self._arguments = [*arguments, *(["--verbose"] if verbose else [])]
        self._verbose = verbose
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None

    def __enter__(self) -> Self:
        """Start it and wait until it is ready.

        Raises:
            WorkFailedError: it ended first, with what it said, or took too long.
        """
        # Its settings are ours to choose: nothing of the user's own cloud may leak in.
        env = {k: v for k, v in os.environ.items() if not k.startswith("OUTRIDER_")}
        env["OUTRIDER_CONFIG"] = os.devnull
        self._errors = None if self._verbose else tempfile.TemporaryFile()
        command = [sys.executable, "-m", "outrider.cli.main", "cloud", "serve"]
        self._process = subprocess.Popen(
            [*command, "--port", "0", "--json", "--with-stdin", *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=env,
            start_new_session=True,  # Ctrl-C is for us; it is told by us
        )
        try:
            self.ready = self._await_ready()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self._process.pid if self._process else None

    def _await_ready(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        deadline = monotonic() + START_SECONDS
        descriptor = self._process.stdout.fileno()
        line = b""
        while not line.endswith(b"\n"):
            readable, _, _ = select.select([descriptor], [], [], max(0.0, deadline - monotonic()))
            if not readable:
                raise WorkFailedError(f"the cloud was not ready within {START_SECONDS:.0f} s")
            data = os.read(descriptor, 4096)
            if not data:
                self._process.wait(STOP_SECONDS)
                raise WorkFailedError(f"the cloud process ended at its start: {self._said()}")
            line += data
        found: dict[str, Any] = json.loads(line)
        return found

    def _said(self) -> str:
        """The last lines that it wrote on stderr."""
        if self._errors is None:
            return "see above"
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        lines = [line.removeprefix("error: ") for line in lines[-8:]]
        return "\n".join(lines) or "it said nothing"

    def _end(self) -> None:
        """Ask, then insist. Whatever happens meanwhile, it does not outlive this."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.terminate()
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout, self._errors):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
