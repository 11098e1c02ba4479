"""A member of a group on another machine: a drafter that a service runs, met over one connection.

To the group it is a member like any other. A thread and event loop of their own (:class:`Lan`) keep
the connections, make them again when they are lost, and carry one small message each way a step.
Whatever a member says is looked at: it may be wrong, slow or dead, and never changes the text.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from outrider.edge_client.group.members import Member
from outrider.protocol.decoding.rules import Proposal
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.drafting import (
    MAX_STREAMS,
    Failed,
    Forget,
    Greet,
    Greeted,
    Proposed,
    Refused,
    Step,
    Terms,
    decode,
    encode,
    proposals,
)
from outrider.protocol.errors import (
    BackendError,
    HandshakeError,
    LinkError,
    OutriderError,
    RemoteProtocolError,
)
from outrider.protocol.fingerprint import Fingerprint
from outrider.runtime.lm.base import common_prefix
from outrider.runtime.net.client import connect
from outrider.runtime.net.link import Link, Tuning

AGENT = "outrider-lead"

NEAR = Tuning(ping_interval=2.0, ping_timeout=4.0, close_timeout=0.5, send_timeout=4.0)
"""A member on the local network answers at once, or it is stopped or gone."""

OPEN = 3.0
"""Seconds that a member may take to answer when it is called."""

BACK_OFF, BACK_OFF_MAX = 0.25, 8.0
"""Seconds after which a member that went is called again, doubled while it is not there."""

GAIN = 1 / 8
UNKNOWN_CONTEXT = 1 << 18

T = TypeVar("T")


class Lan:
    """The event loop for all members elsewhere, and who of them is who."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.met: dict[bytes, RemoteMember] = {}
        self._thread = threading.Thread(target=self.loop.run_forever, name="lan", daemon=True)
        self._thread.start()
        self._users = 0

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run this beside whatever else runs."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def join(self) -> None:
        """One more member uses it."""
        self._users += 1

    def leave(self) -> None:
        """One less; the last one ends it."""
        self._users -= 1
        if self._users == 0:
            self.start(self._tidy()).result(2 * OPEN)
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(OPEN)
            self.loop.close()

    async def _tidy(self) -> None:
        """What links have left to do is ended."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(slots=True)
class _Held:
    """A text that the member holds."""

    ids: list[int] = field(default_factory=list)
    terms: Terms | None = None
    used: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSettings:
    """Where a member is, what is shown to it, and what its ids have to mean."""

    url: str
    key: str | None = None
    context: ssl.SSLContext | None = None
    fingerprint: Fingerprint
    usable: int


class RemoteMember(Member):
    """One thread at a time may ask it; :attr:`there` says whether that is of any use.

    ``took`` seconds went by at the member with the last step, its queue included.
    """

    def __init__(self, settings: RemoteSettings, lan: Lan) -> None:  # no model here
        self.settings = settings
        self.name = settings.url
        self.drafter = None
        self.n_ctx = UNKNOWN_CONTEXT
        self.load = 0.0
        self.took = 0.0
        self.trouble: OutriderError | None = LinkError(f"{self.name} has not been reached yet")
        self._lan = lan
        self._link: Link | None = None
        self._held: list[_Held] = []
        self._met = b""
        self._streams = MAX_STREAMS
        self._turn = 0
        self._number = 0
        self._waiting: dict[int, Future[Proposed]] = {}
        self._closed = False
        self._first: Future[None] = Future()
        lan.join()
        self._keeper: asyncio.Task[None] | None = None
        lan.start(self._begin())

    @property
    def there(self) -> bool:
        """It is connected."""
        return self._link is not None

    def wait(self, seconds: float) -> None:
        """Until it was reached, or could not be.

        Raises:
            HandshakeError: it will not work with this group. SettingError: neither will it ever.
        """
        with contextlib.suppress(TimeoutError, LinkError):
            self._first.result(seconds)

    # --- a member ---------------------------------------------------------------------------

    def behind(self, ids: Sequence[int]) -> int:
        """How many of ``ids`` it has not read."""
        return len(ids) - max((common_prefix(h.ids, ids) for h in tuple(self._held)), default=0)

    def read(self, ids: Sequence[int], count: int) -> None:
        """Let it read up to ``count`` more of ``ids``.

        Raises:
            BackendError: it is not there, or could not.
        """
        keep = len(ids) - self.behind(ids)
        if keep + count > 0:
            self._step(ids[: keep + count], None, 0)

    def propose(
        self,
        ids: Sequence[int],
        prompt_len: int,
        sampling: Sampling,
        count: int,
        never: frozenset[int],
    ) -> list[Proposal]:
        """Its ``count`` likeliest choices of the target after ``ids``, best first.

        Raises:
            BackendError: it is not there, could not, or said what makes no sense.
        """
        terms = Terms(prompt_len=prompt_len, sampling=sampling, never=tuple(sorted(never)))
        answer = self._step(ids, terms, count)
        try:
            return proposals(answer, count, self.settings.usable, never)
        except RemoteProtocolError as error:
            self._drop()
            raise BackendError(f"{self.name} said nonsense: {error}") from error

    def forget(self, ids: Sequence[int]) -> None:
        """The answer with this text was broken off: the member need not keep it."""
        held = max(self._held, key=lambda h: common_prefix(h.ids, ids), default=None)
        if held is None or not 2 * common_prefix(held.ids, ids) > len(held.ids):
            return
        link, data = self._link, encode(Forget(stream=self._held.index(held)))
        held.ids, held.terms = [], None
        with contextlib.suppress(RuntimeError):  # closed meanwhile
            self._lan.loop.call_soon_threadsafe(self._post, link, data, None)

    def interrupt(self) -> None:
        """Nobody waits for it any more."""
        self._closed = True
        with contextlib.suppress(RuntimeError):
            self._lan.loop.call_soon_threadsafe(self._fail, LinkError("closed"))

    def close(self) -> None:
        """Leave the member."""
        self.interrupt()
        self._lan.start(self._end()).result(2 * OPEN)
        self._lan.leave()

    # --- on the asking thread ---------------------------------------------------------------

    def _step(self, ids: Sequence[int], terms: Terms | None, width: int) -> Proposed:
        link = self._link
        if link is None:
            raise BackendError(str(self.trouble))
        held = self._text(ids)
        keep = common_prefix(held.ids, ids)
        self._number = (self._number + 1) % (1 << 32)
        step = Step(
            number=self._number,
            stream=self._held.index(held),
            keep=keep,
            ids=tuple(map(int, ids[keep:])),
            width=width,
            terms=terms if terms != held.terms else None,
        )
        held.terms = terms or held.terms
        held.ids[keep:] = ids[keep:]
        answered: Future[Proposed] = Future()
        self._lan.loop.call_soon_threadsafe(self._post, link, encode(step), (step.number, answered))
        try:
            answer = answered.result()
        except OutriderError as error:
            held.ids, held.terms = [], None
            raise BackendError(f"{self.name}: {error}") from error
        self.load += GAIN * (answer.load - self.load)
        self.took = (answer.waited + answer.worked) / 1e6
        return answer

    def _text(self, ids: Sequence[int]) -> _Held:
        """The text that goes on like this, or the one that was used longest ago."""
        self._turn += 1
        best = max(self._held, key=lambda h: common_prefix(h.ids, ids), default=None)
        if best is None or 2 * common_prefix(best.ids, ids) < len(best.ids):
            if len(self._held) < self._streams:
                self._held.append(_Held())
                best = self._held[-1]
            else:
                best = min(self._held, key=lambda h: h.used)
        best.used = self._turn
        return best

    # --- on the loop ------------------------------------------------------------------------

    async def _begin(self) -> None:
        self._keeper = asyncio.create_task(self._keep())

    async def _end(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)

    async def _keep(self) -> None:
        """Call it, and call it again whenever it went, until closed."""
        pause = BACK_OFF
        while not self._closed:
            called = self._lan.loop.time()
            try:
                await self._serve()
            except OutriderError as error:
                self.trouble = error
                self._settle(error)
            except Exception as error:  # what a peer does must not end the keeper
                self.trouble = BackendError(f"{self.name}: {error}")
                self._settle(self.trouble)
            if self._lan.loop.time() - called > BACK_OFF_MAX:  # it was there for a while
                pause = BACK_OFF
            await asyncio.sleep(pause)
            pause = min(BACK_OFF_MAX, 2 * pause)

    async def _serve(self) -> None:
        settings = self.settings
        link = await connect(
            settings.url,
            key=settings.key,
            context=settings.context,
            open_timeout=OPEN,
            tuning=NEAR,
        )
        try:
            greeted = await self._greet(link)
            self.n_ctx, self._streams, self._held = greeted.n_ctx, greeted.streams, []
            self._link, self.trouble = link, None
            self._settle(None)
            await link.receive(self._take)
            raise LinkError(f"{self.name} said what makes no sense")
        finally:
            self._link = None
            self._lan.met.pop(self._met, None)
            self._met = b""
            self._fail(LinkError("the connection was lost"))
            link.abort()

    async def _greet(self, link: Link) -> Greeted:
        await link.send(encode(Greet(agent=AGENT, tokenizer=self.settings.fingerprint)))
        try:
            async with asyncio.timeout(OPEN):
                answer = decode(await link.recv())
        except TimeoutError as error:
            raise LinkError(f"{self.name} does not answer") from error
        except RemoteProtocolError as error:
            raise HandshakeError(f"{self.name} is no drafter: {error}", code="version") from error
        if isinstance(answer, Refused):
            raise HandshakeError(f"{self.name}: {answer.message}", code=answer.code)
        if not isinstance(answer, Greeted):
            raise HandshakeError(f"{self.name} is no drafter", code="version")
        if (known := self._lan.met.get(answer.member)) is not None:
            raise HandshakeError(
                f"{self.name} and {known.name} are the same drafter: members of a group differ",
                code="duplicate",
            )
        self._lan.met[answer.member], self._met = self, answer.member
        return answer

    def _settle(self, error: OutriderError | None) -> None:
        """Whoever waits for the first connection is told."""
        if self._first.done():
            return
        if error is None:
            self._first.set_result(None)
        else:
            self._first.set_exception(error)

    def _take(self, data: bytes) -> bool:
        try:
            message = decode(data)
        except RemoteProtocolError:
            return False
        if not isinstance(message, Proposed | Failed):
            return False
        answered = self._waiting.pop(message.number, None)
        if answered is None:
            return False  # nobody asked
        if isinstance(message, Failed):
            answered.set_exception(BackendError(message.message))
        else:
            answered.set_result(message)
        return True

    def _post(
        self, link: Link | None, data: bytes, waits: tuple[int, Future[Proposed]] | None
    ) -> None:
        """Send it on the link that it was made for."""
        if link is None or link is not self._link or self._closed:
            if waits is not None:
                waits[1].set_exception(self.trouble or LinkError("closed"))
            return
        if waits is not None:
            self._waiting[waits[0]] = waits[1]
        if link.clear:
            link.post(data)
        else:
            asyncio.ensure_future(link.send(data)).add_done_callback(_seen)

    def _fail(self, error: LinkError) -> None:
        waiting, self._waiting = self._waiting, {}
        for answered in waiting.values():
            answered.set_exception(error)

    def _drop(self) -> None:
        """It is called again, and greets again."""
        link = self._link
        if link is not None:
            self._lan.loop.call_soon_threadsafe(link.abort)


def _seen(task: asyncio.Future[None]) -> None:
    """A link that is lost says so to whoever receives."""
    if not task.cancelled():
        task.exception()
