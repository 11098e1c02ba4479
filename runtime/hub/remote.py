"""What the hub says about a repository, and its errors in words that say what to do."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from outrider.protocol.errors import BackendError

TIMEOUT = 10.0
"""Seconds to wait for the hub's answer."""


class OfflineError(BackendError):
    """The hub was not asked, or could not be; what is in the cache may still do."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of one revision. ``etag`` names its content; ``sha256`` None: not known (small files).

    Sizes in bytes.
    """

    repo: str
    revision: str
    name: str
    size: int
    etag: str
    sha256: str | None


def list_files(repo: str, revision: str = "main") -> dict[str, RemoteFile]:
    """Every file of a repository, by name, with sizes and checksums.

    Raises:
        OfflineError: no network, or the hub's offline switch is on.
        BackendError: no such repository or revision, or no right to see it.
    """
    from huggingface_hub import HfApi

    quiet()
    with errors(repo):
        info: Any = HfApi().model_info(
            repo, revision=revision, files_metadata=True, timeout=TIMEOUT
        )
    found = {}
    for entry in info.siblings or []:
        sha256 = entry.lfs.sha256 if entry.lfs else None
        etag = sha256 or entry.blob_id
        if etag:
            found[entry.rfilename] = RemoteFile(
                repo, info.sha, entry.rfilename, int(entry.size or 0), etag, sha256
            )
    return found


def quiet() -> None:
    """Keep the library's log of its own retries off: what fails in the end is said by us."""
    logging.getLogger("huggingface_hub.utils._http").setLevel(logging.ERROR)


@contextlib.contextmanager
def errors(repo: str) -> Iterator[None]:
    """Turn the library's exceptions into ours."""
    from huggingface_hub import constants
    from huggingface_hub import errors as hub

    try:
        yield
    except hub.OfflineModeIsEnabled:
        raise OfflineError(
            f"{repo}: HF_HUB_OFFLINE is set, so the hub is not asked; unset it to download"
        ) from None
    except hub.GatedRepoError as error:
        raise BackendError(
            f"{repo} is gated: accept its terms on its page, then set HF_TOKEN to your token"
        ) from error
    except hub.RepositoryNotFoundError as error:
        raise BackendError(
            f"{repo}: the hub has no such repository, or it is private (then set HF_TOKEN)"
        ) from error
    except hub.RevisionNotFoundError as error:
        raise BackendError(f"{repo}: the hub has no such revision") from error
    except hub.EntryNotFoundError as error:
        raise BackendError(f"{repo}: the hub has no such file") from error
    except hub.HfHubHTTPError as error:
        raise BackendError(
            f"{repo}: the hub at {constants.ENDPOINT} answered {_said(error)}"
        ) from (error)
    except (hub.HTTPError, ConnectionError, TimeoutError) as error:
        raise OfflineError(
            f"{repo}: the hub at {constants.ENDPOINT} cannot be reached "
            f"({error or type(error).__name__}); check the network, or set HF_ENDPOINT to a mirror"
        ) from error
    except hub.HFValidationError as error:
        raise BackendError(f"{repo} is no name of a repository: {error}") from error


def _said(error: Any) -> str:
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", "an error")
    if status in (401, 403):
        return f"{status}: HF_TOKEN is missing, wrong or not allowed to read this"
    if status == 429:
        return "429: too many requests; wait, or set HF_TOKEN"
    return f"{status}; try again later"
