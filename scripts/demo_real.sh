#!/bin/sh
# The main job on the real pair: a verifier of the 1.5B and an edge with the 0.5B, on this machine.
#
#   scripts/demo_real.sh ["prompt"] [more words for `outrider run`]
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
outrider=$here/.venv/bin/outrider
if [ $# -eq 0 ]; then
    set -- "Write a Python function that reverses a linked list." --max-tokens 96
fi

scratch=$(mktemp -d)
"$outrider" cloud serve --model qwen2.5-coder --port 0 --json --ctx-size 4096 --max-sessions 1 \
    >"$scratch/ready" 2>"$scratch/log" &
cloud=$!
trap 'kill "$cloud" 2>/dev/null || true; wait "$cloud" 2>/dev/null || true; rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM HUP

echo "Loading the target (Qwen2.5-Coder 1.5B) ..." >&2
until [ -s "$scratch/ready" ]; do
    if ! kill -0 "$cloud" 2>/dev/null; then
        cat "$scratch/log" >&2
        exit 1
    fi
    sleep 0.2
done
url=$("$here/.venv/bin/python" -c 'import json, sys; print(json.loads(input())["url"])' <"$scratch/ready")
"$outrider" run --cloud "$url" --draft-model qwen2.5-coder --ctx-size 4096 "$@"
