"""The tokenizer of a checkpoint written into a GGUF file, and proved to cut texts the same way.

What a GGUF file cannot hold is how a byte-level tokenizer cuts a text before merging: it names one
of the ways that llama.cpp knows. Which one is found by trying: each candidate is written as a
vocabulary without weights, loaded by llama.cpp and compared on a corpus of probes.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outrider.protocol.errors import BackendError
from outrider.runtime.text.fingerprint import PROBES
from outrider.runtime.text.gguf_tokenizer import GgufTokenizer
from outrider.runtime.text.hf_tokenizer import HfTokenizer, looks_special

PRE_TOKENIZERS = (
    "llama-bpe",
    "qwen2",
    "gpt-2",
    "smollm",
    "gpt-4o",
    "tekken",
    "dbrx",
    "starcoder",
    "refact",
    "command-r",
    "falcon",
    "deepseek-llm",
    "deepseek-coder",
    "deepseek-v3",
    "stablelm2",
    "olmo",
    "mpt",
    "bloom",
    "poro-chat",
    "viking",
    "exaone",
    "chatglm-bpe",
)
"""llama.cpp's ways to cut a text before merging, the most used ones first."""

CORPUS = (
    *PROBES,
    "",
    " ",
    "  two  spaces, \t\ttabs,\n\n\nlines\r\n",
    "I've you're he'll WE'VE it'S don\u2019t",
    "12 123 1234 12345 1,234,567.890 ٣٤٥ 2\u00b2 \u2167",
    "x=1;y+=2 && z!=3 || !(a<=b) /* c */ // d\n\treturn [i for i in range(10)]",
    "https://example.org/a?b=c&d=e#f user@example.com C:\\path\\to",
    "\x00\x01\x07\x1b[0m\x7f \u00a0\u2003\u200b\ufeff",
    "e\u0301 \u0919\u094d\u0915 \u1112\u1161\u11ab ﬁ ½ ™ ①",
    "👨\u200d👩\u200d👧 🤦🏽\u200d♂️ ☕️ 1️⃣",
    "<|im_start|>user\nhi<|im_end|> <s> </s> [INST] <start_of_turn>",
    "CamelCaseWords snake_case_words kebab-case-words ALLCAPS",
    "ünïcödé ÀÉÎÕÜ Ελληνικά Русский українська",
    "...!!!??? --- ___ === *** ~~~ ``` $$$ %%% ^^^",
)
"""Texts on which wrongly converted tokenizers are known to differ."""


