#!/bin/sh
# The boards' installer, tried in a Debian arm64 root under emulation: scripts/arm64_root.sh FOLDER
#
# As root on Debian or Ubuntu with debootstrap, qemu-user-static and binfmt-support; .venv must have a
# target (make demo brings one). The root is made in FOLDER, or the one that is there is used. Installs
# what git knows of this checkout as a board's user would, from wheels alone, asks a cloud outside the
# root for a drafted answer, compares it with the same cloud's own, and looks at the settings and the
# unit that are written. Half an hour on two cores, most of it for the root.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
root=${1:?where shall the root be made? scripts/arm64_root.sh FOLDER}
suite=bookworm
packages=ca-certificates,python3,python3-venv,systemd,gcc,g++,cmake,make
user=pi
outrider=/home/$user/.local/share/outrider/venv/bin/outrider
ask="And it came to pass"
cloud=

for tool in debootstrap qemu-aarch64-static chroot; do
    command -v "$tool" >/dev/null || {
        echo "$tool is missing: apt install debootstrap qemu-user-static binfmt-support" >&2
        exit 1
    }
done
[ -x "$here/.venv/bin/outrider" ] || { echo "no .venv with a target: make demo first" >&2; exit 1; }

step() { echo "== $*"; }

leave() {
    [ -z "$cloud" ] || kill "$cloud" 2>/dev/null || true
    umount "$root/proc" 2>/dev/null || true
}
trap leave EXIT
trap 'exit 130' INT TERM HUP

# As the board's user, with pip's own settings as they are outside.
inside() {
    chroot "$root" /usr/bin/env -i HOME="/home/$user" PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
        ${PIP_INDEX_URL:+PIP_INDEX_URL="$PIP_INDEX_URL"} ${PIP_CERT:+PIP_CERT="$PIP_CERT"} \
        PIP_DEFAULT_TIMEOUT=180 SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
        setpriv --reuid=1000 --regid=1000 --clear-groups "$@"
}

make_root() {
    step "a root of $suite for arm64"
    [ -e "$root/etc/debian_version" ] || debootstrap --arch=arm64 --foreign --variant=minbase \
        --include="$packages" "$suite" "$root"
    [ ! -e "$root/debootstrap" ] || chroot "$root" /debootstrap/debootstrap --second-stage
    [ -d "$root/home/$user" ] || chroot "$root" useradd --create-home --uid 1000 "$user"
    cp /etc/resolv.conf "$root/etc/resolv.conf"
    cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
    mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
}

copy() {
    step "this checkout"
    rm -rf "$root/home/$user/outrider" "$root/home/$user/.config"
    mkdir "$root/home/$user/outrider"
    git -C "$here" archive HEAD | tar -x -C "$root/home/$user/outrider"
    chown -R 1000:1000 "$root/home/$user/outrider"
}

install_() {
    step "the installer, from wheels"
    inside sh "/home/$user/outrider/examples/boards/install.sh"
    step "what it would do to compile llama.cpp, here and on a Jetson"
    inside sh "/home/$user/outrider/examples/boards/install.sh" --drafter llama --dry-run
    printf 'NVIDIA Jetson Orin Nano Developer Kit' >"$root/tmp/board"
    inside /usr/bin/env OUTRIDER_DEVICE_TREE=/tmp/board \
        sh "/home/$user/outrider/examples/boards/install.sh" --drafter llama --dry-run
    step "its commands"
    inside "$outrider" version
    inside "$outrider" doctor
}

answers() {
    step "an answer, drafted inside and verified outside"
    told=$(mktemp)
    "$here/.venv/bin/outrider" cloud serve --port 0 --json >"$told" 2>/dev/null &
    cloud=$!
    for _ in $(seq 120); do
        [ -s "$told" ] && break
        sleep 1
    done
    url=$(sed -n 's/.*"url": "\([^"]*\)".*/\1/p' "$told")
    [ -n "$url" ] || { echo "the cloud did not start" >&2; exit 1; }
    inside "$outrider" link --cloud "$url"
    drafted=$(inside "$outrider" run --cloud "$url" --temp 0 -n 48 --objective cost --raw --json "$ask")
    plain=$("$here/.venv/bin/outrider" run --cloud "$url" --temp 0 -n 48 --draft off --raw --json "$ask")
    rm -f "$told"
    echo "$drafted"
    DRAFTED=$drafted PLAIN=$plain "$here/.venv/bin/python" - <<'PYTHON'
import json, os, sys

drafted, plain = (json.loads(os.environ[name]) for name in ("DRAFTED", "PLAIN"))
if drafted["text"] != plain["text"]:
    sys.exit("the text is not the target's own")
if not drafted["accepted"]:
    sys.exit("no guess from inside was accepted")
print(f"the same text; {drafted['accepted']} of {drafted['drafted']} guesses accepted")
PYTHON
}

unit() {
    step "set up as a service: there is no systemd to start it here, its unit is looked at"
    inside sh "/home/$user/outrider/examples/boards/install.sh" --cloud "$url" || true
    inside cat "/home/$user/.config/outrider/config.toml"
    inside /usr/bin/env XDG_RUNTIME_DIR="/home/$user" \
        systemd-analyze --user verify "/home/$user/.config/systemd/user/outrider.service"
}

make_root
copy
install_
answers
unit
echo "all of it worked"
