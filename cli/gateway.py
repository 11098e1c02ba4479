"""``outrider cloud gateway``: one gateway of a cluster, started by it and told through stdin."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

from outrider.cli import cluster as c
from outrider.cli import hosting, listening, logs
from outrider.cli import options as o

if TYPE_CHECKING:
    from outrider.cli.cluster_plan import Follower, Plan


def gateway(
    *,
    model: hosting.Model = None,
    target_backend: hosting.Backend = o.TargetBackend.AUTO,
    placement: c.Placement = "tma-moves",
    shares: c.Shares = c.SharesKind.OPTIMISED,
    draft_rate: c.DraftRate = 0.0,
    host: listening.Host = "127.0.0.1",
    port: listening.Port = 0,
    api_key_file: listening.Keys = None,
    ssl_certfile: listening.Certificate = None,
    ssl_keyfile: listening.CertificateKey = None,
    verbose: o.Verbose = False,
    config: o.Config = None,  # noqa: ARG001 - its callback reads it
) -> None:
    """One gateway of a cluster: rosters come as lines on standard input, whose end ends it."""
    logs.configure(verbose)
    import asyncio

    from outrider.cli.cluster_plan import Plan

    plan = Plan(
        model=model,
        backend=target_backend.value,
        placement=placement,
        shares=shares.value,
        draft_rate=draft_rate,
        host=host,
        api_key_file=api_key_file,
        ssl_certfile=ssl_certfile,
        ssl_keyfile=ssl_keyfile,
    )
    asyncio.run(_serve(plan, port))


async def _serve(plan: Plan, port: int) -> None:
    """Until a signal or the end of standard input."""
    import asyncio
    import signal

    from outrider.cli.cluster_plan import Follower
    from outrider.cli.report import print_json

    service = plan.build_gateway(port)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    server = await service.start()
    print_json({"event": "ready", "url": server.url, "port": server.port, "pid": os.getpid()})
    reader: Any = asyncio.StreamReader(limit=1 << 22)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    rosters = asyncio.create_task(_rosters(Follower(service, plan), reader))
    told = asyncio.create_task(stopping.wait())
    await asyncio.wait({rosters, told}, return_when=asyncio.FIRST_COMPLETED)
    drain = stopping.is_set()
    for task in (rosters, told):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    await service.stop(drain=drain)


async def _rosters(follower: Follower, reader: Any) -> None:
    from outrider.cloud_server.cluster.launcher import Roster

    while line := await reader.readline():
        await follower.follow(Roster.from_json(line))
