"""A tokenizer reduced to what the two ends must agree on."""

from __future__ import annotations

from outrider.protocol.fingerprint import Vocabulary
from outrider.runtime.text.tokenizer import Tokenizer

PROBES = (
    "The quick brown fox jumps over 13 lazy dogs, 1234567890 times; 3.14159 and 2,718.",
    "déjà vu, naïve façade, Ångström, Straße, ĲSSELMEER, e\u0301te\u0301",
    "你好，世界。日本語のテキスト 한국어 텍스트",
    "👩\u200d👩\u200d👧\u200d👦 👍🏽 🇩🇪 🏳️\u200d🌈",
    "def f(x):\n\treturn {'a': x**2, \"b\": [1, 2]}  # it's we'll I'm DON'T",
    "tabs\tand\r\nlines\n\n\n   and   runs    of spaces   ",
    "שלום עולם, العربية ١٢٣, हिन्दी १२३, ไทย ๑๒๓",
)
"""Texts on which wrongly converted tokenizers are known to differ."""


def differing_cuts(a: Tokenizer, b: Tokenizer) -> list[str]:
    """The probe texts that two tokenizers cut differently, empty if they agree.

    Equal contents do not make equal cuts: a file with the wrong pre-tokenizer has the right tokens
    and chooses among them in another way.
    """
    return [text for text in PROBES if a.encode(text) != b.encode(text)]


def describe(tokenizer: Tokenizer) -> Vocabulary:
    """The token contents in one canonical form, equal for every file format of one model."""
    return Vocabulary(
        entries=tokenizer.entries,
        specials=dict(tokenizer.specials),
        template=tokenizer.template,
    )
