"""A program at a pseudo-terminal of its own."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

TAKE = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
"""Makes the terminal the session's, and becomes the program."""


def start(args: list[str], env: dict[str, str]) -> tuple[subprocess.Popen[bytes], int]:
    """Run Python with ``args``; gives the process and the near end of its terminal.

    Not by ``pty.fork``: other threads of this process may hold locks which the copy would wait
    for, and for ever, before it becomes another program.
    """
    near, far = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", TAKE, *args],
            stdin=far,
            stdout=far,
            stderr=far,
            env=env,
            start_new_session=True,
        )
    finally:
        os.close(far)
    return process, near
