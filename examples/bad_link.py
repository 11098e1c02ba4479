"""A link that gets worse in mid answer, simulated by a proxy. Usage: bad_link.py [CLOUD]"""

import asyncio
import sys
import time
from urllib.parse import urlsplit

from outrider.edge_client.answer import Answer
from outrider.edge_client.api import AsyncOutrider
from outrider.simulator.profiles import link
from outrider.simulator.proxy import Proxy

CLOUD = urlsplit(sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:8471")


def through(proxy: Proxy) -> AsyncOutrider:
    return AsyncOutrider(f"ws://127.0.0.1:{proxy.port}")


async def main() -> None:
    place = (CLOUD.hostname or "127.0.0.1", CLOUD.port or 8471)
    texts = []
    async with Proxy(link("loopback"), place) as proxy, through(proxy) as client:
        for name in ("loopback", "geo"):
            proxy.change(link(name))
            began, first = time.monotonic(), None
            async for piece in client.stream("The quick brown", max_tokens=120):
                first = first or time.monotonic() - began
                if isinstance(piece, Answer):
                    texts.append(piece.text)
                    print(f"{name}: first token after {first * 1e3:.0f} ms")

        # And one that is cut in mid answer, which goes on at the exact token.
        proxy.change(link("loopback"))
        text, cut = "", False
        async for piece in client.stream("The quick brown", max_tokens=120):
            if isinstance(piece, Answer):
                texts.append(piece.text)
                print(f"cut: {piece.reconnects} new link")
                continue
            text += piece.text
            if text and not cut:
                cut = True
                proxy.drop()
    print(f"the same text: {'yes' if len(set(texts)) == 1 else 'no'}")


asyncio.run(main())
