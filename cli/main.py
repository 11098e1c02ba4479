"""The ``outrider`` command. :func:`main` is the only place that turns errors into exit statuses."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import Annotated

import typer

from outrider.cli import exits, logs
from outrider.cli import version as versions
from outrider.cli.bench import LazyBench
from outrider.cli.chat import chat
from outrider.cli.chat_screen import visible
from outrider.cli.cloud_keys import cert, invite, keys, revoke
from outrider.cli.cloud_status import status
from outrider.cli.cluster import cluster, scale
from outrider.cli.demo import demo
from outrider.cli.doctor import doctor
from outrider.cli.drafter import serve as serve_drafter
from outrider.cli.endpoint import serve as serve_endpoint
from outrider.cli.gateway import gateway
from outrider.cli.init import init
from outrider.cli.inspect import inspect
from outrider.cli.link import link
from outrider.cli.pull import pull
from outrider.cli.quantize import quantize
from outrider.cli.quantize_report import report
from outrider.cli.run import run
from outrider.cli.serve import serve
from outrider.cli.service import install, uninstall
from outrider.cli.settings import Command
from outrider.cli.sim import radio, uara
from outrider.protocol.errors import OutriderError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""What a write fails with when there is no place for it: nobody's bug."""

_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG}
"""And with what a path that a user named may be wrong."""

_CONTEXT = {"help_option_names": ["--help", "-h"]}

# Typer brings its own copy of Click since 0.25 and uses Click before: this is the root of the
# errors about arguments in either.
USAGE_ERROR: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)

app = typer.Typer(
    name="outrider",
    help="Speculative decoding over a link: a small drafter here, the exact text of a large target "
    "in the cloud.",
    epilog=exits.EPILOG,
    context_settings=_CONTEXT,
    pretty_exceptions_enable=False,
)
cloud = typer.Typer(
    help="The cloud's side: serve a target, let edges in, see how it is.", context_settings=_CONTEXT
)
drafter = typer.Typer(
    help="Draft for the groups of edges on other machines.", context_settings=_CONTEXT
)
service = typer.Typer(
    help="The endpoint, or a cloud, as a service of systemd.", context_settings=_CONTEXT
)
sim = typer.Typer(help="Experiments in simulation.", context_settings=_CONTEXT)
bench = typer.Typer(cls=LazyBench, help="Measure speed, bytes and overheads.")

for function in (demo, init, run, chat, link, doctor, inspect, pull, versions.version):
    app.command(cls=Command, context_settings=_CONTEXT, epilog=exits.EPILOG)(function)
app.command("serve", cls=Command, context_settings=_CONTEXT, epilog=exits.EPILOG)(serve_endpoint)
for operate in (serve, cluster, scale, status, cert, invite, keys, revoke):
    cloud.command(cls=Command, context_settings=_CONTEXT, epilog=exits.EPILOG)(operate)
cloud.command(cls=Command, context_settings=_CONTEXT, hidden=True)(gateway)
app.add_typer(cloud, name="cloud")
drafter.command("serve", cls=Command, context_settings=_CONTEXT, epilog=exits.EPILOG)(serve_drafter)
app.add_typer(drafter, name="drafter")
for manage in (install, uninstall):
    service.command(cls=Command, context_settings=_CONTEXT, epilog=exits.EPILOG)(manage)
app.add_typer(service, name="service")
quantize.command("report", cls=Command, context_settings=_CONTEXT, epilog=exits.EPILOG)(report)
app.add_typer(quantize, name="quantize")
sim.command("radio", cls=Command, context_settings=_CONTEXT, epilog=exits.EPILOG)(radio)
sim.command("uara", cls=Command, context_settings=_CONTEXT, epilog=exits.EPILOG)(uara)
app.add_typer(sim, name="sim")
app.add_typer(bench, name="bench")


@drafter.callback()
def _drafter() -> None:
    """Draft for the groups of edges on other machines."""


@sim.callback()
def _sim() -> None:
    """Experiments in simulation."""


@bench.callback()
def _bench() -> None:
    """Measure speed, bytes and overheads."""


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"outrider {versions.collect()['outrider']}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback prints it
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """A small drafter rides ahead here; the text is exactly that of a large target in the cloud."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit(exits.USAGE)


def main(args: list[str] | None = None) -> None:
    """Run the command line and exit with a status of :mod:`outrider.cli.exits`."""
    status = _status(sys.argv[1:] if args is None else args)
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        status = _pipe_closed()
    except OSError as error:
        status = _cannot_write(error)
    sys.exit(status)


def _status(args: list[str]) -> int:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us (>&-)
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - as long as the process
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal that cannot show a character of the text is no reason to stop.
            stream.reconfigure(errors="replace")
    try:
        result = app(args, prog_name="outrider", standalone_mode=False)
        return result if isinstance(result, int) else exits.DONE
    except (exits.PipeClosedError, BrokenPipeError):
        return _pipe_closed()
    except OutriderError as error:
        _complain(str(error))
        return exits.status_of(error)
    except USAGE_ERROR as error:
        return _usage(error)
    except (KeyboardInterrupt, typer.Abort):
        print(file=sys.stderr)
        return exits.INTERRUPTED
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _FULL and error.filename is None:
            return _cannot_write(error)
        if isinstance(error, OSError) and error.errno in _FULL | _DENIED and error.filename:
            _complain(f"{os.fsdecode(error.filename)}: {error.strerror}")
            return exits.FAILED
        _complain(f"{type(error).__name__}: {error}")
        if not logs.verbose():
            print("this is a bug; --verbose shows where", file=sys.stderr)
        return exits.FAILED


MAX_SAID = 2000


def _complain(text: str) -> None:
    if logs.verbose():
        import traceback

        traceback.print_exc()
    # Some of it may be what a cloud said: shown, never obeyed, and not without end.
    print(logs.folded(f"error: {visible(text[:MAX_SAID])}"), file=sys.stderr)


def _usage(error: BaseException) -> int:
    """What was wrong with the arguments, and where the right ones are."""
    message = getattr(error, "format_message", lambda: str(error))()
    print(logs.folded(f"error: {message}"), file=sys.stderr)
    context = getattr(error, "ctx", None)
    if context is not None:
        print(f"see: {context.command_path} --help", file=sys.stderr)
    return exits.USAGE


def _cannot_write(error: OSError) -> int:
    """The output goes nowhere: the disk is full, say."""
    _complain(f"cannot write the output: {error.strerror or error}")
    _discard()
    return exits.FAILED


def _pipe_closed() -> int:
    """Whoever read the output has gone, as ``head`` does: nothing to say, nowhere to say it."""
    _discard()
    return exits.PIPE_CLOSED


def _discard() -> None:
    """What is still to be written is not written anywhere."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
