"""Profiles: their figures, that a seed is a course, and that the constants are what was fitted."""

from __future__ import annotations

import os
import random
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from outrider.protocol.errors import SettingError
from outrider.simulator import fit, profiles
from outrider.simulator.links import Direction, Pipe, Steps
from outrider.simulator.profiles import LEVELS, MBIT, PROFILES, Process, link, profile

RECORDINGS = os.environ.get("OUTRIDER_TRACES", "../shared/links")
RTT = {
    "loopback": 0.0003, "lan": 0.002, "wifi": 0.008, "5g": 0.03, "starlink": 0.05, "lte": 0.06,
    "geo": 0.6, "narrow": 0.3, "congested": 0.89,
}  # fmt: skip


def test_the_profiles_and_their_round_trips() -> None:
    assert {name: p.rtt for name, p in PROFILES.items()} == RTT
    assert [name for name, p in PROFILES.items() if p.fitted] == ["wifi", "5g", "starlink", "lte"]
    assert all(p.name == name and p.about for name, p in PROFILES.items())


@pytest.mark.parametrize("name", RTT)
def test_a_link_has_the_round_trip_of_its_profile(name: str) -> None:
    seeds = range(30 if name == "starlink" else 1)  # whose delays are drawn
    mean = sum(profile(name).link(seed).rtt for seed in seeds) / len(seeds)
    assert mean == pytest.approx(RTT[name], rel=0.05)


def test_the_links_that_the_product_is_about() -> None:
    narrow, congested = link("narrow"), link("congested")
    assert narrow.up.mean_rate == 24_000 / 8
    assert congested.up.mean_rate == 256_000 / 8
    assert congested.up.background is not None
    assert congested.up.background.standing == 1.0
    assert link("loopback").up.mean_rate is None


def test_a_seed_is_a_course() -> None:
    for name in RTT:
        assert steps_of(profile(name).link(3).up) == steps_of(profile(name).link(3).up)
    assert steps_of(link("lte", 1).up) != steps_of(link("lte", 2).up)
    assert steps_of(link("wifi", 1).up) != steps_of(link("wifi", 1).down)


def steps_of(direction: Direction) -> object:
    rate, delay = direction.rate, direction.delay
    return (
        rate.values if isinstance(rate, Steps) else rate,
        delay.values if isinstance(delay, Steps) else delay,
    )


def test_rates_are_what_the_link_has() -> None:
    up, down = profile("starlink").rates(5)
    course = profile("starlink").link(5)
    assert isinstance(course.up.rate, Steps)
    assert isinstance(course.down.rate, Steps)
    assert tuple(islice(up, 300)) == course.up.rate.values
    assert tuple(islice(down, 300)) == course.down.rate.values
    assert next(profile("geo").rates()[0]) == 3 * MBIT
    assert next(profile("loopback").rates()[1]) == float("inf")


def test_both_directions_of_a_satellite_change_together() -> None:
    course = profile("starlink").link(7)
    assert isinstance(course.up.delay, Steps)
    assert isinstance(course.down.delay, Steps)
    assert course.up.delay.values == course.down.delay.values
    assert course.up.delay.starts[1] == 15


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(SettingError, match="loopback, lan, wifi"):
        link("pigeon")


class TestProcess:
    P = Process(step=1.0, quantiles=(0, 1, 2, 3, 4, 10, 20, 30, 40, 50, 99), rho=0.9, memory=0.8)

    def test_it_has_its_quantiles_and_its_mean(self) -> None:
        x = np.array(list(islice(self.P.values(random.Random(1)), 40_000)))
        assert np.quantile(x, LEVELS[2:-2]) == pytest.approx(self.P.quantiles[2:-2], rel=0.12)
        assert x.mean() == pytest.approx(self.P.mean, rel=0.05)
        assert x.min() >= 0
        assert x.max() <= 99

    def test_it_has_its_memory(self) -> None:
        flat = Process(step=1.0, quantiles=LEVELS, rho=0.9, memory=0.8)
        x = np.array(list(islice(flat.values(random.Random(1)), 40_000)))
        # Of uniform values: a little less than of the normal ones behind them.
        assert np.corrcoef(x[1:], x[:-1])[0, 1] == pytest.approx(0.72, abs=0.04)
        assert np.corrcoef(x[10:], x[:-10])[0, 1] == pytest.approx(0.8 * 0.9**10, abs=0.05)

    @pytest.mark.parametrize(
        "changed",
        [
            {"quantiles": (1, 2)},
            {"quantiles": tuple(reversed(LEVELS))},
            {"step": 0},
            {"rho": 1},
            {"memory": 2},
        ],
    )
    def test_nonsense_is_refused(self, changed: dict[str, object]) -> None:
        sound: dict[str, object] = {"step": 1.0, "quantiles": LEVELS, "rho": 0.5}
        with pytest.raises(SettingError):
            Process(**{**sound, **changed})  # type: ignore[arg-type]


def test_a_congested_uplink_is_late_by_its_queue() -> None:
    up = Pipe(link("congested").up, random.Random(0))
    waits = [up.deliver_at(20, t) - t for t in (i * 0.37 for i in range(200))]
    assert 0.7 < min(waits) < 0.8
    assert 0.9 < max(waits) < 1.1


class TestFit:
    def test_a_process_is_recovered_from_its_own_course(self) -> None:
        true = profiles.WIFI_RATE
        draws = [v * MBIT for v in islice(true.values(random.Random(2)), 6000)]
        found = fit._rates([Steps.every(true.step, draws)], true.step).process
        assert found.quantiles[3:8] == pytest.approx(true.quantiles[3:8], rel=0.1)
        assert found.rho == pytest.approx(true.rho, abs=0.03)
        assert found.memory == pytest.approx(true.memory, abs=0.08)

    def test_missing_recordings_are_named(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert fit.main([str(tmp_path)]) == 2
        assert "no *.pitree-trace there" in capsys.readouterr().err

    @pytest.mark.skipif(not Path(RECORDINGS).is_dir(), reason="needs the recordings")
    def test_the_constants_are_what_the_command_prints(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert fit.main([RECORDINGS]) == 0
        printed: dict[str, object] = {}
        exec(capsys.readouterr().out.split("\n\n")[1], {"Process": Process}, printed)
        assert printed == {name: getattr(profiles, name) for name in printed}
        assert len(printed) == 11