@dataclass(frozen=True, slots=True)
class Vocab:
    """What the GGUF file will say about the tokenizer. ``pre`` is empty for SentencePiece."""

    model: str
    tokens: Sequence[bytes] = field(repr=False)
    types: Sequence[int] = field(repr=False)
    scores: Sequence[float] | None = field(repr=False)
    merges: Sequence[str] | None = field(repr=False)
    roles: dict[str, int]
    ends: frozenset[int]
    adds_bos: bool
    adds_space: bool
    template: str | None = field(repr=False)
    pre: str = ""

    def write(self, writer: Any, pre: str | None = None) -> None:
        """Add everything to a ``gguf.GGUFWriter``."""
        writer.add_tokenizer_model(self.model)
        if pre or self.pre:
            writer.add_tokenizer_pre(pre or self.pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        if self.scores is not None:
            writer.add_token_scores(self.scores)
        if self.merges is not None:
            writer.add_token_merges(self.merges)
        for role, token in self.roles.items():
            getattr(writer, f"add_{role}_token_id")(token)
        for role, token in zip(("eot", "eom"), self._other_ends(), strict=False):
            getattr(writer, f"add_{role}_token_id")(token)
        writer.add_add_bos_token(self.adds_bos)
        if self.model == "llama":
            writer.add_add_space_prefix(self.adds_space)
        if self.template:
            writer.add_chat_template(self.template)

    def _other_ends(self) -> list[int]:
        return sorted(self.ends - {self.roles.get("eos", -1)})


def read_vocab(folder: Path, width: int) -> Vocab:
    """The tokenizer of a folder for a model with rows for ``width`` ids.

    Raises:
        BackendError: there is none, it is of a kind that llama.cpp does not have, or no way of
        cutting gives the same ids; names a text where it differs.
    """
    if not (folder / "tokenizer.json").is_file():
        raise BackendError(f"{folder} has no tokenizer.json; the drafter's ids would mean nothing")
    tokenizer = HfTokenizer(folder)
    if tokenizer.size > width:
        raise BackendError(
            f"{folder}: the tokenizer has {tokenizer.size} ids and the model rows for {width}"
        )
    raw = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    if raw["model"].get("type") != "BPE":
        raise BackendError(
            f"{folder}: a tokenizer of type {raw['model'].get('type')}; BPE, byte-level or from "
            "SentencePiece, is converted"
        )
    pieces = bool(raw["model"].get("byte_fallback"))
    vocab = (_sentence_pieces if pieces else _byte_level)(tokenizer, raw, width, folder)
    return _proved(vocab, tokenizer, [""] if pieces else _candidates(raw))


def _byte_level(tokenizer: HfTokenizer, raw: dict[str, Any], width: int, folder: Path) -> Vocab:
    from gguf import SpecialVocab

    special = SpecialVocab(folder, load_merges=True, n_vocab=tokenizer.size)
    tokens, types = _tokens(tokenizer, raw, width)
    return _assembled(
        "gpt2", tokens, types, tokenizer=tokenizer, special=special, merges=special.merges
    )


def _sentence_pieces(
    tokenizer: HfTokenizer, raw: dict[str, Any], width: int, folder: Path
) -> Vocab:
    """SentencePiece merges the pair whose result has the highest score: the merge's rank, negated.

    The file of the fast tokenizer keeps ranks only; scores with the same order merge the same.
    """
    from gguf import SpecialVocab

    special = SpecialVocab(folder, n_vocab=tokenizer.size)
    tokens, types = _tokens(tokenizer, raw, width)
    scores = [0.0] * width
    ids: dict[str, int] = raw["model"]["vocab"]
    for rank, merge in enumerate(raw["model"]["merges"]):
        text = "".join(merge if isinstance(merge, list) else merge.split(" ", 1))
        token = ids.get(text)
        if token is not None and scores[token] == 0.0:
            scores[token] = -float(rank + 1)
    adds = _prepends(raw.get("normalizer")) or _prepends(raw.get("pre_tokenizer"))
    return _assembled(
        "llama",
        tokens,
        types,
        tokenizer=tokenizer,
        special=special,
        scores=scores,
        adds_space=adds,
    )


def _assembled(
    model: str,
    tokens: list[bytes],
    types: list[int],
    *,
    tokenizer: HfTokenizer,
    special: Any,
    scores: list[float] | None = None,
    merges: list[str] | None = None,
    adds_space: bool = False,
) -> Vocab:
    roles = {
        role: token
        for role, token in special.special_token_ids.items()
        if role in ("bos", "eos", "unk", "sep", "pad", "mask")
    }
    if "eos" not in roles and tokenizer.eos:
        roles["eos"] = min(tokenizer.eos)
    if tokenizer.bos is not None:
        roles["bos"] = tokenizer.bos
    return Vocab(
        model,
        tokens,
        types,
        scores,
        merges,
        roles,
        tokenizer.eos,
        tokenizer.adds_bos and tokenizer.bos is not None,
        adds_space,
        tokenizer.template,
    )


def _tokens(
    tokenizer: HfTokenizer, raw: dict[str, Any], width: int
) -> tuple[list[bytes], list[int]]:
    """Texts and types of every row; rows without a token are marked unused."""
    from gguf import TokenType

    texts = {token: text for text, token in raw["model"]["vocab"].items()}
    added = {entry["id"]: entry for entry in raw.get("added_tokens", [])}
    tokens: list[bytes] = []
    types: list[int] = []
    fallback = raw["model"].get("byte_fallback")
    unknown = raw["model"].get("unk_token")
    for token in range(width):
        text = added[token]["content"] if token in added else texts.get(token)
        if text is None:
            kind, text = TokenType.UNUSED, f"[PAD{token}]"
        elif token in tokenizer.specials or (token in added and looks_special(text)):
            kind = TokenType.CONTROL
        elif token in added:
            kind = TokenType.USER_DEFINED
        elif fallback and len(text) == 6 and text.startswith("<0x"):
            kind = TokenType.BYTE
        else:
            kind = TokenType.NORMAL
        if fallback and text == unknown:
            kind = TokenType.UNKNOWN
        tokens.append(text.encode())
        types.append(int(kind))
    return tokens, types


def _prepends(part: Any) -> bool:
    """Whether a component puts a space before the text."""
    if not isinstance(part, dict):
        return False
    if part.get("type") == "Prepend":
        return True
    if part.get("type") == "Metaspace":
        return str(part.get("prepend_scheme", "always")) != "never"
    inner = part.get("normalizers") or part.get("pretokenizers") or []
    return any(_prepends(child) for child in inner)


def _candidates(raw: dict[str, Any]) -> list[str]:
    """Every way, those first that the shape of the file suggests."""
    shape = json.dumps(raw.get("pre_tokenizer"))
    likely = [
        name
        for name, mark in (
            ("llama-bpe", "{1,3}"),
            ("qwen2", "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^"),
            ("smollm", '"Digits"'),
        )
        if mark in shape
    ] or ["gpt-2"]
    return [*likely, *(name for name in PRE_TOKENIZERS if name not in likely)]


def _proved(vocab: Vocab, tokenizer: HfTokenizer, candidates: list[str]) -> Vocab:
    """The vocabulary with the first way of cutting that gives the ids of the original."""
    wanted = [tokenizer.encode(text) for text in CORPUS]
    nearest: tuple[int, str, str] | None = None
    with tempfile.TemporaryDirectory() as folder:
        for pre in candidates:
            file = Path(folder) / f"{pre or 'spm'}.gguf"
            _write_alone(vocab, file, pre)
            try:
                made = GgufTokenizer(file)
            except BackendError:  # a way that this llama.cpp does not know
                continue
            finally:
                file.unlink(missing_ok=True)
            wrong = [t for t, ids in zip(CORPUS, wanted, strict=True) if made.encode(t) != ids]
            if not wrong:
                return _with_pre(vocab, pre)
            if nearest is None or len(wrong) < nearest[0]:
                nearest = (len(wrong), pre, wrong[0])
    if nearest is None:
        raise BackendError("llama.cpp cannot load the vocabulary in any form")
    raise BackendError(
        f"no way in which llama.cpp cuts texts gives this tokenizer's ids; the nearest, "
        f"{nearest[1] or 'SentencePiece'}, differs on {nearest[0]} of {len(CORPUS)} probes, "
        f"the first: {nearest[2]!r}"
    )


def _with_pre(vocab: Vocab, pre: str) -> Vocab:
    from dataclasses import replace

    return replace(vocab, pre=pre or ("default" if vocab.model == "llama" else ""))


def _write_alone(vocab: Vocab, file: Path, pre: str) -> None:
    from gguf import GGUFWriter

    writer = GGUFWriter(str(file), "llama")
    writer.add_context_length(8)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-6)
    vocab.write(writer, pre or "default")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
