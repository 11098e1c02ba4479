"""The frozen messages of wire version 1. ``docs/wire.md`` describes every byte of them.

Two are *hot*, sent many times a second, and have a packed binary layout: :class:`Draft` and
:class:`Verdict`. All others are *cold*: MessagePack arrays behind a type byte, to whose end a later
version may append optional fields.

A *handle* is a small number by which one connection names a session; 0, the usual one, is free on
the wire. Ids travel packed at ``ceil(log2(size))`` bits, ``size`` being the hello's.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from outrider.protocol.decoding.row import SparseRow
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.fingerprint import Fingerprint

WIRE_VERSION = 1

RATIO = "ratio"
COLLABORATE = "collaborate"
TREES = "trees"
LOGPROBS = "logprobs"
GRAMMAR = "grammar"
TOOLS = "tools"
OFFERS = "offers"
SHARES = "shares"
FEATURES = (RATIO, COLLABORATE, TREES, LOGPROBS, GRAMMAR, TOOLS, OFFERS, SHARES)
"""What this software can do beyond version 1: ``ratio``, draft frames with rows; ``collaborate``,
text of a combination of the target and the edge's model; ``trees``, more than one branch of an
epoch is judged (elsewhere the first-sent one is, which is exact too); ``logprobs``, the target's
log-probabilities of committed tokens; ``grammar``, text held to a form; ``tools``, chats that the
cloud renders may offer tools; ``offers``, the cloud proposes tokens of a text of several models,
and the edge scores them; ``shares``, verdicts may cap what an edge sends, and sessions of one key
may be weighed against each other."""

HASH_BYTES = 4
SESSION_BYTES = 8
SECRET_BYTES = 16

LEAST_FRAME_NODES, LEAST_IN_FLIGHT = 8, 32
"""What every cloud allows of the limits on nodes: an edge that has not been welcomed yet keeps to
these."""

LEAST_MESSAGE = 256 << 10
"""Bytes of a message that every cloud takes: before the welcome an edge sends no longer one."""

# What a field of a cold message may hold; anything else is refused when it is read.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Handle = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)]
Digest = Annotated[bytes, msgspec.Meta(min_length=HASH_BYTES, max_length=HASH_BYTES)]
SessionKey = Annotated[bytes, msgspec.Meta(min_length=SESSION_BYTES, max_length=SESSION_BYTES)]
Secret = Annotated[bytes, msgspec.Meta(min_length=SECRET_BYTES, max_length=SECRET_BYTES)]


class Message(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Base of everything that travels."""


# --- hot ------------------------------------------------------------------------------------


class EpochStart(msgspec.Struct, frozen=True, kw_only=True):
    """What the first frame of an epoch adds: where the guesses hang and what text they assume.

    ``answer`` is the low byte of the answer's number; ``digest`` hashes the committed ids up to
    ``base``.
    """

    answer: int
    base: int
    digest: bytes


class Draft(Message, frozen=True, kw_only=True):
    """Edge to cloud: appends nodes to an epoch of guesses. No nodes and not ``more``: it closes.

    ``epoch`` is a low byte: epochs of a session are numbered without gaps in the order announced.
    ``deltas[i]`` is how far before node i its parent was sent (empty: all 1, a chain; the base
    itself counts as node -1). ``more`` false: this edge stops riding until it sends another frame.
    ``full``: its window is full, nothing more comes before a verdict. No nodes but ``more``: it
    rides, guesses are being made. ``rows``: under the ratio rule what each token was drawn from.
    ``scored``: so many of the first tokens are the cloud's proposals, with the edge's rows there;
    None: it wants none.
    """

    handle: int = 0
    epoch: int
    start: EpochStart | None = None
    tokens: tuple[int, ...] = ()
    deltas: tuple[int, ...] = ()
    rows: tuple[SparseRow, ...] = ()
    more: bool = True
    full: bool = False
    scored: int | None = None


