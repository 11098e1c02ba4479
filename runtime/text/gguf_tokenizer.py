"""The tokenizer inside a GGUF file, by llama.cpp's own code; the weights are not loaded."""

from __future__ import annotations

import ctypes
from pathlib import Path

from outrider.protocol.errors import BackendError
from outrider.runtime.lm.llama_library import end_tokens, library, open_weights, usable_size
from outrider.runtime.text.template import ChatTemplate
from outrider.runtime.text.tokenizer import Tokenizer

_PIECE = 256
_SPACE = "▁".encode()


class GgufTokenizer(Tokenizer):
    """The vocabulary of a GGUF file."""

    def __init__(self, path: str | Path) -> None:
        """Load the vocabulary.

        Raises:
            BackendError: the file does not load or has no vocabulary.
        """
        api = library()
        self._weights = open_weights(path, vocab_only=True)
        self._vocab = self._weights.vocab
        if api.llama_vocab_type(self._vocab) == api.LLAMA_VOCAB_TYPE_NONE:
            raise BackendError(f"{path} has no vocabulary")
        self.name = self._weights.path.stem
        self.specials, self.entries = self._contents()
        self.eos = end_tokens(self._weights)
        bos = int(api.llama_vocab_bos(self._vocab))
        self.bos = bos if bos >= 0 else None
        self.adds_bos = bool(api.llama_vocab_get_add_bos(self._vocab))
        self.chat = self._chat()
        self.warnings = self._doubts()

    def _contents(self) -> tuple[dict[int, bytes], tuple[bytes, ...]]:
        """(special ids with their contents, the bytes of every ordinary id)."""
        api = library()
        special = api.LLAMA_TOKEN_ATTR_CONTROL | api.LLAMA_TOKEN_ATTR_UNKNOWN
        spm = api.llama_vocab_type(self._vocab) == api.LLAMA_VOCAB_TYPE_SPM
        specials: dict[int, bytes] = {}
        entries: list[bytes] = []
        for token in range(usable_size(self._weights)):
            attributes = api.llama_vocab_get_attr(self._vocab, token)
            if attributes & special:
                specials[token] = api.llama_vocab_get_text(self._vocab, token)
            hidden = attributes & (special | api.LLAMA_TOKEN_ATTR_UNUSED)
            piece = b"" if hidden else self._piece(token)
            if spm and attributes & api.LLAMA_TOKEN_ATTR_USER_DEFINED:
                piece = piece.replace(_SPACE, b" ")  # some converters have done it already
            entries.append(piece)
        return specials, tuple(entries)

    def _piece(self, token: int, size: int = _PIECE) -> bytes:
        """The exact bytes of an ordinary token."""
        buffer = ctypes.create_string_buffer(size)
        n = library().llama_token_to_piece(self._vocab, token, buffer, size, 0, False)
        return self._piece(token, -n) if n < 0 else buffer.raw[:n]

    def _encode(self, text: str, special: bool) -> list[int]:
        api = library()
        raw = text.encode()
        room = len(raw) + 8  # no token is shorter than a byte; a space may be put before
        while True:
            buffer = (ctypes.c_int32 * room)()
            n = api.llama_tokenize(self._vocab, raw, len(raw), buffer, room, False, special)
            if n >= 0:
                return list(buffer[:n])
            room = -n

    def _chat(self) -> ChatTemplate | None:
        api = library()
        source = api.llama_model_chat_template(self._weights.handle, None)
        if not source:
            return None
        roles = {}
        for role, getter in (
            ("bos_token", api.llama_vocab_bos),
            ("eos_token", api.llama_vocab_eos),
            ("pad_token", api.llama_vocab_pad),
        ):
            token = int(getter(self._vocab))
            if token >= 0:
                roles[role] = self.specials.get(token, self.token_bytes(token)).decode(
                    "utf-8", "replace"
                )
        return ChatTemplate(source.decode("utf-8", "replace"), roles)

    def _doubts(self) -> list[str]:
        """Files written before pre-tokenizers were recorded cut texts differently, silently."""
        api = library()
        if api.llama_vocab_type(self._vocab) != api.LLAMA_VOCAB_TYPE_BPE:
            return []
        kind = self._weights.metadata("tokenizer.ggml.pre")
        if kind not in (None, "", "default"):
            return []
        state = "does not name its pre-tokenizer" if not kind else "names pre-tokenizer 'default'"
        return [
            f"{self._weights.path.name} {state}: texts may be cut into other tokens than the model "
            "was trained on; convert the model again with a current converter"
        ]
