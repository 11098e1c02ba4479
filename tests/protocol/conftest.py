from __future__ import annotations

import pytest

from outrider.simulator.pair import ConnectionPair


@pytest.fixture
def pair() -> ConnectionPair:
    """Both machines, connected and welcomed."""
    pair = ConnectionPair()
    pair.connect()
    pair.settle()
    return pair
