"""A verifier at work: its address, what it says when it is ready, and how it is told to stop."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from outrider.cli import logs
from outrider.cli.exits import WorkFailedError

if TYPE_CHECKING:
    import asyncio

    from outrider.cloud_server.driver import Verifier
    from outrider.runtime.net.server import Server

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

Build = Callable[[], tuple[T, dict[str, Any]]]


class Service(Protocol[T_contra]):
    """What listens while its model loads: a cloud, or a drafter for others."""

    @property
    def failed(self) -> BaseException | None:
        """What its engine died of."""

    async def listen(self) -> Server:
        """Answer from now on."""

    async def begin(self, built: T_contra, /) -> None:
        """The model is loaded."""

    async def ended(self) -> None:
        """Wait until the engine has died."""

    async def stop(self, *, drain: bool) -> None:
        """Close everything."""

    def reload(self) -> None:
        """Read the keys again."""


class Announce(Protocol[T_contra]):
    """Says that something is ready, and where."""

    def __call__(
        self, built: T_contra, url: str, facts: dict[str, Any], /, *, as_json: bool
    ) -> None: ...


@contextlib.contextmanager
def ends_at_once() -> Iterator[None]:
    """While a model loads there is nothing to finish: a signal ends the process, with a word.

    What is loading is neither waited for nor tidied up: it may be minutes of somebody else's code.
    """

    def end(number: int, _frame: object) -> None:
        with contextlib.suppress(OSError):
            os.write(2, b"\nstopped while loading\n")
        os._exit(128 + number)

    try:
        before = {n: signal.signal(n, end) for n in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread, where signals are somebody else's matter
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def serve_until_told(
    service: Service[T], build: Build[T], announce: Announce[T], *, as_json: bool, with_stdin: bool
) -> None:
    """Listen, load, serve; until a signal, the end of standard input if asked for, or the death of
    the engine.

    Raises:
        OutriderError: the address cannot be used, or the model does not load.
    """
    import asyncio

    server = await service.listen()
    stopping = asyncio.Event()
    try:
        with ends_at_once():
            built, facts = await asyncio.to_thread(build)
            await service.begin(built)
        _listen_to_signals(service, stopping)
        if with_stdin:
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), on_stdin, stopping)
        announce(built, server.url, facts, as_json=as_json)
        await _until(stopping, service)
    finally:
        if with_stdin:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        if stopping.is_set() and not with_stdin:
            logs.say("stopping: no new answers; those under way may finish")
        failed = service.failed
        await service.stop(drain=stopping.is_set() and failed is None)
    if failed is not None:
        raise WorkFailedError(f"the engine stopped: {type(failed).__name__}: {failed}") from failed


def _listen_to_signals(service: Service[T], stopping: asyncio.Event) -> None:
    import asyncio

    def asked(number: int) -> None:
        if stopping.is_set():
            os._exit(128 + number)  # asked twice: at once means at once
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked, number)
    loop.add_signal_handler(signal.SIGHUP, service.reload)


async def _until(stopping: Any, service: Service[T]) -> None:
    import asyncio

    asked = asyncio.create_task(stopping.wait())
    ended = asyncio.create_task(service.ended())
    await asyncio.wait({asked, ended}, return_when=asyncio.FIRST_COMPLETED)
    for task in (asked, ended):
        task.cancel()


def on_stdin(stopping: Any) -> None:
    """Whoever started us holds the other end: when it goes, however it goes, so do we."""
    if not os.read(sys.stdin.fileno(), 4096):
        stopping.set()


def announce_cloud(verifier: Verifier, url: str, facts: dict[str, Any], *, as_json: bool) -> None:
    """The lines that say what runs, where, and who may come in."""
    info, settings = verifier.target.info, verifier.settings
    names = "none (loopback only)" if settings.keys is None else f"{len(settings.keys)} accepted"
    lines = [
        f"model {info.name}: {facts['backend']}, {info.dtype} on {info.device}, "
        f"context {info.n_ctx}, {info.slots} slots",
        _guessing(verifier, facts["drafter"]),
        f"keys: {names}; TLS: {'on' if settings.tls else 'off'}",
    ]
    if settings.tls is not None:
        from outrider.runtime.net.tls import certificate_fingerprint

        lines.append(f"certificate fingerprint: {certificate_fingerprint(facts['certificate'])}")
    lines.append(f"ready: {url}")
    logs.say("\n".join(lines))
    if as_json:
        from outrider.cli.report import print_json

        print_json(
            {
                "event": "ready",
                "url": url,
                "model": info.name,
                "backend": facts["backend"],
                "dtype": info.dtype,
                "device": info.device,
                "n_ctx": info.n_ctx,
                "slots": info.slots,
                "draft_model": facts["drafter"],
                "objective": settings.objective,
                "pid": os.getpid(),
            }
        )


def _guessing(verifier: Verifier, drafter: str | None) -> str:
    """What the verifier guesses by itself, and up to which objective it works."""
    settings = verifier.settings
    lookup = f"look-up of up to {settings.engine.lookup}" if settings.engine.lookup else ""
    model = f"{drafter}, up to {settings.draft_max} at a time" if drafter else ""
    own = " and ".join(filter(None, (model, lookup))) or "none"
    return f"own guesses: {own}; objective up to {settings.objective}"
