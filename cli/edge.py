"""The edge as the commands use it: load the drafter, connect, stream one answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from outrider.cli import drafters, embedded, logs
from outrider.cli.exits import NotConnectedError, not_connected
from outrider.edge_client.adaptive import LONGEST, Adaptive
from outrider.edge_client.answer import Ahead, Answer, Piece, as_it_stands, held_back
from outrider.edge_client.client import EdgeClient
from outrider.edge_client.decisions import DecisionLog
from outrider.edge_client.offline import Unverified
from outrider.edge_client.patience import PATIENCE, stream_patiently
from outrider.edge_client.policy import Fixed, Policy
from outrider.protocol.decoding.combine import parse
from outrider.protocol.errors import HandshakeError, LinkError, OutriderError, SettingError
from outrider.protocol.request import Request
from outrider.runtime.hub.need import check_memory
from outrider.runtime.hub.resolve import resolve
from outrider.runtime.lm.drafter import DraftSource
from outrider.runtime.net.courier import Persistence
from outrider.runtime.net.errors import LinkBusyError
from outrider.runtime.net.invite import is_invite, read_invite
from outrider.runtime.net.keys import read_key_file
from outrider.runtime.text.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    import ssl


DEFAULT_LENGTH = 6
"""Draft length of the fixed policy: with acceptance about 0.7 the longest that still pays."""


WORTH_A_KNOCK = 64 << 20
"""Bytes of weights from which on loading them takes longer than seeing whether a cloud is there."""

SECOND_CHOICE = "not installed"
"""In what is said of the drafter: another backend would have been taken, but is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeOptions:
    """Where the cloud is and how to draft for it. ``draft_max`` 0: not at all; None: as usual.

    ``partners``: further draft models, which make a group with the first; ``remotes``: members of
    it elsewhere, by address or invitation, to which ``draft_key`` is shown.
    An invitation in the place of the address is taken apart.
    """

    cloud: str
    draft_max: int | None = None
    policy: str = "adaptive"
    decision_log: Path | None = None
    api_key: str | None = None
    api_key_file: Path | None = None
    tls_fingerprint: str | None = None
    tls_ca: Path | None = None
    draft_model: Path | None = None
    partners: tuple[Path, ...] = ()
    remotes: tuple[str, ...] = ()
    draft_key: str | None = None
    drafter_backend: str = "auto"
    draft_p_min: float = 0.0
    rule: str = "coupled"
    collaborate: str | None = None
    ctx_size: int = 0
    threads: int = 1
    reconnect: float = 30.0
    offline: bool = False

    def __post_init__(self) -> None:
        """Raises SettingError for an invitation that is broken, or contradicted."""
        if not is_invite(self.cloud):
            return
        if any((self.api_key, self.api_key_file, self.tls_fingerprint, self.tls_ca)):
            raise SettingError(
                "--cloud is an invitation, which has the key and the certificate's fingerprint: "
                "leave --api-key, --api-key-file, --tls-fingerprint and --tls-ca out"
            )
        invite = read_invite(self.cloud)
        object.__setattr__(self, "cloud", invite.url)
        object.__setattr__(self, "api_key", invite.key)
        object.__setattr__(self, "tls_fingerprint", invite.fingerprint)

    @property
    def pack(self) -> Path:
        """The draft model's place; also that of the tokenizer, when nothing is drafted."""
        return resolve(str(self.draft_model)) if self.draft_model else embedded.drafter()

    @property
    def is_embedded(self) -> bool:
        """Whether the drafter is the embedded one, by default or by its path."""
        return self.draft_model is None or self.pack.resolve() == embedded.drafter().resolve()


@dataclass(frozen=True, slots=True)
class Edge:
    """A loaded edge. ``mode`` says whether and how it drafts, ``drafter_name`` with what."""

    tokenizer: Tokenizer
    drafter: DraftSource | None
    drafter_name: str | None
    mode: str
    options: EdgeOptions


