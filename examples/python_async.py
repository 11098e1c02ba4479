"""Without blocking: two answers at once, and one that is cancelled. Usage: ... [CLOUD]"""

import asyncio
import sys

from outrider.edge_client.api import AsyncOutrider

CLOUD = sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:8471"


async def main() -> None:
    async with AsyncOutrider(CLOUD) as client:
        one, two = await asyncio.gather(
            client.ask("In the beginning", max_tokens=16),
            client.ask("import os", max_tokens=16),
        )
        print(f"In the beginning{one.text}\n---\nimport os{two.text}\n---")

        shown = ""
        stream = client.stream("The quick brown", max_tokens=500)
        async for piece in stream:
            shown += piece.text
            if len(shown) > 20:
                break
        await stream.aclose()  # the cloud stops working on it now
        print(f"The quick brown{shown} ... cancelled")


asyncio.run(main())
