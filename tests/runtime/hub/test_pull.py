"""Pulling from a hub on loopback: what is chosen, resumed, checked and refused."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider.protocol.errors import BackendError
from outrider.runtime.hub import fetch
from outrider.runtime.hub.names import Wanted
from outrider.runtime.hub.pull import pull
from outrider.runtime.hub.resolve import resolve

REPO = "someone/Model-GGUF"
CONTENT = bytes(range(256)) * 20_000  # 5 MB


@pytest.fixture
def filled(hub: Any) -> Any:
    """The hub with one repository of two quantizations."""
    hub.repos[REPO] = {
        "README.md": b"# a model",
        "model-q4_k_m.gguf": CONTENT,
        "model-q8_0.gguf": CONTENT[::-1],
    }
    return hub


def test_the_preferred_quantization_is_pulled_and_found_again(filled: Any) -> None:
    seen: list[tuple[str, int, int]] = []
    pulled = pull(Wanted(REPO, None), report=lambda *facts: seen.append(facts))
    assert pulled.path.name == "model-q4_k_m.gguf"
    assert pulled.path.read_bytes() == CONTENT
    assert pulled.checked
    assert seen[-1] == ("model-q4_k_m.gguf", len(CONTENT), len(CONTENT))
    assert resolve(REPO) == pulled.path
    assert resolve(f"{REPO}:q4_k_m") == pulled.path
    with pytest.raises(BackendError, match=f"outrider pull {REPO}:Q8_0"):
        resolve(f"{REPO}:Q8_0")


def test_what_is_there_is_not_downloaded_again(filled: Any) -> None:
    pull(Wanted(REPO, "Q8_0"))
    before = len(filled.downloads())
    assert pull(Wanted(REPO, "Q8_0")).path.read_bytes() == CONTENT[::-1]
    assert len(filled.downloads()) == before


def test_one_named_file(filled: Any) -> None:
    assert pull(Wanted(REPO, None), "README.md").path.read_bytes() == b"# a model"
    with pytest.raises(BackendError, match=r"no file x\.gguf; it has model-q4_k_m\.gguf, model-q8"):
        pull(Wanted(REPO, None), "x.gguf")


def test_a_model_folder_is_pulled_whole(hub: Any) -> None:
    files = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"weights"}
    hub.repos[REPO] = {**files, "logo.png": b"no"}
    path = pull(Wanted(REPO, None)).path
    assert {file.name: file.read_bytes() for file in path.iterdir()} == files
    assert resolve(REPO) == path


def test_shards_are_pulled_together_and_the_first_is_given(hub: Any) -> None:
    hub.repos[REPO] = {f"m-q4_0-0000{i}-of-00002.gguf": bytes([i]) * 100 for i in (1, 2)}
    path = pull(Wanted(REPO, None)).path
    assert path.name == "m-q4_0-00001-of-00002.gguf"
    assert (path.parent / "m-q4_0-00002-of-00002.gguf").read_bytes() == b"\x02" * 100


def test_a_broken_connection_is_taken_up_where_it_broke(filled: Any) -> None:
    filled.break_after = [1_000_000, 2_000_000]
    assert pull(Wanted(REPO, None)).path.read_bytes() == CONTENT
    first, *later = filled.downloads()
    assert first is None
    assert len(later) == 2
    assert later[-1] is not None
    assert int(later[-1][6:-1]) > 1_000_000


def test_an_interrupted_pull_goes_on(filled: Any) -> None:
    def stop(_name: str, done: int, _size: int) -> None:
        if done > 2_000_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(Wanted(REPO, None), report=stop)
    (kept,) = (fetch.repo_folder(REPO) / "blobs").glob("*.incomplete")
    have = kept.stat().st_size
    assert 2_000_000 < have < len(CONTENT)
    assert pull(Wanted(REPO, None)).path.read_bytes() == CONTENT
    assert filled.downloads()[-1] == f"bytes={have}-"
    assert not kept.exists()


def test_a_hub_without_ranges_is_read_past_what_is_there(filled: Any) -> None:
    filled.break_after = [1_500_000]
    filled.ranges = False
    assert pull(Wanted(REPO, None)).path.read_bytes() == CONTENT


def test_a_hub_that_always_breaks_is_given_up_and_what_came_is_kept(filled: Any) -> None:
    filled.break_after = [1_000_000, *[0] * 20]
    with pytest.raises(BackendError, match=r"stopped at \d of 5 MiB .* pull again to go on"):
        pull(Wanted(REPO, None))
    filled.break_after = []
    assert pull(Wanted(REPO, None)).path.read_bytes() == CONTENT


def test_a_remainder_longer_than_the_file_is_begun_anew(filled: Any) -> None:
    blobs = fetch.repo_folder(REPO) / "blobs"
    blobs.mkdir(parents=True)
    digest = hashlib.sha256(CONTENT).hexdigest()
    (blobs / f"{digest}.outrider.incomplete").write_bytes(CONTENT + b"more")
    assert pull(Wanted(REPO, None)).path.read_bytes() == CONTENT


def test_broken_content_is_refused_and_removed(filled: Any) -> None:
    filled.lies["model-q4_k_m.gguf"] = b"\xff" + CONTENT[1:]
    with pytest.raises(BackendError, match=r"came broken: its SHA-256 is .* removed: pull again"):
        pull(Wanted(REPO, None))
    assert list((fetch.repo_folder(REPO) / "blobs").iterdir()) == []
    filled.lies.clear()
    assert pull(Wanted(REPO, None)).path.read_bytes() == CONTENT


def test_a_cached_file_that_rotted_is_fetched_again(filled: Any) -> None:
    path = pull(Wanted(REPO, None)).path
    path.resolve().write_bytes(b"\xff" + CONTENT[1:])
    assert pull(Wanted(REPO, None)).path.read_bytes() == CONTENT


def test_no_room_is_said_before_anything_is_downloaded(
    filled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(".")._replace(free=2 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    with pytest.raises(BackendError, match="needs 5 MiB more in .* and 2 MiB are free"):
        pull(Wanted(REPO, None))
    assert filled.downloads() == []


class FullDisk(io.FileIO):
    """A file on a disk that holds a megabyte and a half."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > 1_500_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


