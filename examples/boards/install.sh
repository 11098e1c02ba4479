#!/bin/sh
# Outrider's edge on a small board: Raspberry Pi 4 and 5, Jetson Orin. Run it from anywhere as the
# user who will use it; nothing is changed outside that user's home.
#
#   install.sh [--drafter onnx|llama|none] [--cloud URL [--api-key-file FILE]] [--dry-run]
#
#   onnx    wheels alone, nothing is compiled (default)
#   llama   llama.cpp is compiled for this board, on a Jetson with CUDA
#   none    no drafter here: plain cloud streaming
#
# With --cloud, an address or the line of an invitation, the board is set up and started as well.
set -eu

drafter=onnx
cloud=
key=
dry=
while [ $# -gt 0 ]; do
    case "$1" in
    --drafter) shift; drafter=${1:-} ;;
    --cloud) shift; cloud=${1:-} ;;
    --api-key-file) shift; key=${1:-} ;;
    --dry-run) dry=1 ;;
    -h|--help) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "$1: not known; see --help" >&2; exit 2 ;;
    esac
    shift
done
case "$drafter" in
onnx|llama|none) ;;
*) echo "--drafter $drafter: it must be onnx, llama or none" >&2; exit 2 ;;
esac

here=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
home=${XDG_DATA_HOME:-$HOME/.local/share}/outrider
settings=${XDG_CONFIG_HOME:-$HOME/.config}/outrider/config.toml
tree=${OUTRIDER_DEVICE_TREE:-/proc/device-tree/model}
meminfo=${OUTRIDER_MEMINFO:-/proc/meminfo}

run() {
    echo "+ $*"
    [ -n "$dry" ] || "$@"
}

board=$( (tr -d '\0' <"$tree") 2>/dev/null || echo "this machine")
case "$board" in
*Jetson*|*Orin*) kind=jetson ;;
*Raspberry*) kind=pi ;;
*) kind=other ;;
esac
memory=$(awk '/^MemAvailable:/ {print int($2 / 1024)}' "$meminfo")
echo "board: $board; $(uname -m); $memory MiB of memory available"

# The library takes about 200 MiB, the 0.5B drafter in 4 bits about 800 MiB more. Compiling takes
# about 1.5 GiB for each job.
need=300
[ "$drafter" = llama ] && need=1800
if [ "$memory" -lt "$need" ]; then
    echo "--drafter $drafter needs about $need MiB here, $memory MiB are available: close programs," >&2
    echo "add swap, or take --drafter onnx or none" >&2
    exit 1
fi

# Python 3.11 is the least. JetPack 6 has 3.10: there uv brings an interpreter of its own.
python=${OUTRIDER_PYTHON:-python3}
if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    run "$python" -m venv "$home/venv"
else
    echo "$("$python" --version) is too old: uv brings Python 3.12"
    run "$python" -m venv "$home/uv"
    run "$home/uv/bin/pip" install --quiet uv
    run "$home/uv/bin/uv" venv --python 3.12 --seed "$home/venv"
fi
pip=$home/venv/bin/pip

case "$drafter" in
llama)
    if [ "$kind" = jetson ]; then
        flags="-DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=87"
        command -v nvcc >/dev/null || {
            echo "nvcc is missing: apt install cuda-toolkit, and /usr/local/cuda/bin in PATH" >&2
            [ -n "$dry" ] || exit 1
        }
    else
        flags="-DGGML_NATIVE=ON"
    fi
    jobs=$(( memory / 1500 ))
    [ "$jobs" -ge 1 ] || jobs=1
    [ "$jobs" -le "$(nproc)" ] || jobs=$(nproc)
    echo "compiling llama.cpp with $flags and $jobs jobs: this may take an hour or more on a board"
    run env CMAKE_ARGS="$flags" CMAKE_BUILD_PARALLEL_LEVEL="$jobs" "$pip" install \
        -c "$here/constraints.txt" "${here}[edge-llama]"
    ;;
*)
    run "$pip" install --only-binary=:all: --no-binary outrider -c "$here/constraints.txt" \
        "${here}[edge]"
    ;;
esac

outrider=$home/venv/bin/outrider
if [ -z "$cloud" ]; then
    echo
    echo "Next: $outrider init               # asks for the cloud, measures the way there"
    echo "      $outrider service install    # runs it from now on"
    exit 0
fi
if [ -e "$settings" ]; then
    echo "$settings is kept as it is"
else
    run "$outrider" init --cloud "$cloud" ${key:+--api-key-file "$key"} --yes
    if [ "$drafter" = none ] && [ -z "$dry" ]; then
        printf 'draft = "off"\n%s\n' "$(cat "$settings")" >"$settings.new"
        chmod 600 "$settings.new"
        mv "$settings.new" "$settings"
    fi
fi
run "$outrider" service install
