"""``outrider bench links`` in pieces: each is measured once, in order, and written down."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from outrider.benchmarks import links as bench
from outrider.benchmarks import sockets, sweeps
from outrider.benchmarks.journal import Journal, Piece, work_off
from outrider.benchmarks.strategies import BOTH, CLOUD, MACHINES
from outrider.protocol.errors import SettingError


def quiet(_: str) -> None:
    """Say nothing."""


def piece(name: str, calls: list[str]) -> Piece:
    async def measure() -> list[dict[str, Any]]:
        calls.append(name)
        return [{"row": name}]

    return Piece(name, measure)


def test_what_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    file, calls = tmp_path / "links.jsonl", []
    asyncio.run(work_off([piece("a", calls), piece("b", calls)], Journal(file), 0, quiet))
    again = Journal(file)
    more = [piece(name, calls) for name in "abc"]
    assert asyncio.run(work_off(more, again, 0, quiet)) == []
    assert calls == ["a", "b", "c"]
    assert list(again.done) == ["a", "b", "c"]
    assert [json.loads(line)["piece"] for line in file.read_text().splitlines()] == ["a", "b", "c"]


def test_when_the_time_is_over_nothing_new_is_begun() -> None:
    calls: list[str] = []
    left = asyncio.run(work_off([piece(n, calls) for n in "ab"], Journal(), 1e-9, quiet))
    assert left == ["a", "b"]
    assert calls == []


@pytest.mark.parametrize("line", ["no json", "[]", '{"piece": "a"}'])
def test_a_file_of_something_else_is_refused(tmp_path: Path, line: str) -> None:
    file = tmp_path / "notes.txt"
    file.write_text(line + "\n")
    with pytest.raises(SettingError, match=r"notes\.txt, line 1"):
        Journal(file)


def test_the_whole_has_every_class_link_and_part() -> None:
    names = [each.name for each in bench._full(bench.PARTS, quiet, 1)]
    assert len(set(names)) == len(names)
    for wanted in ("sockets, machine c, geo", "real pair, lte", "up, machine a"):
        assert wanted in names
    assert sum(name.startswith("sockets") for name in names) == 27


def test_a_part_in_virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "RECORDS", (bench.CODE,))
    monkeypatch.setattr(bench, "CLASSES", "a")
    monkeypatch.setattr(bench, "PROFILES", {"lte": None})
    monkeypatch.setitem(sweeps.VALUES, "rtt", (30, 600))
    monkeypatch.setattr(bench, "SWEEPS", ["rtt, machine c"])
    found = asyncio.run(bench.links(quiet, quick=False, parts=["virtual", "sweeps"], workers=1))
    assert found["unfinished"] == []
    assert found["summary"] == {}  # of sockets, which were not asked for
    assert found["virtual_summary"]["all_exact"]
    assert found["virtual_summary"]["own_over_co_located_min"] > 0.9
    assert {row["way"] for row in found["rows"]} == {"virtual"}
    swept = found["sweeps"]["rtt, machine c"]
    assert {row["value"] for row in swept["rows"]} == {30, 600}
    # A quick drafter beside a slow target: at 600 ms one beside the target is better.
    assert 30 < swept["break_even"]["co-located"] < 600


def test_a_verifier_with_a_drafter_of_its_own_on_sockets() -> None:
    machine = MACHINES["a"]
    with sockets.embedded_pair(machine, sockets.asked(1, 12)) as pair:
        found = asyncio.run(sockets.rows(pair, ["loopback"], [CLOUD, BOTH], quiet))
    assert [row["exact"] for row in found] == [True, True]
    assert found[1]["drafters"] == "edge: model, cloud: model and n-gram"
    assert found[1]["target_passes_per_token"] < found[0]["target_passes_per_token"]
