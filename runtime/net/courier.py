"""Moves the machine's bytes over one link after another: connect, serve, reconnect, resume.

The machine outlives its connections; this only says when a transport is up or lost. While nobody
needs the link, a lost one is not made again. A cloud may have named other addresses of its service:
they are tried as well when the link is lost.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from outrider.protocol.edge import EdgeMachine, State
from outrider.protocol.errors import HandshakeError, LinkError, OutriderError
from outrider.protocol.packing import frame_size
from outrider.runtime.net.address import Address, parse
from outrider.runtime.net.client import connect
from outrider.runtime.net.errors import LinkBusyError
from outrider.runtime.net.link import Link, Tuning

_log = logging.getLogger("outrider.edge")

HELD_BACK = 0.005
"""A send that took this long waited for the link, not for the processor. Seconds."""

PASSING = frozenset({"shutdown", "closing", "timeout", "idle"})
"""Goodbyes after which another attempt makes sense: the verifier restarts, or was slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Persistence:
    """How a lost link is made again. Times in seconds.

    Attempts back off from ``first`` by doubling up to ``longest``, each shortened at random by up
    to half; after ``give_up`` the answers under way end with an error. A ping is sent ``silence``
    after the last one was answered, and waited for as long: a link that dies without a word is
    noticed within twice that, whatever its sockets say. A cloud that answers pings but has said
    nothing in an answer for ``mute`` is dropped as well; a prompt may take long to read.
    """

    first: float = 0.1
    longest: float = 5.0
    give_up: float = 30.0
    silence: float = 5.0
    mute: float = 600.0


ELSEWHERE_SECONDS = 2.0
"""Time for an address to answer where there are others to try."""


@dataclass(slots=True)
class _Outage:
    """Since when nothing has come of the link, and how long to wait before the next attempt.

    ``progress`` is that of the machine when it began: a link that carried more ends the outage, and
    so does a time in which nobody needs one.
    """

    began: float
    pause: float
    progress: int
    attempts: int = 0


