#!/bin/sh
# Give the path of a llama-cpp-python wheel built for this processor, building it if there is none.
#
#   scripts/llama-wheel.sh          build if needed; the path is the last line of the output
#   scripts/llama-wheel.sh --check  build nothing: exit 0 if it is there, 1 if it can be built,
#                                   2 if a tool is missing (and name it)
#
# The registry has only the sources, and compiling takes minutes, so a wheel is kept under the
# user's cache. It is compiled for the very instructions of this processor: the name of its folder
# holds them, so that a cache carried to another machine is not used there.
set -eu

PYTHON=${PYTHON:-.venv/bin/python}
here=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
version=$(sed -n 's/^llama-cpp-python==//p' "$here/constraints.txt")
flags="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DLLAMA_CURL=OFF -DLLAMA_BUILD_TOOLS=OFF"

fingerprint() {
    {
        uname -s
        uname -m
        # x86 says "flags", ARM says "Features"; other systems have no such file.
        grep -m 1 -E '^(flags|Features)' /proc/cpuinfo 2>/dev/null || sysctl -n machdep.cpu.brand_string 2>/dev/null || true
        "$PYTHON" -c 'import sys, sysconfig; print(sys.implementation.cache_tag, sysconfig.get_platform())'
        echo "$flags"
    } | "$PYTHON" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest()[:16])'
}

folder=${XDG_CACHE_HOME:-$HOME/.cache}/outrider/wheels/$version-$(fingerprint)

find_wheel() {
    for wheel in "$folder"/llama_cpp_python-*.whl; do
        if [ -f "$wheel" ]; then
            echo "$wheel"
            return 0
        fi
    done
    return 1
}

if find_wheel; then
    exit 0
fi
missing=""
for tool in cc c++ cmake; do
    command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
done
if [ -n "$missing" ]; then
    echo "Missing to compile llama.cpp:$missing." >&2
    echo "On Debian, Ubuntu and Raspberry Pi OS: apt install build-essential cmake" >&2
    echo "Or use the backends that need no compiler: DRAFTER=onnx TARGET=transformers" >&2
    exit 2
fi
if [ "${1:-}" = "--check" ]; then
    exit 1
fi

jobs=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
echo "Compiling llama-cpp-python $version with $jobs jobs (about 15 minutes of processor time, once)." >&2
mkdir -p "$(dirname -- "$folder")"
# Built beside the place where it will stay: the move is then one step, and an interrupted build
# leaves no half wheel where the next run would find it.
scratch=$(mktemp -d "$folder.building-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$jobs} CMAKE_ARGS="$flags ${CMAKE_ARGS:-}" \
    "$PYTHON" -m pip wheel --quiet --no-deps --wheel-dir "$scratch" "llama-cpp-python==$version" >&2
mkdir -p "$folder"
mv "$scratch"/llama_cpp_python-*.whl "$folder"/
find_wheel
