"""The law of the scripted models: logits as a pure function of the last few ids and a seed.

Used by the scripted target and by the scripted drafters that agree or disagree with it on purpose,
so that logic and pacing can be tested without weights. It models no language.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

REACH = 3
"""How many of the last ids the next one depends on."""

_SPREAD = 4.0  # logits of the crowd lie in [0, 4), on a grid of 1/16384: ties do happen
_PEAK = 3.0  # the chosen id lies this much above all of the crowd


def script_hash(ids: Sequence[int], seed: int, domain: bytes = b"row") -> int:
    """64 bits from the last ``REACH`` ids, the seed and a domain. The same everywhere."""
    state = hashlib.blake2b(digest_size=8, person=domain)
    state.update(seed.to_bytes(8, "little", signed=False))
    for token in ids[-REACH:]:
        state.update(int(token).to_bytes(4, "little"))
    return int.from_bytes(state.digest(), "little")


def script_rows(ids: Sequence[int], seed: int, vocab: int) -> NDArray[np.float32]:
    """The logits after ``ids`` (which may be empty): float32 ``[vocab]``, with one clear peak.

    At temperature 1 the peak has a fair share of the mass and not all of it, so that sampling
    is tested as well.
    """
    key = script_hash(ids, seed)
    crowd = hashlib.shake_128(key.to_bytes(8, "little")).digest(2 * vocab)
    row = np.frombuffer(crowd, "<u2").astype(np.float32) * np.float32(_SPREAD / 65536)
    row[key % vocab] = _SPREAD + _PEAK
    return row
