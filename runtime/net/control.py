"""A Unix socket by which the operator of a running service gives it orders: one JSON line each way.

Its file can be opened by its owner alone; nothing of it reaches a network.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from outrider.protocol.errors import LinkError, OutriderError, SettingError

MAX_LINE = 1 << 20

Orders = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


def place(name: str) -> Path:
    """Where the socket of a service with this name lies."""
    folder = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(folder) / f"outrider-{os.getuid()}-{name}.sock"


async def listen(path: Path, orders: Orders) -> asyncio.Server:
    """Take orders until closed. An order that raises an ``OutriderError`` is answered with it.

    Raises:
        SettingError: the socket cannot be made, or another service has it.
    """

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            try:
                said = json.loads(await reader.readline())
                answer = await orders(said if isinstance(said, dict) else {})
            except (OutriderError, ValueError) as error:
                answer = {"error": str(error)}
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()

    if path.exists():
        if await _answers(path):
            raise SettingError(f"{path} belongs to a service that runs: stop it, or use its port")
        path.unlink()
    before = os.umask(0o177)
    try:
        return await asyncio.start_unix_server(one, path, limit=MAX_LINE)
    except OSError as error:
        raise SettingError(f"cannot make {path}: {error.strerror or error}") from error
    finally:
        os.umask(before)


async def order(path: Path, what: dict[str, Any]) -> dict[str, Any]:
    """Give one order; its answer.

    Raises:
        LinkError: nobody is there. SettingError: it was refused, with the reason.
    """
    try:
        reader, writer = await asyncio.open_unix_connection(path, limit=MAX_LINE)
    except OSError as error:
        raise LinkError(
            f"no cluster takes orders at {path}: is it running on this machine, as this user?"
        ) from error
    try:
        writer.write(json.dumps(what).encode() + b"\n")
        await writer.drain()
        line = await reader.readline()
    finally:
        writer.close()
    answer: dict[str, Any] = json.loads(line) if line else {"error": "it ended meanwhile"}
    if "error" in answer:
        raise SettingError(answer["error"])
    return answer


async def _answers(path: Path) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except OSError:
        return False
    writer.close()
    return True
