"""The exception tree of Outrider.

Everything that a caller may want to catch hangs from one root::

    OutriderError
    |-- LocalProtocolError     our bug or misuse of an API; never sent to the peer
    |-- RemoteProtocolError    the peer broke the protocol; carries a code
    |   `-- DecodeError        bytes that are not a message
    |-- HandshakeError         version, fingerprint or authentication refused; carries a code
    |-- SessionError           expired, limit reached, prompt too long; carries a code
    |-- LinkError              the connection failed; recoverable by trying again
    |-- BackendError           a model or library cannot load or run; names the extra to install
    |   `-- AwayError          whoever drafts cannot be asked now, but may be later
    `-- SettingError           a value that a user gave cannot be honoured; names it

A message says what is wrong and what to do; it is meant to be shown to a user as it is.
"""

from __future__ import annotations


class OutriderError(Exception):
    """Root of every error that Outrider raises on purpose."""


class LocalProtocolError(OutriderError):
    """The caller used a machine against its rules. A bug on this side: never sent to the peer."""


class CodedError(OutriderError):
    """An error with a stable code that scripts and the peer can rely on."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class RemoteProtocolError(CodedError):
    """The peer broke the protocol. ``code`` is what it is told in the closing message."""

    def __init__(self, message: str, *, code: str = "protocol") -> None:
        super().__init__(message, code=code)


class DecodeError(RemoteProtocolError):
    """Bytes that are not a valid message of this wire version, or that exceed a limit."""

    def __init__(self, message: str, *, code: str = "decode") -> None:
        super().__init__(message, code=code)


class HandshakeError(CodedError):
    """The two ends cannot work together: wire version, tokenizer fingerprint or key."""


class SessionError(CodedError):
    """A session or an answer was refused or ended early: expired, limit, prompt too long."""

    def __init__(self, message: str, *, code: str, retry_after: float | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after


class LinkError(OutriderError):
    """The connection could not be made or was lost. Trying again may help."""


class BackendError(OutriderError):
    """A model file or a library cannot be loaded or run. Names the extra to install, if any."""


class AwayError(BackendError):
    """Nobody drafts now. Asking again ``retry_after`` seconds later may help.

    ``busy``: they are at work on something older, and nothing is wrong with them.
    """

    def __init__(self, message: str, *, retry_after: float, busy: bool = False) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.busy = busy


class SettingError(OutriderError, ValueError):
    """A setting that cannot be honoured. Names the setting and the range that is allowed."""
