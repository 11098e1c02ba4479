"""A hub on loopback with the few routes that are used, and the library pointed at it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

SHA = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """``repos``: name -> file -> content. The other fields make it misbehave.

    ``lies``: file -> content sent instead. ``break_after``: bytes after which it hangs up, once for
    each entry. ``ranges`` False: it ignores them. ``status``: answered to everything.
    """

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    lies: dict[str, bytes] = field(default_factory=dict)
    break_after: list[int] = field(default_factory=list)
    ranges: bool = True
    status: int | None = None
    gated: bool = False
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)
    url: str = ""

    def downloads(self) -> list[str | None]:
        """The Range header of each request for content."""
        return [
            span for method, path, span in self.asked if method == "GET" and "/resolve/" in path
        ]


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        hub = self.hub
        hub.asked.append((self.command, self.path, self.headers.get("Range")))
        hub.tokens.add(self.headers.get("Authorization"))
        if hub.status is not None:
            self._plain(hub.status, b"broken")
        elif self.path.startswith("/api/models/"):
            repo = "/".join(self.path.split("/")[3:5]).partition("?")[0]
            self._info(repo)
        else:
            owner, name, _, _, *file = self.path.lstrip("/").partition("?")[0].split("/")
            self._file(f"{owner}/{name}", "/".join(file), body=body)

    def _plain(self, status: int, text: bytes, **headers: str) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def _info(self, repo: str) -> None:
        files = self.hub.repos.get(repo)
        if self.hub.gated:
            self._plain(403, b"{}", X_Error_Code="GatedRepo", X_Error_Message="gated")
        elif files is None:
            self._plain(404, b"{}", X_Error_Code="RepoNotFound", X_Error_Message="none")
        else:
            siblings = [_sibling(name, content) for name, content in files.items()]
            answer = {"id": repo, "modelId": repo, "sha": SHA, "siblings": siblings, "tags": []}
            self._plain(200, json.dumps(answer).encode(), Content_Type="application/json")

    def _file(self, repo: str, name: str, *, body: bool) -> None:
        content = self.hub.repos.get(repo, {}).get(name)
        if content is None:
            self._plain(404, b"", X_Error_Code="EntryNotFound", X_Error_Message="none")
            return
        etag = hashlib.sha256(content).hexdigest()
        sent = self.hub.lies.get(name, content)
        span = self.headers.get("Range") if self.hub.ranges else None
        start = int(span.removeprefix("bytes=").rstrip("-")) if span and body else 0
        sent = sent[start:]
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Linked-ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", SHA)
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        if body and self.hub.break_after:
            self.wfile.write(sent[: self.hub.break_after.pop(0)])
            self.close_connection = True
        elif body:
            self.wfile.write(sent)


def _sibling(name: str, content: bytes) -> dict[str, Any]:
    sha = hashlib.sha256(content).hexdigest()
    entry: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": "b" * 40}
    if name.endswith((".gguf", ".safetensors")):
        entry["lfs"] = {"sha256": sha, "size": len(content), "pointerSize": 134}
    return entry


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A running fake hub, an empty cache and no token."""
    constants = pytest.importorskip("huggingface_hub.constants")
    fake = FakeHub()
    handler = type("Handler", (_Handler,), {"hub": fake})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_port}"
    # The library reads its environment once, when it is imported.
    monkeypatch.setattr(constants, "ENDPOINT", fake.url)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        fake.url + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("outrider.runtime.hub.fetch.RETRY_SECONDS", 0.01)
    yield fake
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Switches the library's offline mode on."""

    def switch() -> None:
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    return switch


@pytest.fixture
def write_gguf() -> Callable[..., Path]:
    """A writer of GGUF files with a vocabulary and one tensor, for looking at only."""
    return _write_gguf


def _write_gguf(
    path: Path,
    *,
    arch: str = "llama",
    pre: str | None = "gpt-2",
    eos: int | None = 3,
    template: str | None = "{{ messages }}",
    extra: dict[str, int | bool] | None = None,
) -> Path:
    gguf = pytest.importorskip("gguf")
    numpy = pytest.importorskip("numpy")
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(64)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "ab", "<|end|>"])
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    if eos is not None:
        writer.add_eos_token_id(eos)
    if template is not None:
        writer.add_chat_template(template)
    for key, value in (extra or {}).items():
        (writer.add_bool if isinstance(value, bool) else writer.add_uint32)(key, value)
    writer.add_tensor("token_embd.weight", numpy.zeros((4, 32), numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
