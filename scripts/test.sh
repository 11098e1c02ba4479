#!/bin/sh
# Everything that must hold before a change lands, in the order that fails soonest.
#
# llama.cpp may have to be compiled first, which takes longer than all the checks that do not need
# it: so it is compiled in the background while those run.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$here"
bin=.venv/bin
log=.venv/llama-wheel.log
wanted="not slow and not real"

# A missing compiler is said now, not when the wheel is waited for.
state=0
PYTHON=$bin/python sh scripts/llama-wheel.sh --check >/dev/null || state=$?
[ "$state" -le 1 ] || exit "$state"

# In a process group of its own: a check that fails then also ends the compilers.
PYTHON=$bin/python "$bin"/python -c 'import os, sys; os.setsid(); os.execvp("sh", sys.argv)' \
    scripts/llama-wheel.sh >"$log" 2>&1 </dev/null &
builder=$!
trap 'kill -- "-$builder" 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM HUP

step() { echo "== $*"; }

# Tests of processes and terminals wait for what they expect, within bounds; a machine that does much
# else at the time can miss one. What failed is run once more, alone, and must pass then. Said aloud.
tests() {
    state=0
    "$bin"/python -m pytest "$@" || state=$?
    [ "$state" -ne 0 ] || return 0
    [ "$state" -eq 1 ] || return "$state"
    step "once more, alone: the tests that failed"
    "$bin"/python -m pytest -v --last-failed --last-failed-no-failures none -n 0 \
        --cov --cov-append --cov-report= -m "$wanted" tests
}

step "format, lint, types, imports"
"$bin"/ruff format --check .
"$bin"/ruff check .
"$bin"/mypy
"$bin"/lint-imports --no-logo

# -v takes back the -q of pyproject.toml: the closing line is then the one that tools look for.
step "pure tests"
rm -f .coverage .coverage.*
tests -v -n 2 --cov --cov-report= -m "$wanted" tests/protocol ${PYTEST_ARGS:-}

step "waiting for the llama.cpp wheel"
if ! wait "$builder"; then
    cat "$log" >&2
    exit 1
fi
trap - EXIT
sh scripts/venv.sh edge-llama,cloud-llama

step "the other tests"
tests -v --cov --cov-append --cov-report= --ignore=tests/protocol \
    -m "$wanted" --durations=10 tests ${PYTEST_ARGS:-}

step "coverage"
"$bin"/python -m coverage report --skip-covered --sort=cover | tail -n 40
echo "-- protocol/ must reach 98 %"
"$bin"/python -m coverage report --include='protocol/*' --fail-under=98
