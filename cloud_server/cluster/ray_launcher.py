"""Ray as the launcher: each member is an actor, started again by Ray wherever it dies.

Ray starts, restarts, finds and asks after the members; gateways and replicas speak to each other
over links of their own. No draft, verdict or roster look-up of a gateway is a Ray call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from outrider.cloud_server.cluster.launcher import (
    ATTEMPTS,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    STOP_SECONDS,
    Roster,
)
from outrider.protocol.errors import BackendError
from outrider.runtime.extras import hint

ASK = 0.2
"""Seconds between two questions to an actor after its health."""

ANSWER_SECONDS = 10.0
"""An actor that has not answered by then is taken to be down; Ray knows better when it is."""

_log = logging.getLogger("outrider.cluster")


class Member(Protocol):
    """What an actor runs. Built by a function that can be pickled, on the machine where it runs."""

    async def start(self) -> str:
        """Load, listen; the address."""

    async def roster(self, roster: Roster) -> None:
        """For a gateway."""

    async def stop(self) -> None:
        """Finish what is under way, and end."""


class Host:
    """The actor. Its member is started by the first question after its address."""

    def __init__(self, build: Callable[[], Member]) -> None:
        self._build = build
        self._member: Member | None = None
        self._starting: asyncio.Task[str] | None = None

    async def address(self) -> tuple[int, str | None]:
        """The process, and the address once it is ready. Raises what kept it from starting."""
        if self._starting is None:
            self._member = self._build()
            self._starting = asyncio.create_task(self._member.start())
        done = self._starting.done()
        return os.getpid(), self._starting.result() if done else None

    async def roster(self, roster: Roster) -> None:
        """For a gateway."""
        if self._member is not None:
            await self._member.roster(roster)

    async def stop(self) -> None:
        """Before it is ended."""
        if self._member is not None:
            await self._member.stop()


def connect_ray() -> None:
    """A Ray of this machine, for as long as this process.

    Raises:
        BackendError: Ray is not installed, or does not start.
    """
    try:
        import ray
    except ImportError as error:
        raise BackendError(
            f"Ray is not installed: {hint('cluster')}; or, on one machine, "
            "--launcher processes does without"
        ) from error
    try:
        ray.init(include_dashboard=False, log_to_driver=True, logging_level=logging.ERROR)
    except Exception as error:  # its own errors share no base class
        line = str(error).strip().partition("\n")[0]
        raise BackendError(f"Ray does not start: {line}") from error


@dataclass(slots=True, eq=False)
class _Actor:
    name: str
    make: Callable[[], Any]
    handle: Any = None
    url: str | None = None
    process: int | None = None
    roster: Roster | None = None
    told: tuple[int, Roster] | None = None
    failed: int = 0
    why: str = ""
    watcher: asyncio.Task[None] | None = None


class RayLauncher:
    """Members as actors of the Ray cluster that :func:`connect_ray` joined; see ``Launcher``.

    ``replica()`` and ``gateway(port)`` give the functions that build members. ``gpus``: each
    replica takes one of its own, and waits until there is one.
    """

    def __init__(
        self,
        replica: Callable[[], Callable[[], Member]],
        gateway: Callable[[int], Callable[[], Member]],
        *,
        gpus: bool = False,
    ) -> None:
        import ray

        self._ray = ray
        self._replica, self._gateway = replica, gateway
        self._gpus = int(gpus)
        self._actors: dict[str, _Actor] = {}

    async def start_replica(self, name: str) -> None:
        """See ``Launcher``."""
        self._start(name, self._replica(), self._gpus)

    async def start_gateway(self, name: str, port: int) -> None:
        """See ``Launcher``. The port is chosen here: an actor that starts again is to have it."""
        self._start(name, self._gateway(port or _free_port()), 0)

    async def addresses(self) -> dict[str, str]:
        """See ``Launcher``."""
        return {a.name: a.url for a in self._actors.values() if a.url is not None}

    async def tell(self, gateway: str, roster: Roster) -> None:
        """See ``Launcher``."""
        actor = self._actors[gateway]
        actor.roster = roster
        await self._send_roster(actor)

    def trouble(self) -> str | None:
        """See ``Launcher``."""
        return next((a.why for a in self._actors.values() if a.failed >= ATTEMPTS), None)

    async def stop(self, name: str) -> None:
        """See ``Launcher``."""
        await self._end(self._actors.pop(name))

    async def close(self) -> None:
        """See ``Launcher``."""
        await asyncio.gather(*(self._end(actor) for actor in self._actors.values()))
        self._actors.clear()
        await asyncio.to_thread(self._ray.shutdown)

    def pid(self, name: str) -> int | None:
        """The process of a member, while it is ready."""
        return self._actors[name].process

    # --- one actor --------------------------------------------------------------------------

    def _start(self, name: str, build: Callable[[], Member], gpus: int) -> None:
        remote = self._ray.remote(Host).options(
            max_restarts=-1, max_task_retries=0, num_cpus=0, num_gpus=gpus, max_concurrency=16
        )
        actor = self._actors[name] = _Actor(name, lambda: remote.remote(build))
        actor.handle = actor.make()
        actor.watcher = asyncio.create_task(self._watch(actor), name=f"watch {name}")

    async def _watch(self, actor: _Actor) -> None:
        """Ask after it; Ray starts it again when its process ends."""
        pause = FIRST_PAUSE
        while True:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    process, url = await actor.handle.address.remote()
            except self._ray.exceptions.RayTaskError as error:
                actor.failed += 1
                actor.url, actor.why = None, f"{actor.name} cannot be started: {_cause(error)}"
                _log.error("%s", actor.why)
                self._ray.kill(actor.handle)
                await asyncio.sleep(pause)
                pause = min(LONGEST_PAUSE, 2 * pause)
                actor.handle = actor.make()
            except (self._ray.exceptions.RayError, TimeoutError) as error:
                if actor.url is not None:
                    _log.warning("%s ended: it is started again", actor.name)
                actor.url = actor.process = None
                if isinstance(error, self._ray.exceptions.ActorDiedError):
                    actor.handle = actor.make()  # it is not coming back by itself
            else:
                if url is not None and url != actor.url:
                    _log.info("%s is ready: %s", actor.name, url)
                    actor.failed, pause = 0, FIRST_PAUSE
                actor.process, actor.url = process, url
                await self._send_roster(actor)
            await asyncio.sleep(ASK)

    async def _send_roster(self, actor: _Actor) -> None:
        """Once for each process: one that was started again knows nothing."""
        if actor.roster is None or actor.process is None or actor.url is None:
            return
        news = (actor.process, actor.roster)
        if actor.told != news:
            actor.told = news
            with contextlib.suppress(self._ray.exceptions.RayError):  # the next one is told
                await actor.handle.roster.remote(actor.roster)

    async def _end(self, actor: _Actor) -> None:
        """Ask, then insist."""
        if actor.watcher is not None:
            actor.watcher.cancel()
            await asyncio.gather(actor.watcher, return_exceptions=True)
        with contextlib.suppress(self._ray.exceptions.RayError, TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await actor.handle.stop.remote()
        self._ray.kill(actor.handle)


def _cause(error: BaseException) -> str:
    cause = getattr(error, "cause", None) or error
    return str(cause).strip().rpartition("\n")[2]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port
