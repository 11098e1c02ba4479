"""The library: a whole answer, a stream, a text that goes on. Usage: python_api.py [CLOUD]"""

import sys

from outrider.edge_client.answer import Answer
from outrider.edge_client.api import Outrider

CLOUD = sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:8471"

with Outrider(CLOUD) as client:
    answer = client.ask("And it came to pass in those days, that", max_tokens=24)
    print(f"{client.model}:{answer.text}")

    for piece in client.stream("def __init__(self,", max_tokens=24, temperature=0.7, seed=7):
        if isinstance(piece, Answer):
            print(f"\n{piece.accepted} of {piece.drafted} guesses accepted, {piece.passes} passes")
        else:
            print(piece.text, end="", flush=True)

    # The session of the first answer has this text already: only the end of it is read again.
    more = client.ask("And it came to pass in those days, that" + answer.text, max_tokens=8)
    print(f"it goes on:{more.text}")
