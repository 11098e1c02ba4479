"""The members of a cluster as they run inside a process that somebody else starts: Ray's actors."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outrider.cli.cluster_plan import Follower, Plan
    from outrider.cloud_server.cluster.driver import GatewayService
    from outrider.cloud_server.cluster.launcher import Roster
    from outrider.cloud_server.driver import ServiceSettings, Verifier
    from outrider.cloud_server.service import Service


@dataclass(slots=True)
class ReplicaMember:
    """A verifier on loopback."""

    plan: Plan
    service: Service | None = field(default=None, init=False)

    async def start(self) -> str:
        """Load the target and serve; the address."""
        from outrider.cli import logs
        from outrider.cli.serve import LEAST_SESSIONS, QUEUE, REHEARSAL
        from outrider.cloud_server.driver import ServiceSettings
        from outrider.cloud_server.service import Service

        logs.configure(self.plan.verbose)
        slots = self.plan.slots
        settings = ServiceSettings(
            port=0,
            max_sessions=max(LEAST_SESSIONS, 2 * (1 + QUEUE) * slots),
            max_queue=QUEUE * slots,
            rehearse=REHEARSAL,
        )
        self.service = Service(settings)
        server = await self.service.listen()
        await self.service.begin(await asyncio.to_thread(self._load, settings))
        return server.url

    def _load(self, settings: ServiceSettings) -> Verifier:
        from outrider.cli import embedded
        from outrider.cli.targets import load
        from outrider.cloud_server.driver import Verifier

        plan = self.plan
        target, tokenizer, _ = load(
            plan.model, plan.backend, dtype=plan.dtype, device=plan.device,
            n_ctx=plan.ctx_size or None, slots=plan.slots, threads=plan.threads,
        )  # fmt: skip
        if plan.model is None:
            target.info = replace(target.info, name=embedded.TARGET_NAME)
        return Verifier(target, tokenizer, settings)

    async def roster(self, roster: Roster) -> None:
        """Replicas need none."""

    async def stop(self) -> None:
        """Finish what is under way."""
        if self.service is not None:
            await self.service.stop()


@dataclass(slots=True)
class GatewayMember:
    """A gateway on a port of its own."""

    plan: Plan
    port: int
    service: GatewayService | None = field(default=None, init=False)
    follower: Follower | None = field(default=None, init=False)

    async def start(self) -> str:
        """Load the tokenizer and listen; the address."""
        from outrider.cli import logs

        logs.configure(self.plan.verbose)
        from outrider.cli.cluster_plan import Follower

        self.service = await asyncio.to_thread(self.plan.build_gateway, self.port)
        self.follower = Follower(self.service, self.plan)
        return (await self.service.start()).url

    async def roster(self, roster: Roster) -> None:
        """Do what it says from now on."""
        if self.follower is not None:
            await self.follower.follow(roster)

    async def stop(self) -> None:
        """Finish what is under way."""
        if self.service is not None:
            await self.service.stop()
