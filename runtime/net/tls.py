"""TLS on both ends: system roots, an authority's file, or one pinned certificate."""

from __future__ import annotations

import hashlib
import logging
import os
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from outrider.protocol.errors import SettingError

_log = logging.getLogger("outrider.net")
_DIGEST_SIZE = 32
_SOON = timedelta(days=14)


class PinMismatchError(ssl.SSLCertVerificationError):
    """The peer's certificate is not the pinned one. ``found`` is its fingerprint."""

    def __init__(self, found: str) -> None:
        super().__init__(ssl.SSLErrorNumber.SSL_ERROR_SSL, "certificate is not the pinned one")
        self.found = found


class _PinnedContext(ssl.SSLContext):
    """Trusts exactly one certificate, whatever its name, dates or signer."""

    pin: bytes


class _PinnedObject(ssl.SSLObject):
    """Checks the pin as the last step of the TLS handshake: before any byte can be sent."""

    def do_handshake(self) -> None:
        super().do_handshake()
        _check_pin(self.context, self.getpeercert(binary_form=True))


class _PinnedSocket(ssl.SSLSocket):
    """The same for sockets that block, so that the context cannot be used with no check."""

    def do_handshake(self, block: bool = False) -> None:
        super().do_handshake(block)
        _check_pin(self.context, self.getpeercert(binary_form=True))


def _check_pin(context: ssl.SSLContext, certificate: bytes | None) -> None:
    found = hashlib.sha256(certificate or b"").digest()
    if not isinstance(context, _PinnedContext) or found != context.pin:
        raise PinMismatchError(format_fingerprint(found))


def client_context(
    pin: str | None = None, ca: str | os.PathLike[str] | None = None
) -> ssl.SSLContext:
    """Make the edge's TLS settings.

    Neither argument: the system's roots. ``ca``: only that authority. ``pin``: only the one
    certificate with this SHA-256 fingerprint (hex, colons allowed); its host name and dates are
    then not looked at, for the fingerprint already says which server it is.
    """
    if pin is not None and ca is not None:
        raise SettingError("give either a certificate pin or an authority's file, not both")
    if pin is not None:
        return _pinned_context(parse_fingerprint(pin))
    if ca is None:
        return ssl.create_default_context()
    _readable(Path(ca), "authority file")
    try:
        return ssl.create_default_context(cafile=str(ca))
    except ssl.SSLError as error:
        raise SettingError(f"authority file {ca}: no certificate in PEM form in it") from error


def _pinned_context(pin: bytes) -> ssl.SSLContext:
    context = _PinnedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.pin = pin
    context.sslobject_class = _PinnedObject
    context.sslsocket_class = _PinnedSocket
    return context


def server_context(
    certfile: str | os.PathLike[str], keyfile: str | os.PathLike[str]
) -> ssl.SSLContext:
    """Make the cloud's TLS settings from a certificate chain and its private key, both PEM."""
    certificate, key = Path(certfile), Path(keyfile)
    _readable(certificate, "certificate")
    _readable(key, "private key")
    _warn_of_dates(certificate)
    warn_if_shared(key, "private key")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=_refuse_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise SettingError(
                f"private key {key} does not belong to certificate {certificate}"
            ) from error
        raise SettingError(
            f"private key {key}: no usable private key in PEM form in it ({error.reason})"
        ) from error
    return context


def _refuse_password() -> str:
    # Without this, OpenSSL would ask on the terminal, and a service would hang there.
    raise SettingError("the private key is encrypted: give one without a password")


def certificate_fingerprint(certfile: str | os.PathLike[str]) -> str:
    """Give the SHA-256 fingerprint of the first certificate in a file: what clients pin."""
    path = Path(certfile)
    _readable(path, "certificate")
    return format_fingerprint(hashlib.sha256(_leaf_der(path)).digest())


def parse_fingerprint(text: str) -> bytes:
    """Read a SHA-256 fingerprint in hex, with or without colons and a leading ``sha256:``."""
    digits = text.strip().lower().removeprefix("sha256:").replace(":", "")
    try:
        value = bytes.fromhex(digits)
    except ValueError:
        value = b""
    if len(value) != _DIGEST_SIZE:
        raise SettingError("certificate pin: expected 64 hex digits, a SHA-256 fingerprint")
    return value


def format_fingerprint(value: bytes) -> str:
    """Write a fingerprint the way that browsers and OpenSSL do."""
    return value.hex(":").upper()


def _leaf_der(path: Path) -> bytes:
    text = path.read_bytes().decode("ascii", "replace")
    start = text.find("-----BEGIN CERTIFICATE-----")
    end = text.find("-----END CERTIFICATE-----", start)
    try:
        return ssl.PEM_cert_to_DER_cert(text[start:end] + "-----END CERTIFICATE-----")
    except ValueError as error:
        raise SettingError(f"certificate {path}: no certificate in PEM form in it") from error


def _warn_of_dates(path: Path) -> None:
    try:
        ends = x509.load_der_x509_certificate(_leaf_der(path)).not_valid_after_utc
    except ValueError as error:
        raise SettingError(f"certificate {path}: it cannot be read ({error})") from error
    left = ends - datetime.now(UTC)
    if left < timedelta(0):
        _log.warning("certificate %s expired on %s: only pins accept it", path, ends.date())
    elif left < _SOON:
        _log.warning("certificate %s expires on %s", path, ends.date())


def _readable(path: Path, what: str) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise SettingError(f"{what} {path}: {error.strerror}") from error


def warn_if_shared(path: Path, what: str) -> None:
    """Warn when other users of this machine can read a secret."""
    if stat.S_IMODE(path.stat().st_mode) & (stat.S_IRGRP | stat.S_IROTH):
        _log.warning("%s %s can be read by other users: chmod 600 %s", what, path, path)