class Courier:
    """Owns the link of one machine.

    ``heard()`` is called whenever the machine may have events; ``interrupted(error)`` when a link
    was lost in mid answer and is being made again; ``failed(error)`` when this side has given up:
    answers under way cannot go on.
    """

    def __init__(
        self,
        machine: EdgeMachine,
        url: str,
        *,
        key: str | None,
        context: ssl.SSLContext | None,
        persistence: Persistence,
        heard: Callable[[], None],
        interrupted: Callable[[OutriderError], None],
        failed: Callable[[OutriderError], None],
    ) -> None:
        self.machine = machine
        self.url = url
        self.reconnects = 0
        self.needed = asyncio.Event()
        self._key, self._context = key, context
        self._persistence = persistence
        self._heard, self._interrupted, self._failed = heard, interrupted, failed
        self._link: Link | None = None
        self._wake = asyncio.Event()
        self._sending = asyncio.Lock()
        self._outage: _Outage | None = None
        self._silent: LinkError | None = None
        self._heard_at = 0.0

    async def connect(self) -> Link:
        """A transport, and the machine told of it.

        Raises:
            LinkError, HandshakeError: as :func:`outrider.runtime.net.client.connect`.
        """
        # The library would wait for the goodbye of a peer that is silent: see _watch.
        tuning, error = Tuning(ping_interval=None), None
        places = self._places()
        for url in places:
            try:
                link = await connect(
                    url,
                    key=self._key,
                    context=self._context,
                    tuning=tuning,
                    open_timeout=ELSEWHERE_SECONDS if len(places) > 1 else 10.0,
                )
            except LinkError as reason:
                error = error or reason
                continue
            self.url = url
            self.machine.connect(_now())
            self._link = link
            return link
        assert error is not None  # there is at least one place
        raise error

    def _places(self) -> list[str]:
        """Where to try: the last address, then those that its cloud named.

        None that would show what this one hides: a key goes where it went before, encrypted.
        """
        welcome, here = self.machine.welcome, parse(self.url)
        named = [url for url in (welcome.elsewhere if welcome else ()) if url != self.url]
        return [self.url, *(url for url in named if _like(url, here))]

    async def run(self, link: Link | LinkError) -> None:
        """Serve this link, then others after it, until cancelled.

        An error in its place says why there is none yet: that is no reason to give up.
        """
        patient = isinstance(link, LinkError)
        while True:
            error = link if isinstance(link, LinkError) else await self._serve(link)
            if self._final(error) or (self.machine.welcome is None and not patient):
                self._failed(error)
            elif self.needed.is_set():
                self._interrupted(error)
            await self.needed.wait()
            try:
                link = await self._reconnect(error)
            except OutriderError as reason:
                self.rest()
                self._failed(reason)
                await self.needed.wait()  # somebody tries again
                link = await self._patient_connect()
            self.reconnects += 1

    async def close(self) -> None:
        """Close the socket, if one is open."""
        if self._link is not None:
            await self._link.close()

    async def ping(self) -> float | None:
        """Seconds of a round trip; None: there is no link, or it has just gone."""
        link = self._link
        if link is None:
            return None
        try:
            return await link.ping()
        except LinkError:
            return None

    def rest(self) -> None:
        """Nobody needs the link any more: who does next is not late because of an old outage."""
        self.needed.clear()
        self._outage = None

    def wake(self) -> None:
        """The machine may have something to send."""
        self._wake.set()

    def post(self) -> None:
        """Send what is due as far as the link takes it at once; the rest is the writer's.

        The quick way: no task has to wake up.
        """
        link = self._link
        if link is None:
            return
        while link.clear and not self._sending.locked():
            message = self.machine.next_message(_now())
            if message is None:
                if self.machine.next_timeout() is not None:
                    self._wake.set()  # a frame waits for its turn: the writer minds the time
                return
            link.post(message)
        self._wake.set()

    async def flush(self) -> None:
        """Pull messages while the link takes them: what to say is decided at the last moment."""
        link = self._link
        if link is None:
            return
        try:
            async with self._sending:
                while (message := self.machine.next_message(_now())) is not None:
                    began = _now()
                    await link.send(message)
                    self._measure(frame_size(len(message), masked=True), _now() - began)
        except OutriderError as error:
            _log.debug("send: %s", error)  # the reader is told as well, and acts on it

    def _measure(self, size: int, seconds: float) -> None:
        """A send that had to wait tells what the link takes; one that did not tells nothing."""
        if seconds >= HELD_BACK:
            self.machine.link.uploaded(size, seconds, backlogged=True)

    # --- one link ---------------------------------------------------------------------------

    async def _serve(self, link: Link) -> OutriderError:
        """Until the link is lost or refused; why."""
        self._silent = None
        tasks = [asyncio.create_task(work(link)) for work in (self._write, self._watch)]
        try:
            error = await self._read(link)
            return self._silent or error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._link = None
            link.abort()

    async def _read(self, link: Link) -> OutriderError:
        try:
            if not self.machine.wants_close:
                await link.receive(self._take)
        except OutriderError as error:
            if self.machine.state is not State.FAILED:  # a goodbye tells more than the loss
                self.machine.connection_lost(_now())
                self._heard()
                return error
        await self.flush()
        await link.close()
        assert self.machine.failure is not None  # FAILED always has its reason
        return self.machine.failure

    def _take(self, message: bytes) -> bool:
        """Give the machine a message; whether to go on."""
        now = self._heard_at = _now()
        self.machine.receive(message, now)
        self._heard()
        if self.machine.has_cold_messages:
            self._wake.set()
        return not self.machine.wants_close

    async def _watch(self, link: Link) -> None:
        """Drop a link that has gone without a word.

        Whatever comes in is a sign of life; so is a backlog that shrinks, for on a slow link the
        ping waits behind it.
        """
        silence, mute = self._persistence.silence, self._persistence.mute
        self._heard_at = _now()
        await asyncio.sleep(silence)
        while True:
            if not self.needed.is_set():
                self._heard_at = _now()  # nobody waits for a word
            elif _now() - self._heard_at > mute:
                self._silent = LinkError(
                    f"{link.peer} has said nothing for {mute:g} s, though it answers pings"
                )
                link.abort()  # ends the reader
                return
            heard, backlog = link.bytes_in, link.unsent
            taken = link.bytes_out - backlog
            try:
                async with asyncio.timeout(silence):
                    await link.ping()
            except TimeoutError:
                moves = backlog > 0 and link.bytes_out - link.unsent > taken
                if link.bytes_in == heard and not moves:
                    self._silent = LinkError(
                        f"{link.peer} no longer answers: a ping got no reply for {silence:g} s"
                    )
                    link.abort()  # ends the reader
                    return
                continue  # a long queue is not a dead link
            except OutriderError:
                return  # the reader is told as well
            await asyncio.sleep(silence)

    async def _write(self, link: Link) -> None:
        """Send what is due whenever woken, and watch the machine's deadline."""
        while True:
            self._wake.clear()
            await self.flush()
            deadline = self.machine.next_timeout()
            if deadline is None:
                await self._wake.wait()
                continue
            try:
                async with asyncio.timeout(max(0.0, deadline - _now())):
                    await self._wake.wait()
            except TimeoutError:
                self.machine.handle_timeout(_now())
                self._heard()
                if self.machine.wants_close:
                    link.abort()  # ends the reader

    # --- the next link ----------------------------------------------------------------------

    def _final(self, error: OutriderError) -> bool:
        """Another attempt would end the same way."""
        return isinstance(error, HandshakeError) and error.code not in PASSING

    async def _reconnect(self, lost: OutriderError) -> Link:
        """Attempts with back-off for as long as it makes sense.

        Raises:
            OutriderError: the last reason, once there is no point in going on.
        """
        persistence, error = self._persistence, lost
        # A peer that takes connections and drops them before anything came of it is like none.
        progress = self.machine.progress
        if self._outage is not None and progress > self._outage.progress:
            self._outage = None
        outage = self._outage = self._outage or _Outage(_now(), persistence.first, progress)
        _log.info("link lost (%s): connecting again", lost)
        while outage.attempts == 0 or _now() - outage.began <= persistence.give_up:
            outage.attempts += 1
            await asyncio.sleep(outage.pause * random.uniform(0.5, 1.0))
            outage.pause = min(persistence.longest, 2 * outage.pause)
            try:
                return await self.connect()
            except LinkError as reason:
                error = reason
                if isinstance(reason, LinkBusyError) and reason.retry_after is not None:
                    outage.pause = max(outage.pause, min(reason.retry_after, persistence.longest))
        raise LinkError(f"{error} (tried again for {persistence.give_up:g} s)") from error

    async def _patient_connect(self) -> Link:
        """One attempt whenever somebody needs the link."""
        while True:
            try:
                return await self.connect()
            except OutriderError as error:
                self.rest()
                self._failed(error)
                await self.needed.wait()


def _like(url: str, here: Address) -> bool:
    """Whether the address is one to go on at: TLS as before, and loopback only from loopback."""
    try:
        there = parse(url)
    except OutriderError:
        return False
    return there.secure == here.secure and (here.secure or there.loopback == here.loopback)


def _now() -> float:
    return asyncio.get_running_loop().time()