def load_edge(options: EdgeOptions) -> Edge:
    """Load tokenizer and drafter and say what was chosen where the user may wonder.

    Raises:
        SettingError: settings that contradict each other. BackendError: a file does not load.
    """
    policy = make_policy(options)  # complains before anything is loaded
    for url in options.remotes:  # so does this
        drafters.remote(url, options.draft_key)
    _check_cloud(options)  # so does this
    if options.offline and options.draft_max == 0:
        raise SettingError("--offline local needs a drafter: leave --draft off out")
    _check_together(options)
    if options.offline and options.rule != "coupled":
        raise SettingError(f"--offline local and --rule {options.rule} contradict each other")
    if options.draft_max != 0:
        # And this, also where the model needs more memory than there is.
        need = check_memory(options.pack, options.ctx_size, backend=options.drafter_backend)
        if need.weights >= WORTH_A_KNOCK and options.cloud and not options.offline:
            asyncio.run(_knock(options))
    tokenizer = load_tokenizer(options.pack)
    for warning in tokenizer.warnings:
        logs.warn(warning)
    if options.draft_max == 0:
        return Edge(tokenizer, None, None, "plain cloud streaming: drafting is off", options)
    packs = [options.pack, *map(drafters.place, options.partners)]
    drafter, models = drafters.load_drafter(
        packs,
        tokenizer,
        options.drafter_backend,
        remotes=[drafters.remote(url, options.draft_key) for url in options.remotes],
        n_ctx=options.ctx_size,
        threads=options.threads,
        together=bool(options.collaborate),
    )
    if logs.verbose():
        for loaded in models:
            logs.note(f"drafter on {loaded.note}")
    notes = [m.note if SECOND_CHOICE in m.note else m.backend for m in models]
    names = [f"{m.path.name} ({how})" for m, how in zip(models, notes, strict=True)]
    name = " + ".join([*names, *(url.partition(",")[0] for url in options.remotes)])
    mode = f"drafting with {name}, {policy.about}"
    return Edge(tokenizer, drafter, name, mode, options)


def _check_together(options: EdgeOptions) -> None:
    """A text of several models needs them all, here and now."""
    if not options.collaborate:
        return
    if options.draft_max == 0:
        raise SettingError("--collaborate needs the model at the edge: leave --draft off out")
    if options.offline:
        raise SettingError("--collaborate needs the cloud for every token: leave --offline out")
    if options.remotes:
        raise SettingError("--collaborate needs its models on this machine: name no remote drafter")
    weights, models = parse(options.collaborate).models, 1 + len(options.partners)
    if weights != models:
        raise SettingError(
            f"--collaborate has weights for {weights} models at this edge, and there are {models}: "
            "give one --draft-model for each, with its weight in the same place, as in "
            "ensemble=0.3,0.2"
        )


async def _knock(options: EdgeOptions) -> None:
    """A cloud that is not there is told at once, not when a large drafter has been loaded.

    Raises:
        NotConnectedError: no connection, or the cloud refused the key.
    """
    from outrider.runtime.net.client import connect

    try:
        link = await connect(options.cloud, key=read_key(options), context=tls_context(options))
        await link.close()
    except (HandshakeError, LinkError) as error:
        raise not_connected(error) from error


def _check_cloud(options: EdgeOptions) -> None:
    """Whatever can be said of address, key and certificate without trying."""
    key, context = read_key(options), tls_context(options)
    if options.cloud:  # the demonstration has none yet
        from outrider.runtime.net.client import check

        check(options.cloud, key, context)
    with decision_log(options):  # it can be written
        pass


def make_policy(options: EdgeOptions) -> Policy:
    """The policy that the flags ask for.

    Raises:
        SettingError: a length or floor out of range.
    """
    if options.policy == "fixed" or options.draft_max == 0:
        length = DEFAULT_LENGTH if options.draft_max is None else options.draft_max
        return Fixed(length, options.draft_p_min)
    longest = LONGEST if options.draft_max is None else options.draft_max
    Fixed(longest, options.draft_p_min)  # the same ranges
    return Adaptive(longest, options.draft_p_min)


@contextmanager
def decision_log(options: EdgeOptions) -> Iterator[DecisionLog | None]:
    """The log of the policy's decisions, open for appending, if one was asked for.

    Raises:
        SettingError: the file cannot be opened.
    """
    if options.decision_log is None:
        yield None
        return
    try:
        out = options.decision_log.expanduser().open("a", encoding="utf-8")
    except OSError as error:
        raise SettingError(f"--decision-log {options.decision_log}: {error.strerror}") from error
    with out:
        yield DecisionLog(out)


