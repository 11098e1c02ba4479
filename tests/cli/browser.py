"""Just enough of Chromium's debugging protocol to use a page as a person would."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome")
KEYS = {"Enter": 13, "Escape": 27, "Tab": 9}


def installed() -> str | None:
    """The browser of this machine, if it has one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """A headless browser with one page. ``errors``: what its console and network complained of."""

    def __init__(self, width: int, height: int, *, dark: bool = False) -> None:
        self._size, self._dark = (width, height), dark
        self.errors: list[str] = []
        self.urls: list[str] = []
        self._next = 0

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        binary = installed()
        assert binary is not None
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        flags += ["--disable-dev-shm-usage", "--remote-debugging-port=0", "--mute-audio"]
        # Nothing but the page: no updates, no look for a proxy, no accounts.
        flags += ["--disable-background-networking", "--disable-component-update"]
        flags += ["--disable-sync", "--disable-quic", "--no-proxy-server"]
        self._process = subprocess.Popen(
            [binary, *flags, f"--user-data-dir={self._folder.name}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._link = self._attach()
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        width, height = self._size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if self._dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        return self

    def _attach(self) -> ClientConnection:
        file = Path(self._folder.name) / "DevToolsActivePort"
        deadline = time.monotonic() + 30
        while not file.exists() or "\n" not in file.read_text():
            assert time.monotonic() < deadline, "the browser did not start"
            time.sleep(0.05)
        port, path = file.read_text().splitlines()[:2]
        root = connect(f"ws://127.0.0.1:{port}{path}", max_size=None, compression=None, legacy=True)
        self._link = root
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(t["targetId"] for t in targets if t["type"] == "page")
        root.close()
        address = f"ws://127.0.0.1:{port}/devtools/page/{page}"
        return connect(address, max_size=None, compression=None, legacy=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._link.close()
        self._process.terminate()
        self._process.wait(20)
        self._folder.cleanup()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of one command; what happens meanwhile is noted."""
        self._next += 1
        self._link.send(json.dumps({"id": self._next, "method": method, "params": params}))
        while True:
            message = json.loads(self._link.recv(30))
            if message.get("id") == self._next:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self._note(message.get("method"), message.get("params", {}))

    def _note(self, method: str | None, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"])[:500])
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.urls.append(params["request"]["url"])

    def open(self, url: str) -> None:
        """Go there, and wait until the page has run."""
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def run(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression: str, seconds: float = 60.0) -> None:
        """Wait until it is true. What the page shows instead is in the error."""
        deadline = time.monotonic() + seconds
        while not self.run(expression):
            if time.monotonic() > deadline:
                shown = self.run("document.body.innerText")
                raise AssertionError(f"never true: {expression}\n{shown}\n{self.errors}")
            time.sleep(0.03)

    def press(self, key: str, *, ctrl: bool = False) -> None:
        """A key of :data:`KEYS`."""
        code = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, modifiers=2 if ctrl else 0, **code)

    def picture(self, file: Path) -> None:
        """The whole page as a PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))
