"""The edge's side: open the one connection to the cloud."""

from __future__ import annotations

import logging
import ssl

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as _websocket_connect
from websockets.exceptions import WebSocketException
from websockets.typing import Subprotocol

from outrider.protocol.errors import SettingError
from outrider.runtime.net.address import SUBPROTOCOL, Address, parse
from outrider.runtime.net.errors import from_connect, wrong_subprotocol
from outrider.runtime.net.keys import check_key
from outrider.runtime.net.link import MAX_FRAME, Link, Peer, Tuning
from outrider.runtime.net.metered import MeteredConnection
from outrider.runtime.net.tls import client_context

__all__ = ["Link", "check", "connect"]

_log = logging.getLogger("outrider.net.client")


class _ClientConnection(MeteredConnection, ClientConnection):
    pass


class _Connect(_websocket_connect):
    def process_redirect(self, exc: Exception) -> Exception | str:
        # A redirect would carry the key to a place that the user did not name.
        return exc


async def connect(
    url: str,
    *,
    key: str | None = None,
    context: ssl.SSLContext | None = None,
    open_timeout: float = 10.0,
    max_frame: int = MAX_FRAME,
    tuning: Tuning | None = None,
) -> Link:
    """Open a link to a cloud.

    ``url`` is ``ws://``, ``wss://`` or a bare ``host:port``. ``context`` comes from
    ``tls.client_context``; without one, a ``wss`` address is checked against the system's roots.
    Raises ``LinkError`` when trying again may help, ``HandshakeError`` when it will not, and
    ``SettingError`` for arguments that cannot be honoured.
    """
    address = parse(url)
    tuning = tuning or Tuning()
    _check(address, key, context)
    if address.secure and context is None:
        context = client_context()
    try:
        connection = await _Connect(
            address.url,
            ssl=context,
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            additional_headers={"Authorization": f"Bearer {key}"} if key is not None else None,
            compression=None,
            user_agent_header="outrider",
            # A proxy of the environment is for the way out, never for this machine.
            proxy=None if address.loopback else True,
            open_timeout=open_timeout,
            max_size=max_frame,
            logger=_log,
            create_connection=_ClientConnection,
            **tuning.arguments(),
        )
    except (OSError, WebSocketException, EOFError, ValueError) as error:
        raise from_connect(error, address, open_timeout) from error
    assert isinstance(connection, _ClientConnection)
    link = Link(connection, Peer(address.place), max_frame=max_frame, tuning=tuning)
    if connection.subprotocol != SUBPROTOCOL:
        link.abort()
        raise wrong_subprotocol(address)
    return link


def check(url: str, key: str | None, context: ssl.SSLContext | None) -> None:
    """Refuse what :func:`connect` would refuse without trying.

    Raises:
        SettingError: no address, a key that cannot be sent or would be seen, no TLS to check.
    """
    _check(parse(url), key, context)


def _check(address: Address, key: str | None, context: ssl.SSLContext | None) -> None:
    if key is not None:
        check_key(key)
    if address.secure:
        return
    if context is not None:
        raise SettingError(
            f"{address.url} is not encrypted, so a certificate cannot be checked: use wss://"
        )
    if key is not None and not address.loopback:
        raise SettingError(
            f"{address.url} is not encrypted and would show the key to everyone on the way: "
            "use wss://"
        )
