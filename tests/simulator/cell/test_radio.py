"""Traces of radio: one schema, our generator against the standard and against Sionna's, replay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from outrider.protocol.errors import BackendError, SettingError
from outrider.simulator.cell import radio_check
from outrider.simulator.cell.channel import SCENARIOS, path_loss
from outrider.simulator.cell.experiment import run
from outrider.simulator.cell.model import Cell, Settings, tracks
from outrider.simulator.cell.radio import Radio, load, numpy_radio
from outrider.simulator.cell.radio_check import distance_of, figures

WALK = Settings(60, 4, speed=(1.0, 2.0))


@pytest.fixture(scope="module")
def ours() -> Radio:
    return numpy_radio(tracks(WALK, 3, 120), "umi", 1)


class TestOurs:
    def test_its_distributions_are_the_standards(self, ours: Radio) -> None:
        found, kind = figures(ours, "umi"), SCENARIOS["umi"]
        assert found["path_loss_off_db"] < 1e-9
        for _, _, counted, expected in found["sight"]:
            assert counted == pytest.approx(expected, abs=0.12)
        assert found["sight_kept_10m"] > 0.4  # exp(-10/50) through a threshold
        for name, deviation, apart in zip(("los", "nlos"), kind.shadow, kind.apart, strict=True):
            assert found[f"shadow_{name}_db"] == pytest.approx(deviation, rel=0.15)
            assert found[f"shadow_{name}_m"] == pytest.approx(apart, rel=0.3)
        assert found["fading_nlos_db"] == pytest.approx(5.57, abs=0.2)  # Rayleigh, in dB

    def test_the_figures_see_what_is_wrong(self, ours: Radio) -> None:
        """Shadowing that forgets at every step, twice as strong, and a loss of another place."""
        rng = np.random.default_rng(0)
        wrong = replace(ours, shadow=15.0 * rng.standard_normal(ours.shadow.shape))
        found = figures(wrong, "umi")
        assert found["shadow_nlos_m"] is None  # nothing is left at any distance
        assert found["shadow_los_db"] > 10.0
        assert found["step_db_per_m"] > 2 * figures(ours, "umi")["step_db_per_m"]
        assert figures(replace(ours, loss=ours.loss + 1.0), "umi")["path_loss_off_db"] > 0.9
        assert distance_of(ours, replace(ours, sinr=ours.sinr + 10.0)) > 0.15
        assert distance_of(ours, ours) == 0.0

    def test_rates_are_those_of_the_gain(self, ours: Radio) -> None:
        snr = 10 ** (ours.sinr / 10)
        np.testing.assert_allclose(ours.rate, ours.band * np.log2(1 + snr))
        fading = ours.gain * 10 ** ((ours.loss + ours.shadow) / 10)
        assert fading.mean() == pytest.approx(1.0, abs=0.05)


class TestFiles:
    def test_saved_and_loaded_again(self, ours: Radio, tmp_path: Path) -> None:
        ours.save(tmp_path / "new" / "a.npz")
        again = load(tmp_path / "new" / "a.npz")
        np.testing.assert_array_equal(again.sinr, ours.sinr)
        np.testing.assert_array_equal(again.sight, ours.sight)
        assert again.gain == pytest.approx(ours.gain)

    def test_what_is_no_trace(self, ours: Radio, tmp_path: Path) -> None:
        file = tmp_path / "a.npz"
        with pytest.raises(BackendError, match="a.npz is no trace of radio"):
            load(file)
        file.write_bytes(b"PK\3\4 cut")
        with pytest.raises(BackendError, match="a.npz is no trace of radio"):
            load(file)
        np.savez(file, sinr=ours.sinr)
        with pytest.raises(BackendError, match="no trace of radio: 'places"):
            load(file)
        with pytest.raises(SettingError, match="rate must be 120 x 60 x 4 finite numbers"):
            replace(ours, rate=ours.rate[:5])

    def test_a_folder_that_cannot_be(self, ours: Radio, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(BackendError, match="cannot write"):
            ours.save(tmp_path / "file" / "a.npz")


class TestReplay:
    def test_a_cell_hears_what_the_trace_says(self, ours: Radio) -> None:
        cell = Cell(WALK, np.random.default_rng(0), ours)
        np.testing.assert_allclose(cell.problem().gain, ours.gain[0])
        np.testing.assert_allclose(cell.problem().power, ours.power)
        found = run("greedy", "optimised", WALK, 0, slots=3, radio=ours)
        assert found.latency > 0

    def test_a_trace_that_does_not_fit_or_ends(self, ours: Radio) -> None:
        with pytest.raises(SettingError, match="60 devices, 4 servers .* the cell 30, 4"):
            Cell(Settings(30, 4), np.random.default_rng(0), ours)
        short = numpy_radio(tracks(WALK, 3, 2), "umi", 1)
        with pytest.raises(SettingError, match="has 2 slots, and more were asked"):
            run("random", "equal", WALK, 0, slots=3, radio=short)


def test_sionna_says_the_same() -> None:
    """Few devices: bounds are wide here; `outrider sim radio` has the figures of many."""
    pytest.importorskip("sionna")
    settings = Settings(8, 3, speed=(1.0, 2.0))
    found = radio_check.compare(settings, seed=5, slots=30)
    one, two = found["numpy"], found["sionna"]
    assert two["path_loss_off_db"] < 1e-3  # its loss by our formula, at its own places and states
    for name, deviation in zip(("los", "nlos"), SCENARIOS["umi"].shadow, strict=True):
        assert two[f"shadow_{name}_db"] == pytest.approx(deviation, rel=0.5)
    assert two["fading_nlos_db"] == pytest.approx(one["fading_nlos_db"], abs=0.6)
    assert found["sinr_distance"] < 0.25
    assert found["topology_a_step_db_per_m"] > 1.8 * two["step_db_per_m"]
    assert any("topology of its own" in line for line in radio_check.lines(found))


def test_sionna_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "sionna.phy", None)
    with pytest.raises(BackendError, match="Sionna is not installed"):
        radio_check.sionna_radio(tracks(Settings(2, 2), 0, 2), "umi", 0)


def test_uma_by_the_formula_far_beyond_the_bend() -> None:
    """TR 38.901: 22 log d up to the bend, 40 log d after it; UMa bends at 4 * 24 * 0.5 f / c."""
    bend = 4 * 24 * 0.5 * 3.5e9 / 299_792_458.0
    d = np.array([bend * 2, bend * 4])
    loss = path_loss(SCENARIOS["uma"], d, 3.5e9, np.ones(2, bool))
    assert np.diff(loss)[0] == pytest.approx(40 * np.log10(2), abs=0.05)
