"""The keys that a cloud accepts: a file with one a line."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

from outrider.protocol.errors import SettingError
from outrider.runtime.net.tls import warn_if_shared

_log = logging.getLogger("outrider.net")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_KEY = re.compile(r"[!-~]{1,512}")
_SHORT = 16


class KeyFile:
    """The accepted keys, kept as hashes: a dump of the process or of this object shows none."""

    def __init__(self, hashes: Mapping[bytes, str]) -> None:
        self._hashes = dict(hashes)

    def __len__(self) -> int:
        return len(self._hashes)

    def __repr__(self) -> str:
        return f"KeyFile({sorted(set(self._hashes.values()))})"

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> KeyFile:
        """Read a key file: ``name:key`` or just ``key`` a line; ``#`` starts a comment line.

        A key without a name is called by its line. Two keys may share a name, so that a new one
        can be handed out before the old one is withdrawn.
        """
        file = Path(path)
        hashes: dict[bytes, str] = {}
        for number, text in _lines(file):
            name, key = _parse(text, f"key file {file}, line {number}", f"line-{number}")
            hashes[_digest(key)] = name
        if not hashes:
            raise SettingError(
                f"key file {file}: there is no key in it. Make one, for example with: "
                "python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
            )
        return cls(hashes)

    def bearer(self, header: str | None) -> str | None:
        """Give the name of the key in an ``Authorization: Bearer ...`` header, None if unknown."""
        scheme, _, key = (header or "").strip().partition(" ")
        if scheme.lower() != "bearer":
            return None
        presented = _digest(key.strip())
        found: str | None = None
        # Every key is compared, each in constant time: how long it takes says nothing.
        for known, name in self._hashes.items():
            if hmac.compare_digest(known, presented):
                found = name
        return found


def read_key_file(path: str | os.PathLike[str]) -> str:
    """The key that an edge shows: the first of a key file, without the name before it.

    Raises:
        SettingError: the file cannot be read or has no key; never says what is in it.
    """
    file = Path(path).expanduser()
    for _, text in _lines(file):
        name, separator, key = text.partition(":")
        return key.strip() if separator else name
    raise SettingError(f"key file {file}: there is no key in it")


def _lines(file: Path) -> list[tuple[int, str]]:
    """The lines with something on them that is no comment; warns if others can read them."""
    try:
        lines = file.read_text("utf-8").splitlines()
    except OSError as error:
        raise SettingError(f"key file {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingError(f"key file {file}: it is not a text file") from error
    warn_if_shared(file, "key file")
    texts = ((number, line.strip()) for number, line in enumerate(lines, start=1))
    return [(number, text) for number, text in texts if text and not text.startswith("#")]


def _parse(text: str, where: str, default: str) -> tuple[str, str]:
    name, separator, key = text.partition(":")
    if not separator:
        name, key = default, text
    name, key = name.strip(), key.strip()
    if not _NAME.fullmatch(name):
        raise SettingError(f"{where}: a name is 1 to 64 letters, digits, dots, dashes, underscores")
    if not _KEY.fullmatch(key):
        raise SettingError(f"{where}: a key is 1 to 512 visible ASCII characters without spaces")
    if len(key) < _SHORT:
        _log.warning("%s: the key %r is short enough to be guessed", where, name)
    return name, key


def check_key(key: str) -> str:
    """Refuse a key that could not stand in a header."""
    if not _KEY.fullmatch(key):
        raise SettingError("key: expected 1 to 512 visible ASCII characters without spaces")
    return key


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
