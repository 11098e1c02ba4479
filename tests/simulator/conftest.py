"""What several tests of the simulator share."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def worlds() -> ModuleType:
    path = Path(__file__).with_name("ratio_worlds.py")
    spec = importlib.util.spec_from_file_location("ratio_worlds", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ratio_worlds"] = module
    spec.loader.exec_module(module)
    return module
