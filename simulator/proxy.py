"""A TCP proxy on loopback that makes the network between two programs as bad as it is told.

Both directions go through a :class:`Pipe` that all connections share. What TCP would do on such a
link is modelled above TCP: a loss is a pause, a full queue is a sender that is not read from.

Timers are good to a millisecond: what is due within half of one is forwarded at once, so that the
mean is right. On ``loopback``, where all is due within that, the proxy only forwards.

``python -m outrider.simulator.proxy --profile lte --to 127.0.0.1:8471`` prints its port as a line,
and takes commands as lines: ``profile geo``, ``stall 2``, ``drop``, ``half-open``, ``counters``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from types import TracebackType
from typing import Self

from outrider.protocol.errors import LinkError, OutriderError, SettingError
from outrider.runtime.net.address import is_loopback
from outrider.simulator import profiles
from outrider.simulator.links import Link, Pipe
from outrider.simulator.shaping import Connection, Counters, Road, small_socket
from outrider.simulator.traces import replay

MAX_HELD = 1 << 22
"""Bytes that one direction of one connection may have on its way, unless told otherwise."""


class Proxy:
    """Make it, ``async with`` it (or ``start`` and ``close``), connect to its :attr:`port`.

    ``to`` is where it connects to for everybody who connects to it. Both are on this machine:
    anything else is a ``SettingError``. ``seed`` draws jitter and losses.
    """

    def __init__(
        self,
        link: Link,
        to: tuple[str, int],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        seed: int = 0,
        max_connections: int = 64,
        max_held: int = MAX_HELD,
    ) -> None:
        for what in (host, to[0]):
            if not is_loopback(what):
                raise SettingError(f"{what!r}: the proxy listens and connects on loopback only")
        if max_connections < 1 or max_held < 1:
            raise SettingError("max_connections and max_held: at least 1")
        # One family, and no resolver: a name for this machine is this address.
        self._host, upstream = (_numeric(name) for name in (host, to[0]))
        self._port = port
        self.link = link
        self._server: asyncio.Server | None = None
        self._road = Road(
            up=Pipe(link.up, random.Random(f"up {seed}")),
            down=Pipe(link.down, random.Random(f"down {seed}")),
            to=(upstream, to[1]),
            max_connections=max_connections,
            max_held=max_held,
        )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Listen; traces begin here. Raises ``LinkError`` where the port cannot be had."""
        loop = asyncio.get_running_loop()
        self._road.up.begin(loop.time())
        self._road.down.begin(loop.time())
        sock = small_socket(self._host)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((self._host, self._port))
            self._server = await loop.create_server(lambda: Connection(self._road).edge, sock=sock)
        except (OSError, OverflowError) as error:
            sock.close()
            raise LinkError(f"cannot listen on {self._host}:{self._port}: {error}") from error

    @property
    def port(self) -> int:
        """Where it listens."""
        if self._server is None:
            raise SettingError("the proxy does not listen: start it first")
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def counters(self) -> Counters:
        """What went through until now."""
        return self._road.counters

    async def close(self) -> None:
        """Listen no longer, and reset what is open."""
        if self._server is not None:
            self._server.close()
        self.drop()
        await asyncio.sleep(0)  # the sockets close with the loop's next round

    def change(self, link: Link) -> None:
        """Be another link from now on. What is on its way arrives when it would have."""
        now = asyncio.get_running_loop().time()
        self.link = link
        self._road.up.change(link.up, now)
        self._road.down.change(link.down, now)
        self._wake()

    def stall(self, seconds: float) -> None:
        """Deliver nothing for so long; then all of it, as after a gap in radio cover."""
        until = asyncio.get_running_loop().time() + seconds
        self._road.held_until = max(self._road.held_until, until)
        self._wake()

    def drop(self) -> None:
        """Reset all connections on both sides. New ones are welcome."""
        for connection in list(self._road.connections):
            connection.abort()

    def half_open(self) -> None:
        """Swallow what comes on all open connections, and tell nobody. New ones are sound.

        Neither end learns that the other has gone.
        """
        for connection in list(self._road.connections):
            connection.deaden()

    def _wake(self) -> None:
        for connection in list(self._road.connections):
            connection.wake()


