"""The conversation, and what the next answer is asked for with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from outrider.protocol.edge_session import EdgeSession
from outrider.protocol.errors import SettingError
from outrider.runtime.lm.base import common_prefix
from outrider.runtime.text.tokenizer import Tokenizer


@dataclass(slots=True)
class Conversation:
    """Messages in turn. ``plain``: no chat, one text that both sides write on by turns."""

    plain: bool
    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list)

    @property
    def messages(self) -> list[dict[str, str]]:
        """As a chat template takes them."""
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        return first + self.turns

    @property
    def text(self) -> str:
        """As a plain text: what the user writes begins a line."""
        text = ""
        for turn in self.turns:
            line = turn["role"] == "user" and text and not text.endswith("\n")
            text += ("\n" if line else "") + turn["content"]
        return text

    def say(self, text: str) -> None:
        """The user's turn."""
        self.turns.append({"role": "user", "content": text})

    def answered(self, text: str) -> None:
        """The model's turn, as far as it came; one that never began takes the question back."""
        if text:
            self.turns.append({"role": "assistant", "content": text})
        else:
            self.turns.pop()

    def take_back(self) -> str | None:
        """Undo the last question with its answer; the question."""
        while self.turns:
            turn = self.turns.pop()
            if turn["role"] == "user":
                return turn["content"]
        return None

    def ids(self, tokenizer: Tokenizer) -> list[int]:
        """All of it as the target reads it before the next answer.

        Raises:
            SettingError: it cannot be written out: the template refuses it, or it has no tokens.
        """
        if self.plain:
            ids = tokenizer.encode_prompt(self.text)
        else:
            ids = tokenizer.encode_chat(self.messages)
        if not ids:
            raise SettingError("the message is empty: it has no tokens")
        return ids

    def save(self, file: Path, model: str) -> None:
        """Write it down: messages as JSON if the file is called so, else a text.

        Raises:
            SettingError: the file exists, or cannot be written.
        """
        if file.suffix == ".json":
            content = json.dumps({"model": model, "messages": self.messages}, indent=2) + "\n"
        elif self.plain:
            content = self.text + "\n"
        else:
            parts = (f"[{message['role']}]\n{message['content']}\n" for message in self.messages)
            content = "\n".join(parts)
        try:
            with file.open("x", encoding="utf-8") as out:
                out.write(content)
        except FileExistsError:
            raise SettingError(f"{file} exists already; choose another name") from None
        except OSError as error:
            raise SettingError(f"cannot write {file}: {error.strerror}") from error


def known(session: EdgeSession, ids: Sequence[int]) -> int:
    """How many of ``ids`` the session has already: its next answer hangs from there.

    At least one id is left: the target must read something to go on from.
    """
    base = min(common_prefix(session.ids, ids), len(ids) - 1)
    assert base <= len(session.ids)
    return base