@asynccontextmanager
async def connected(
    edge: Edge, *, model: str | None = None, policy: Policy | None = None
) -> AsyncIterator[EdgeClient]:
    """A client whose handshake is done, with the target that was expected.

    ``policy`` takes the place of the one that the flags ask for.

    Raises:
        NotConnectedError: no connection, or the two ends do not fit. SettingError: bad flags.
    """
    options = edge.options
    with decision_log(options) as log:
        client = EdgeClient(
            options.cloud,
            edge.tokenizer,
            edge.drafter,
            policy or make_policy(options),
            key=read_key(options),
            context=tls_context(options),
            persistence=Persistence(give_up=options.reconnect),
            log=log,
            offline=options.offline,
            rule=options.rule,
            accept=lambda welcome: _check_model(welcome.model, model),
        )
        try:
            await _enter(client, options.reconnect)
        except (HandshakeError, LinkError) as error:
            raise not_connected(error) from error
        try:
            yield client
        finally:
            await client.__aexit__(None, None, None)


async def _enter(client: EdgeClient, seconds: float) -> None:
    """Connect; a cloud that is loading or full is asked again for so long, if it says when."""
    deadline = monotonic() + seconds
    while True:
        try:
            await client.__aenter__()
            return
        except LinkBusyError as error:
            pause = error.retry_after
            if pause is None or monotonic() + pause > deadline:
                raise
            logs.note(f"{error}: trying again in {pause:g} s")
        await asyncio.sleep(pause)


def _check_model(served: str, expected: str | None) -> None:
    if expected is not None and served not in (expected, Path(expected).name):
        raise NotConnectedError(
            f"the cloud serves {served!r}, not {expected!r}: leave --model out, or ask another one"
        )


def read_key(options: EdgeOptions) -> str | None:
    """The key for the cloud, from the flag or the file. Never part of an error."""
    return plain_key(options.api_key, options.api_key_file, "--api-key")


def plain_key(key: str | None, file: Path | None, flag: str) -> str | None:
    """The key from a flag or its file.

    Raises:
        SettingError: both, or the file cannot be read.
    """
    if key and file:
        raise SettingError(f"{flag} and {flag}-file contradict each other: give one")
    if file is not None:
        return read_key_file(file)
    return _bare(key) if key else None


def _bare(text: str) -> str:
    """A key without the name that may stand before it, as it does in the cloud's key file."""
    name, colon, key = text.partition(":")
    return key.strip() if colon else name


def tls_context(options: EdgeOptions) -> ssl.SSLContext | None:
    """TLS settings where the user made any; None leaves the choice to the address."""
    if options.tls_fingerprint is None and options.tls_ca is None:
        return None
    from outrider.runtime.net.tls import client_context

    return client_context(options.tls_fingerprint, options.tls_ca)


async def answer(
    client: EdgeClient,
    request: Request,
    show: Callable[[Piece], None],
    alone: Callable[[Unverified], None] = lambda _: None,
    patience: float = PATIENCE,
) -> tuple[Answer, OutriderError | None]:
    """One answer, each piece shown as it is verified. If it breaks off: what there is, and why.

    ``alone`` is told what the drafter writes while there is no link; ``patience``: for how many
    seconds a cloud that is full is asked again.
    """
    session = client.session()
    parts: list[str] = []
    started, first = monotonic(), None
    try:
        # Closed before the session is, whose handle the next one gets.
        stream = stream_patiently(client, session, request, seconds=patience)
        async with aclosing(stream) as events:
            async for event in events:
                if isinstance(event, Answer):
                    return event, None
                if isinstance(event, Ahead):
                    if isinstance(event, Unverified):
                        alone(event)
                    continue
                first = first if first is not None else monotonic() - started
                parts.append(event.text)
                show(event)
    except OutriderError as error:
        rest = held_back(session, client.tokenizer.token_bytes, parts)
        if rest:
            show(Piece(rest, (), 0, ()))
        broken_off = as_it_stands(
            session,
            text="".join(parts) + rest,
            reason="error",
            first_token=first,
            seconds=monotonic() - started,
            rtt=client.machine.link.srtt,
        )
        return broken_off, error
    finally:
        # A verifier keeps few sessions open. It is told before the next answer is asked for.
        client.machine.close(session)
        client.courier.wake()
    raise AssertionError("a stream ends with its answer or with an error")


def undrafted(answer: Answer, policy: Policy) -> str:
    """Why nothing was drafted for an answer, although there is a drafter."""
    if answer.degraded:
        return answer.degraded
    if policy.reason.startswith(("streaming", "lockstep", "trying", "nothing measured", "fixed")):
        return "the answer ended before a guess was ready, or none was probable enough"
    return policy.reason
