"""One thread that owns a model: calls run on it one after the other, and the loop goes on.

A pool would do; this has no futures and wakes no task, which matters where a call lasts less than a
millisecond and is made a thousand times a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
W = TypeVar("W")
R = TypeVar("R")


class OwnerThread:
    """Start it by making it; :meth:`close` lets the call under way end."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[W], R], work: W, then: Callable[[W, R], None]) -> None:
        """Make ``call(work)`` on the thread, then ``then(work, result)`` on the running loop.

        ``call`` must not raise: what went wrong is a result, too.
        """
        loop = asyncio.get_running_loop()

        def run() -> None:
            result = call(work)
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(then, work, result)

        self._calls.put(run)
        time.sleep(0)  # hand over the interpreter now: the call is what everybody waits for

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """The result of the call, made on the thread, or what it raised: for use now and then."""
        outcome: Future[T] = Future()
        outcome.set_running_or_notify_cancel()  # whoever gives up waiting does not stop the call

        def settle(_: None) -> None:
            try:
                outcome.set_result(call(*args))
            except BaseException as error:
                outcome.set_exception(error)

        self.submit(settle, None, lambda _work, _result: None)
        return await asyncio.wrap_future(outcome)

    def close(self) -> None:
        """No further calls; wait for the one under way."""
        self._calls.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
