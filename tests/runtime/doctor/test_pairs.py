"""Who drafts for whom: the embedded pair, and files made to be refused."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from outrider.runtime.doctor import pairs
from outrider.runtime.doctor.pairs import check_pairs, look, refusal
from outrider.runtime.hub import local
from outrider.runtime.lm.memory import MIB

MODELS = Path(str(files("outrider.models")))
TARGET, PACK = MODELS / "target" / "target-f16.gguf", MODELS / "drafter"
DRAFTER = PACK / "drafter-q8_0.gguf"


def test_a_drafter_is_found_and_named() -> None:
    (check,) = check_pairs(TARGET, [TARGET, DRAFTER, PACK])
    assert check.facts["refused"] == {}
    assert set(check.facts["drafters"]) == {str(DRAFTER), str(PACK)}
    assert "target-f16.gguf: " in check.says


def test_without_a_target_every_pair_is_named() -> None:
    (check,) = check_pairs(None, [TARGET, DRAFTER])
    assert check.facts["target"] == str(TARGET)
    assert check.facts["drafters"] == [str(DRAFTER)]
    (nothing,) = check_pairs(None, [])
    assert "outrider pull" in nothing.says


def test_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF and nothing behind it")
    (check,) = check_pairs(DRAFTER, [TARGET, broken])
    assert check.state == "warning"
    assert check.do is not None
    assert "too large to be quicker" in check.facts["refused"]["target-f16.gguf"]
    assert "broken.gguf" in check.facts["refused"]["broken.gguf"]
    assert all(f"not {name}: " in check.says for name in ("target-f16.gguf", "broken.gguf"))
    monkeypatch.setattr(pairs.memory, "available", lambda: 5 * MIB)
    assert "5 MiB are available" in (refusal(look(DRAFTER), look(TARGET)) or "")


def test_another_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = look(DRAFTER), look(TARGET)
    assert here.vocabulary is not None
    entries = list(here.vocabulary.entries)
    entries[300] = b"another"
    changed = pairs.Vocabulary(tuple(entries), here.vocabulary.specials, None)
    object.__setattr__(here, "vocabulary", changed)
    assert "token 300 is b'another'" in (refusal(here, there) or "")
    shorter = pairs.Vocabulary(tuple(entries[:-1]), {}, None)
    object.__setattr__(here, "vocabulary", shorter)
    assert "4,095 tokens, the target has 4,096" in (refusal(here, there) or "")


def test_a_target_that_is_broken(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    (check,) = check_pairs(broken, [DRAFTER])
    assert check.state == "problem"


def test_models_are_found_where_pulls_put_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    monkeypatch.setattr(local, "cache_folder", lambda: tmp_path / "hub")
    assert local.local_models() == []
    snapshot = tmp_path / "hub" / "models--some--thing" / "snapshots" / "abc"
    for place in (
        tmp_path / "own" / "outrider" / "models" / "pair" / "a.gguf",
        snapshot / "b-00001-of-00002.gguf",
        snapshot / "b-00002-of-00002.gguf",
        snapshot / "config.json",
        snapshot / "model.safetensors",
    ):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"")
    names = [path.name for path in local.local_models()]
    assert names == ["a.gguf", "abc", "b-00001-of-00002.gguf"]
    hub = pairs.Candidate(snapshot, 1, "", None, None)
    assert hub.name == "some/thing"
