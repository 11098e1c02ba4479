"""Two drafters as a group, and the text that one alone gives. Usage: group.py [CLOUD]

The two are forms of the embedded drafter, to have two at hand: GGUF and ONNX. What a group is good
for are models that know different things.
"""

import json
import subprocess
import sys
from importlib.resources import files

CLOUD = sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:8471"
PACK = str(files("outrider.models") / "drafter")
OTHER = f"{PACK}/model.onnx"
PROMPT = "And it came to pass in those days, that the king of"


def run(*models: str) -> dict:
    """What ``outrider run --json`` says with these draft models."""
    command = [sys.executable, "-m", "outrider.cli.main", "run", PROMPT, "--json", "-n", "48"]
    command += ["--cloud", CLOUD, "--policy", "fixed", "--raw"]
    for model in models:
        command += ["--draft-model", model]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


group, one = run(PACK, OTHER), run(PACK)
print(group["text"])
for found in (group, one):
    print(f"{found['drafter']}: {found['accepted']} of {found['drafted']} guesses accepted")
print(f"the same text: {'yes' if group['text'] == one['text'] else 'NO'}")
