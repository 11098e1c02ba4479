"""Cooperating drafters in virtual time: figures of one small load, and exact texts."""

from __future__ import annotations

from outrider.benchmarks.cosine import ABLATION, SINGLES, Load, following, run


def test_a_group_accepts_more_than_one_drafter_and_is_exact() -> None:
    whole = next(way for way in ABLATION if way.name == "whole")
    for temperature in (0.0, 1.0):
        rows = {
            way.name: run(way, Load(edges=1, turns=1), lan=0.001, temperature=temperature)
            for way in (SINGLES[0], whole)
        }
        assert all(row["exact"] for row in rows.values())
        assert rows["whole"]["accept_len"] > rows["general"]["accept_len"]


def test_scores_follow_the_domain() -> None:
    points = following(lambda _: None)
    own = [p["scores"][1 + p["domain"]] for p in points]
    others = [s for p in points for i, s in enumerate(p["scores"][1:]) if i != p["domain"]]
    assert sum(own) / len(own) > 1.1 * sum(others) / len(others)
