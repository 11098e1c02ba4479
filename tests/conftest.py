"""Settings that every test needs, made before any model library is loaded."""

from __future__ import annotations

import os

from hypothesis import settings

# Two spinning processes on two cores ruin each other: one thread a model.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# No test asks the network for a model: one that tries fails at once.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# A busy machine is not a failure.
settings.register_profile("outrider", deadline=None)
settings.load_profile("outrider")
