"""One request answered: its wishes run side by side, their events become a response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from outrider.edge_client.answer import Ahead, Answer, Piece
from outrider.edge_client.endpoint.errors import ApiError, translate
from outrider.edge_client.endpoint.logprobs import Told
from outrider.edge_client.endpoint.replies import DONE, Choice, Kind, Reply, event, trace_of
from outrider.edge_client.endpoint.service import Happening, Service
from outrider.edge_client.endpoint.tools import CallReader
from outrider.edge_client.endpoint.wishes import Wish
from outrider.protocol.errors import OutriderError


class Answering:
    """The answer to one request, whole or as a stream."""

    def __init__(
        self, service: Service, kind: Kind, model: str, wishes: Sequence[Wish], *, tools: bool
    ) -> None:
        """``model``: what the client called it; ``tools``: calls may be in the text."""
        self._service = service
        self._wishes = wishes
        words = service.client.tokenizer
        choices = [
            Choice(
                wish.index,
                CallReader() if tools else None,
                wish.sampling.seed,
                None if wish.logprobs is None else Told(words),
            )
            for wish in wishes
        ]
        rule = wishes[0].sampling.rule
        self._reply = Reply(kind, model, service.fingerprint, choices, rule)

    async def whole(self) -> dict[str, object]:
        """The response, once everything has ended.

        Raises:
            ApiError: something could not be answered.
        """
        async with aclosing(self._events()) as events:
            async for choice, happened in events:
                if isinstance(happened, Answer):
                    choice.rest()
                elif not isinstance(happened, Ahead):
                    choice.take(happened.text)
        return self._reply.whole(self._service.mode)

    async def chunks(self, *, usage: bool) -> AsyncGenerator[bytes, None]:
        """The stream, up to its end marker. A failure after the first chunk is its last event.

        Raises:
            ApiError: before the first chunk.
        """
        begun = False
        try:
            async with aclosing(self._events()) as events:
                async for choice, happened in events:
                    for data in self._told(choice, happened, usage=usage):
                        yield event(data)
                        begun = True
        except ApiError as error:
            if not begun:
                raise
            yield event(error.body)
            return
        if usage:
            yield event(self._reply.usage_chunk())
        yield DONE

    def _told(self, choice: Choice, happened: Happening, *, usage: bool) -> list[dict[str, object]]:
        """The chunks that an event becomes."""
        reply = self._reply
        made: list[dict[str, object]] = []
        if isinstance(happened, Answer):
            made += [reply.chunk(choice, part) for part in choice.rest()]
            if not choice.begun:
                made.append(reply.chunk(choice, None))
            made.append(reply.last(choice, self._service.mode))
        else:
            parts = [] if isinstance(happened, Ahead) else choice.take(happened.text)
            made += [reply.chunk(choice, part) for part in parts]
            if self._wishes[0].trace:
                trace = trace_of(happened, choice, self._service.client.tokenizer)
                trace |= self._service.link_figures()
                trace |= {"bytes_up": choice.bytes_up, "bytes_down": choice.bytes_down}
                if made:
                    made[-1] |= {"outrider": trace}
                else:
                    made.append(reply.chunk(choice, None, trace))
        return [data | {"usage": None} for data in made] if usage else made

    # --- the answers ------------------------------------------------------------------------

    async def _events(self) -> AsyncGenerator[tuple[Choice, Happening], None]:
        """What happens to all choices, in order of time."""
        if len(self._wishes) == 1:
            async with aclosing(self._one(0)) as events:
                async for item in events:
                    yield item
            return
        queue: asyncio.Queue[tuple[Choice, Happening] | ApiError | None] = asyncio.Queue()
        tasks = [asyncio.create_task(self._pump(i, queue)) for i in range(len(self._wishes))]
        try:
            left = len(tasks)
            while left:
                found = await queue.get()
                if isinstance(found, ApiError):
                    raise found
                if found is None:
                    left -= 1
                else:
                    yield found
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(
        self, at: int, queue: asyncio.Queue[tuple[Choice, Happening] | ApiError | None]
    ) -> None:
        try:
            async with aclosing(self._one(at)) as events:
                async for item in events:
                    queue.put_nowait(item)
            queue.put_nowait(None)
        except ApiError as error:
            queue.put_nowait(error)
        except Exception as error:
            queue.put_nowait(ApiError(500, f"internal error: {error}", kind="server_error"))
            raise

    async def _one(self, at: int) -> AsyncGenerator[tuple[Choice, Happening], None]:
        choice = self._reply.choices[at]
        try:
            async with aclosing(self._service.answer(self._wishes[at])) as events:
                async for happened, session in events:
                    choice.bytes_up, choice.bytes_down = session.bytes_up, session.bytes_down
                    if choice.told is not None and isinstance(happened, Piece):
                        choice.told.feed(happened.tokens, happened.logprobs)
                    if isinstance(happened, Answer):
                        choice.ended = happened
                    yield choice, happened
        except OutriderError as error:
            prompt = "messages" if self._reply.kind == "chat" else "prompt"
            form = "tools" if choice.calls is not None else "response_format"
            raise translate(error, prompt=prompt, form=form) from error