class Ack(msgspec.Struct, frozen=True, kw_only=True):
    """What a verdict says of the last draft frame received, as QUIC acks do.

    ``frame`` is the low byte of the count of draft frames received for the session on this
    connection; ``since``, ``queue`` and ``target`` are seconds since it came, of them spent waiting
    and in the target model; ``load`` is how likely right a guess must be to be worth its part of a
    pass now: near 0 while the cloud has time, 1 if no guess pays.
    """

    frame: int
    since: float
    queue: float
    target: float
    load: float


class Verdict(Message, frozen=True, kw_only=True):
    """Cloud to edge: tokens committed from position ``at`` (16 low bits) on.

    First those on the path to ``node`` of ``epoch`` (the edge's own guesses, from ``at`` on), if
    ``node`` is not None, then ``ids`` in full: recovered, bonus, or advanced by the cloud alone.
    ``offered`` is what the cloud proposes behind them and behind ``offered_after`` earlier
    proposals that stand there already. ``cap``: from now on at most so many bytes of draft frames a
    second, infinity for no cap; None: as before.
    """

    handle: int = 0
    answer: int
    at: int
    epoch: int = 0
    node: int | None = None
    ids: tuple[int, ...] = ()
    ack: Ack | None = None
    offered_after: int = 0
    offered: tuple[int, ...] = ()
    cap: float | None = None


# --- cold: the handshake --------------------------------------------------------------------


class Hello(Message, frozen=True, kw_only=True):
    """Edge to cloud, first on every connection; attaches and opens may follow at once."""

    version: Count
    agent: str
    fingerprint: Fingerprint
    max_message: Count
    features: tuple[str, ...] = ()


