"""What the parts say while they work: plain lines on stderr, never on stdout."""

from __future__ import annotations

import logging
import sys

_state = {"verbose": False}


class _Format(logging.Formatter):
    """``warning: ...`` for people; with --verbose also who said it."""

    def format(self, record: logging.LogRecord) -> str:
        level = "note" if record.levelno < logging.WARNING else record.levelname.lower()
        who = f" [{record.name}]" if _state["verbose"] else ""
        text = f"{level}:{who} {record.getMessage()}"
        if record.exc_info and _state["verbose"]:
            text += "\n" + self.formatException(record.exc_info)
        return text


def configure(verbose: bool) -> None:
    """Called once by every command that does work."""
    _state["verbose"] = verbose
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Format())
    logger = logging.getLogger("outrider")
    logger.handlers[:] = [handler]
    logger.propagate = False
    # Not lower than INFO: at DEBUG the WebSocket library writes headers out, the key among them.
    logger.setLevel(logging.INFO if verbose else logging.WARNING)


def verbose() -> bool:
    """Whether errors shall come with a traceback."""
    return _state["verbose"]


def note(text: str) -> None:
    """A line that a person at a terminal should see once."""
    print(f"note: {text}", file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """A line about something that is not as it should be but does not stop the work."""
    print(f"warning: {text}", file=sys.stderr, flush=True)
