"""One thread that owns a model: calls run on it one after the other, and the loop goes on.

A pool would do; this has no futures of its own between the thread and the loop, which matters where
a call lasts less than a millisecond and is made a thousand times a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class OwnerThread:
    """Start it by making it; :meth:`close` lets the call under way end."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """The result of the call, made on the thread. Cancelling this does not stop the call."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                result = call(*args)
            except BaseException as error:
                _deliver(loop, future, future.set_exception, error)
            else:
                _deliver(loop, future, future.set_result, result)

        self._calls.put(work)
        time.sleep(0)  # hand over the interpreter now: the call is what everybody waits for
        return await future

    def close(self) -> None:
        """No further calls; wait for the one under way."""
        self._calls.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _deliver(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[Any],
    set_outcome: Callable[[Any], None],
    outcome: object,
) -> None:
    """Hand an outcome to the loop, unless nobody waits for it any more."""

    def settle() -> None:
        if not future.done():
            set_outcome(outcome)

    with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
        loop.call_soon_threadsafe(settle)
