"""Reading a page that a cloud offers beside its stream: ``/status``, ``/health``."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from dataclasses import replace
from typing import Any

from outrider.protocol.errors import HandshakeError, LinkError
from outrider.runtime.net import client
from outrider.runtime.net.address import parse
from outrider.runtime.net.errors import from_connect
from outrider.runtime.net.tls import client_context

MAX_PAGE = 4 << 20
"""Bytes of a page that are read: more than any cloud says."""


def read_page(
    url: str,
    path: str,
    *,
    key: str | None = None,
    context: ssl.SSLContext | None = None,
    timeout: float = 5.0,
) -> dict[str, Any]:
    """The JSON object at ``path`` of the cloud at ``url``, the address of its stream.

    Raises:
        LinkError: it cannot be reached. HandshakeError: it wants a key, or is something else.
    """
    client.check(url, key, context)
    address = replace(parse(url), path=path)
    connection: http.client.HTTPConnection
    if address.secure:
        connection = http.client.HTTPSConnection(
            address.host, address.port, timeout=timeout, context=context or client_context()
        )
    else:
        connection = http.client.HTTPConnection(address.host, address.port, timeout=timeout)
    try:
        connection.request(
            "GET", path, headers={"Authorization": f"Bearer {key}"} if key is not None else {}
        )
        response = connection.getresponse()
        body = response.read(MAX_PAGE)
    except (OSError, socket.gaierror) as error:
        raise from_connect(error, address, timeout) from error
    except http.client.HTTPException as error:
        raise HandshakeError(
            f"{address.place} does not speak HTTP: is it an Outrider cloud?", code="not-websocket"
        ) from error
    finally:
        connection.close()
    return _content(body, response.status, address.place, path)


def _content(body: bytes, status: int, place: str, path: str) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    said = ""
    if isinstance(found, dict) and isinstance(found.get("error"), dict):
        said = str(found["error"].get("message", ""))[:300]
    if status == http.client.UNAUTHORIZED:
        raise HandshakeError(f"{place} refused the key: {said or status}", code="key")
    if status != http.client.OK or not isinstance(found, dict):
        raise LinkError(f"{place} answered {status} for {path}: {said or 'not an Outrider cloud?'}")
    return found
