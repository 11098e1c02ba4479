"""``outrider service``: the endpoint or a cloud as a unit of systemd, with its settings file."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from outrider.cli import logs, settings
from outrider.protocol.errors import SettingError

SYSTEM_UNITS = Path("/etc/systemd/system")
OURS = "# Written by outrider service install; it writes over its own units, and over no others."

UNIT = """{ours}
[Unit]
Description={about}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
{user}ExecStart={command}
{more}Restart=on-failure
RestartSec=5
# Answers under way end politely first.
KillSignal=SIGTERM
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
SystemCallArchitectures=native
UMask=0077

[Install]
WantedBy={wanted_by}
"""


class Role(StrEnum):
    """What runs."""

    EDGE = "edge"
    CLOUD = "cloud"


COMMANDS = {Role.EDGE: ("serve",), Role.CLOUD: ("cloud", "serve")}
NAMES = {Role.EDGE: "outrider", Role.CLOUD: "outrider-cloud"}
ABOUT = {
    Role.EDGE: "Outrider: an OpenAI-compatible endpoint, drafted here, verified in the cloud",
    Role.CLOUD: "Outrider verifier",
}
MORE = {
    Role.EDGE: "Environment=OMP_NUM_THREADS=1\nTimeoutStopSec=20\nMemoryHigh=75%\n",
    # Keys are read again on a reload. Stopping takes longer than --drain-seconds by default.
    Role.CLOUD: "ExecReload=/bin/kill -HUP $MAINPID\nTimeoutStopSec=60\nLimitNOFILE=4096\n",
}

RoleOption = Annotated[
    Role, typer.Option("--role", help="edge: outrider serve; cloud: outrider cloud serve.")
]
UserOption = Annotated[
    bool,
    typer.Option(
        "--user/--system",
        help="A unit of yours, or one of the machine that runs as you (wants root, by sudo).",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The settings file (default: $XDG_CONFIG_HOME/outrider/config.toml).",
    ),
]


def install(
    ctx: typer.Context,
    *,
    role: RoleOption = Role.EDGE,
    user: UserOption = True,
    dry_run: DryRun = False,
    config: ConfigFile = None,
) -> None:
    """Write a unit for systemd, switch it on and start it.

    The settings file is looked at first, so that a mistake in it is told
    here and not in the journal.

    Example: outrider service install --dry-run
    """
    file = (config.expanduser() if config else settings.usual_file()).absolute()
    if not file.is_file():
        raise SettingError(f"there is no settings file {file}: outrider init writes one")
    root = ctx.find_root().command
    path = COMMANDS[role]
    settings.values_for(file, _command(root, path), path, root=root)
    text = unit(role, file, user=user)
    place = folder(user) / f"{NAMES[role]}.service"
    for line in _verified(place.name, text, user=user):
        logs.warn(line)
    if dry_run:
        print(f"# {place}\n{text}", end="")
        return
    _check_ours(place)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, "utf-8")
    except OSError as error:
        raise SettingError(f"cannot write {place}: {error.strerror}") from error
    print(f"written: {place}")
    _systemctl(user, ["daemon-reload"])
    _systemctl(user, ["enable", "--now", place.name])
    scope = " --user" if user else ""
    print(f"running: journalctl{scope} -u {NAMES[role]} -f shows what it says")
    if user:
        print("loginctl enable-linger keeps it running while you are not logged in")


def uninstall(
    *, role: RoleOption = Role.EDGE, user: UserOption = True, dry_run: DryRun = False
) -> None:
    """Stop the unit, switch it off and take it away. The settings file stays.

    Example: outrider service uninstall --dry-run
    """
    place = folder(user) / f"{NAMES[role]}.service"
    if not place.exists():
        raise SettingError(f"there is no unit {place}")
    _check_ours(place)
    if dry_run:
        print(f"would stop and remove {place}")
        return
    _systemctl(user, ["disable", "--now", place.name])
    try:
        place.unlink()
    except OSError as error:
        raise SettingError(f"cannot remove {place}: {error.strerror}") from error
    _systemctl(user, ["daemon-reload"])
    print(f"removed: {place}")


def unit(role: Role, file: Path, *, user: bool) -> str:
    """The text of the unit that runs the role with this settings file."""
    import getpass

    program = Path(sys.executable).with_name("outrider")
    begin = [str(program)] if program.is_file() else [sys.executable, "-m", "outrider.cli.main"]
    return UNIT.format(
        ours=OURS,
        about=ABOUT[role],
        # Of somebody who became root for this the unit is all the same.
        user="" if user else f"User={os.environ.get('SUDO_USER') or getpass.getuser()}\n",
        command=" ".join(map(quoted, [*begin, *COMMANDS[role], "--config", str(file)])),
        more=MORE[role],
        wanted_by="default.target" if user else "multi-user.target",
    )


def quoted(word: str) -> str:
    """One argument as systemd reads it (systemd.service(5), command lines)."""
    word = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{word}"' if any(sign in word for sign in " \t'\"\\;") else word


def folder(user: bool) -> Path:
    """Where units lie."""
    if not user:
        return SYSTEM_UNITS
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "systemd" / "user"


def _command(root: object, path: Sequence[str]) -> object:
    found = root
    for name in path:
        found = found.commands[name]  # type: ignore[attr-defined]
    return found


def _check_ours(place: Path) -> None:
    """Raises SettingError: there is a unit of this name that somebody else wrote."""
    if place.exists() and not place.read_text("utf-8", "replace").startswith(OURS):
        raise SettingError(f"{place} was not written by outrider service install: move it away")


def _verified(name: str, text: str, *, user: bool) -> list[str]:
    """What systemd-analyze has to say about the unit; nothing where it is not installed."""
    import shutil
    import subprocess
    import tempfile

    program = shutil.which("systemd-analyze")
    if program is None:
        return []
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / name
        file.write_text(text, "utf-8")
        command = [program, "verify", "--man=no", *(["--user"] if user else []), str(file)]
        env = os.environ | ({} if "XDG_RUNTIME_DIR" in os.environ else {"XDG_RUNTIME_DIR": place})
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    return [line.replace(str(file), name) for line in done.stderr.splitlines() if name in line]


def _systemctl(user: bool, arguments: list[str]) -> None:
    """Raises WorkFailedError: it is not there, or did not do it."""
    import subprocess

    from outrider.cli.exits import WorkFailedError

    command = ["systemctl", *(["--user"] if user else []), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise WorkFailedError(f"{' '.join(command)}: {error.strerror}") from error
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise WorkFailedError(f"{' '.join(command)}: {said[-1]}")