def test_a_disk_that_fills_up_on_the_way(filled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = Path.open

    def small(self: Path, mode: str = "r", *args: Any, **settings: Any) -> Any:
        if mode == "ab":
            return FullDisk(str(self), mode)
        return real_open(self, mode, *args, **settings)

    monkeypatch.setattr(Path, "open", small)
    with pytest.raises(BackendError, match="the disk is full: .* kept: make room and pull again"):
        pull(Wanted(REPO, None))
    monkeypatch.setattr(Path, "open", real_open)
    assert pull(Wanted(REPO, None)).path.read_bytes() == CONTENT
    assert (filled.downloads()[-1] or "").startswith("bytes=1")


def test_a_real_disk_that_is_full(filled: Any, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    if (
        mount is None
        or subprocess.run(
            [mount, "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)],
            capture_output=True,
            check=False,
        ).returncode
    ):
        pytest.skip("no right to mount a small disk here")
    try:
        code = (
            "import shutil\n"
            "shutil.disk_usage = lambda p, real=shutil.disk_usage: real(p)._replace(free=1 << 40)\n"
            "from outrider.runtime.hub.names import Wanted\n"
            "from outrider.runtime.hub.pull import pull\n"
            f"pull(Wanted({REPO!r}, None))\n"
        )
        env = {**os.environ, "HF_ENDPOINT": filled.url, "HF_HOME": str(disk), "HF_HUB_OFFLINE": "0"}
        run = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
        )
        assert "the disk is full: model-q4_k_m.gguf (5 MiB) does not fit" in run.stderr
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_folder_where_the_file_is_meant(filled: Any) -> None:
    path = pull(Wanted(REPO, None)).path
    blob = path.resolve()
    blob.unlink()
    blob.mkdir()
    with pytest.raises(BackendError, match="is a folder where a file is meant"):
        pull(Wanted(REPO, None))


def test_a_file_where_the_cache_folder_is_meant(filled: Any, tmp_path: Path) -> None:
    (tmp_path / "hub").write_text("not a folder")
    with pytest.raises(BackendError, match="is a file; the hub's cache needs a folder there"):
        pull(Wanted(REPO, None))


def test_two_pulls_of_one_file_do_not_mix(filled: Any) -> None:
    def other(_name: str, _done: int, _size: int) -> None:
        with pytest.raises(BackendError, match="is being pulled by another process"):
            pull(Wanted(REPO, None))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(Wanted(REPO, None), report=other)


def test_no_such_quantization_lists_what_there_is(filled: Any) -> None:
    filled.repos[REPO]["mmproj-f16.gguf"] = b"x"
    with pytest.raises(BackendError) as caught:
        pull(Wanted(REPO, "q3_k_m"))
    assert str(caught.value) == (
        f"{REPO} has no Q3_K_M; it has Q4_K_M (5 MiB), Q8_0 (5 MiB); "
        "mmproj-f16.gguf is a projector for images"
    )


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ({"repos": {}}, "the hub has no such repository, or it is private"),
        ({"gated": True}, "is gated: accept its terms"),
        ({"status": 401}, "HF_TOKEN is missing, wrong"),
        ({"status": 429}, "too many requests"),
        ({"status": 500}, "answered 500; try again later"),
    ],
)
def test_what_the_hub_refuses(filled: Any, trouble: dict[str, Any], words: str) -> None:
    for name, value in trouble.items():
        setattr(filled, name, value)
    with pytest.raises(BackendError, match=words):
        pull(Wanted(REPO, None))


def test_offline_the_cache_does(filled: Any, offline: Callable[[], None]) -> None:
    path = pull(Wanted(REPO, None)).path
    offline()
    again = pull(Wanted(REPO, None))
    assert (again.path, again.checked) == (path, False)
    assert again.note is not None
    assert "HF_HUB_OFFLINE is set" in again.note
    with pytest.raises(BackendError, match="HF_HUB_OFFLINE is set.*not in the cache either"):
        pull(Wanted("another/Model-GGUF", None))


def test_a_hub_that_cannot_be_reached(filled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    path = pull(Wanted(REPO, None)).path
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert pull(Wanted(REPO, None)).path == path
    with pytest.raises(BackendError, match="cannot be reached .*check the network"):
        pull(Wanted(REPO, "Q8_0"))


def test_the_token_is_sent(filled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    pull(Wanted(REPO, None))
    assert "Bearer hf_secret" in filled.tokens
