"""``outrider bench compare``, and what every result says of where it comes from."""

from __future__ import annotations

import itertools
import json
import statistics
from pathlib import Path

import pytest

from outrider.benchmarks import compare, meta
from outrider.cli.main import main
from outrider.protocol.errors import SettingError


def run(capfd, *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "compare", *map(str, args)])
    out, err = capfd.readouterr()
    return int(ended.value.code or 0), out, err


def write(file: Path, *results: object) -> Path:
    file.write_text("\n".join(map(json.dumps, results)))
    return file


def test_ratios_and_their_exit_status(tmp_path, capfd) -> None:
    a = write(
        tmp_path / "a", *({"speed": x, "ok": True, "meta": {"cores": 1}} for x in (9, 10, 11))
    )
    b = write(tmp_path / "b", *({"speed": x, "meta": {"cores": 8}} for x in (18, 22)))
    status, out, _ = run(capfd, a, b, "--json")
    found = json.loads(out)
    assert status == 0
    (row,) = found["ratios"]
    assert (row["metric"], row["a"], row["b"], row["ratio"]) == ("speed", 10, 20, 2)
    assert (row["n_a"], row["n_b"]) == (3, 2)
    assert 18 / 11 <= row["low"] < 2 < row["high"] <= 22 / 9
    assert found["meta"]["seeds"] == [0]
    assert run(capfd, a, b, "--metric", "sp*", "--fail-under", "1.9")[0] == 0
    status, out, _ = run(capfd, a, b, "--metric", "speed", "--fail-under", "2.1")
    assert status == 1
    assert "speed: 2.000 is under 2.1" in out
    assert run(capfd, b, a, "--metric", "speed", "--fail-under", "1")[0] == 1


def test_the_interval_against_every_resample() -> None:
    a, b = (1.0, 2.0, 4.0), (3.0, 5.0)
    every = sorted(
        statistics.mean(y) / statistics.mean(x)
        for x in itertools.product(a, repeat=3)
        for y in itertools.product(b, repeat=2)
    )
    found = compare.ratio_of("x", a, b)
    assert found.low is not None
    assert found.high is not None
    # Quantiles of a discrete distribution, to the half percent that so many draws tell.
    for bound, level in ((found.low, 0.025), (found.high, 0.975)):
        below = sum(r < bound - 1e-9 for r in every) / len(every)
        up_to = sum(r <= bound + 1e-9 for r in every) / len(every)
        assert below <= level + 0.005
        assert up_to >= level - 0.005


def test_what_a_figure_is_called() -> None:
    result = {
        "a": {"b": 1},
        "rows": [{"link": "lte", "x": 2}, {"link": "lte", "x": 3}, {"link": "lan", "x": 4}],
        "runs": [{"who": "us", "seed": 1, "y": 5}, {"who": "us", "seed": 2, "y": 6}],
        "curve": [1, 2],
        "ok": True,
        "none": None,
    }
    assert list(compare.figures(result)) == [
        ("a.b", 1), ("rows[lte].x", 2), ("rows[lte#2].x", 3), ("rows[lan].x", 4),
        ("runs[us].y", 5), ("runs[us].y", 6),
    ]  # fmt: skip


def test_one_run_has_no_interval_and_nothing_divides_by_zero() -> None:
    assert compare.ratio_of("x", [2.0], [3.0]).low is None
    assert compare.ratio_of("x", [0.0, 0.0], [3.0, 1.0]).ratio is None
    assert compare.ratio_of("x", [0.0, 1.0], [3.0, 1.0]).low is None


def test_mistakes(tmp_path, capfd) -> None:
    good, broken = write(tmp_path / "a", {"x": 1}), tmp_path / "b"
    broken.write_text('{"x": 1}\n{"x"')
    with pytest.raises(SettingError, match="not JSON at line 2"):
        compare.read(broken)
    with pytest.raises(SettingError, match="JSON object"):
        compare.read(write(tmp_path / "c", [1]))
    assert run(capfd, good, tmp_path / "missing")[0] == 2
    other = write(tmp_path / "d", {"y": 1})
    status, _, err = run(capfd, good, other)
    assert (status, "no figure in common" in err) == (2, True)
    assert "--metric" in run(capfd, good, good, "--fail-under", "1")[2]


def test_where_a_result_comes_from(capfd) -> None:
    meta.emit({"x": 1, "rows": []}, [7])
    found = json.loads(capfd.readouterr().out)
    assert list(found) == ["x", "rows", "meta"]
    said = found["meta"]
    assert said["versions"]["numpy"]
    assert said["versions"]["outrider"]
    assert {"torch", "llama-cpp-python", "onnxruntime"} <= said["versions"].keys()
    assert said["cores"] >= 1
    assert said["seeds"] == [7]
    assert said["date"].endswith("+00:00")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor\t: 0\nmodel\t\t: 85\nmodel name\t: Some CPU @ 2 GHz\n", "Some CPU @ 2 GHz"),
        ("processor\t: 0\nModel\t\t: Raspberry Pi 5\n", "Raspberry Pi 5"),
        ("processor\t: 0\n", None),
    ],
)
def test_the_processor(text: str, name: str | None) -> None:
    assert meta.cpu_model(text) == name


def test_every_benchmark_prints_it() -> None:
    folder = Path(compare.__file__).parent
    for name in ("app", "endpoint", "real"):
        assert "json.dumps(result)" not in (folder / f"{name}.py").read_text()
