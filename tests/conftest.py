"""Settings that every test needs, made before any model library is loaded."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

# Two spinning processes on two cores ruin each other: one thread a model.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# No test asks the network for a model: one that tries fails at once.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# A run in the background inherits an ignored interrupt, and so would every command under test.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is not a failure.
settings.register_profile("outrider", deadline=None)
settings.load_profile("outrider")
