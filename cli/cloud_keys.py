"""``outrider cloud cert``, ``invite``, ``keys`` and ``revoke``: who may use a cloud."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from outrider.cli import logs
from outrider.cli import options as o
from outrider.cli.report import print_json
from outrider.protocol.errors import SettingError

QUOTA = "Quota"

KeyFileOption = Annotated[
    Path,
    typer.Option(
        "--api-key-file", metavar="FILE", help="The cloud's key file.", rich_help_panel=o.CONNECTION
    ),
]
DEFAULT_KEYS, DEFAULT_CERT, DEFAULT_KEY = Path("keys.txt"), Path("cert.pem"), Path("key.pem")


def cert(
    *,
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            metavar="HOST",
            help="A name or address by which edges call the cloud; may be repeated (default: what "
            "this machine is called).",
        ),
    ] = None,
    days: Annotated[
        int, typer.Option("--days", min=1, max=36500, metavar="N", help="How long it is valid.")
    ] = 3650,
    ssl_certfile: Annotated[
        Path, typer.Option("--ssl-certfile", metavar="FILE", help="Where the certificate goes.")
    ] = DEFAULT_CERT,
    ssl_keyfile: Annotated[
        Path, typer.Option("--ssl-keyfile", metavar="FILE", help="Where its private key goes.")
    ] = DEFAULT_KEY,
    force: Annotated[
        bool, typer.Option("--force", help="Take the place of a certificate that is there.")
    ] = False,
    json: o.Json = False,
    config: o.Config = None,  # noqa: ARG001 - its callback reads it
) -> None:
    """Make a self-signed certificate for a cloud at home.

    Edges trust it by its fingerprint, which an invitation carries.

    Example: outrider cloud cert --name cloud.local --name 192.168.1.7
    """
    from outrider.runtime.net.certificate import own_names, write_certificate
    from outrider.runtime.net.tls import certificate_fingerprint

    names = list(name or own_names())
    certfile, keyfile = ssl_certfile.expanduser(), ssl_keyfile.expanduser()
    write_certificate(certfile, keyfile, names, days, replace=force)
    fingerprint = certificate_fingerprint(certfile)
    if json:
        print_json(
            {
                "certificate": str(certfile),
                "key": str(keyfile),
                "names": names,
                "days": days,
                "fingerprint": fingerprint,
            }
        )
        return
    print(f"certificate {certfile} and its private key {keyfile}, valid for {days} days")
    print(f"for {', '.join(names)}")
    print(f"fingerprint: {fingerprint}")


def invite(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who is invited; stands in logs.")],
    *,
    url: Annotated[
        str,
        typer.Option(
            "--url",
            metavar="URL",
            help="The cloud as that edge calls it: wss://host:port.",
            rich_help_panel=o.CONNECTION,
        ),
    ],
    api_key_file: KeyFileOption = DEFAULT_KEYS,
    ssl_certfile: Annotated[
        Path | None,
        typer.Option(
            "--ssl-certfile",
            metavar="FILE",
            rich_help_panel=o.CONNECTION,
            help="The cloud's certificate, to be pinned; leave out one from a public authority.",
        ),
    ] = None,
    sessions: Annotated[
        int | None,
        typer.Option("--sessions", min=1, metavar="N", help="At once.", rich_help_panel=QUOTA),
    ] = None,
    draft_max: Annotated[
        int | None,
        typer.Option(
            "--draft-max", min=1, metavar="N", help="Guesses in a frame.", rich_help_panel=QUOTA
        ),
    ] = None,
    objective: Annotated[
        o.Objective | None,
        typer.Option("--objective", help="The dearest granted.", rich_help_panel=QUOTA),
    ] = None,
    tokens_per_minute: Annotated[
        int | None,
        typer.Option(
            "--tokens-per-minute",
            min=1,
            metavar="N",
            help="Prompt and answers together.",
            rich_help_panel=QUOTA,
        ),
    ] = None,
    days: Annotated[
        int | None,
        typer.Option(
            "--days", min=1, metavar="N", help="After so many it expires.", rich_help_panel=QUOTA
        ),
    ] = None,
    config: o.Config = None,  # noqa: ARG001 - its callback reads it
) -> None:
    """Make a key, add its hash to the key file, print one line that lets an edge in.

    The line is a secret: it has the key. The edge says
    outrider run --cloud 'LINE'. A running cloud takes the key after a SIGHUP.

    Example: outrider cloud invite kitchen-pi --url wss://192.168.1.7:8471 --ssl-certfile cert.pem
    """
    import secrets

    from outrider.runtime.net.client import check
    from outrider.runtime.net.invite import Invite
    from outrider.runtime.net.keys import append_line, hashed_line
    from outrider.runtime.net.tls import certificate_fingerprint

    key = secrets.token_urlsafe(32)
    check(url, key, None)
    fingerprint = certificate_fingerprint(ssl_certfile.expanduser()) if ssl_certfile else None
    if fingerprint is not None and not url.startswith("wss://"):
        raise SettingError(f"--url {url}: a certificate is for wss:// addresses")
    expires = (datetime.now(UTC) + timedelta(days=days)).date() if days else None
    line = hashed_line(
        name,
        key,
        {
            "sessions": sessions,
            "draft": draft_max,
            "objective": objective.value if objective else None,
            "tokens-per-minute": tokens_per_minute,
            "expires": expires,
        },
    )
    append_line(api_key_file.expanduser(), line)
    print(Invite(url, key, fingerprint))


def keys(
    *,
    api_key_file: KeyFileOption = DEFAULT_KEYS,
    json: o.Json = False,
    config: o.Config = None,  # noqa: ARG001
) -> None:
    """List the names in a key file, with their quotas and ends; never a key.

    Example: outrider cloud keys --api-key-file keys.txt
    """
    from outrider.runtime.net.keys import KeyFile

    logs.configure(False)
    now = datetime.now(UTC)
    found = [
        {
            "name": key.name,
            "hash": key.digest.hex()[:12],
            "sessions": key.quota.sessions,
            "draft": key.quota.draft,
            "objective": key.quota.objective,
            "tokens_per_minute": key.quota.tokens_per_minute,
            "expires": key.expires.isoformat() if key.expires else None,
            "expired": key.expired(now),
        }
        for key in KeyFile.load(api_key_file.expanduser(), empty=True).keys
    ]
    if json:
        print_json({"keys": found})
        return
    for row in found:
        rest = {k: v for k, v in row.items() if v and k not in ("name", "hash")}
        print(
            " ".join(
                [
                    str(row["name"]),
                    f"({row['hash']})",
                    *(f"{k.replace('_', '-')}={v}" for k, v in rest.items()),
                ]
            )
        )


def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose keys are withdrawn.")],
    *,
    api_key_file: KeyFileOption = DEFAULT_KEYS,
    pid: Annotated[
        int | None,
        typer.Option(
            "--pid",
            min=2,
            metavar="N",
            help="Process of the cloud, to be told at once (default: it hears of it after a "
            "SIGHUP).",
        ),
    ] = None,
    config: o.Config = None,  # noqa: ARG001 - its callback reads it
) -> None:
    """Take all keys of a name out of a key file.

    Links that use one are dropped once the cloud has read the file again.

    Example: outrider cloud revoke kitchen-pi --api-key-file keys.txt
    """
    from outrider.runtime.net.keys import remove_name

    count = remove_name(api_key_file.expanduser(), name)
    if not count:
        raise SettingError(f"key file {api_key_file}: no key is named {name!r}")
    if pid is None:
        print(f"{count} withdrawn; tell the cloud: kill -HUP PID, or systemctl reload")
        return
    try:
        os.kill(pid, signal.SIGHUP)
    except OSError as error:
        raise SettingError(f"--pid {pid}: {error.strerror}; the file is changed") from error
    print(f"{count} withdrawn, and process {pid} told")
