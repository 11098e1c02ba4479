"""The link to a cloud: is it there, does it fit the draft model, how far away is it."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Iterator

from outrider.protocol.edge import EdgeMachine, State
from outrider.protocol.errors import HandshakeError, LinkError, OutriderError
from outrider.protocol.events import LinkFailed, LinkReady
from outrider.runtime.doctor.check import Check, ok, problem, warning
from outrider.runtime.net.client import connect
from outrider.runtime.net.link import Link
from outrider.runtime.text.fingerprint import describe
from outrider.runtime.text.tokenizer import Tokenizer

PINGS = 5
NAMED = 8
"""How many ids an answer names."""

_DO = {
    "key": "ask the operator of the cloud for a key, and give it with --api-key-file",
    "tls": "pin the certificate with --tls-fingerprint, or name its authority with --tls-ca",
    "tokenizer": "use a draft model of the same family as the target; outrider inspect shows both",
    "version": "install the same version of Outrider at both ends",
    "not-websocket": "check the address and the port; is it an Outrider verifier?",
}


def check_cloud(
    url: str,
    tokenizer: Tokenizer | None,
    *,
    key: str | None = None,
    context: ssl.SSLContext | None = None,
) -> list[Check]:
    """Connect, shake hands as an edge with this tokenizer would, and measure round trips."""
    return asyncio.run(_check(url, tokenizer, key, context))


async def _check(
    url: str, tokenizer: Tokenizer | None, key: str | None, context: ssl.SSLContext | None
) -> list[Check]:
    try:
        link = await connect(url, key=key, context=context)
    except (LinkError, HandshakeError) as error:
        code = getattr(error, "code", "")
        do = _DO.get(code, "start it (outrider cloud serve), or check --cloud and the network")
        return [problem("cloud", str(error), do, code=code)]
    found = [ok("cloud", f"{url} answers, in {'TLS' if url.startswith('wss') else 'the clear'}")]
    try:
        if tokenizer is not None:
            found += await _handshake(link, tokenizer)
        if found[-1].state != "problem":
            found.append(await _round_trips(link))
    except OutriderError as error:
        found.append(problem("cloud", str(error), "try again; if it stays, ask the operator"))
    finally:
        await link.close()
    return found


async def _handshake(link: Link, tokenizer: Tokenizer) -> list[Check]:
    """Say hello as the machine of an edge does, and see what comes of it."""
    loop = asyncio.get_running_loop()
    machine = EdgeMachine(describe(tokenizer), "outrider-doctor", os.urandom)
    machine.connect(loop.time())
    while True:
        while (message := machine.next_message(loop.time())) is not None:
            await link.send(message)
        for event in machine.events():
            if isinstance(event, LinkFailed):
                return [_refused(event.error)]
            if isinstance(event, LinkReady):
                return list(_welcomed(event, tokenizer))
        if machine.state is State.FAILED:
            return [problem("handshake", "the cloud ended it", "ask the operator of the cloud")]
        deadline = machine.next_timeout()
        try:
            async with asyncio.timeout_at(deadline):
                machine.receive(await link.recv(), loop.time())
        except TimeoutError:
            machine.handle_timeout(loop.time())


def _refused(error: HandshakeError) -> Check:
    do = _DO.get(error.code, "ask the operator of the cloud")
    return problem("handshake", str(error), do, code=error.code)


def _welcomed(event: LinkReady, tokenizer: Tokenizer) -> Iterator[Check]:
    welcome, never = event.welcome, sorted(event.never_draft)
    says = f"serves {welcome.model}, {welcome.n_ctx:,} tokens of context"
    facts = {"model": welcome.model, "n_ctx": welcome.n_ctx, "agent": welcome.agent}
    if never:
        shown = "; ".join(
            _difference(token, tokenizer, welcome.specials or {}) for token in never[:3]
        )
        more = f" and {len(never) - 3} more" if len(never) > 3 else ""
        yield warning(
            "handshake",
            f"{says}; {len(never)} special tokens differ: {shown}{more}",
            "nothing has to be done: these ids are never drafted",
            never_draft=never[:NAMED],
            **facts,
        )
    else:
        yield ok("handshake", f"{says}; its tokenizer equals the draft model's", **facts)
    if not welcome.same_template:
        yield warning(
            "template",
            "the cloud's chat template differs from the draft model's",
            "nothing has to be done: the cloud renders chats, with its own",
        )


def _difference(token: int, tokenizer: Tokenizer, theirs: dict[int, bytes]) -> str:
    def shown(content: bytes | None) -> str:
        return repr(content.decode("utf-8", "replace")) if content is not None else "ordinary"

    return (
        f"id {token}: {shown(tokenizer.specials.get(token))} here, {shown(theirs.get(token))} there"
    )


async def _round_trips(link: Link) -> Check:
    times = sorted([await link.ping() for _ in range(PINGS)])
    best, middle, worst = times[0], times[len(times) // 2], times[-1]
    says = (
        f"{1000 * middle:.1f} ms (of {PINGS} pings the fastest {1000 * best:.1f}, "
        f"the slowest {1000 * worst:.1f})"
    )
    facts = {"rtt_seconds": middle, "fastest": best, "slowest": worst}
    if worst > 3 * middle and worst - middle > 0.05:
        return warning(
            "round trip",
            f"{says}: it varies a lot",
            "if this is Wi-Fi, switch its power saving off or use a cable",
            **facts,
        )
    return ok("round trip", says, **facts)
