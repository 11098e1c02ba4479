"""``outrider link``: figures, a prediction with its reason, and clear words where there is none."""

from __future__ import annotations

import socket

import pytest

from outrider.cli import exits

TOP = {
    "url", "target", "agent", "n_ctx", "drafter", "never_drafted_ids", "link", "answer", "modes"
}  # fmt: skip
LINK = {
    "rtt_min_ms", "rtt_median_ms", "rtt_p95_ms", "jitter_ms", "pings", "unanswered",
    "goodput_bytes_per_second", "goodput_is_at_least", "probe_bytes",
}  # fmt: skip
ANSWER = {
    "tokens", "tokens_per_second", "ttft_s", "pass_ms", "queue_ms", "draft_step_ms", "acceptance",
    "judged", "bytes_up_per_token", "bytes_down_per_token", "reconnects",
}  # fmt: skip
MODE = {
    "objective", "mode", "frame", "window", "lockstep_length", "why", "cloud_tps", "lockstep_tps",
    "streaming_tps", "predicted_tps",
}  # fmt: skip


def test_a_cloud_with_a_drafter_here(invoke, llama_cloud) -> None:
    result = invoke("link", "--cloud", llama_cloud.url, "--json")
    assert result.status == exits.DONE
    found = result.json
    assert set(found) == TOP
    assert set(found["link"]) == LINK
    assert set(found["answer"]) == ANSWER
    assert found["link"]["rtt_min_ms"] <= found["link"]["rtt_median_ms"]
    assert found["link"]["goodput_bytes_per_second"] > 0
    assert found["answer"]["tokens"] == 48
    assert found["answer"]["pass_ms"] > 0
    assert found["answer"]["draft_step_ms"] > 0
    assert 0 < found["answer"]["acceptance"] <= 1
    assert [set(row) for row in found["modes"]] == [MODE] * 3
    assert [row["objective"] for row in found["modes"]] == ["latency", "balanced", "cost"]
    for row in found["modes"]:
        assert row["mode"] in ("cloud", "lockstep", "streaming")
        assert row["predicted_tps"] > 0
        assert row["why"]
    assert found["modes"][2]["mode"] != "streaming"  # it would spend more passes


def test_without_a_drafter_and_for_people(invoke, llama_cloud) -> None:
    result = invoke("link", "--cloud", llama_cloud.url, "--draft", "off", "-n", "8")
    assert result.status == exits.DONE
    for words in ("round trip", "goodput", "the tokenizers agree", "there is no drafter here"):
        assert words in result.out
    found = invoke("link", "--cloud", llama_cloud.url, "--draft", "off", "-n", "8", "--json").json
    assert {row["mode"] for row in found["modes"]} == {"cloud"}
    assert found["answer"]["acceptance"] is None


def test_nobody_there(invoke) -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        url = f"127.0.0.1:{found.getsockname()[1]}"
    result = invoke("link", "--cloud", url, "--draft", "off", "--json")
    assert (result.status, result.out) == (exits.UNREACHABLE, "")
    assert "nothing listens" in result.err


def test_tokenizers_that_differ(invoke, llama_cloud, altered_pack) -> None:
    def swap(content) -> None:
        vocabulary = content["model"]["vocab"]
        vocabulary["!"], vocabulary["&"] = vocabulary["&"], vocabulary["!"]

    result = invoke("link", "--cloud", llama_cloud.url, "-md", altered_pack(swap))
    assert result.status == exits.UNREACHABLE
    assert "different tokenizers" in result.err
    assert "needed even when nothing is drafted" in " ".join(result.err.split())


def test_a_prompt_that_does_not_fit(invoke, llama_cloud) -> None:
    result = invoke("link", "word " * 3000, "--cloud", llama_cloud.url, "--draft", "off")
    assert result.status == exits.FAILED
    assert "fit" in result.err


# --- the forecast, against a model that was worked out beforehand --------------------------------


@pytest.mark.parametrize(
    ("rtt_ms", "lockstep", "streaming"),
    [(0.3, 44.8, 52.5), (15, 35.5, 47.0), (30, 30.5, 44.6), (60, 23.9, 39.9), (600, 5.9, 33.3)],
)
def test_predicted_speeds(rtt_ms: float, lockstep: float, streaming: float) -> None:
    from outrider.edge_client import forecast as f

    figures = f.Figures(acceptance=0.8, step=0.012, target=0.030, rtt=rtt_ms / 1000)
    length, rate = f.best_lockstep(figures, 16)
    assert rate == pytest.approx(lockstep, rel=0.05)
    assert 1 <= length <= 16
    assert f.streaming(figures) == pytest.approx(streaming, rel=0.08)
    assert f.cloud_alone(figures) == pytest.approx(33.3, rel=0.01)
    assert f.passes(figures, 4) == pytest.approx(1 / 3.36, rel=0.01)
