"""A cloud that is full says when to come back: then the edge does, for as long as it may."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast

from outrider.edge_client.answer import Ahead, Answer, Piece
from outrider.edge_client.client import EdgeClient
from outrider.protocol.edge_session import EdgeSession
from outrider.protocol.errors import SessionError
from outrider.protocol.request import Request

_log = logging.getLogger("outrider.edge")

PATIENCE = 30.0
"""Seconds for which a full cloud is asked again, where nothing else is said."""

SPREAD = 1.25
"""Edges that were refused together come back at different times: up to so many times later."""


async def stream_patiently(
    client: EdgeClient,
    session: EdgeSession,
    request: Request,
    *,
    seconds: float = PATIENCE,
    ahead: bool = False,
) -> AsyncGenerator[Piece | Ahead | Answer, None]:
    """As :meth:`EdgeClient.stream`; an answer refused with a hint is asked for again, for at most
    ``seconds`` in all, which is logged.

    Raises:
        SessionError: refused for good, or for longer than that. LinkError: as ``stream``.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        try:
            stream = cast(
                "AsyncGenerator[Piece | Ahead | Answer, None]",
                client.stream(session, request, ahead=ahead),
            )
            async with aclosing(stream) as events:
                async for event in events:
                    yield event
            return
        except SessionError as error:
            pause = error.retry_after
            if pause is None:
                raise
            pause *= random.uniform(1.0, SPREAD)
            if loop.time() + pause > deadline:
                raise SessionError(
                    f"{error} (try again in {error.retry_after:g} s)",
                    code=error.code,
                    retry_after=error.retry_after,
                ) from error
            _log.warning("%s: trying again in %.1f s", error, pause)
        await asyncio.sleep(pause)
