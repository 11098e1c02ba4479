"""Text to ids and back, whatever file the tokenizer came from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from outrider.protocol.errors import BackendError, SettingError
from outrider.runtime.lm.manifest import read_manifest
from outrider.runtime.text.template import ChatTemplate

Message = Mapping[str, Any]
"""One chat message as in the OpenAI API: ``role``, ``content``, and what the template reads."""


class Tokenizer(ABC):
    """What both ends know about the ids of a model.

    ``size``: ids below it are tokens; model rows above it are padding. ``entries[i]``: the exact
    bytes that id i adds to a text, empty for special and unused ids. ``specials``: the literal
    content of each special id. ``eos``: every id that ends an answer, by all settings together.
    ``bos``: the id that opens a text, if the model has one; ``adds_bos``: whether plain prompts get
    it. ``warnings``: what a user should be told about the files.

    Nothing changes after loading: threads may share one.

    Two files of one model (Hugging Face or GGUF) give equal ``size``, ``entries``, ``specials`` and
    ``template``.
    """

    name: str
    entries: tuple[bytes, ...]
    specials: Mapping[int, bytes]
    eos: frozenset[int]
    bos: int | None
    adds_bos: bool
    chat: ChatTemplate | None
    warnings: list[str]

    @property
    def size(self) -> int:
        """Usable ids."""
        return len(self.entries)

    @property
    def template(self) -> str | None:
        """The source of the chat template, if the model has one."""
        return self.chat.source if self.chat else None

    @abstractmethod
    def _encode(self, text: str, special: bool) -> list[int]:
        """Tokenize without adding anything; ``special`` as in :meth:`encode`."""

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Tokenize exactly this text; nothing is added before or after it.

        With ``special``, a special token written out in the text becomes its id (a rendered
        template needs it); without, it is text like any other.

        Raises:
            SettingError: the text is not valid Unicode (lone surrogates).
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise SettingError(f"text is not valid Unicode at character {error.start}") from None
        return self._encode(text, special)

    def encode_prompt(self, text: str) -> list[int]:
        """Tokenize a plain (not chat) prompt, with the opening id where the model wants one.

        A prompt that opens with it already does not get a second one.
        """
        ids = self.encode(text, special=True)
        if self.adds_bos and self.bos is not None and ids[:1] != [self.bos]:
            ids.insert(0, self.bos)
        return ids

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Message] | None = None,
    ) -> str:
        """Write a chat out as the model's template says; ``tools`` are those that it may call.

        Raises:
            SettingError: the model has no template, or the messages do not fit it.
            BackendError: the template itself is broken.
        """
        if self.chat is None:
            raise SettingError(f"{self.name} has no chat template; send a plain prompt instead")
        return self.chat.render(messages, add_generation_prompt=add_generation_prompt, tools=tools)

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Message] | None = None,
    ) -> list[int]:
        """Render and tokenize. The template has written the opening id itself, if it wants one."""
        text = self.render(messages, add_generation_prompt=add_generation_prompt, tools=tools)
        return self.encode(text, special=True)

    def token_bytes(self, token: int) -> bytes:
        """The bytes that an id adds to the text: none for special, unused and padding ids."""
        return self.entries[token] if 0 <= token < len(self.entries) else b""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids; what is not UTF-8 shows as U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load from a folder (``tokenizer.json`` if it is there, else its ``.gguf``) or from a file.

    Raises:
        BackendError: nothing to load there, or it does not load.
    """
    path = Path(path)
    if not path.exists():
        raise BackendError(f"no such file or folder: {path}")
    if path.is_dir():
        ggufs = sorted(path.glob("*.gguf"))
        manifest = read_manifest(path)
        if manifest is not None and manifest.preferred:  # all of a pack's files have the same one
            ggufs = [file for file in ggufs if file.name == manifest.preferred]
        if not (path / "tokenizer.json").exists() and len(ggufs) == 1:
            path = ggufs[0]
        elif not (path / "tokenizer.json").exists():
            names = ", ".join(file.name for file in ggufs) or "none"
            raise BackendError(
                f"{path} has no tokenizer.json and not exactly one .gguf file (found: {names})"
            )
    if path.suffix == ".gguf":
        from outrider.runtime.text.gguf_tokenizer import GgufTokenizer

        return GgufTokenizer(path)
    from outrider.runtime.text.hf_tokenizer import HfTokenizer

    return HfTokenizer(path if path.is_dir() else path.parent)
