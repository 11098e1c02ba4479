"""The real target as a drafter of itself: requantized, and compared with what it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.quantize.devices import DEVICES
from outrider.quantize.pack import Order, repack
from outrider.quantize.report import measure, recommend
from outrider.quantize.report_inputs import blocks_of, files_of, open_target

pytestmark = [pytest.mark.real, pytest.mark.llama, pytest.mark.timeout(3600)]
ROOT = Path(__file__).parents[2]


def test_a_target_drafts_for_itself(pair: tuple[Path, Path], tmp_path: Path) -> None:
    target_file = pair[1]
    repack(target_file, tmp_path, Order(["Q4_0", "Q2_K"]))
    text = ROOT / "protocol" / "epochs.py"
    found = blocks_of(target_file, [text], 1)
    lm = open_target(target_file)
    variants = measure(files_of([tmp_path]), lm, found.blocks, size=found.size)
    lm.close()
    four, two = sorted(variants, key=lambda variant: -variant.bytes)
    assert four.greedy > two.greedy > 0.5
    assert four.overlap > two.overlap
    assert recommend(variants, DEVICES["laptop"]).variant in {four.name, two.name}
