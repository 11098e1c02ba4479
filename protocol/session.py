"""One session at the cloud: committed ids, the answer under way, the edge's guesses, what to tell.

Pure: the engine calls :meth:`CloudSession.commit` and :meth:`CloudSession.finish`; connections call
the rest and pull verdicts. What a verdict says is derived when it is pulled, from how much of the
committed text this connection was told, so waiting verdicts merge by themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import count
from math import inf

import msgspec

from outrider.protocol.epochs import CloudWindow
from outrider.protocol.errors import RemoteProtocolError, SessionError
from outrider.protocol.logprobs import CloudLogprobs, TokenLogprob
from outrider.protocol.messages import (
    Ack,
    Attach,
    Attached,
    Draft,
    Finished,
    Logprobs,
    Open,
    Opened,
    Verdict,
)
from outrider.protocol.objective import Objective
from outrider.protocol.offers import MAX_OFFERED, Offers
from outrider.protocol.packing import PrefixDigest

_begun = count(1)

TOLD_LOG = 64
"""Verdicts remembered until the edge answers them."""

REPLY_GAIN = 1 / 8

MAX_VERDICT_IDS = 1024
"""Ids in one verdict: a bound for the codec, far above what a pass commits."""


class CloudSession:
    """State of one session. ``link`` identifies the connection that serves it; None: detached.

    ``told`` is how many committed ids the edge knows on this connection. ``begun`` numbers answers
    begun, of all sessions, so that a pass that outlives its answer can be told apart, and what is
    kept for one that was forgotten from what its key names now. ``reply_time`` is the smoothed time
    from a verdict to the edge's next frame, ``node_gap`` that between guesses of one epoch,
    ``queue_time`` and ``target_time`` are the engine's figures of the last pass, all in seconds.
    ``scores``: the edge takes proposals of the cloud's, which ``offers`` keeps.
    ``passes`` counts those that decided something for the answer. ``admitted``: it is the answer's
    turn; ``uncharged``: ids read or answered that its key's account does not know of yet.
    ``logprobs`` are those of the answer's tokens, if it asked for them. ``load`` is what verdicts
    tell of it: how likely right a guess must be to be taken; ``cap``: the bytes of draft frames a
    second that they allow, told to an edge that knows of ``shares``. ``weight``: how much its
    latency counts against others of its owner. ``ratio``: guesses come with rows; ``collaborates``:
    nothing is chosen without the edge's model, with which the target is combined.
    """

    def __init__(self, key: bytes, secret: bytes, owner: str) -> None:
        self.key = key
        self.secret = secret
        self.owner = owner
        self.ids: list[int] = []
        self.digests = PrefixDigest(self.ids)
        self.window = CloudWindow(self.ids)
        self.offers = Offers(self.ids)
        self.scores = False
        self.prompt_len = 0
        self.answer = 0
        self.request: Open | None = None
        self.running = False
        self.riding = False
        self.full = False
        self.begun = 0
        self.ended: Finished | None = None
        self.farewell_told = False
        self.link: object | None = None
        self.n = 0
        self.handle = 0
        self.told = 0
        self.idle_since = 0.0
        self.frames = 0
        self.frame_at: float | None = None
        self.frames_told = 0
        self.verdict_at: float | None = None
        self.told_log: deque[tuple[int, float]] = deque(maxlen=TOLD_LOG)
        self.reply_time: float | None = None
        self.node_gap: float | None = None
        self.objective: Objective = "latency"
        self.queue_time = 0.0
        self.target_time = 0.0
        self.passes = 0
        self.admitted = True
        self.uncharged = 0
        self.opened_at = 0.0
        self.logprobs: CloudLogprobs | None = None
        self.load, self.cap, self.weight = 0.0, inf, 1.0
        self._cap_told: float | None = None  # None: the edge does not know of caps

    # --- the edge's messages ----------------------------------------------------------------

    def takes(self, link: object, n: int) -> bool:
        """Whether this connection may serve the session: the highest attach number does."""
        return n > self.n or (n == self.n and link is self.link)

    def bind(self, link: object, n: int, handle: int, *, shares: bool = False) -> None:
        """This connection serves the session from now on; frames of older ones mean nothing.

        Frames are counted from here on, at both ends: those of a refused open never were here.
        """
        self.link, self.n, self.handle = link, n, handle
        self.frames = self.frames_told = 0
        self.frame_at = self.verdict_at = None
        self.told_log.clear()  # an outage is no measure of how fast the edge replies
        self.farewell_told = self.riding = self.scores = False
        self.offers.clear()
        self._cap_told = inf if shares else None

    def open(self, request: Open, ids: Sequence[int], known: int, objective: Objective) -> Opened:
        """Begin or, for the same answer again, go on. ``ids`` follow the first ``base`` committed.

        ``known`` is how long a prefix of the result the edge holds already. The caller has checked
        the base and its digest (:meth:`agrees`), and granted the ``objective``.
        """
        self.window.void(request.epoch)
        self.objective = objective
        if not self._runs(request, ids):
            self.answer, self.request = request.answer, request
            self.cut(request.base)
            self.ids.extend(ids)
            self.uncharged += len(ids)
            self.prompt_len = request.prompt_len if request.ids else len(self.ids)
            self.running, self.ended = True, None
            self.begun = next(_begun)
            self.passes = 0
            end = len(self.ids)
            asked = request.logprobs
            self.logprobs = None if asked is None else CloudLogprobs(asked, end, end)
        self._told_up_to(max(known, self.prompt_len))
        return Opened(
            handle=self.handle,
            answer=self.answer,
            n=self.n,
            prompt_len=self.prompt_len,
            start=known,
            ids=tuple(self.ids[known : self.told]),
            objective=objective,
        )

    def _runs(self, request: Open, ids: Sequence[int]) -> bool:
        """This answer was opened before, with this text: the edge only missed our reply."""
        end = request.base + len(ids)
        return request.answer == self.answer and self.ids[request.base : end] == list(ids)

    def attach(self, request: Attach) -> Attached:
        """Serve the answer on a new connection: everything in flight is void.

        The caller has checked that the edge's text is a prefix of ours (:meth:`agrees`).
        """
        self.window.void(request.epoch)
        self._told_up_to(request.length)
        return Attached(
            handle=self.handle,
            answer=self.answer,
            n=self.n,
            start=request.length,
            ids=tuple(self.ids[request.length : self.told]),
        )

    def _told_up_to(self, known: int) -> None:
        """The reply tells the rest of the text, unless that has to wait for log-probabilities."""
        self.told = len(self.ids)
        if self.logprobs is not None:
            self.told = self.logprobs.told = known

    def agrees(self, length: int, digest: bytes) -> bool:
        """The first ``length`` committed ids are those that the edge holds."""
        return length <= len(self.ids) and self.digests.at(length) == digest

    def draft(self, frame: Draft, now: float, max_in_flight: int) -> None:
        """Nodes or a closing frame arrive.

        Raises:
            RemoteProtocolError: the frame breaks the rules of epochs or the limit on nodes.
            SessionError: the edge assumes another text ("diverged"); its copy will win.
        """
        self.frames += 1
        if frame.start is None and frame.tokens and self.frame_at is not None:
            gap = (now - self.frame_at) / len(frame.tokens)
            usual = gap if self.node_gap is None else self.node_gap
            self.node_gap = usual + REPLY_GAIN * (gap - usual)
        self.frame_at = now
        if frame.tokens and frame.start is not None:
            self._replied(frame.start.base, now)
        if frame.start is not None:
            if frame.start.answer != self.answer & 0xFF:  # its open was refused: means nothing
                self.window.void(self.window.last_epoch)
                return
            self.window.begin(frame.epoch, frame.start.base, ratio=self.ratio)
            if not self.agrees(frame.start.base, frame.start.digest):
                raise SessionError("the guesses hang from another text", code="diverged")
        if bool(frame.rows) != (self.ratio and bool(frame.tokens)):
            raise RemoteProtocolError(
                "guesses need their rows under the ratio rule, and only there"
            )
        if frame.deltas and self.ratio:
            raise RemoteProtocolError("guesses are a chain under the ratio rule, never a tree")
        if frame.scored is not None and not self.collaborates:
            raise RemoteProtocolError("the cloud proposes in texts of several models only")
        self.window.append(frame.epoch, frame.tokens, frame.deltas, frame.rows, frame.scored or 0)
        if frame.tokens:
            self.scores = frame.scored is not None
            scored = self.window.chain_scored(MAX_OFFERED)
            self.offers.check(self.window.chain(MAX_OFFERED), scored)
        guesses = self.window.guesses
        most = max_in_flight
        if guesses and len(guesses.tokens) > most and self.window.in_flight() > most:
            raise RemoteProtocolError(f"more than {max_in_flight} guesses in flight", code="limit")
        self.riding, self.full = frame.more, frame.full
        if self.collaborates and not frame.more and self.running:
            emitted = len(self.ids) - self.prompt_len
            self.finish(
                "error: the edge's model stopped, and the text is partly its own", emitted, None
            )

    def _replied(self, base: int, now: float) -> None:
        """The edge answers a verdict: the one that told it of the text up to ``base``."""
        while self.told_log and self.told_log[0][0] < base:
            self.told_log.popleft()
        if self.told_log and self.told_log[0][0] == base:
            reply = now - self.told_log[0][1]
            usual = reply if self.reply_time is None else self.reply_time
            self.reply_time = usual + REPLY_GAIN * (reply - usual)

    def cancel(self, answer: int) -> None:
        """The edge does not want the rest of this answer."""
        if answer == self.answer and self.running:
            self.finish("cancel", len(self.ids) - self.prompt_len, None)

    def detach(self, now: float) -> None:
        """The connection is gone: nothing is in flight, nobody is told."""
        self.link, self.riding, self.idle_since = None, False, now
        self.window.void(self.window.last_epoch)

    # --- the engine -------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        """There is an answer to work on, somebody to tell, and it is its turn."""
        return self.running and self.admitted and self.link is not None

    @property
    def request(self) -> Open | None:
        """What the answer under way was opened with."""
        return self._request

    @request.setter
    def request(self, request: Open | None) -> None:
        self._request = request
        self.ratio = request is not None and request.sampling.rowed
        self.collaborates = request is not None and request.sampling.collaborate is not None

    def expects(self, judged: int) -> bool:
        """Beyond the first ``judged`` live guesses there are others, or more are on their way."""
        more = len(self.window.chain(judged + 1)) > judged
        return more or (self.riding and not self.full)

    def commit(
        self, tokens: Sequence[int], accepted: int = 0, logprobs: Sequence[TokenLogprob] = ()
    ) -> None:
        """The target chose these next tokens. Every pending guess is compared with them.

        Under the ratio rule only the first ``accepted`` are guesses: any token of the cloud's own
        ends the epoch, even one that happens to equal a guess.
        """
        if self.logprobs is not None:
            self.logprobs.values.extend(logprobs[: len(tokens)])
        if self.ratio:
            self.ids.extend(tokens[:accepted])
            self.window.committed_grew()
            tokens = tokens[accepted:]
            if not tokens:
                return
            self.window.end()
        self.ids.extend(tokens)
        self.uncharged += len(tokens)
        self.window.committed_grew()

    def cut(self, length: int) -> None:
        """Keep the first ``length`` committed ids: the edge's next answer hangs from there."""
        del self.ids[length:]
        self.digests.cut(length)
        self.told = min(self.told, length)
        self.told_log.clear()

    def finish(self, reason: str, tokens: int, text_bytes: int | None) -> None:
        """The answer ends here, exactly once. ``text_bytes`` None: all of the text is kept."""
        self.running = self.riding = self.farewell_told = False
        self.ended = Finished(
            handle=self.handle,
            answer=self.answer,
            reason=reason,
            tokens=tokens,
            text_bytes=-1 if text_bytes is None else text_bytes,
            length=len(self.ids),
            digest=self.digests.at(len(self.ids)),
            passes=self.passes,
        )

    # --- telling the edge -------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        """A verdict or the end of the answer is due."""
        return self.link is not None and (
            self.told < len(self.ids) or (self.ended is not None and not self.farewell_told)
        )

    def news(self, now: float, load: float) -> Verdict | Logprobs | Finished | None:
        """The next thing to tell the edge: verdicts first, then the end of the answer."""
        if self.link is None:
            return None
        if self.logprobs is not None and (
            ahead := self.logprobs.message(self.handle, self.answer, len(self.ids))
        ):
            return ahead
        if self.told < len(self.ids):
            return self._verdict(now, load)
        if self.ended is None or self.farewell_told:
            return None
        self.farewell_told = True  # kept: a later attach is told again
        return msgspec.structs.replace(self.ended, handle=self.handle)

    def _verdict(self, now: float, load: float) -> Verdict:
        """Everything committed since the edge was last told, the edge's own guesses by node."""
        start, node = self.told, self.window.settled(self.told)
        rest = start
        epoch = 0
        if node is not None and self.window.guesses is not None:
            rest = self.window.guesses.positions[node] + 1
            epoch = self.window.guesses.number & 0xFF
        ids = tuple(self.ids[rest : rest + MAX_VERDICT_IDS])
        self.told = rest + len(ids)
        self.verdict_at = now
        self.told_log.append((self.told, now))
        after, offered = 0, tuple[int, ...]()
        if self.scores and self.told == len(self.ids) and not self.window.chain(1):
            after, offered = self.offers.news()
        return Verdict(
            handle=self.handle,
            answer=self.answer & 0xFF,
            at=start & 0xFFFF,
            epoch=epoch,
            node=node,
            ids=ids,
            ack=self._ack(now, load),
            offered_after=after,
            offered=offered,
            cap=self._cap_news(),
        )

    def _cap_news(self) -> float | None:
        """The cap, where the edge has been told another one."""
        if self._cap_told is None or self._cap_told == self.cap:
            return None
        self._cap_told = self.cap
        return self.cap

    def _ack(self, now: float, load: float) -> Ack | None:
        """Times of the last frame received, once for each."""
        if self.frame_at is None or self.frames == self.frames_told:
            return None
        self.frames_told = self.frames
        return Ack(
            frame=self.frames & 0xFF,
            since=now - self.frame_at,
            queue=self.queue_time,
            target=self.target_time,
            load=load,
        )
