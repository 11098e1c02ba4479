"""``outrider cloud cluster``: many verifiers of one target behind gateways."""

from __future__ import annotations

import sys
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli import hosting, listening, logs
from outrider.cli import options as o
from outrider.cli.exits import NotConnectedError
from outrider.protocol.errors import LinkError, SettingError

if TYPE_CHECKING:
    import asyncio

    from outrider.cli.cluster_plan import Plan
    from outrider.cloud_server.cluster.controller import Controller
    from outrider.cloud_server.cluster.launcher import Launcher

CLUSTER = "Cluster"


class LauncherKind(StrEnum):
    """Who starts the processes."""

    RAY = "ray"
    PROCESSES = "processes"


Placement = Annotated[
    str,
    typer.Option(
        "--placement",
        metavar="POLICY",
        rich_help_panel=CLUSTER,
        help="Which replica a session goes to: tma-moves, tma, moves, greedy, least-loaded, "
        "max-sinr, max-compute or random.",
    ),
]


class SharesKind(StrEnum):
    """How what a replica has is split among its sessions."""

    EQUAL = "equal"
    OPTIMISED = "optimised"


Shares = Annotated[
    SharesKind,
    typer.Option(
        "--shares",
        rich_help_panel=CLUSTER,
        help="How a replica's time, and --draft-rate, are split among its sessions: equally, or "
        "by what each asks for.",
    ),
]
DraftRate = Annotated[
    float,
    typer.Option(
        "--draft-rate",
        min=0.0,
        metavar="KBIT",
        rich_help_panel=CLUSTER,
        help="kbit/s of guesses that the edges of one replica may send together. 0: no cap.",
    ),
]


def cluster(
    *,
    model: hosting.Model = None,
    target_backend: hosting.Backend = o.TargetBackend.AUTO,
    dtype: hosting.Dtype = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="DEVICE",
            rich_help_panel=o.MODEL,
            help="transformers: cpu (default) or cuda, each replica on a GPU that Ray gives it.",
        ),
    ] = None,
    ctx_size: hosting.CtxSize = 0,
    threads: hosting.Threads = 1,
    max_sessions: Annotated[
        int,
        typer.Option(
            "--max-sessions",
            min=1,
            max=1024,
            metavar="N",
            rich_help_panel=o.MODEL,
            help="Answers that each replica serves at once.",
        ),
    ] = 8,
    replicas: Annotated[
        int,
        typer.Option(
            "--replicas",
            min=1,
            max=256,
            metavar="N",
            rich_help_panel=CLUSTER,
            help="Verifiers.",
        ),
    ] = 2,
    gateways: Annotated[
        int,
        typer.Option(
            "--gateways",
            min=1,
            max=64,
            metavar="N",
            rich_help_panel=CLUSTER,
            help="Gateways, on this port and the ones after it. Each tells edges of the others.",
        ),
    ] = 1,
    placement: Placement = "tma-moves",
    shares: Shares = SharesKind.OPTIMISED,
    draft_rate: DraftRate = 0.0,
    launcher: Annotated[
        LauncherKind,
        typer.Option(
            "--launcher",
            rich_help_panel=CLUSTER,
            help="Who starts and restarts the processes: Ray, or this command itself.",
        ),
    ] = LauncherKind.RAY,
    host: listening.Host = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            "--port",
            min=0,
            max=65535,
            metavar="N",
            rich_help_panel=listening.ADDRESS,
            help="The first gateway's port; 0 takes free ones.",
        ),
    ] = 8471,
    api_key_file: listening.Keys = None,
    ssl_certfile: listening.Certificate = None,
    ssl_keyfile: listening.CertificateKey = None,
    json: listening.Ready = False,
    with_stdin: listening.WithStdin = False,
    verbose: o.Verbose = False,
    config: o.Config = None,  # noqa: ARG001 - its callback reads it
) -> None:
    """Serve one target with several verifiers behind gateways, until SIGTERM or Ctrl-C.

    Edges connect to a gateway as to any cloud. A verifier that dies is started
    again, and its answers go on at another meanwhile, at the exact token.

    Example: outrider cloud cluster --replicas 3 --launcher processes
    """
    logs.configure(verbose)
    import asyncio

    from outrider.cli.cluster_plan import Plan
    from outrider.cloud_server.cluster.live import LivePlacer

    LivePlacer(placement)  # what is wrong with it is said before anything is started
    plan = Plan(
        model=model,
        backend=target_backend.value,
        dtype=dtype,
        device=device,
        ctx_size=ctx_size,
        threads=threads,
        slots=max_sessions,
        placement=placement,
        shares=shares.value,
        draft_rate=draft_rate,
        host=host,
        api_key_file=api_key_file,
        ssl_certfile=ssl_certfile,
        ssl_keyfile=ssl_keyfile,
        verbose=verbose,
    )
    plan.check()
    if launcher is LauncherKind.RAY:
        from outrider.cloud_server.cluster.ray_launcher import connect_ray

        connect_ray()
    ports = [port + i if port else 0 for i in range(gateways)]
    make = partial(_launcher, launcher, plan)  # within the loop that is to watch them
    asyncio.run(_serve(make, replicas, ports, as_json=json, with_stdin=with_stdin))