class Limits(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What the cloud allows. Ids and nodes are counts, times are seconds."""

    max_message: Count
    max_prompt: Count
    max_tokens: Count
    max_nodes_per_frame: Count
    max_nodes_in_flight: Count
    max_sessions: Count
    detached_seconds: float


class Welcome(Message, frozen=True, kw_only=True):
    """Cloud to edge: the hello was accepted.

    ``specials`` is sent only where the special tokens differ, so that the edge can tell which ids
    it must never draft; ``same_template`` false: the edge sends messages and the cloud renders.
    ``pass_times`` says what the target's passes take: tokens in a pass, seconds; the fewest first.
    ``collaborators`` are further models that can take part in a text, by name.
    ``elsewhere`` are addresses at which the same service can be had, should this one be lost.
    """

    version: Count
    agent: str
    model: str
    n_ctx: Count
    eos: tuple[int, ...]
    limits: Limits
    same_template: bool
    specials: dict[int, bytes] | None = None
    objective: str = "latency"
    features: tuple[str, ...] = ()
    pass_times: tuple[tuple[float, float], ...] = ()
    collaborators: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()


class Mismatch(Message, frozen=True, kw_only=True):
    """Cloud to edge: the ordinary tokens differ. The edge may ask for one segment, then leaves."""

    size: Count
    segments: tuple[bytes, ...]


class SegmentAsk(Message, frozen=True, kw_only=True):
    """Edge to cloud, after a mismatch: the entries of segment ``index``, please."""

    index: Count


class Segment(Message, frozen=True, kw_only=True):
    """Cloud to edge: the entries of one segment of the cloud's vocabulary."""

    index: Count
    entries: tuple[bytes, ...]


class Goodbye(Message, frozen=True, kw_only=True):
    """Either way, last on a connection: why it ends. ``code`` is stable, ``message`` for people."""

    code: str
    message: str


# --- cold: sessions and answers -------------------------------------------------------------


class Attach(Message, frozen=True, kw_only=True):
    """Edge to cloud: take this session over on this connection and send what I missed.

    ``n`` grows with every connection attempt; the cloud serves the highest. ``epoch`` is the last
    one announced. All that was in flight is void.
    """

    handle: Handle
    session: SessionKey
    secret: Secret
    n: Count
    answer: Count
    epoch: Count
    length: Count
    digest: Digest


class Open(Message, frozen=True, kw_only=True):
    """Edge to cloud: begin an answer. Idempotent by ``(session, answer)``.

    The sequence is the session's first ``base`` committed ids (``digest`` hashes them), then
    ``ids``; the first ``prompt_len`` of it are prompt, later ones an answer under way that is being
    restored. Instead of ids there may be ``messages`` (a chat, rendered by the cloud) or ``text``.
    ``templated`` ids came from the edge's own copy of the template.

    ``logprobs``: how many alternatives to tell with each token's log-probability; None: neither.
    ``grammar`` is the form that the text must have (``docs/wire.md``); ``tools`` go with messages.
    ``collaborators`` are the cloud's models that take part beside the target: the names that
    ``sampling`` has weights for. A cloud that knows of none refuses them.
    """

    handle: Handle
    session: SessionKey
    secret: Secret
    n: Count
    answer: Count
    base: Count
    digest: Digest
    prompt_len: Count
    ids: tuple[int, ...] = ()
    messages: tuple[dict[str, Any], ...] | None = None
    text: str | None = None
    templated: bool = False
    sampling: Sampling = Sampling()
    max_tokens: Count
    stops: tuple[str, ...] = ()
    ignore_eos: bool = False
    epoch: Count = 0
    logprobs: int | None = None
    grammar: str | None = None
    objective: str | None = None
    collaborators: tuple[str, ...] = ()
    tools: tuple[dict[str, Any], ...] | None = None


class Opened(Message, frozen=True, kw_only=True):
    """Cloud to edge: the answer runs (or ran). ``ids`` are the committed ids from ``start`` on.

    For an open with ids, ``start`` is the length that the edge already knows; for one with messages
    or text it is ``base``, so that the edge learns the prompt. ``cached`` prompt ids were not
    evaluated again.
    """

    handle: Handle
    answer: Count
    n: Count
    prompt_len: Count
    start: Count
    ids: tuple[int, ...] = ()
    cached: Count = 0
    objective: str = "latency"


class Attached(Message, frozen=True, kw_only=True):
    """Cloud to edge: this connection serves the session; ``ids`` are those committed since."""

    handle: Handle
    answer: Count
    n: Count
    start: Count
    ids: tuple[int, ...] = ()


class Cancel(Message, frozen=True, kw_only=True):
    """Edge to cloud: stop working on the answer. Answered by a ``Finished`` unless it ended."""

    handle: Handle
    answer: Count


class Close(Message, frozen=True, kw_only=True):
    """Edge to cloud: forget the session."""

    handle: Handle


class Finished(Message, frozen=True, kw_only=True):
    """Cloud to edge: the answer ended, exactly once.

    ``tokens`` were emitted, ``text_bytes`` of their text are to be kept (a stop string is cut off),
    ``length`` and ``digest`` say what the committed text is; ``passes`` of the target decided
    something for this answer.
    """

    handle: Handle
    answer: Count
    reason: str
    tokens: Count
    text_bytes: int
    length: Count
    digest: Digest
    passes: Count = 0


class Refused(Message, frozen=True, kw_only=True):
    """Cloud to edge: an open or attach was not honoured; the connection goes on."""

    handle: Handle
    answer: Count
    code: str
    message: str
    retry_after: float | None = None


class Logprobs(Message, frozen=True, kw_only=True):
    """Cloud to edge: the target's log-probabilities of the tokens from index ``at`` on.

    Ahead of the verdict that commits them, for answers that asked. ``data`` holds for each token
    its own (float32), then ``top`` times an id (32 bits) and its value (float32), likeliest first;
    little endian.
    """

    handle: Handle
    answer: Count
    at: Count
    top: Count
    data: bytes


class Part(Message, frozen=True, kw_only=True):
    """Either way: a piece of a longer cold message, so that hot frames can pass between pieces."""

    last: bool
    data: bytes


class Weigh(Message, frozen=True, kw_only=True):
    """Edge to cloud: how much the session's latency counts against others of the same key.

    Weights are relative to their mean over the key's sessions, so nobody gains over other keys.
    """

    handle: Handle
    weight: Annotated[float, msgspec.Meta(gt=0.0, le=1e3)]
