"""Where the cloud is: the forms of its address that a user may write."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from outrider.protocol.errors import SettingError

STREAM_PATH = "/v1/stream"
HEALTH_PATH = "/health"
SUBPROTOCOL = "outrider.v1"


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed address. ``secure`` means TLS."""

    host: str
    port: int
    path: str = STREAM_PATH
    secure: bool = False

    @property
    def loopback(self) -> bool:
        """Whether the host is this machine by its very name, without asking a resolver."""
        return is_loopback(self.host)

    @property
    def place(self) -> str:
        """``host:port``, as it is shown in messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The whole address."""
        return f"{'wss' if self.secure else 'ws'}://{self.place}{self.path}"


def is_loopback(host: str) -> bool:
    """Tell whether a host name or address never leaves this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse(text: str) -> Address:
    """Read ``ws://host:port/path``, ``wss://...`` or a bare ``host:port``.

    A bare address means TLS, except on this machine: what leaves it is never in the clear by
    default. The path is ``/v1/stream`` unless another is given.
    """
    bare = "://" not in text
    parts = _split(f"//{text}" if bare else text, text)
    host = parts.hostname or ""
    if not bare and parts.scheme not in {"ws", "wss"}:
        raise SettingError(
            f"address {text!r}: {parts.scheme}:// is not a WebSocket address, "
            "use ws:// (this machine only) or wss://"
        )
    if parts.username is not None or parts.password is not None:
        raise SettingError("address: a user or password in it is not supported, give a key instead")
    if parts.query or parts.fragment:
        raise SettingError(f"address {text!r}: a query or fragment means nothing here")
    secure = not is_loopback(host) if bare else parts.scheme == "wss"
    port = _port(parts, text)
    if port is None:
        if bare:
            raise SettingError(f"address {text!r}: name the port as well, for example {text}:8471")
        port = 443 if secure else 80
    return Address(host, port, parts.path if parts.path not in {"", "/"} else STREAM_PATH, secure)


def _split(text: str, original: str) -> SplitResult:
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise SettingError(f"address {original!r}: {error}") from error
    if not parts.hostname or any(sign.isspace() for sign in text):
        raise SettingError(f"address {original!r}: expected host:port, ws://... or wss://...")
    return parts


def _port(parts: SplitResult, original: str) -> int | None:
    try:
        port = parts.port
    except ValueError as error:
        raise SettingError(f"address {original!r}: the port must be 1 to 65535") from error
    if port == 0:
        raise SettingError(f"address {original!r}: the port must be 1 to 65535")
    return port
