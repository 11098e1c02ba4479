#!/bin/sh
# Make .venv, or bring it up to date, with the named extras: scripts/venv.sh edge,cloud
#
# Says before it starts what it will download and compile. Takes pip's own settings (PIP_INDEX_URL,
# PIP_FIND_LINKS and so on) as they are. TORCH_INDEX, if set, is where torch alone comes from.
set -eu

extras=$1
here=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$here"
venv=${VENV:-.venv}
python=$venv/bin/python
export PIP_DISABLE_PIP_VERSION_CHECK=1

has_extra() {
    case ",$extras," in *",$1,"*) return 0 ;; *) return 1 ;; esac
}

wants_torch() { has_extra cloud || has_extra models; }
wants_llama() { has_extra edge-llama || has_extra cloud-llama; }

installed() {
    [ -x "$python" ] && "$python" -c "
import importlib.metadata, sys
try:
    print(importlib.metadata.version('$1'))
except importlib.metadata.PackageNotFoundError:
    sys.exit(1)" 2>/dev/null
}

check_python() {
    host=${PYTHON:-python3}
    if ! command -v "$host" >/dev/null 2>&1; then
        echo "No $host here. Outrider needs Python 3.11 or newer (Debian: apt install python3 python3-venv)." >&2
        exit 1
    fi
    if ! "$host" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "$("$host" --version) is too old: Outrider needs 3.11 or newer. Name another one: make PYTHON=python3.12" >&2
        exit 1
    fi
    if ! "$host" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        echo "$host cannot make virtual environments. On Debian and Ubuntu: apt install python3-venv" >&2
        exit 1
    fi
}

check_llama() {
    llama=cached
    if wants_llama && ! installed llama-cpp-python >/dev/null; then
        state=0
        PYTHON=$host sh scripts/llama-wheel.sh --check >/dev/null || state=$?
        [ "$state" -le 1 ] || exit 1
        [ "$state" -eq 0 ] || llama=missing
    fi
}

make_venv() {
    if [ -e "$venv" ] && ! "$python" -m pip --version >/dev/null 2>&1; then
        echo "$venv is there but does not work (an interrupted start, or the folder was moved): remove it and try again." >&2
        exit 1
    fi
    if [ ! -e "$venv" ]; then
        # An interrupted start must not be taken for a finished one.
        trap 'rm -rf "$venv"' EXIT
        trap 'exit 130' INT TERM HUP
        "$host" -m venv "$venv"
        trap - EXIT INT TERM HUP
    fi
}

announce_torch() {
    pin=$(sed -n 's/^torch==/torch==/p' constraints.txt)
    # A trial run of pip names the file that would be taken, with its index and settings as they are.
    "$python" -m pip install --dry-run --quiet --no-deps --ignore-installed --report - \
        ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$pin" 2>/dev/null | "$python" scripts/torch_build.py \
        || echo "  torch: pip could not say which build of $pin it will take"
}

announce() {
    echo "Setting up $venv with: $extras"
    if ! installed websockets >/dev/null; then
        echo "  download: about 70 MB of Python packages"
    fi
    if wants_torch && ! installed torch >/dev/null; then
        announce_torch
        echo "  download: about 20 MB more for transformers"
    fi
    if wants_llama && ! installed llama-cpp-python >/dev/null; then
        if [ "$llama" = cached ]; then
            echo "  llama.cpp: the wheel compiled earlier is used"
        else
            echo "  download: about 70 MB of llama.cpp sources"
            echo "  compile:  llama.cpp, once, 4 to 10 minutes on two cores; longer on a small board"
        fi
    fi
}

install() {
    pip="$python -m pip install"
    # The large ones by themselves, for their progress bars. --no-deps: what torch needs comes below,
    # with the pinned versions, which TORCH_INDEX may not have.
    if wants_torch && ! installed torch >/dev/null; then
        $pip --no-deps -c constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
    fi
    if wants_llama && ! installed llama-cpp-python >/dev/null; then
        wheel=$(PYTHON=$python sh scripts/llama-wheel.sh | tail -n 1)
        # The status of a pipe is that of its last command: an empty answer is the failure.
        [ -n "$wheel" ] || exit 1
        $pip --no-deps -c constraints.txt "$wheel"
    fi
    echo "Installing the rest ..."
    $pip --quiet -c constraints.txt -e ".[$extras]"
}

check_python
check_llama
make_venv
announce
install
echo "Ready."
