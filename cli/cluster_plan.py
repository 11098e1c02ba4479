"""What the members of a cluster are started with, as command lines or as functions."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from outrider.cli.cluster_members import GatewayMember, ReplicaMember
    from outrider.cloud_server.cluster.driver import GatewayService
    from outrider.cloud_server.cluster.launcher import Roster
    from outrider.cloud_server.cluster.shares import ShareName
    from outrider.runtime.text.tokenizer import Tokenizer

KBIT = 125.0
"""Bytes a second."""

OUTRIDER = (sys.executable, "-m", "outrider.cli.main", "cloud")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings of ``outrider cloud cluster`` that its members need. It can be
    pickled: Ray carries it to where they run."""

    model: str | None
    backend: str
    placement: str
    shares: ShareName
    draft_rate: float
    host: str
    api_key_file: Path | None
    ssl_certfile: Path | None
    ssl_keyfile: Path | None
    dtype: str | None = None
    device: str | None = None
    ctx_size: int = 0
    threads: int = 1
    slots: int = 8
    verbose: bool = False

    def check(self) -> None:
        """Refuse what would fail in every member, before any is started."""
        from outrider.cli import listening

        listening.keys(self.api_key_file)
        listening.tls(self.ssl_certfile, self.ssl_keyfile)
        self.tokenizer()

    def tokenizer(self) -> Tokenizer:
        """The target's: all that a gateway needs of the model."""
        from outrider.cli.targets import load_its_tokenizer

        return load_its_tokenizer(self.model, self.backend)

    # --- as processes -----------------------------------------------------------------------

    def replica_command(self) -> list[str]:
        """Of a verifier on loopback."""
        more = ["--verbose"] if self.verbose else []
        return [
            *OUTRIDER, "serve", "--json", "--with-stdin", *self._model(), *self._weights(),
            "--ctx-size", str(self.ctx_size), "--threads", str(self.threads),
            "--max-sessions", str(self.slots), "--drain-seconds", "5", *more,
        ]  # fmt: skip

    def gateway_command(self) -> list[str]:
        """Of a gateway, which reads its rosters from standard input."""
        files = {
            "--api-key-file": self.api_key_file,
            "--ssl-certfile": self.ssl_certfile,
            "--ssl-keyfile": self.ssl_keyfile,
        }
        given = [part for flag, file in files.items() if file for part in (flag, str(file))]
        more = ["--verbose"] if self.verbose else []
        return [
            *OUTRIDER, "gateway", *self._model(), "--placement", self.placement,
            "--shares", self.shares, "--draft-rate", str(self.draft_rate),
            "--host", self.host, *given, *more,
        ]  # fmt: skip

    def _model(self) -> list[str]:
        named = [] if self.model is None else ["--model", self.model]
        return [*named, "--target-backend", self.backend]

    def _weights(self) -> list[str]:
        flags = {"--dtype": self.dtype, "--device": self.device}
        return [part for flag, value in flags.items() if value for part in (flag, value)]

    # --- as Ray's actors: functions that can be pickled --------------------------------------

    def replica_member(self) -> Callable[[], ReplicaMember]:
        """Makes a verifier."""
        from outrider.cli.cluster_members import ReplicaMember

        return partial(ReplicaMember, self)

    def gateway_member(self, port: int) -> Callable[[], GatewayMember]:
        """Makes a gateway."""
        from outrider.cli.cluster_members import GatewayMember

        return partial(GatewayMember, self, port)

    def build_gateway(self, port: int) -> GatewayService:
        """A gateway that does not listen yet."""
        from outrider.cli import listening
        from outrider.cloud_server.cluster.driver import GatewayService, GatewaySettings
        from outrider.cloud_server.cluster.live import LivePlacer
        from outrider.cloud_server.cluster.shares import LiveShares
        from outrider.protocol.packing import id_bits

        settings = GatewaySettings(
            host=self.host,
            port=port,
            keys=listening.keys(self.api_key_file),
            tls=listening.tls(self.ssl_certfile, self.ssl_keyfile),
        )
        tokenizer = self.tokenizer()
        band = KBIT * self.draft_rate or math.inf
        sharer = LiveShares(self.shares, id_bits(tokenizer.size) / 8, band)
        return GatewayService(tokenizer, settings, LivePlacer(self.placement), sharer)


class Follower:
    """Has a gateway do what its rosters say."""

    def __init__(self, service: GatewayService, plan: Plan) -> None:
        self._service, self._plan = service, plan
        self._keys: int | None = None

    async def follow(self, roster: Roster) -> None:
        """Replicas, other gateways; the keys, if they are to be read again."""
        if self._keys not in (None, roster.keys):
            self._read_keys()
        self._keys = roster.keys
        await self._service.roster(roster.replicas, frozenset(roster.draining), roster.others)

    def _read_keys(self) -> None:
        """A file that cannot be read changes nothing, and is said."""
        from outrider.cli import listening, logs
        from outrider.protocol.errors import OutriderError

        try:
            keys = listening.keys(self._plan.api_key_file)
        except OutriderError as error:
            logs.warn(f"the keys stay as they were: {error}")
            return
        if keys is not None:
            self._service.replace_keys(keys)