def _numeric(host: str) -> str:
    return "127.0.0.1" if host.lower() == "localhost" else host


def obey(proxy: Proxy, line: str, find: Callable[[str], Link]) -> str:
    """Carry out one command, and give the line to answer with.

    ``find`` gives the link of a name. What is wrong with a command is in the answer.
    """
    word, _, rest = line.strip().partition(" ")
    try:
        if word == "profile":
            proxy.change(find(rest.strip()))
        elif word == "stall":
            proxy.stall(_seconds(rest))
        elif word == "drop":
            proxy.drop()
        elif word == "half-open":
            proxy.half_open()
        elif word == "counters":
            return json.dumps(asdict(proxy.counters))
        else:
            known = "profile NAME, stall SECONDS, drop, half-open, counters"
            raise SettingError(f"command {word!r}: known are {known}")
    except SettingError as error:
        return f"error: {error}"
    return f"ok: {line.strip()}"


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 3600:
        raise SettingError(f"seconds {text!r}: 0 to 3600")
    return value


def _listen_to_lines(
    loop: asyncio.AbstractEventLoop, take: Callable[[str], None], ended: Callable[[], object]
) -> None:
    """Read standard input in a thread: it may be a file, which event loops refuse."""

    def read() -> None:
        # It may be closed as well, or a terminal that is not ours, and the loop may have ended.
        # Not through sys.stdin: whoever waits in that holds a lock which the exit asks for.
        with suppress(OSError, RuntimeError), open(0, "rb", buffering=0, closefd=False) as lines:
            for line in lines:
                if line.strip():
                    loop.call_soon_threadsafe(take, line.decode("utf-8", "replace"))
            loop.call_soon_threadsafe(ended)

    threading.Thread(target=read, daemon=True, name="commands").start()


async def _serve(proxy: Proxy, find: Callable[[str], Link], *, with_stdin: bool) -> None:
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    signal.signal(signal.SIGTTIN, signal.SIG_IGN)  # in the background of a terminal: no commands
    async with proxy:
        print(proxy.port, flush=True)
        ended = over.set if with_stdin else lambda: None
        _listen_to_lines(loop, lambda line: print(obey(proxy, line, find), flush=True), ended)
        await over.wait()


def _place(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise SettingError(f"{text!r}: it must be HOST:PORT")
    return host.strip("[]"), int(port)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a proxy until SIGTERM or SIGINT. 2: a setting is wrong or the port cannot be had."""
    parser = argparse.ArgumentParser(prog="python -m outrider.simulator.proxy")
    parser.add_argument("--to", required=True, metavar="HOST:PORT", help="where it leads")
    parser.add_argument("--profile", default="loopback", help=", ".join(profiles.PROFILES))
    parser.add_argument("--replay", metavar="FOLDER", help="replay recordings; --profile names one")
    parser.add_argument("--port", type=int, default=0, help="where it listens; 0 takes a free port")
    parser.add_argument("--host", default="127.0.0.1", help="an address of this machine")
    parser.add_argument("--seed", type=int, default=0, help="draws rates, jitter and losses")
    parser.add_argument("--with-stdin", action="store_true", help="end when standard input does")
    chosen = parser.parse_args(arguments)

    def find(name: str) -> Link:
        return replay(chosen.replay, name) if chosen.replay else profiles.link(name, chosen.seed)

    try:
        proxy = Proxy(
            find(chosen.profile),
            _place(chosen.to),
            host=chosen.host,
            port=chosen.port,
            seed=chosen.seed,
        )
        asyncio.run(_serve(proxy, find, with_stdin=chosen.with_stdin))
    except OutriderError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
