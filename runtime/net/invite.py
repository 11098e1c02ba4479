"""One line that lets an edge in: where the cloud is, a key, and which certificate to trust."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.protocol.errors import SettingError
from outrider.runtime.net.address import parse
from outrider.runtime.net.keys import check_key
from outrider.runtime.net.tls import parse_fingerprint

_KEY, _SHA256 = "key", "sha256"


@dataclass(frozen=True, slots=True)
class Invite:
    """``fingerprint`` None: the certificate is one that the system trusts, or there is no TLS."""

    url: str
    key: str
    fingerprint: str | None = None

    def __repr__(self) -> str:
        return f"Invite({self.url})"

    def __str__(self) -> str:
        """The line. No shell takes any of its characters for something else."""
        line = f"{self.url},{_KEY}={self.key}"
        if self.fingerprint is not None:
            line += f",{_SHA256}={parse_fingerprint(self.fingerprint).hex()}"
        return line


def is_invite(text: str) -> bool:
    """Whether this is an invitation rather than an address, which has no comma."""
    return "," in text


def read_invite(text: str) -> Invite:
    """Read what ``str`` of an invitation wrote.

    Raises:
        SettingError: it is none; says why without showing the key.
    """
    url, *items = text.strip().split(",")
    found: dict[str, str] = {}
    for item in items:
        name, _, value = item.partition("=")
        if name not in (_KEY, _SHA256) or name in found:
            raise SettingError(
                "invitation: expected URL,key=KEY,sha256=FINGERPRINT, the line that "
                "outrider cloud invite prints"
            )
        found[name] = value
    parse(url)
    if _KEY not in found:
        raise SettingError("invitation: there is no key in it")
    fingerprint = found.get(_SHA256)
    if fingerprint is not None:
        parse_fingerprint(fingerprint)
    return Invite(url, check_key(found[_KEY]), fingerprint)
