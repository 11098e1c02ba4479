"""Collaborative decoding: a text of both models together. Usage: collaborate.py [CLOUD]

Such a text is not the target's own, and is not meant to be: each token is chosen from both models'
probabilities, here with a weight for the drafter's. With the weight 0 it is the target's.
"""

import json
import subprocess
import sys

CLOUD = sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:8471"
PROMPT = "And it came to pass in those days, that the king of"


def run(*more: str) -> dict:
    """What ``outrider run --json`` says with these flags."""
    command = [sys.executable, "-m", "outrider.cli.main", "run", PROMPT, "--json", "-n", "32"]
    command += ["--cloud", CLOUD, *more]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


alone = run()
print(f"target:    {alone['text']!r}")
for weight in ("0", "0.9"):
    both = run("--collaborate", f"ensemble={weight}")
    print(f"{weight:>3} of ours: {both['text']!r}")
    print(f"     {both['bytes_up_per_token']:.0f} bytes up a token")
    print(f"     the target's text: {'yes' if both['text'] == alone['text'] else 'no'}")
