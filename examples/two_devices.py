"""Two edges on one verifier: one drafts, the other does not. Usage: two_devices.py [CLOUD]"""

import asyncio
import sys

from outrider.edge_client.api import AsyncOutrider

CLOUD = sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:8471"
PROMPT = "And God said, Let there be light"


async def main() -> None:
    async with AsyncOutrider(CLOUD) as laptop, AsyncOutrider(CLOUD, draft=False) as phone:
        drafted, plain = await asyncio.gather(
            laptop.ask(PROMPT, max_tokens=20, temperature=0.8, seed=7),
            phone.ask(PROMPT, max_tokens=20, temperature=0.8, seed=7),
        )
    print(drafted.text)
    print(f"laptop: {drafted.drafted} guesses, {drafted.passes} passes of the target")
    print(f"phone:  {plain.drafted} guesses, {plain.passes} passes of the target")
    print(f"the same text: {'yes' if drafted.text == plain.text else 'no'}")


asyncio.run(main())
