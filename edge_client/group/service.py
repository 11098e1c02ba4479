"""A drafter for the groups of other machines: many leads, one model, steps batched in turns."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from outrider.edge_client.group.sequences import Sequences
from outrider.edge_client.group.turns import Job, Text, Turns
from outrider.protocol.drafting import (
    DRAFTING_VERSION,
    MAX_STREAMS,
    Failed,
    Forget,
    Greet,
    Greeted,
    Message,
    Proposed,
    Refused,
    Step,
    decode,
    encode,
    named,
)
from outrider.protocol.errors import LinkError, OutriderError, RemoteProtocolError
from outrider.protocol.fingerprint import Vocabulary
from outrider.runtime.net.keys import KeyFile
from outrider.runtime.net.link import Link
from outrider.runtime.net.server import Server, serve
from outrider.runtime.owner import OwnerThread

AGENT = "outrider-drafter"
GREETING = 10.0
"""Seconds that a lead may take to greet."""

SWEEP = 1.0
STATUS_PATH = "/status"

_log = logging.getLogger("outrider.drafter")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterSettings:
    """``streams`` texts of one lead and ``max_queue`` steps of all leads may be there at once."""

    host: str = "127.0.0.1"
    port: int = 0
    keys: KeyFile | None = None
    key_file: Path | None = None
    tls: ssl.SSLContext | None = None
    max_leads: int = 16
    max_queue: int = 64
    streams: int = 16


@dataclass(eq=False, slots=True)
class Lead:
    """One connected lead and its texts."""

    link: Link
    texts: dict[int, Text] = field(default_factory=dict)
    asked: int = 0


class DrafterService:
    """Owns the sockets and the queue; one thread owns the model."""

    def __init__(self, settings: DrafterSettings) -> None:
        self.settings = settings
        self.member = os.urandom(16)
        self.failed: BaseException | None = None
        self.steps = self.batches = self.refused = 0
        self._leads: dict[Link, Lead] = {}
        self._queue: deque[Job] = deque()
        self._busy = self._closing = False
        self._thread = OwnerThread("drafter")
        self._turns: Turns | None = None
        self._vocabulary: Vocabulary | None = None
        self._server: Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._over = asyncio.Event()

    # --- life -------------------------------------------------------------------------------

    async def listen(self) -> Server:
        """Answer from now on: 503 until :meth:`begin`.

        Raises:
            SettingError: the address is in use, or open to the world without key and certificate.
        """
        settings = self.settings
        self._server = await serve(
            self.handle,
            settings.host,
            settings.port,
            keys=settings.keys,
            context=settings.tls,
            max_connections=settings.max_leads,
            loading=lambda: self._turns is None,
            draining=lambda: self._closing,
            pages={STATUS_PATH: self._status_page},
        )
        self._sweeper = asyncio.create_task(self._sweep(), name="sweeper")
        return self._server

    async def begin(self, built: tuple[Sequences, Vocabulary]) -> None:
        """The model is loaded: let leads in."""
        sequences, vocabulary = built
        self._turns, self._vocabulary = Turns(sequences, vocabulary.size), vocabulary

    async def ended(self) -> None:
        """Wait until the model thread has failed."""
        await self._over.wait()

    async def stop(self, *, drain: bool = True) -> None:
        """Say goodbye to the leads, whose groups go on without this member; free the model."""
        self._closing = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        if self._server is not None:
            await self._server.close(grace=5.0 if drain else 0.5)
        turns = self._turns
        await asyncio.to_thread(self._thread.close)
        if turns is not None:
            turns.sequences.close()

    def reload(self) -> None:
        """Read the key file again. One that cannot be read changes nothing, and is said."""
        if self.settings.key_file is None or self._server is None:
            _log.warning("there is no key file to read again")
            return
        try:
            keys = KeyFile.load(self.settings.key_file, empty=True)
        except OutriderError as error:
            _log.error("the keys stay as they were: %s", error)
            return
        dropped = self._server.replace_keys(keys)
        _log.warning("keys were read again: %d accepted, %d links dropped", len(keys), dropped)

    async def _sweep(self) -> None:
        while self._server is not None:
            await asyncio.sleep(SWEEP)
            if dropped := self._server.sweep():
                _log.warning("%d links of expired keys were dropped", dropped)

    # --- a lead -----------------------------------------------------------------------------

    async def handle(self, link: Link) -> None:
        """One lead, until it goes."""
        if self._turns is None or not await self._greet(link):
            return
        lead = self._leads[link] = Lead(link)
        wrong: list[RemoteProtocolError] = []

        def take(data: bytes) -> bool:
            try:
                self._take(lead, decode(data))
            except RemoteProtocolError as error:
                wrong.append(error)
                return False
            return True

        try:
            await link.receive(take)
            if wrong:
                raise wrong[0]
        finally:
            del self._leads[link]
            self._queue = deque(job for job in self._queue if job.lead is not lead)
            for text in lead.texts.values():
                self._forget(text)

    async def _greet(self, link: Link) -> bool:
        """Whether the lead's ids mean the same here."""
        assert self._turns is not None
        assert self._vocabulary is not None
        try:
            async with asyncio.timeout(GREETING):
                greet = decode(await link.recv())
        except TimeoutError:
            return False
        if not isinstance(greet, Greet):
            raise RemoteProtocolError("a lead that does not greet first")
        mine, refused = self._vocabulary.fingerprint(), None
        if greet.version != DRAFTING_VERSION:
            text = f"drafting version {greet.version}; this drafter speaks {DRAFTING_VERSION}"
            refused = Refused(code="version", message=f"{text}: upgrade the older of the two")
        elif (greet.tokenizer.ordinary, greet.tokenizer.size) != (mine.ordinary, mine.size):
            text = f"this drafter has another tokenizer ({mine.size} tokens; the lead's has "
            text += f"{greet.tokenizer.size}): drafters of a group must share one"
            refused = Refused(code="fingerprint", message=text)
        if refused is not None:
            self.refused += 1
            await link.send(encode(refused))
            await link.close(1008, refused.code)
            return False
        sequences = self._turns.sequences
        greeted = Greeted(
            agent=AGENT,
            model=sequences.name,
            member=self.member,
            n_ctx=sequences.n_ctx,
            streams=min(MAX_STREAMS, self.settings.streams),
        )
        await link.send(encode(greeted))
        return True

    def _take(self, lead: Lead, message: Message) -> None:
        """A message of a lead that has greeted.

        Raises:
            RemoteProtocolError: it makes no sense; the lead is dropped.
        """
        if isinstance(message, Forget):
            text = lead.texts.pop(message.stream, None)
            self._queue = deque(job for job in self._queue if job.text is not text)
            if text is not None:
                self._forget(text)
            return
        if not isinstance(message, Step):
            raise RemoteProtocolError("a lead sends steps, and says what it has done with")
        if message.stream >= self.settings.streams:
            raise RemoteProtocolError(f"stream {message.stream} of {self.settings.streams}")
        text = lead.texts.setdefault(message.stream, Text())
        if any(job.text is text for job in self._queue) or text in self._at_work:
            raise RemoteProtocolError("a step of a text whose last step is not answered")
        self._step(lead, text, message)

    def _step(self, lead: Lead, text: Text, step: Step) -> None:
        if step.keep > len(text.ids):
            raise RemoteProtocolError(f"keep {step.keep} of a text of {len(text.ids)} ids")
        assert self._turns is not None
        text.ids[step.keep :] = step.ids
        text.terms = step.terms or text.terms
        if not text.ids or (step.width and text.terms is None):
            raise RemoteProtocolError("a step without a text, or without terms")
        refusal = None
        if len(text.ids) > self._turns.sequences.n_ctx or max(text.ids) >= self._turns.usable:
            refusal = Failed(number=step.number, code="context", message="the text does not fit")
        elif len(self._queue) >= self.settings.max_queue or self._closing:
            refusal = Failed(number=step.number, code="busy", message="too many steps wait")
        if refusal is not None:
            self.refused += 1
            self._send(lead, refusal)
            return
        others = sum(job.lead is not lead for job in (*self._queue, *self._working))
        now = asyncio.get_running_loop().time()
        self._queue.append(Job(lead, text, step.number, step.width, now, others))
        self._next()

    # --- the model --------------------------------------------------------------------------

    _working: tuple[Job, ...] = ()

    @property
    def _at_work(self) -> set[Text]:
        return {job.text for job in self._working}

    def _next(self) -> None:
        """The next turn, if the thread is free: in the order asked, so that nobody starves."""
        if self._busy or self._turns is None or not self._queue:
            return
        count = min(len(self._queue), self._turns.sequences.count)
        self._working = tuple(self._queue.popleft() for _ in range(count))
        self._busy = True
        self._thread.submit(self._turn, self._working, self._turned)

    def _turn(self, jobs: tuple[Job, ...]) -> BaseException | None:
        assert self._turns is not None
        try:
            self._turns.take(jobs)
        except Exception as error:
            return error
        return None

    def _turned(self, jobs: tuple[Job, ...], error: BaseException | None) -> None:
        self._busy, self._working = False, ()
        if error is not None:
            _log.error("the drafter failed: %s", error, exc_info=error)
            self.failed = error
            self._over.set()
            return
        self.batches += 1
        for job in jobs:
            lead = job.lead
            assert isinstance(lead, Lead)
            if self._leads.get(lead.link) is not lead or job.text not in lead.texts.values():
                self._forget(job.text)  # it went meanwhile
            elif job.done:
                self.steps += 1
                self._send(lead, self._answer(job))
            else:
                self._queue.append(job)
        self._next()

    def _answer(self, job: Job) -> Proposed | Failed:
        if job.error is not None:
            return Failed(number=job.number, code="backend", message=str(job.error)[:1000])
        assert self._turns is not None
        whole = asyncio.get_running_loop().time() - job.asked
        return Proposed(
            number=job.number,
            proposals=named(job.proposals),
            waited=int(1e6 * max(0.0, whole - job.worked)),
            worked=int(1e6 * job.worked),
            load=min(1.0, job.others / self._turns.sequences.count),
        )

    def _forget(self, text: Text) -> None:
        """Its part of the model's cache is given back before the next turn."""
        if text in self._at_work:
            return  # when the turn is over
        turns = self._turns
        if turns is not None and not self._closing:
            self._thread.submit(turns.forget, text, lambda _text, _none: None)

    def _send(self, lead: Lead, message: Proposed | Failed) -> None:
        """At once where the link takes it; a lead that takes nothing is dropped."""
        if lead.link.clear:
            lead.link.post(encode(message))
        elif lead.link.unsent > 1 << 16:
            lead.link.abort()
        else:
            task = asyncio.ensure_future(lead.link.send(encode(message)))
            task.add_done_callback(_quietly)

    # --- how it is --------------------------------------------------------------------------

    def facts(self) -> dict[str, object]:
        """What ``/status`` shows."""
        turns = self._turns
        if turns is None:
            return {"state": "loading"}
        return {
            "state": "draining" if self._closing else "ready",
            "model": turns.sequences.name,
            "sequences": turns.sequences.count,
            "steps_are_made": turns.sequences.how,
            "held": turns.held,
            "leads": len(self._leads),
            "texts": sum(len(lead.texts) for lead in self._leads.values()),
            "waiting": len(self._queue),
            "steps": self.steps,
            "turns": self.batches,
            "refused": self.refused,
        }

    def _status_page(self) -> tuple[str, str]:
        return "application/json", json.dumps(self.facts()) + "\n"


def _quietly(task: asyncio.Future[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, LinkError):
        _log.warning("%s", error)
