"""Exit statuses, and the words that go with each error. Scripts rely on both."""

from __future__ import annotations

from outrider.protocol.errors import HandshakeError, LinkError, OutriderError, SettingError

DONE = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3
INTERRUPTED = 130
PIPE_CLOSED = 141

EPILOG = (
    "Exit status: 0 done; 1 the work failed (refused, link lost in mid answer, a model that does "
    "not load, not exact); 2 a flag, setting or prompt that cannot be honoured; 3 the cloud cannot "
    "be reached or the two ends do not fit; 130 interrupted; 141 the reader of the output left."
    "\n\n"
    "Settings: every flag can be set as OUTRIDER_<FLAG_NAME> in the environment, or by its name in "
    "the file given by --config (else $XDG_CONFIG_HOME/outrider/config.toml). A flag beats the "
    "environment, the environment the file."
)


class NotConnectedError(OutriderError):
    """The connection to the cloud was never made, or its handshake was refused."""


class PipeClosedError(OutriderError):
    """Whoever read standard output went away, as ``head`` does."""


class WorkFailedError(OutriderError):
    """The command did what it could and the result is not what was asked for."""


def status_of(error: OutriderError) -> int:
    """The exit status that tells a script what kind of error this is."""
    if isinstance(error, SettingError):
        return USAGE
    if isinstance(error, NotConnectedError):
        return UNREACHABLE
    return FAILED


def not_connected(error: HandshakeError | LinkError) -> NotConnectedError:
    """The same words under the error that says that nothing was begun."""
    return NotConnectedError(str(error))
