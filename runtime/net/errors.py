"""What can go wrong on the way to the other end, in words that say what to do about it.

``LinkError`` means that trying again may help; ``HandshakeError`` that it will not until somebody
changes a setting. Both maps here keep that line: a reconnect loop relies on it.
"""

from __future__ import annotations

import errno
import json
import socket
import ssl
from http import HTTPStatus

from websockets.exceptions import (
    ConnectionClosed,
    InvalidMessage,
    InvalidProxy,
    InvalidStatus,
    NegotiationError,
    ProxyError,
    WebSocketException,
)
from websockets.frames import CloseCode

from outrider.protocol.errors import (
    HandshakeError,
    LinkError,
    OutriderError,
    RemoteProtocolError,
    SettingError,
)
from outrider.runtime.net.address import SUBPROTOCOL, Address
from outrider.runtime.net.tls import PinMismatchError

_CLEAN = frozenset({CloseCode.NORMAL_CLOSURE, CloseCode.GOING_AWAY})
_BROKEN = frozenset(
    {CloseCode.PROTOCOL_ERROR, CloseCode.UNSUPPORTED_DATA, CloseCode.INVALID_DATA},
)
# A status that a gateway gives while the server behind it starts or is overloaded.
_PASSING = frozenset({408, 425, 429, 500, 502, 504})

# X509_V_ERR_HOSTNAME_MISMATCH and _IP_ADDRESS_MISMATCH: another authority would not help.
_WRONG_IP = 64
_WRONG_NAME = frozenset({62, _WRONG_IP})


class LinkBusyError(LinkError):
    """The server is there but takes nobody now. ``retry_after``: seconds, if it said so."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class LinkClosedError(LinkError):
    """The connection ended. ``code``: the WebSocket closing code, None if it was just lost."""

    def __init__(self, message: str, *, code: int | None = None, reason: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason

    @property
    def clean(self) -> bool:
        """Whether the other end said goodbye, as opposed to failing."""
        return self.code in _CLEAN


def from_connect(error: Exception, address: Address, timeout: float) -> OutriderError:
    """Say why a connection could not be made."""
    place = address.place
    if isinstance(error, TimeoutError):
        return LinkError(
            f"{place} did not answer within {timeout:g} s: check the address, "
            "and that no firewall is in between"
        )
    if isinstance(error, ssl.SSLError):
        return _from_tls(error, address)
    if isinstance(error, InvalidStatus):
        return _from_status(error, address)
    if isinstance(error, ProxyError | InvalidProxy):
        return LinkError(f"the proxy on the way to {place} failed: {error}")
    if isinstance(error, InvalidMessage):
        return _from_message(error, address)
    if isinstance(error, NegotiationError):
        return wrong_subprotocol(address)
    if isinstance(error, WebSocketException):
        return HandshakeError(f"{place} is not an Outrider server: {error}", code="not-websocket")
    return _from_system(error, address)


def _from_system(error: Exception, address: Address) -> OutriderError:
    place = address.place
    if isinstance(error, socket.gaierror):
        return LinkError(f"no address was found for the host {address.host!r}: {error.strerror}")
    if _refused(error):
        return LinkError(f"nothing listens on {place}: is the server running, and on that port?")
    if isinstance(error, ConnectionResetError | BrokenPipeError | EOFError):
        hint = ": if the server does not use TLS, the address is ws://..." if address.secure else ""
        return LinkError(f"{place} dropped the connection before it was open{hint}")
    if isinstance(error, OSError):
        return LinkError(f"{place} cannot be reached: {error.strerror or error}")
    return SettingError(f"cannot connect to {address.url}: {error}")


def _refused(error: Exception) -> bool:
    if isinstance(error, ConnectionRefusedError):
        return True
    # A name with several addresses: asyncio folds one refusal for each into a text.
    text = str(error)
    refusals = text.count(f"[Errno {errno.ECONNREFUSED}]")
    return isinstance(error, OSError) and 0 < refusals == text.count("[Errno ")


def _from_tls(error: ssl.SSLError, address: Address) -> OutriderError:
    place = address.place
    if isinstance(error, PinMismatchError):
        return HandshakeError(
            f"{place} shows a certificate with the fingerprint {error.found}, not the pinned "
            "one: nothing was sent. If the server's certificate was renewed, pin the new one",
            code="tls",
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _WRONG_NAME:
            kind = "IP" if error.verify_code == _WRONG_IP else "DNS"
            return HandshakeError(
                f"the certificate of {place} is not for that name ({error.verify_message}). If the "
                "server is yours, pin its SHA-256 fingerprint, which it prints when it starts, or "
                "make a certificate that names it (openssl req ... -addext "
                f"subjectAltName={kind}:{address.host})",
                code="tls",
            )
        return HandshakeError(
            f"the certificate of {place} is not trusted ({error.verify_message}). If the server "
            "is yours, pin its SHA-256 fingerprint, which it prints when it starts, or name the "
            "file of the authority that signed it",
            code="tls",
        )
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return LinkError(f"{place} dropped the connection before TLS was set up")
    # Only what OpenSSL raised has a reason.
    reason = getattr(error, "reason", None)
    if reason in {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"}:
        return HandshakeError(
            f"{place} does not speak TLS: if it is on this machine or behind a tunnel, "
            "use a ws:// address",
            code="tls",
        )
    return HandshakeError(f"TLS with {place} failed: {reason or error}", code="tls")


def _from_message(error: InvalidMessage, address: Address) -> OutriderError:
    cause: BaseException | None = error.__cause__
    while cause is not None:
        if isinstance(cause, EOFError | ConnectionError):
            hint = "" if address.secure else " (if the server uses TLS, the address is wss://...)"
            return LinkError(f"{address.place} closed the connection without an answer{hint}")
        if ": HTTP/" in str(cause):  # too old a version of it to upgrade a connection
            return HandshakeError(
                f"{address.place} speaks HTTP but not WebSocket: is it an Outrider cloud?",
                code="not-websocket",
            )
        cause = cause.__cause__
    return HandshakeError(
        f"what listens on {address.place} does not speak HTTP: is it the right port"
        + ("?" if address.secure else ", and not one for wss:// ?"),
        code="not-websocket",
    )


def _from_status(error: InvalidStatus, address: Address) -> OutriderError:
    place = address.place
    response = error.response
    status = response.status_code
    said = _said(bytes(response.body or b""))
    if status == HTTPStatus.UNAUTHORIZED:
        return HandshakeError(
            f"{place} refused the key: {said or 'it is missing, wrong or no longer valid'}",
            code="key",
        )
    if status == HTTPStatus.FORBIDDEN:
        return HandshakeError(f"{place} forbids this connection: {said or status}", code="key")
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        wait = _seconds(response.headers.get("Retry-After"))
        return LinkBusyError(
            f"{place} is busy or still loading: {said or status}", retry_after=wait
        )
    phrase = f"HTTP {status} {response.reason_phrase}".rstrip()
    if status in _PASSING:
        return LinkError(f"{place} answered {phrase}: {said or 'try again later'}")
    if "Location" in response.headers:
        said = f"it redirects to {response.headers['Location']}, which is not followed"
    if status == HTTPStatus.BAD_REQUEST and SUBPROTOCOL in said:
        return HandshakeError(f"{place}: {said}", code="version")
    return HandshakeError(
        f"{place} speaks HTTP but is not an Outrider server at {address.path}: it answered "
        f"{phrase}" + (f" ({said})" if said else ""),
        code="not-websocket",
    )


def wrong_subprotocol(address: Address) -> OutriderError:
    """Say that the other end opened a WebSocket without agreeing on our protocol."""
    return HandshakeError(
        f"{address.place} is a WebSocket server but does not speak {SUBPROTOCOL}", code="version"
    )


def _said(body: bytes) -> str:
    """Find the server's own words in the body of a refusal; nothing for a page of HTML."""
    text = body[:2000].decode("utf-8", "replace").strip()
    try:
        return str(json.loads(text)["error"]["message"])[:300]
    except (ValueError, KeyError, TypeError):
        pass
    if text.startswith("<") or not text.isprintable():
        return ""
    return text[:200]


