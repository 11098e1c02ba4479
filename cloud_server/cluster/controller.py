"""Keeps a cluster as it should be: so many replicas and gateways, and rosters that are true."""

from __future__ import annotations

import asyncio
import logging
from itertools import count

from outrider.cloud_server.cluster.launcher import Launcher, Roster
from outrider.protocol.errors import BackendError, SettingError

POLL = 0.05
"""Seconds between two looks at who is ready."""

LEAVE_SECONDS = 2.0
"""From the moment when gateways leave a replica to its end: their sessions are elsewhere by then.
"""

_log = logging.getLogger("outrider.cluster")


class Controller:
    """Owns the members. Gateways are told whenever a replica gets ready, is lost, or is to go."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        self.replicas: list[str] = []
        self.gateways: list[str] = []
        self.draining: set[str] = set()
        self.addresses: dict[str, str] = {}
        self._numbers = count()
        self._told: dict[str, Roster] = {}
        self._keys = 0
        self._task: asyncio.Task[None] | None = None

    async def start(self, replicas: int, ports: list[int]) -> None:
        """Start so many replicas, and a gateway for each port."""
        for _ in range(replicas):
            await self.add()
        for i, port in enumerate(ports):
            name = f"gateway-{i}"
            await self.launcher.start_gateway(name, port)
            self.gateways.append(name)
        self._task = asyncio.create_task(self._keep(), name="controller")

    async def add(self) -> str:
        """One replica more; its name. Sessions come to it once it is ready."""
        name = f"replica-{next(self._numbers)}"
        await self.launcher.start_replica(name)
        self.replicas.append(name)
        return name

    async def drain(self, name: str) -> None:
        """Let a replica go: its sessions go on elsewhere, then it is stopped.

        Raises:
            SettingError: there is no such replica, or no other one.
        """
        if name not in self.replicas:
            raise SettingError(f"there is no replica {name!r}, but {', '.join(self.replicas)}")
        if len(set(self.replicas) - self.draining - {name}) == 0:
            raise SettingError(f"{name} is the last replica: its sessions have nowhere to go")
        self.draining.add(name)
        await self._tell()
        await asyncio.sleep(LEAVE_SECONDS)
        self.replicas.remove(name)
        self.draining.discard(name)
        await self._tell()
        await self.launcher.stop(name)

    async def scale(self, replicas: int) -> None:
        """Have so many: new ones are started, or the newest drained.

        Raises:
            SettingError: fewer than one.
        """
        if replicas < 1:
            raise SettingError("a cluster needs at least one replica")
        staying = [r for r in self.replicas if r not in self.draining]
        for _ in range(replicas - len(staying)):
            await self.add()
        await asyncio.gather(*(self.drain(name) for name in staying[replicas:]))

    async def ready(self, replicas: int = 1) -> None:
        """Return when all gateways, and so many replicas, are ready.

        Raises:
            BackendError: a member cannot be started.
        """
        while True:
            there = self.addresses
            if (trouble := self.launcher.trouble()) is not None:
                raise BackendError(trouble)
            if all(g in there for g in self.gateways) and sum(
                r in there for r in self.replicas
            ) >= min(replicas, len(self.replicas)):
                return
            await asyncio.sleep(POLL)

    def reload(self) -> None:
        """Let gateways read their key file again."""
        self._keys += 1

    def forget(self, gateway: str) -> None:
        """It was told something by somebody else: tell it the roster again."""
        self._told.pop(gateway, None)

    async def close(self) -> None:
        """End everything."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.launcher.close()

    async def _keep(self) -> None:
        while True:
            self.addresses = await self.launcher.addresses()
            await self._tell()
            await asyncio.sleep(POLL)

    async def _tell(self) -> None:
        """Give gateways their rosters, where those have changed."""
        there = self.addresses
        replicas = {name: there[name] for name in self.replicas if name in there}
        for gateway in self.gateways:
            others = tuple(there[g] for g in self.gateways if g != gateway and g in there)
            leaving = tuple(sorted(self.draining & replicas.keys()))
            roster = Roster(replicas, leaving, others, self._keys)
            if self._told.get(gateway) != roster:
                self._told[gateway] = roster
                await self.launcher.tell(gateway, roster)
