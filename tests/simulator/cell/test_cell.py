"""The cell: channels by the standard's formulas, the environment, experiments, learning."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from outrider.cloud_server.placement import shares
from outrider.cloud_server.placement.actor import FEATURES, Actor, observe, weighted
from outrider.protocol.errors import BackendError, SettingError
from outrider.simulator.cell import experiment
from outrider.simulator.cell.channel import SCENARIOS, Channel, path_loss, sight_probability
from outrider.simulator.cell.environment import CellEnv
from outrider.simulator.cell.model import Cell, Settings

UMI, UMA = SCENARIOS["umi"], SCENARIOS["uma"]


class TestChannel:
    def test_path_loss_by_hand(self) -> None:
        """TR 38.901 table 7.4.1-1 at 100 m and 3.5 GHz."""
        d = np.array([100.0])
        slant = np.hypot(100.0, 8.5)
        seen = 32.4 + 21 * np.log10(slant) + 20 * np.log10(3.5)
        hidden = 35.3 * np.log10(slant) + 22.4 + 21.3 * np.log10(3.5)
        assert path_loss(UMI, d, 3.5e9, np.array([True]))[0] == pytest.approx(seen)
        assert path_loss(UMI, d, 3.5e9, np.array([False]))[0] == pytest.approx(hidden)
        slant = np.hypot(100.0, 23.5)
        seen = 28.0 + 22 * np.log10(slant) + 20 * np.log10(3.5)
        assert path_loss(UMA, d, 3.5e9, np.array([True]))[0] == pytest.approx(seen)

    def test_loss_grows_and_has_no_step_where_the_slope_changes(self) -> None:
        for kind in (UMI, UMA):
            d = np.linspace(10, 3000, 3000)
            loss = path_loss(kind, d, 3.5e9, np.ones(3000, bool))
            assert (np.diff(loss) > 0).all()
            assert np.diff(loss).max() < 2.0

    def test_sight(self) -> None:
        chance = sight_probability(UMI, np.array([5.0, 18.0, 100.0, 1000.0]))
        assert chance[:2].tolist() == [1.0, 1.0]
        assert chance[2] == pytest.approx(0.18 + np.exp(-100 / 36) * 0.82)
        assert (np.diff(chance) <= 0).all()

    def test_what_does_not_move_keeps_its_shadow_and_what_does_forgets(self) -> None:
        rng = np.random.default_rng(0)
        places = rng.uniform(0, 500, (400, 2))
        channel = Channel(rng.uniform(0, 500, (3, 2)), places, rng)
        before = channel.large()
        channel.move(places, 1.0)
        np.testing.assert_allclose(channel.large(), before)
        small = Channel(channel.servers, places, np.random.default_rng(1))
        shadow, sight = small._shadow.copy(), small._sight.copy()
        small.move(places + np.array([5.0, 0.0]), 1.0)
        for i, apart in enumerate(UMI.apart):
            kept = np.corrcoef(shadow[i].ravel(), small._shadow[i].ravel())[0, 1]
            assert kept == pytest.approx(np.exp(-5 / apart), abs=0.05)
        kept = np.corrcoef(sight.ravel(), small._sight.ravel())[0, 1]
        assert kept == pytest.approx(np.exp(-5 / 50), abs=0.05)

    def test_fading_has_mean_power_one(self) -> None:
        rng = np.random.default_rng(0)
        channel = Channel(np.zeros((1, 2)), rng.uniform(20, 400, (4000, 2)), rng)
        ratio = channel.gain() / channel.large()
        assert ratio[channel.sight].mean() == pytest.approx(1.0, abs=0.05)
        assert ratio[~channel.sight].mean() == pytest.approx(1.0, abs=0.1)

    def test_an_unknown_scenario(self) -> None:
        with pytest.raises(SettingError, match="scenario 'moon' is not one of umi, uma"):
            Cell(Settings(2, 1, channel="moon"), np.random.default_rng(0))


class TestEnvironment:
    def test_pettingzoo_accepts_it(self) -> None:
        from pettingzoo.test import parallel_api_test

        parallel_api_test(CellEnv(Settings(5, 3), slots=10), num_cycles=30)

    def test_the_same_seed_is_the_same_cell(self) -> None:
        env = CellEnv(Settings(4, 2), slots=5)
        first, _ = env.reset(seed=7)
        again, _ = env.reset(seed=7)
        other, _ = env.reset(seed=8)
        for agent, seen in first.items():
            np.testing.assert_array_equal(seen, again[agent])
        assert any((first[a] != other[a]).any() for a in first)

    def test_every_action_keeps_the_constraints(self) -> None:
        problem = Cell(Settings(12, 3), np.random.default_rng(0)).problem()
        rng = np.random.default_rng(1)
        for _ in range(20):
            weights = rng.uniform(-1, 2, (12, 2))
            weighted(problem, rng.integers(0, 3, 12), weights).check(problem)

    def test_the_reward_is_against_random_with_equal_shares(self) -> None:
        env = CellEnv(Settings(20, 3), slots=5)
        env.reset(seed=0)
        best = experiment.placed("tma-moves", "optimised")
        worst = np.zeros(20, np.int64)
        good = env.advance(best(env.problem, np.random.default_rng(0)))
        bad = env.advance(shares.equal(env.problem, worst))
        assert bad < good <= 1.0

    def test_observations_are_bounded_and_of_the_stated_size(self) -> None:
        rows = observe(Cell(Settings(30, 5), np.random.default_rng(0)).problem())
        assert rows.shape == (30, 5, FEATURES)
        assert np.abs(rows).max() <= 10
        assert np.abs(rows).mean() < 2


class TestExperiment:
    def test_it_goes_on_where_it_stopped(self, tmp_path: Path) -> None:
        file = tmp_path / "rows.jsonl"
        table = {
            kind: experiment.TABLE[kind] for kind in (("greedy", "equal"), ("random", "equal"))
        }

        def go_on() -> list[experiment.Row]:
            rows = experiment.Rows(file)
            experiment.grid(rows, ((6, 2),), seeds=3, slots=2, table=table)
            return rows.rows

        go_on()
        whole = file.read_text()
        assert len(whole.splitlines()) == 6
        cut = whole.index("\n", len(whole) // 2) + 20  # in the middle of a line
        file.write_text(whole[:cut])
        assert 0 < len(experiment.Rows(file).rows) < 6
        assert len(go_on()) == 6
        assert file.read_text() == whole

    def test_rows_of_another_length_are_other_rows(self, tmp_path: Path) -> None:
        """A quick run and a whole one may share a folder."""
        rows = experiment.Rows(tmp_path / "rows.jsonl")
        table = {("random", "equal"): experiment.TABLE["random", "equal"]}
        for slots in (1, 2):
            experiment.grid(rows, ((4, 2),), seeds=1, slots=slots, table=table)
        assert [row.slots for row in rows.rows] == [1, 2]

    def test_a_file_of_something_else_is_refused(self, tmp_path: Path) -> None:
        file = tmp_path / "rows.jsonl"
        file.write_text(json.dumps({"a": 1}) + "\n")
        with pytest.raises(BackendError, match="line 1 is no row of this experiment"):
            experiment.Rows(file)

    def test_interval(self) -> None:
        mean, wide = experiment.interval([1.0, 2.0, 3.0])
        assert mean == 2.0
        assert wide == pytest.approx(4.30 * 1.0 / np.sqrt(3))


class TestLearning:
    def test_it_learns_saves_goes_on_and_runs_without_torch(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        from outrider.simulator.cell.masac import Learning, Masac

        settings = Settings(4, 2)
        learning = Learning(steps=60, warmup=30, batch=8, width=16, slots=10, save_every=30)
        learner = Masac(settings, learning)
        learner.train(checkpoint=tmp_path / "p.pt")
        again = Masac(settings, learning)
        again.load(tmp_path / "p.pt")
        assert again.step == 60
        problem = Cell(settings, np.random.default_rng(0)).problem()
        chosen = again.place(problem)
        chosen.check(problem)
        again.export(tmp_path / "p.onnx")
        assert capfd.readouterr().out == "", "results are written there"
        actor = Actor(tmp_path / "p.onnx", FEATURES)
        for size in ((4, 2), (9, 5), (1, 1)):  # any cell, though it was learned in one
            problem = Cell(Settings(*size), np.random.default_rng(0)).problem()
            chosen = again.place(problem)
            found = actor.place(problem)
            assert found.server.tolist() == chosen.server.tolist()
            np.testing.assert_allclose(found.band, chosen.band, rtol=1e-4)
            for matched in (False, True):
                actor.place(problem, matched=matched).check(problem)
        with pytest.raises(BackendError, match="sees 10 numbers of a server; here are 11"):
            Actor(tmp_path / "p.onnx", 11)
        with pytest.raises(SettingError, match="learned with other settings"):
            Masac(Settings(5, 2), learning).load(tmp_path / "p.pt")

    def test_files_that_are_no_policy(self, tmp_path: Path) -> None:
        (tmp_path / "x.onnx").write_bytes(b"nothing")
        with pytest.raises(BackendError, match="cannot load"):
            Actor(tmp_path / "x.onnx")
        with pytest.raises(BackendError, match="no such file"):
            Actor(tmp_path / "y.onnx")
