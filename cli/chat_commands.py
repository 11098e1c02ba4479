"""What the user can tell the chat itself: lines that begin with a slash."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.cli.chat_screen import note
from outrider.protocol.errors import SettingError

if TYPE_CHECKING:
    from outrider.cli.chat_loop import Chat

HELP = {
    "/help": ("", "this list"),
    "/stats": ("", "acceptance, mode, bytes, round trip of the last answer and of all"),
    "/system": ("[TEXT|-]", "set the system message; - removes it; alone shows it"),
    "/retry": ("", "answer the last message again"),
    "/clear": ("", "forget the conversation; the system message stays"),
    "/save": ("FILE", "write the conversation to a new file (.json: as messages)"),
    "/draft": ("[on|off]", "draft here, or leave all to the cloud; alone shows it"),
    "/objective": ("[NAME]", "what to save: latency, balanced or cost; alone shows it"),
    "/quit": ("", "leave, as Ctrl-D does"),
}
WORDS = tuple(HELP)
ALIASES = {"/exit": "/quit", "/bye": "/quit", "/q": "/quit", "/?": "/help"}
OBJECTIVES = ("latency", "balanced", "cost")

KEYS = (
    'A backslash at the end of a line continues it; """ begins and ends a block of lines.',
    "// at the beginning sends a message that begins with one slash.",
    "Ctrl-C cancels an answer or clears the line; Ctrl-D leaves.",
)


class Quit(Exception):  # noqa: N818 - nothing went wrong
    """The user leaves."""


def obey(chat: Chat, line: str) -> None:
    """Do what a line says that begins with a slash.

    Raises:
        SettingError: it makes no sense. Quit: the chat is over.
    """
    word, _, rest = line.strip().partition(" ")
    word = ALIASES.get(word, word)
    if word not in COMMANDS:
        raise SettingError(
            f"there is no command {word}; /help lists them, and // sends a message with a slash"
        )
    if rest.strip() and not HELP[word][0]:
        raise SettingError(f"{word} takes nothing after it")
    COMMANDS[word](chat, rest.strip())


def _help(_chat: Chat, _rest: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    for word, (argument, meaning) in HELP.items():
        grid.add_row(Text(f"{word} {argument}"), Text(meaning))
    Console(file=sys.stderr, highlight=False).print(grid)
    for line in KEYS:
        note(line)


def _stats(chat: Chat, _rest: str) -> None:
    from outrider.cli.chat_stats import show

    show(chat)


def _system(chat: Chat, text: str) -> None:
    talk = chat.talk
    if talk.plain:
        raise SettingError("there is no system message where text is continued as it is")
    if not text:
        note("no system message" if talk.system is None else f"system message: {talk.system}")
        return
    talk.system = None if text == "-" else text
    note("system message removed" if text == "-" else "system message set")


def _retry(chat: Chat, _rest: str) -> None:
    question = chat.talk.take_back() or chat.unanswered
    if question is None:
        raise SettingError("there is nothing to answer again")
    chat.retries += 1
    chat.turn(question)


def _clear(chat: Chat, _rest: str) -> None:
    chat.talk.turns.clear()
    chat.unanswered = None
    note("the conversation begins anew")


def _save(chat: Chat, name: str) -> None:
    if not name:
        raise SettingError("/save needs the name of a file")
    file = Path(name).expanduser()
    chat.talk.save(file, chat.target)
    note(f"saved to {file}")


def _draft(chat: Chat, word: str) -> None:
    if word not in ("on", "off", ""):
        raise SettingError("/draft takes on or off")
    if word and chat.link.switch is None:
        if word == "on":
            raise SettingError("no drafter was loaded; start without --draft off")
    elif word and chat.link.switch is not None:
        chat.link.switch.on = word == "on"
    note(chat.mode())


def _objective(chat: Chat, name: str) -> None:
    if name and name not in OBJECTIVES:
        raise SettingError(f"no such objective: {name}; it is one of {', '.join(OBJECTIVES)}")
    if name:
        chat.objective = name
        note(f"objective: {name}, from the next answer on")
    else:
        asked = chat.objective or "what the cloud is set to"
        note(f"objective: asked {asked}, granted {chat.session.objective}")


def _quit(_chat: Chat, _rest: str) -> None:
    raise Quit


COMMANDS: dict[str, Callable[[Chat, str], None]] = {
    "/help": _help,
    "/stats": _stats,
    "/system": _system,
    "/retry": _retry,
    "/clear": _clear,
    "/save": _save,
    "/draft": _draft,
    "/objective": _objective,
    "/quit": _quit,
}
