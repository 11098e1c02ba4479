"""A tokenizer reduced to what the two ends must agree on."""

from __future__ import annotations

from outrider.protocol.fingerprint import Vocabulary
from outrider.runtime.text.tokenizer import Tokenizer


def describe(tokenizer: Tokenizer) -> Vocabulary:
    """The token contents in one canonical form, equal for every file format of one model."""
    return Vocabulary(
        entries=tokenizer.entries,
        specials=dict(tokenizer.specials),
        template=tokenizer.template,
    )
