"""A certificate of one's own, for a cloud that no public authority knows."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from outrider.protocol.errors import SettingError

_LATE = timedelta(hours=1)
"""So long before now it is valid already: clocks of small boards are often behind."""

_ELSEWHERE = ("192.0.2.1", 9)
"""An address of nobody's (RFC 5737): asking for the way there sends nothing."""


def write_certificate(
    certfile: Path, keyfile: Path, names: Sequence[str], days: int, *, replace: bool = False
) -> None:
    """Make a key and a certificate signed by itself, for these host names and addresses.

    Raises:
        SettingError: a file is there already, or cannot be written; a name that is none.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _certificate(key, [_name(text) for text in names], days)
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    _write(keyfile, secret, 0o600, replace)
    _write(certfile, certificate.public_bytes(serialization.Encoding.PEM), 0o644, replace)


def _certificate(
    key: ec.EllipticCurvePrivateKey, names: list[x509.GeneralName], days: int
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "outrider")])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _LATE)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        # An authority for itself alone, so that --tls-ca takes it as well as a pin.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    )
    return builder.sign(key, hashes.SHA256())


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        pass
    try:
        if not text or any(sign.isspace() or sign in "/:" for sign in text):
            raise ValueError
        return x509.DNSName(text.encode("idna").decode())
    except ValueError as error:
        raise SettingError(f"{text!r} is neither a host name nor an address") from error


def _write(file: Path, data: bytes, mode: int, replace: bool) -> None:
    if file.exists() and not replace:
        raise SettingError(
            f"{file} exists: edges may have pinned it; --force makes another one in its place"
        )
    draft = file.with_name(f".{file.name}.new")
    try:
        draft.unlink(missing_ok=True)
        with open(draft, "xb", opener=lambda path, flags: os.open(path, flags, mode)) as out:
            out.write(data)
        draft.replace(file)
    except OSError as error:
        raise SettingError(f"cannot write {file}: {error.strerror}") from error


def own_names() -> list[str]:
    """By what this machine may be called at home: its name, and the addresses it has."""
    host = socket.gethostname()
    found = [host, f"{host}.local", "localhost", "127.0.0.1", "::1"]
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as asked:
                asked.connect(_ELSEWHERE if family is socket.AF_INET else ("2001:db8::1", 9))
                found.append(asked.getsockname()[0])
        except OSError:
            continue  # no way out of this machine by that family
    return list(dict.fromkeys(name for name in found if name))