def _launcher(kind: LauncherKind, plan: Plan) -> Launcher:
    if kind is LauncherKind.RAY:
        from outrider.cloud_server.cluster.ray_launcher import RayLauncher

        return RayLauncher(plan.replica_member, plan.gateway_member, gpus=plan.device == "cuda")
    from outrider.cloud_server.cluster.launcher import ProcessLauncher

    return ProcessLauncher(plan.replica_command(), plan.gateway_command())


async def _serve(
    make: Any, replicas: int, ports: list[int], *, as_json: bool, with_stdin: bool
) -> None:
    """Start it all, take orders, and end it all when told to."""
    import asyncio
    import signal

    from outrider.cli.report import print_json
    from outrider.cli.serving import on_stdin
    from outrider.cloud_server.cluster.controller import Controller
    from outrider.runtime.net import control

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    if with_stdin:
        loop.add_reader(sys.stdin.fileno(), on_stdin, stopping)
    controller = Controller(make())
    loop.add_signal_handler(signal.SIGHUP, controller.reload)
    orders = None
    try:
        await controller.start(replicas, ports)
        if not await _or_told(controller.ready(), stopping):
            return
        urls = [controller.addresses[name] for name in controller.gateways]
        socket = control.place(f"cluster-{urls[0].rpartition(':')[2].partition('/')[0]}")
        orders = await control.listen(socket, lambda what: _obey(controller, what))
        logs.say("\n".join(f"ready: {url}" for url in urls))
        if as_json:
            print_json({"event": "ready", "url": urls[0], "gateways": urls, "control": str(socket)})
        await stopping.wait()
    finally:
        if orders is not None:
            orders.close()
            socket.unlink(missing_ok=True)
        logs.say("stopping: no new answers; those under way may finish")
        await controller.close()


async def _or_told(work: Any, stopping: asyncio.Event) -> bool:
    """Whether the work was done before the process was told to stop."""
    import asyncio

    tasks = {asyncio.ensure_future(work), asyncio.ensure_future(stopping.wait())}
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    for task in done:
        task.result()
    return not stopping.is_set()


async def _obey(controller: Controller, what: dict[str, Any]) -> dict[str, Any]:
    """An order of ``outrider cloud scale``."""
    if "replicas" in what:
        await controller.scale(int(what["replicas"]))
    elif "drain" in what:
        await controller.drain(str(what["drain"]))
    return {"replicas": {name: controller.addresses.get(name) for name in controller.replicas}}


def scale(
    *,
    replicas: Annotated[
        int | None,
        typer.Option("--replicas", min=1, max=256, metavar="N", help="Have so many verifiers."),
    ] = None,
    drain: Annotated[
        str | None,
        typer.Option("--drain", metavar="NAME", help="Let this verifier go."),
    ] = None,
    port: Annotated[
        int,
        typer.Option("--port", min=1, max=65535, metavar="N", help="Its first gateway's port."),
    ] = 8471,
    json: o.Json = False,
    verbose: o.Verbose = False,
    config: o.Config = None,  # noqa: ARG001 - its callback reads it
) -> None:
    """Add or drain verifiers of a cluster of this machine while it serves.

    The answers of one that is drained go on at another. Without --replicas
    and --drain: show which there are.

    Example: outrider cloud scale --replicas 4
    """
    logs.configure(verbose)
    import asyncio

    from outrider.cli.report import print_json
    from outrider.runtime.net import control

    if replicas is not None and drain is not None:
        raise SettingError("--replicas and --drain are two orders: give one")
    what: dict[str, Any] = {"replicas": replicas} if replicas is not None else {}
    what = {"drain": drain} if drain is not None else what
    try:
        said = asyncio.run(control.order(control.place(f"cluster-{port}"), what))
    except LinkError as error:
        raise NotConnectedError(str(error)) from error
    if json:
        print_json(said)
        return
    for name, url in said["replicas"].items():
        typer.echo(f"{name}  {url or 'starting'}")
