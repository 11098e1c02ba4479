"""The keys that a cloud accepts: a file with one a line, as hashes or as they are.

A line is ``[NAME:]KEY [ITEM=VALUE ...]``, where ``sha256:`` and 64 hex digits may stand for the
key. The items are a key's quota and its end: see :data:`ITEMS`. ``#`` starts a comment line.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from outrider.protocol.errors import SettingError
from outrider.protocol.objective import OBJECTIVES
from outrider.protocol.quota import NO_QUOTA, Quota
from outrider.runtime.net.tls import warn_if_shared

_log = logging.getLogger("outrider.net")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_KEY = re.compile(r"[!-~]{1,512}")
_HASH = re.compile(r"sha256:([0-9a-fA-F]{64})")
_SHORT = 16


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def _objective(text: str) -> str:
    if text not in OBJECTIVES:
        raise ValueError
    return text


def _end(text: str) -> datetime:
    """A moment, or the end of a day, in UTC unless it says otherwise."""
    if len(text) <= len("2030-01-31"):
        day = date.fromisoformat(text) + timedelta(days=1)
        return datetime(day.year, day.month, day.day, tzinfo=UTC)
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


ITEMS: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "sessions": (_count, "a number from 1"),
    "draft": (_count, "a number from 1"),
    "objective": (_objective, "cost, balanced or latency"),
    "tokens-per-minute": (_count, "a number from 1"),
    "expires": (_end, "a day like 2030-01-31 or a moment like 2030-01-31T12:00:00Z"),
}
"""What may follow a key, how it is read, and what is expected."""


@dataclass(frozen=True, slots=True)
class Key:
    """One accepted key: its name, the hash of it, what its holder may ask, and until when."""

    name: str
    digest: bytes
    quota: Quota = NO_QUOTA
    expires: datetime | None = None

    def __repr__(self) -> str:
        return f"Key({self.name})"

    def expired(self, now: datetime | None = None) -> bool:
        """Whether its time is over."""
        return self.expires is not None and (now or datetime.now(UTC)) >= self.expires


class KeyFile:
    """The accepted keys, kept as hashes: a dump of the process or of this object shows none."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = {key.digest: key for key in keys}

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"KeyFile({sorted(self.quotas)})"

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, empty: bool = False) -> KeyFile:
        """Read a key file; ``empty``: none in it is no error, for the last may be withdrawn.

        A key without a name is called by its line. Two keys may share a name, so that a new one
        can be handed out before the old one is withdrawn; they share one quota then.

        Raises:
            SettingError: names file and line, never what stands there.
        """
        file = Path(path)
        keys: list[Key] = []
        for number, text in _lines(file):
            where = f"key file {file}, line {number}"
            key = _parse(text, where, f"line-{number}")
            if any(k.name == key.name and k.quota != key.quota for k in keys):
                raise SettingError(f"{where}: {key.name!r} stands above with another quota")
            keys.append(key)
        if not keys and not empty:
            raise SettingError(
                f"key file {file}: there is no key in it. Make one with: "
                f"outrider cloud invite NAME --api-key-file {file} --url wss://THIS_HOST:8471"
            )
        return cls(keys)

    @classmethod
    def of(cls, key: str, name: str) -> KeyFile:
        """One key that came another way than by a file.

        Raises:
            SettingError: it could not stand in a header.
        """
        return cls([Key(name, digest_of(check_key(key)))])

    def bearer(self, header: str | None) -> Key | None:
        """The key in an ``Authorization: Bearer ...`` header, None if unknown.

        It may be expired: see :meth:`Key.expired`.
        """
        scheme, _, shown = (header or "").strip().partition(" ")
        if scheme.lower() != "bearer":
            return None
        presented = digest_of(shown.strip())
        found: Key | None = None
        # Every key is compared, each in constant time: how long it takes says nothing.
        for known, key in self._keys.items():
            if hmac.compare_digest(known, presented):
                found = key
        return found

    def accepts(self, key: Key) -> bool:
        """Whether a key that was accepted once still is."""
        known = self._keys.get(key.digest)
        return known is not None and known.name == key.name and not known.expired()

    @property
    def quotas(self) -> dict[str, Quota]:
        """Of every name."""
        return {key.name: key.quota for key in self._keys.values()}

    @property
    def keys(self) -> list[Key]:
        """All of them, in the file's order."""
        return list(self._keys.values())


