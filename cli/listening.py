"""The flags of whatever listens: the cloud, a drafter for others, the endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli import options as o
from outrider.protocol.errors import SettingError

if TYPE_CHECKING:
    import ssl

    from outrider.runtime.net.keys import KeyFile

ADDRESS = "Address and access"

Host = Annotated[
    str,
    typer.Option(
        "--host",
        metavar="HOST",
        rich_help_panel=ADDRESS,
        help="Where to listen; beyond loopback needs keys and a certificate.",
    ),
]
Port = Annotated[
    int,
    typer.Option(
        "--port",
        min=0,
        max=65535,
        metavar="N",
        rich_help_panel=ADDRESS,
        help="Port; 0 takes a free one.",
    ),
]
Keys = Annotated[
    Path | None,
    typer.Option(
        "--api-key-file",
        metavar="FILE",
        rich_help_panel=ADDRESS,
        help="Keys to accept, one a line: KEY, NAME:KEY or a hash, and quotas; read again on "
        "SIGHUP.",
    ),
]
Certificate = Annotated[
    Path | None,
    typer.Option(
        "--ssl-certfile", metavar="FILE", rich_help_panel=ADDRESS, help="Certificate chain (PEM)."
    ),
]
CertificateKey = Annotated[
    Path | None,
    typer.Option(
        "--ssl-keyfile", metavar="FILE", rich_help_panel=ADDRESS, help="Its private key (PEM)."
    ),
]
Ready = Annotated[
    bool,
    typer.Option(
        "--json", help="Print one JSON line on stdout once ready.", rich_help_panel=o.OUTPUT
    ),
]
Log = Annotated[
    o.LogFormat,
    typer.Option(
        "--log-format",
        rich_help_panel=o.OUTPUT,
        help="Lines on stderr for people, or one JSON object each, answers included.",
    ),
]
WithStdin = Annotated[bool, typer.Option("--with-stdin", hidden=True)]


def keys(file: Path | None) -> KeyFile | None:
    """The accepted keys, if there is a file.

    Raises:
        SettingError: it cannot be read.
    """
    if file is None:
        return None
    from outrider.runtime.net.keys import KeyFile

    return KeyFile.load(file.expanduser())


def keys_alone(file: Path | None, whose: str) -> KeyFile | None:
    """The same where nothing is rationed.

    Raises:
        SettingError: it cannot be read, or has quotas.
    """
    from outrider.protocol.quota import NO_QUOTA

    found = keys(file)
    if found is not None and any(quota != NO_QUOTA for quota in found.quotas.values()):
        raise SettingError(f"key file {file}: quotas are for a cloud's keys, not for {whose}")
    return found


def both(certificate: Path | None, key: Path | None) -> tuple[Path, Path] | None:
    """A certificate with its key, if they were given.

    Raises:
        SettingError: one of the two.
    """
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise SettingError("--ssl-certfile and --ssl-keyfile belong together: give both")
    return certificate.expanduser(), key.expanduser()


def tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Encryption with that certificate.

    Raises:
        SettingError: one of the two is missing, or does not load.
    """
    pair = both(certificate, key)
    if pair is None:
        return None
    from outrider.runtime.net.tls import server_context

    return server_context(*pair)
