"""One client process of the load test: several sessions that come, ask, change their minds and go.

``load_client.py URL MODELS SESSIONS SECONDS SEED DRAFT`` prints one JSON line at its end: answers,
tokens, refusals by code, and every error that is no stated refusal. An answer that is not a prefix
of what the first whole one to the same question was is such an error.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections import Counter
from contextlib import aclosing
from pathlib import Path

from outrider.edge_client.answer import Answer, Piece
from outrider.edge_client.client import EdgeClient
from outrider.edge_client.policy import Fixed
from outrider.protocol.errors import LinkError, OutriderError, SessionError
from outrider.protocol.request import Request
from outrider.runtime.lm.drafter import Drafter
from outrider.runtime.lm.factory import load_lm
from outrider.runtime.net.errors import LinkBusyError
from outrider.runtime.text.tokenizer import load_tokenizer

PROMPTS = ("And it came to pass", "The king said", "In the beginning", "Now these are the names")
MOST = 160


class Client:
    """Sessions over one link after another, and what became of them."""

    def __init__(self, url: str, models: Path, seed: int, draft: bool) -> None:
        self.url, self.dice = url, random.Random(seed)
        self.tokenizer = load_tokenizer(models / "drafter")
        self.drafter: Drafter | None = None
        if draft:
            lm = load_lm(models / "drafter", "auto").lm
            self.drafter = Drafter(lm, self.tokenizer.size, self.tokenizer.eos)
        self.counts: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.errors: list[str] = []
        self.known: dict[str, tuple[int, ...]] = {}

    async def run(self, sessions: int, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            link_end = min(end, loop.time() + self.dice.uniform(3.0, 20.0))
            try:
                async with EdgeClient(self.url, self.tokenizer, self.drafter, Fixed(4)) as client:
                    work = [self.ask(client, link_end) for _ in range(sessions)]
                    await asyncio.gather(*work)
            except LinkBusyError as error:
                self.refused["connection"] += 1
                await asyncio.sleep(error.retry_after or 1.0)
            except OutriderError as error:
                self.errors.append(f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.5)
            self.counts["links"] += 1

    async def ask(self, client: EdgeClient, end: float) -> None:
        """Answers one after another until ``end``; a session is kept for some of them."""
        loop = asyncio.get_running_loop()
        while loop.time() < end:
            session = client.session()
            try:
                await self.answer(client, session)
            except SessionError as error:
                if error.retry_after is None:
                    self.errors.append(f"{error.code}: {error}")
                else:
                    self.refused[error.code] += 1
                    await asyncio.sleep(min(5.0, error.retry_after) * self.dice.uniform(0.5, 1.0))
            except LinkError as error:
                self.errors.append(f"link: {error}")
                return
            finally:
                client.machine.close(session)
                client.courier.wake()
            await asyncio.sleep(self.dice.expovariate(2.0))

    async def answer(self, client: EdgeClient, session) -> None:
        prompt = self.dice.choice(PROMPTS)
        ids = tuple(self.tokenizer.encode_prompt(prompt))
        most = self.dice.randint(4, MOST)
        leave = self.dice.randint(1, most) if self.dice.random() < 0.3 else None
        got: list[int] = []
        request = Request(ids=ids, max_tokens=most, ignore_eos=True)
        async with aclosing(client.stream(session, request)) as events:
            async for event in events:
                if isinstance(event, Piece):
                    got += event.tokens
                    if leave is not None and len(got) >= leave:
                        self.counts["cancelled"] += 1
                        break
                elif isinstance(event, Answer):
                    self.counts["answers"] += 1
        self.counts["tokens"] += len(got)
        known = self.known.get(prompt, ())
        short, long = sorted([tuple(got), known], key=len)
        if long[: len(short)] != short:
            self.errors.append(f"another text for {prompt!r}")
        self.known[prompt] = long


def main() -> None:
    url, models, sessions, seconds, seed, draft = sys.argv[1:]
    client = Client(url, Path(models), int(seed), draft == "1")
    os.nice(10)  # in life these have machines of their own
    print("ready", flush=True)
    asyncio.run(client.run(int(sessions), float(seconds)))
    found = {
        **client.counts,
        "refused": client.refused,
        "errors": client.errors,
        "texts": client.known,
    }
    print(json.dumps(found), flush=True)


main()