def read_key_file(path: str | os.PathLike[str]) -> str:
    """The key that an edge shows: the first of a key file, without the name before it.

    Raises:
        SettingError: the file cannot be read or has no key; never says what is in it.
    """
    file = Path(path).expanduser()
    for number, text in _lines(file):
        _, key, _ = _parts(text, "")
        if _HASH.fullmatch(key):
            raise SettingError(
                f"key file {file}, line {number}: this is the hash of a key, which a cloud "
                "compares with; an edge needs the key itself"
            )
        return key
    raise SettingError(f"key file {file}: there is no key in it")


def hashed_line(name: str, key: str, items: Mapping[str, object]) -> str:
    """A line for a key file that holds the hash of ``key``.

    Raises:
        SettingError: a name or an item that would not be read back.
    """
    text = f"{name}:sha256:{digest_of(check_key(key)).hex()}"
    text += "".join(f" {item}={value}" for item, value in items.items() if value is not None)
    _parse(text, f"key {name!r}", name)
    return text


def append_line(path: str | os.PathLike[str], line: str) -> None:
    """Add a line to a key file, which is made if need be, for its owner's eyes only.

    Raises:
        SettingError: it cannot be written.
    """
    file = Path(path)
    try:
        with open(file, "a+b", opener=lambda name, flags: os.open(name, flags, 0o600)) as out:
            out.seek(0, os.SEEK_END)
            if out.tell():
                out.seek(-1, os.SEEK_END)
                line = line if out.read(1) == b"\n" else f"\n{line}"
            out.write(f"{line}\n".encode())
    except OSError as error:
        raise SettingError(f"key file {file}: {error.strerror}") from error


def remove_name(path: str | os.PathLike[str], name: str) -> int:
    """Take all keys of a name out of a key file, comments and the others left as they are.

    Returns how many there were. The file is replaced in one step: a reader sees old or new.

    Raises:
        SettingError: the file cannot be read or written.
    """
    file = Path(path)
    gone = {n for n, text in _lines(file) if _parse(text, f"line {n}", f"line-{n}").name == name}
    lines = file.read_text("utf-8").splitlines(keepends=True)
    kept = "".join(line for number, line in enumerate(lines, start=1) if number not in gone)
    draft = file.with_name(f".{file.name}.new")
    try:
        with open(draft, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as out:
            out.write(kept)
            out.flush()
            os.fsync(out.fileno())
        draft.chmod(file.stat().st_mode & 0o777)
        draft.replace(file)
    except OSError as error:
        raise SettingError(f"key file {file}: {error.strerror}") from error
    return len(gone)


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


def _parse(text: str, where: str, default: str) -> Key:
    name, key, rest = _parts(text, default)
    if not _NAME.fullmatch(name):
        raise SettingError(f"{where}: a name is 1 to 64 letters, digits, dots, dashes, underscores")
    if not _KEY.fullmatch(key):
        raise SettingError(f"{where}: a key is 1 to 512 visible ASCII characters without spaces")
    quota: dict[str, Any] = {}
    for item in rest:
        what, equals, value = item.partition("=")
        if not equals or what not in ITEMS:
            raise SettingError(
                f"{where}: a key has no spaces; behind it may stand ITEM=VALUE, where the item is "
                f"one of {', '.join(ITEMS)}"
            )
        read, expected = ITEMS[what]
        try:
            quota[what.replace("-", "_")] = read(value)
        except (ValueError, OverflowError) as error:
            raise SettingError(f"{where}: {what} must be {expected}") from error
    expires = quota.pop("expires", None)
    hashed = _HASH.fullmatch(key)
    if hashed is None and len(key) < _SHORT:
        _log.warning("%s: the key %r is short enough to be guessed", where, name)
    digest = bytes.fromhex(hashed[1]) if hashed else digest_of(key)
    return Key(name, digest, Quota(**quota) if quota else NO_QUOTA, expires)


def _parts(text: str, default: str) -> tuple[str, str, list[str]]:
    """Name, key and what follows."""
    first, *rest = text.split()
    name, separator, key = first.partition(":")
    if not separator or _HASH.fullmatch(first):
        return default, first, rest
    if not key and rest:  # a space behind the colon
        key, *rest = rest
    return name, key, rest


def check_key(key: str) -> str:
    """Refuse a key that could not stand in a header."""
    if not _KEY.fullmatch(key):
        raise SettingError("key: expected 1 to 512 visible ASCII characters without spaces")
    return key


def digest_of(key: str) -> bytes:
    """SHA-256, unsalted and quick: keys are random and long, so there is nothing to guess."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
