"""One file from the hub into the hub library's own cache: resumed, counted, checked.

The library downloads every time from the start and compares sizes only. So the bytes are fetched
here, into the place where the library will look for them, and the library does the rest: addresses,
tokens, the layout of the cache.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from outrider.protocol.errors import BackendError
from outrider.runtime.hub.remote import RemoteFile, errors
from outrider.runtime.lm.memory import MIB

CHUNK = 1 << 20
ATTEMPTS = 5
RETRY_SECONDS = 1.0
TIMEOUT = 15.0
"""Seconds without a byte after which a connection counts as dead."""

Progress = Callable[[int], None]
"""Told how many bytes of the file are there."""


def cache_folder() -> Path:
    """The hub library's cache, by its own settings (HF_HOME, HF_HUB_CACHE)."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def repo_folder(repo: str) -> Path:
    """Where the cache keeps a repository."""
    from huggingface_hub.file_download import repo_folder_name

    name: str = repo_folder_name(repo_id=repo, repo_type="model")
    return cache_folder() / name


def fetch(file: RemoteFile, progress: Progress = lambda _bytes: None) -> Path:
    """The file in the cache, downloaded if it is not there; resumes what was begun.

    Raises:
        BackendError: no room (with the numbers), the checksum differs, the link broke too often,
        or the place is not writable.
    """
    from huggingface_hub import hf_hub_download

    blob = repo_folder(file.repo) / "blobs" / file.etag
    try:
        _make_folder(blob.parent)
        if not _is_right(blob, file, progress):
            _download(file, blob, progress)
        with errors(file.repo):
            # The content is in place: the library only links it under its name and revision.
            hf_hub_download(file.repo, file.name, revision="main", etag_timeout=TIMEOUT)
            return Path(hf_hub_download(file.repo, file.name, revision=file.revision))
    except OSError as error:
        raise _failed(error, file, blob.parent) from error


def _make_folder(folder: Path) -> None:
    for part in (folder, *folder.parents):
        if part.exists() and not part.is_dir():
            raise BackendError(f"{part} is a file; the hub's cache needs a folder there")
    folder.mkdir(parents=True, exist_ok=True)


def _is_right(blob: Path, file: RemoteFile, progress: Progress) -> bool:
    """Whether the content is in the cache already. What is broken is put aside, not used."""
    if blob.is_dir():
        raise BackendError(f"{blob} is a folder where a file is meant; remove it and pull again")
    if not blob.exists():
        return False
    if blob.stat().st_size == file.size and (not file.sha256 or _sha256(blob) == file.sha256):
        progress(file.size)
        return True
    blob.unlink()
    return False


def _download(file: RemoteFile, blob: Path, progress: Progress) -> None:
    part = blob.with_name(f"{blob.name}.outrider.incomplete")
    with part.open("ab") as out, _alone(out, file):
        if out.tell() > file.size:
            out.truncate(0)
            out.seek(0)
        _check_room(file, out.tell(), blob.parent)
        digest = hashlib.sha256()
        with part.open("rb") as kept:
            for chunk in iter(lambda: kept.read(CHUNK), b""):
                digest.update(chunk)
        progress(out.tell())
        _receive(file, out, digest, progress)
        out.flush()
        os.fsync(out.fileno())
        if file.sha256 and digest.hexdigest() != file.sha256:
            part.unlink()  # nobody can say which byte is wrong
            raise BackendError(
                f"{file.name} of {file.repo} came broken: its SHA-256 is {digest.hexdigest()}, the "
                f"hub says {file.sha256}. It was removed: pull again"
            )
        part.replace(blob)


@contextlib.contextmanager
def _alone(out: BinaryIO, file: RemoteFile) -> Iterator[None]:
    """Two downloads must not append to one file."""
    try:
        fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BackendError(f"{file.name} is being pulled by another process") from None
    yield


def _check_room(file: RemoteFile, there: int, folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if file.size - there > free:
        raise BackendError(
            f"{file.name} needs {(file.size - there) / MIB:,.0f} MiB more in {folder} and "
            f"{free / MIB:,.0f} MiB are free; make room, or set HF_HOME to a larger disk"
        )


def _receive(file: RemoteFile, out: BinaryIO, digest: Any, progress: Progress) -> None:
    """Get the rest of the file, as often as the link breaks, while it gets further each time."""
    left = ATTEMPTS
    while out.tell() < file.size:
        before = out.tell()
        try:
            with errors(file.repo):
                _stream(file, out, digest, progress)
            broken = None if out.tell() == file.size else BackendError("the answer ended early")
        except BackendError as error:
            broken = error
        if out.tell() > file.size:
            raise BackendError(f"{file.name}: more than the {file.size} bytes announced came")
        if broken is None:
            return
        left = ATTEMPTS if out.tell() > before else left - 1
        if left == 0 or not _passing(broken):
            raise BackendError(
                f"{file.name}: the download stopped at {out.tell() / MIB:,.0f} of "
                f"{file.size / MIB:,.0f} MiB ({broken}); what came is kept: pull again to go on"
            ) from broken
        time.sleep(RETRY_SECONDS)


def _passing(error: BackendError) -> bool:
    """Whether another attempt may do: no for a repository that is gone, a token that is wrong."""
    cause = error.__cause__
    status = getattr(getattr(cause, "response", None), "status_code", 500)
    return bool(status >= 500 or status in (408, 416, 429))


def _stream(file: RemoteFile, out: BinaryIO, digest: Any, progress: Progress) -> None:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    url = hf_hub_url(file.repo, file.name, revision=file.revision)
    # Never compressed on the way: ranges count bytes of the file.
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    if start := out.tell():
        headers["Range"] = f"bytes={start}-"
    session: Any = get_session()
    with session.stream(
        "GET", url, headers=headers, follow_redirects=True, timeout=TIMEOUT
    ) as answer:
        hf_raise_for_status(answer)
        skip = start if answer.status_code == 200 else 0  # it does not do ranges: read past it
        for chunk in answer.iter_bytes(CHUNK):
            fresh = chunk[skip:]
            skip -= len(chunk) - len(fresh)
            out.write(fresh)
            digest.update(fresh)
            progress(out.tell())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _failed(error: OSError, file: RemoteFile, folder: Path) -> BackendError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(folder).free
        return BackendError(
            f"the disk is full: {file.name} ({file.size / MIB:,.0f} MiB) does not fit in {folder} "
            f"({free / MIB:,.0f} MiB free). What came is kept: make room and pull again, or set "
            "HF_HOME to a larger disk"
        )
    return BackendError(f"cannot write {file.name} into {folder}: {error.strerror or error}")