def _seconds(value: str | None) -> float | None:
    try:
        return max(0.0, float(value)) if value is not None else None
    except ValueError:
        return None  # the date form; nobody needs it to know when to try again


def from_closed(error: ConnectionClosed, peer: str, max_frame: int) -> OutriderError:
    """Say why an open connection ended, and whose fault it was."""
    received, sent = error.rcvd, error.sent
    if sent is not None and not error.rcvd_then_sent:
        if sent.code == CloseCode.MESSAGE_TOO_BIG:
            return RemoteProtocolError(
                f"{peer} sent a message of more than the {max_frame} bytes allowed here",
                code="too-large",
            )
        if sent.code in _BROKEN:
            return RemoteProtocolError(f"{peer} broke the WebSocket protocol: {sent.reason}")
        if sent.code == CloseCode.INTERNAL_ERROR and "ping timeout" in sent.reason:
            return LinkClosedError(f"{peer} no longer answers: a ping got no reply")
        return LinkClosedError(f"the connection to {peer} was closed here", code=sent.code)
    if received is None:
        cause = error.__cause__
        why = f" ({cause})" if cause is not None and str(cause) else ""
        return LinkClosedError(f"the connection to {peer} was lost{why}")
    said = f": {received.reason}" if received.reason else ""
    if received.code == CloseCode.MESSAGE_TOO_BIG:
        text = (
            f"{peer}, or a proxy in between, refused a message as too large{said}. "
            "Its limit is lower than what was sent"
        )
    elif received.code == CloseCode.GOING_AWAY:
        text = f"{peer} is shutting down{said}"
    elif received.code == CloseCode.NORMAL_CLOSURE:
        text = f"{peer} closed the connection{said}"
    else:
        text = f"{peer} closed the connection with code {received.code}{said}"
    return LinkClosedError(text, code=received.code, reason=received.reason)
