"""Who starts the processes of a cluster, and starts them again: an interface, and the plain way.

Ray is another way (``ray_launcher``). A launcher is never on the path of a draft.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from outrider.protocol.errors import SettingError

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
"""Seconds before a process that ended is started again, doubled as long as it never gets ready."""

ATTEMPTS = 2
"""Starts that fail in a row before it is told that a member cannot be started."""

STOP_SECONDS = 10.0
"""Time for a process to end by itself after it was asked to."""

_log = logging.getLogger("outrider.cluster")


@dataclass(frozen=True, slots=True)
class Roster:
    """What a gateway is told: replicas by name with their addresses, those that are to be left,
    the addresses of the other gateways, and how often the keys were to be read again."""

    replicas: dict[str, str]
    draining: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    keys: int = 0

    def to_json(self) -> str:
        """One line."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, line: str | bytes) -> Roster:
        """The reverse.

        Raises:
            SettingError: it is no roster.
        """
        try:
            return msgspec.json.decode(line, type=cls)
        except (msgspec.DecodeError, ValueError) as error:
            raise SettingError(
                "a gateway is told its roster as lines of JSON by `outrider cloud cluster`: "
                f"{error}"
            ) from error


class Launcher(Protocol):
    """Keeps members running: replicas and gateways, each with a name."""

    async def start_replica(self, name: str) -> None:
        """Begin to start one; it gets an address when it is ready."""

    async def start_gateway(self, name: str, port: int) -> None:
        """The same for a gateway, which keeps its port over restarts; 0: any free one."""

    async def addresses(self) -> dict[str, str]:
        """Of the members that are ready now, by name."""

    def trouble(self) -> str | None:
        """Why a member cannot be started, after some attempts."""

    async def tell(self, gateway: str, roster: Roster) -> None:
        """Give a gateway its roster."""

    async def stop(self, name: str) -> None:
        """End a member: it may finish what is under way."""

    async def close(self) -> None:
        """End all."""


@dataclass(slots=True, eq=False)
class _Child:
    """A process and whoever watches it. ``said`` is its first line on stdout, once ready;
    ``failed`` counts starts in a row after which it never got so far."""

    name: str
    arguments: list[str]
    process: Process | None = None
    said: dict[str, Any] | None = None
    roster: Roster | None = None
    port: int | None = None
    watcher: asyncio.Task[None] | None = None
    ending: bool = False
    failed: int = 0
    pause: float = field(default=FIRST_PAUSE)


class ProcessLauncher:
    """All on this machine, as child processes that end with this one.

    ``replica`` and ``gateway`` are command lines; both print one JSON line with their ``url`` when
    they are ready, and end at the end of standard input. A gateway reads rosters from it.
    ``quiet``: nobody sees what they say on stderr.
    """

    def __init__(
        self, replica: Sequence[str], gateway: Sequence[str], *, quiet: bool = False
    ) -> None:
        self._errors = DEVNULL if quiet else None
        self._replica, self._gateway = list(replica), list(gateway)
        self._children: dict[str, _Child] = {}

    async def start_replica(self, name: str) -> None:
        """See :class:`Launcher`."""
        self._start(_Child(name, [*self._replica, "--port", "0"]))

    async def start_gateway(self, name: str, port: int) -> None:
        """See :class:`Launcher`."""
        self._start(_Child(name, self._gateway, port=port))

    async def addresses(self) -> dict[str, str]:
        """See :class:`Launcher`."""
        return {c.name: c.said["url"] for c in self._children.values() if c.said and not c.ending}

    def trouble(self) -> str | None:
        """See :class:`Launcher`."""
        failed = next((c for c in self._children.values() if c.failed >= ATTEMPTS), None)
        return f"{failed.name} cannot be started: it said above why" if failed else None

    async def tell(self, gateway: str, roster: Roster) -> None:
        """See :class:`Launcher`."""
        child = self._children[gateway]
        child.roster = roster
        await self._send_roster(child)

    async def stop(self, name: str) -> None:
        """See :class:`Launcher`."""
        await self._end(self._children.pop(name))

    async def close(self) -> None:
        """See :class:`Launcher`."""
        await asyncio.gather(*(self._end(child) for child in self._children.values()))
        self._children.clear()

    def pid(self, name: str) -> int | None:
        """The process of a member, while it runs."""
        process = self._children[name].process
        return process.pid if process is not None and process.returncode is None else None

    # --- one child --------------------------------------------------------------------------

    def _start(self, child: _Child) -> None:
        self._children[child.name] = child
        child.watcher = asyncio.create_task(self._watch(child), name=f"watch {child.name}")

    async def _watch(self, child: _Child) -> None:
        """Keep it running."""
        while not child.ending:
            await self._once(child)
            child.said = None
            if child.ending:
                return
            code = child.process.returncode if child.process is not None else None
            _log.warning("%s ended (%s): it is started again", child.name, code)
            await asyncio.sleep(child.pause)
            child.pause = min(LONGEST_PAUSE, 2 * child.pause)

    async def _once(self, child: _Child) -> None:
        """From its start to its end."""
        port = [] if child.port is None else ["--port", str(child.port)]
        env = {k: v for k, v in os.environ.items() if not k.startswith("OUTRIDER_")}
        env["OUTRIDER_CONFIG"] = os.devnull  # what it needs to know is in its arguments
        child.process = await asyncio.create_subprocess_exec(
            *child.arguments,
            *port,
            stdin=PIPE,
            stdout=PIPE,
            stderr=self._errors,
            env=env,
            start_new_session=True,
        )
        assert child.process.stdout is not None
        line = await child.process.stdout.readline()
        with contextlib.suppress(ValueError):
            child.said = json.loads(line)
        child.failed = 0 if child.said is not None else child.failed + 1
        if child.said is not None:
            child.pause = FIRST_PAUSE
            child.port = None if child.port is None else child.said["port"]
            await self._send_roster(child)
            _log.info("%s is ready: %s", child.name, child.said["url"])
        while await child.process.stdout.read(1 << 12):
            pass  # it has no more to say; its end is what is waited for
        await child.process.wait()

    async def _send_roster(self, child: _Child) -> None:
        process = child.process
        if child.roster is None or process is None or process.stdin is None or not child.said:
            return
        with contextlib.suppress(OSError):  # it has just died: the next one is told
            process.stdin.write(child.roster.to_json().encode() + b"\n")
            await process.stdin.drain()

    async def _end(self, child: _Child) -> None:
        """Ask, then insist."""
        child.ending = True
        process = child.process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        if child.watcher is not None:
            child.watcher.cancel()
            await asyncio.gather(child.watcher, return_exceptions=True)
        if process is not None:
            if process.stdin is not None:
                process.stdin.close()
            await process.wait()
