"""What the parts say while they work: plain lines on stderr, never on stdout."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import sys
import textwrap
from datetime import UTC, datetime
from typing import TextIO

_state = {"verbose": False, "json": False}


class _Format(logging.Formatter):
    """``warning: ...`` for people; with --verbose also who said it."""

    def format(self, record: logging.LogRecord) -> str:
        level = "note" if record.levelno < logging.WARNING else record.levelname.lower()
        who = f" [{record.name}]" if _state["verbose"] else ""
        text = f"{level}:{who} {record.getMessage()}"
        fields: dict[str, object] = getattr(record, "fields", {})
        text = folded(text + "".join(f" {name}={value}" for name, value in fields.items()))
        if record.exc_info and _state["verbose"]:
            text += "\n" + self.formatException(record.exc_info)
        return text


class _Json(logging.Formatter):
    """One object a line, for programs that collect logs."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class _Lossy(logging.StreamHandler[TextIO]):
    """A log that cannot be written, on a full disk say, is lost; the work goes on."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Say nothing: there is nowhere to say it."""


def configure(verbose: bool, form: str = "text") -> None:
    """Called once by every command that does work."""
    _state.update(verbose=verbose, json=form == "json")
    handler = _Lossy(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Format())
    logger = logging.getLogger("outrider")
    logger.handlers[:] = [handler]
    logger.propagate = False
    # Not lower than INFO: at DEBUG the WebSocket library writes headers out, the key among them.
    logger.setLevel(logging.INFO if verbose or form == "json" else logging.WARNING)
    # A line for each socket is for whoever looks for a fault.
    logging.getLogger("outrider.net").setLevel(logging.INFO if verbose else logging.WARNING)


def folded(text: str) -> str:
    """Broken between words where a terminal would break it anywhere; elsewhere as it is."""
    if not sys.stderr.isatty():
        return text
    width = shutil.get_terminal_size().columns
    fold = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False).fill
    return "\n".join(map(fold, text.splitlines()))


def say(text: str) -> None:
    """A line of a service about itself, on stderr; lost where it cannot be written."""
    if _state["json"]:
        logging.getLogger("outrider.cli").info("%s", text)
        return
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def verbose() -> bool:
    """Whether errors shall come with a traceback."""
    return _state["verbose"]


def note(text: str) -> None:
    """A line that a person at a terminal should see once."""
    print(folded(f"note: {text}"), file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """A line about something that is not as it should be but does not stop the work."""
    print(folded(f"warning: {text}"), file=sys.stderr, flush=True)
