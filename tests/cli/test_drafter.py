"""Groups by flags: drafters here and on other machines, and what cannot be."""

from __future__ import annotations

import json
import signal
import time
import urllib.request
from collections.abc import Iterator

import pytest

from outrider.cli import exits


@pytest.fixture(scope="module")
def elsewhere(popen) -> Iterator[str]:
    """A drafter for others, which says goodbye when it is told to stop."""
    process = popen("drafter", "serve", "--port", "0", "--json", "--max-sessions", "2")
    ready = json.loads(process.stdout.readline())
    assert ready["event"] == "ready"
    yield ready["url"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == exits.DONE


def test_run_with_a_drafter_elsewhere(invoke, process, llama_cloud, models, elsewhere) -> None:
    prompt = ["-n", "12", "--json", "And it came to pass in those days, that"]
    alone = invoke("run", "--cloud", llama_cloud.url, *prompt)
    pack = str(models / "drafter")
    group = process("run", "--cloud", llama_cloud.url, "-md", pack, "-md", elsewhere, *prompt)
    assert group.status == exits.DONE
    assert group.json["text"] == alone.json["text"]
    assert elsewhere in group.json["drafter"]
    page = elsewhere.replace("ws://", "http://").replace("/v1/stream", "/status")
    facts = {"leads": 1, "held": 1}
    deadline = time.monotonic() + 30
    while facts["leads"] + facts["held"] and time.monotonic() < deadline:  # the process has ended
        with urllib.request.urlopen(page) as answer:
            facts = json.load(answer)
    assert (facts["state"], facts["leads"], facts["held"]) == ("ready", 0, 0)
    assert facts["steps"] > 0


def test_one_that_is_away_is_a_warning(invoke, llama_cloud, models) -> None:
    result = invoke(
        "run", "--cloud", llama_cloud.url, "-md", models / "drafter", "-md", "ws://127.0.0.1:9",
        "-n", "4", "--json", "And it came to pass",
    )  # fmt: skip
    assert result.status == exits.DONE
    assert "is away and joins when it is back" in result.err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["-md", "ws://127.0.0.1:9"], "at least one model has to be here"),
        (["-md", "{pack}", "-md", "{pack}"], "given twice"),
        (["-md", "{pack}", "-md", "ws://pi:9", "-md", "ws://pi:9"], "given twice"),
        (["-md", "{pack}", "-md", "ws://192.0.2.1:9", "--draft-key", "k"], "not encrypted"),
        (["-md", "{pack}", "-md", "ws://pi:9,key="], "key"),
        (
            ["-md", "{pack}", "-md", "ws://pi:9", "--draft-key", "k", "--draft-key-file", "f"],
            "--draft-key and --draft-key-file contradict each other",
        ),
    ],
)
@pytest.mark.parametrize("command", [["run", "text"], ["link"], ["serve", "--port", "0"]])
def test_what_cannot_be(invoke, models, command, more, said) -> None:
    given = [word.format(pack=models / "drafter") for word in more]
    result = invoke(*command, "--cloud", "ws://127.0.0.1:9", *given)
    assert result.status == exits.USAGE
    assert said in result.err
    assert "Traceback" not in result.err


def test_doctor_looks_at_all_of_them(invoke, models, elsewhere) -> None:
    pack = models / "drafter"
    result = invoke(
        "doctor", "-md", pack, "-md", pack / "model.onnx", "-md", elsewhere,
        "-md", "ws://127.0.0.1:9", "--json",
    )  # fmt: skip
    checks = {(check["name"], check["state"]) for check in result.json["checks"]}
    assert {("group", "ok"), ("drafter elsewhere", "ok")} < checks
    assert ("drafter elsewhere", "warning") in checks
    twice = invoke("doctor", "-md", pack, "-md", pack, "--json")
    assert ("group", "problem") in {(c["name"], c["state"]) for c in twice.json["checks"]}


def test_a_drafter_beyond_loopback_wants_a_key_and_a_certificate(invoke, tmp_path) -> None:
    result = invoke("drafter", "serve", "--host", "0.0.0.0", "--port", "0")
    assert result.status == exits.USAGE
    assert "a key file and a certificate" in result.err
    keys = tmp_path / "keys.txt"
    keys.write_text("pi:" + "k" * 40 + " sessions=2\n")
    keys.chmod(0o600)
    result = invoke("drafter", "serve", "--port", "0", "--api-key-file", keys)
    assert result.status == exits.USAGE
    assert "quotas are for a cloud's keys" in result.err
