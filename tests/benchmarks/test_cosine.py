"""Cooperating drafters in virtual time: figures of one small load, and exact texts."""

from __future__ import annotations

import pytest

from outrider.benchmarks.cosine import ABLATION, SINGLES, Load, following, run
from outrider.benchmarks.embedded import models
from outrider.benchmarks.embedded_group import EmbeddedKit

WEIGHTS = (".gguf", ".onnx", ".safetensors")


def test_a_group_accepts_more_than_one_drafter_and_is_exact() -> None:
    whole = next(way for way in ABLATION if way.name == "whole")
    for temperature in (0.0, 1.0):
        rows = {
            way.name: run(way, Load(edges=1, turns=1), lan=0.001, temperature=temperature)
            for way in (SINGLES[0], whole)
        }
        assert all(row["exact"] for row in rows.values())
        assert rows["whole"]["accept_len"] > rows["general"]["accept_len"]


def test_a_group_of_the_embedded_models_is_exact() -> None:
    pytest.importorskip("llama_cpp")
    load = Load(edges=1, turns=2)
    whole = next(way for way in ABLATION if way.name == "whole")
    row = run(whole, load, lan=0.001, temperature=1.0, tokens=16, kit=EmbeddedKit())
    assert row["exact"]
    assert row["accept_len"] > 1.2


def test_the_embedded_models_are_small() -> None:
    files = [file for file in models().rglob("*") if file.suffix in WEIGHTS]
    drafters = [file for file in files if file.suffix == ".gguf" and "target" not in file.name]
    assert len(drafters) == 4
    assert all(file.stat().st_size < 2e6 for file in drafters)


def test_scores_follow_the_domain() -> None:
    points = following(lambda _: None)
    own = [p["scores"][1 + p["domain"]] for p in points]
    others = [s for p in points for i, s in enumerate(p["scores"][1:]) if i != p["domain"]]
    assert sum(own) / len(own) > 1.1 * sum(others) / len(others)
