"""``outrider demo --live``: the live view over a link that can be made bad, with the embedded pair.

Three processes: this one with the drafter and the endpoint, a verifier, and between them a proxy
that is any link of ``docs/links.md``, chosen on the page. The embedded target is small and quick:
it is paced to the speed of a large one, for else drafting would never pay.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from outrider.benchmarks.embedded import cloud
from outrider.cli.edge import EdgeOptions
from outrider.cli.endpoint_life import Settings, serve_until_told
from outrider.cli.exits import WorkFailedError
from outrider.protocol.errors import SettingError

STOP_SECONDS = 5.0


PASS_MS = 30.0
"""Of the paced target: as long as the target of ``outrider bench links``."""


def live(target_backend: str | None, drafting: EdgeOptions, *, port: int) -> None:
    """Serve the page until a signal comes. ``target_backend`` None: what is installed.

    Raises:
        BackendError: the verifier does not start. WorkFailedError: the proxy does not.
    """
    with cloud(PASS_MS, target_backend) as verifier, ShapedLink(verifier.url) as link:
        serve_until_told(replace(drafting, cloud=link.url), Settings(port=port, link=link))


class ShapedLink:
    """A proxy process in front of a verifier; ``current`` is the link that it plays."""

    def __init__(self, url: str) -> None:
        from outrider.simulator.profiles import PROFILES

        self.names = tuple(PROFILES)
        self.current = "loopback"
        self.note = f"target paced to {PASS_MS:g} ms a pass"
        self._to = urlsplit(url)
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "outrider.simulator.proxy", "--to", self._to.netloc]
        command += ["--with-stdin"]  # it ends with us, however we end
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        port = self._said()
        if not port.isdecimal():
            self._end()
            raise WorkFailedError(f"the proxy did not start: {port or 'it said nothing'}")
        self.url = f"ws://127.0.0.1:{port}{Path(self._to.path)}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def choose(self, name: str) -> None:
        """Be this link from now on; what is on its way arrives when it would have.

        Raises:
            SettingError: no such link.
        """
        if name not in self.names:
            raise SettingError(f"link {name!r}: there are {', '.join(self.names)}")
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"profile {name}\n".encode())
        self._process.stdin.flush()
        said = self._said()
        if not said.startswith("ok"):
            raise SettingError(said.removeprefix("error: ") or "the proxy has ended")
        self.current = name

    def _said(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode().strip()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
