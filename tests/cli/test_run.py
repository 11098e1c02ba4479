"""``outrider run`` against a real cloud: the text is the target's, whatever drafts it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from outrider.cli import exits, targets
from outrider.protocol.errors import SettingError

PROMPT = "And it came to pass in those days, that the king of"
KEYS = {
    "text", "tokens", "token_ids", "prompt_ids", "prompt_tokens", "finish_reason", "seed",
    "acceptance_rate", "mean_acceptance_length", "tokens_per_second", "decode_tokens_per_second",
    "ttft_s",
    "bytes_up_per_token", "bytes_down_per_token", "target_passes_per_token", "drafted", "accepted",
    "frames", "rtt_ms", "drafter", "target", "mode", "reason", "degraded", "error",
    "cached_tokens", "notices", "bytes", "rule",
}  # fmt: skip


@pytest.fixture
def run(invoke, cloud):
    """``run(*args)``: the JSON of an answer of the shared cloud."""

    def answer(*args: str):
        result = invoke("run", PROMPT, "--cloud", cloud.url, "--json", *args)
        assert result.status == exits.DONE, result
        assert set(result.json) == KEYS
        return result.json

    return answer


@pytest.fixture
def near(models: Path) -> Path:
    """The target itself as the drafter: nearly all of its guesses are right."""
    pytest.importorskip("llama_cpp")
    return models / "target" / "target-f16.gguf"


@pytest.mark.parametrize("backend", ["onnx", "llama"])
@pytest.mark.parametrize("temp", ["0", "1"])
def test_the_text_is_that_of_plain_cloud_streaming(run, backend: str, temp: str) -> None:
    sampling = ["-n", "24", "--temp", temp, "--seed", "7", "--top-k", "50"]
    plain = run(*sampling, "--draft", "off")
    drafted = run(*sampling, "--drafter-backend", backend, "--draft-p-min", "0")
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["text"] == plain["text"]
    assert drafted["drafted"] > 0
    assert backend in drafted["drafter"]
    assert (plain["drafted"], plain["drafter"]) == (0, None)
    assert "off" in plain["mode"]
    assert plain["target_passes_per_token"] <= 1.0  # less where the cloud guesses for itself


def test_a_good_drafter_saves_passes_and_every_figure_is_told(run, near: Path) -> None:
    plain = run("-n", "24", "--draft", "off")
    for _ in range(5):  # on a busy machine the cloud may go on alone, once in a while
        found = run("-n", "24", "-md", near, "--raw", "--draft-max", "4", "--objective", "cost")
        if found["acceptance_rate"] > 0.9:
            break
    assert found["token_ids"] == plain["token_ids"]
    assert found["tokens"] == len(found["token_ids"]) == 24
    assert found["acceptance_rate"] > 0.9
    assert found["accepted"] / found["frames"] + 1 == found["mean_acceptance_length"]
    assert 0 < found["target_passes_per_token"] <= 1  # fewer the slower the target is
    assert 0 < found["bytes_up_per_token"] < 12
    assert found["bytes_down_per_token"] > 0
    assert found["rtt_ms"] > 0
    assert found["ttft_s"] > 0
    assert found["decode_tokens_per_second"] > 0
    assert (found["finish_reason"], found["error"], found["degraded"]) == ("length", None, None)
    assert found["seed"] is None


def test_the_llama_target(invoke, llama_cloud, near: Path) -> None:
    common = ["run", PROMPT, "--cloud", llama_cloud.url, "--json", "-n", "24", "--raw"]
    plain = invoke(*common, "--draft", "off").json
    # It waits for guesses, however busy the machine is.
    drafted = invoke(*common, "-md", near, "--policy", "fixed", "--objective", "cost").json
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["accepted"] > 0


def test_a_reported_seed_repeats_the_answer(run) -> None:
    first, second = (run("-n", "12", "--temp", "1", "--draft", "off") for _ in range(2))
    assert first["seed"] != second["seed"]
    assert first["text"] != second["text"]
    again = run("-n", "12", "--temp", "1", "--seed", str(first["seed"]))
    assert again["token_ids"] == first["token_ids"]


def test_a_stop_text_ends_the_answer_before_it(run) -> None:
    whole = run("-n", "24", "--draft", "off")["text"]
    stop = whole[5:8]
    found = run("-n", "24", "--stop", "nowhere", "--stop", stop)
    assert found["text"] == whole[: whole.index(stop)]
    assert found["finish_reason"] == "stop"


def test_a_bias_is_honoured(run) -> None:
    first = run("-n", "1", "--draft", "off")["token_ids"][0]
    found = run("-n", "4", "--logit-bias", f"{first}=-100", "--logit-bias", "300+50")
    assert found["token_ids"] == [300] * 4


def test_only_the_text_goes_to_standard_output(process, cloud) -> None:
    args = ["--cloud", cloud.url, "-n", "12", "--draft", "off"]
    piped = process("run", *args, stdin=PROMPT.encode() + b"\n")
    dashed = process("run", "-", *args, "--verbose", stdin=PROMPT.encode())
    given = process("run", PROMPT, *args, OUTRIDER_MAX_TOKENS="3")
    assert piped.status == dashed.status == given.status == exits.DONE
    assert piped.out == dashed.out == given.out != ""
    assert piped.err == ""
    assert "12 tokens | " in dashed.err
    assert "plain cloud streaming" in dashed.err


def test_the_model_that_is_expected(invoke, cloud, models: Path) -> None:
    args = ["run", PROMPT, "--cloud", cloud.url, "--draft", "off", "-n", "1", "--model"]
    assert invoke(*args, "embedded-target").status == exits.DONE
    assert invoke(*args, "/models/embedded-target").status == exits.DONE
    result = invoke(*args, "gpt-none")
    assert (result.status, result.out) == (exits.UNREACHABLE, "")
    assert "'embedded-target'" in result.err
    assert "'gpt-none'" in result.err


def test_prompts_that_do_not_fit(invoke, cloud) -> None:
    common = ["--cloud", cloud.url, "--draft", "off"]
    result = invoke("run", "word " * 3000, *common)
    assert (result.status, result.out) == (exits.FAILED, "")
    assert "2047" in result.err or "2048" in result.err
    told = invoke("run", "word " * 3000, *common, "--json")
    assert told.status == exits.FAILED
    assert told.json["error"] in told.err
    assert (told.json["text"], told.json["tokens"]) == ("", 0)


def test_what_the_target_cannot_honour(invoke, cloud) -> None:
    result = invoke("run", "x", "--cloud", cloud.url, "--draft", "off", "--logit-bias", "99999=1")
    assert result.status == exits.FAILED
    assert "99999" in result.err


def test_a_template_is_used_when_there_is_a_message_for_it(run) -> None:
    plain = run("-n", "1", "--draft", "off")
    chat = run("-n", "1", "--draft", "off", "--system", "You are a scribe.")
    assert chat["prompt_tokens"] > plain["prompt_tokens"] + 3


# --- a drafter that is not what was hoped for -----------------------------------------------


def test_the_embedded_drafter_by_its_path_is_the_embedded_drafter(run, models: Path) -> None:
    """Naming what is the default anyway must not bring the chat template in."""
    plain, named = run("-n", "8"), run("-n", "8", "-md", str(models / "drafter"))
    assert named["prompt_ids"] == plain["prompt_ids"]
    assert named["token_ids"] == plain["token_ids"]


def test_a_drafter_that_dies_is_told_and_the_answer_goes_on(
    invoke, cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outrider.protocol.errors import BackendError
    from outrider.runtime.lm.drafter import Drafter

    def broken(*args: object, **more: object) -> None:
        raise BackendError("out of memory")

    common = ["run", PROMPT, "--cloud", cloud.url, "-n", "8"]
    plain = invoke(*common, "--draft", "off").out
    monkeypatch.setattr(Drafter, "draft", broken)
    result = invoke(*common)
    assert (result.status, result.out) == (exits.DONE, plain)
    assert result.err.count("drafting stopped, the cloud goes on alone: out of memory") == 1
    assert invoke(*common, "--json").json["degraded"] == "out of memory"


def test_onnx_instead_of_llama_is_said(invoke, cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "llama_cpp" else find(name)
    )
    common = ["run", PROMPT, "--cloud", cloud.url, "-n", "12", "--policy", "fixed"]
    common += ["--objective", "cost"]  # guesses are waited for
    said = "drafting with model.onnx (onnx: llama.cpp is not installed), "
    quiet = invoke(*common)
    assert (quiet.status, quiet.err) == (exits.DONE, "")  # not on every answer
    assert said in invoke(*common, "--verbose").err
    found = invoke(*common, "--json").json
    assert found["mode"].startswith(said)
    assert found["drafter"] == "model.onnx (onnx: llama.cpp is not installed)"


def test_why_nothing_was_drafted(run, invoke, cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    from outrider.edge_client.adaptive import Adaptive
    from outrider.edge_client.policy import Plan

    assert run("-n", "12", "--policy", "fixed", "--objective", "cost")["reason"] == "fixed"
    assert run("-n", "12", "--draft", "off")["reason"] is None
    early = run("-n", "1", "--policy", "fixed")
    if not early["drafted"]:
        assert early["mode"].startswith("did not draft: the answer ended before a guess")

    def never(self: Adaptive, _: object) -> Plan:
        self.reason = "the link is too slow"
        return Plan(0, 0)

    monkeypatch.setattr(Adaptive, "plan", never)
    found = run("-n", "4")
    assert (found["drafted"], found["reason"]) == (0, "the link is too slow")
    assert found["mode"] == "did not draft: the link is too slow"
    figures = invoke("run", PROMPT, "--cloud", cloud.url, "-n", "4", "--verbose").err
    assert "| did not draft: the link is too slow\n" in figures


def test_settings_are_checked_before_anything_is_loaded(
    invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from outrider.cli import drafters, edge

    def load(*_: object, **__: object) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr(drafters, "load_drafter", load)
    monkeypatch.setattr(edge, "load_tokenizer", load)
    for args, words in (
        (["--cloud", "http://x"], "ws://"),
        (["--cloud", "wss://x", "--tls-fingerprint", "abc"], "fingerprint"),
        (["--cloud", "wss://x", "--tls-ca", "/nonexistent"], "/nonexistent"),
        (["--tls-fingerprint", "0" * 64], "not encrypted"),
        (["--api-key-file", "/nonexistent"], "/nonexistent"),
        (["--api-key", "two words"], "key: expected"),
        (["--cloud", "ws://10.0.0.1:9", "--api-key", "k"], "would show the key"),
        (["--decision-log", str(tmp_path)], "--decision-log"),
    ):
        result = invoke("run", "x", *args)
        assert (result.status, words in result.err) == (exits.USAGE, True), result.err


# --- texts of several models ----------------------------------------------------------------


def test_a_model_beside_the_target_takes_part(invoke, start_cloud, models: Path) -> None:
    pytest.importorskip("llama_cpp")
    small = models / "drafter"
    found = start_cloud("--target-backend", "llama", "--collaborator", f"small={small}")

    def ask(how: str):
        return invoke("run", "x", "--cloud", found.url, "-n", "6", "--json", "--collaborate", how)

    result = ask("ensemble=0.3,small=0.3,target=0.4")
    assert result.status == 0, result
    assert [p["token"] for p in result.json["proposals"]] == result.json["token_ids"]
    assert sum(result.json["proposed_by"].values()) == result.json["tokens"]
    for how, words in (
        ("ensemble=0.3,large=0.3", "it hosts: 'small'. Start it with --collaborator large=PATH"),
        ("ensemble=0.3,small=0.3,target=0.5", "sum to 1.1, not to 1"),
        ("ensemble=0.3,0.3", "weights for 2 models at this edge, and there are 1"),
        ("contrastive=1.5", "contrastive mu weight of the edge's model is 1.5"),
    ):
        result = ask(how)
        assert result.status != 0
        assert words in " ".join(result.err.split()), result.err
        assert "Traceback" not in result.err


def test_a_second_model_here_of_another_vocabulary(invoke, cloud, altered_pack, models) -> None:
    def swap(content) -> None:
        vocabulary = content["model"]["vocab"]
        vocabulary["!"], vocabulary["&"] = vocabulary["&"], vocabulary["!"]

    two = ("-md", models / "drafter", "-md", altered_pack(swap))
    result = invoke("run", "x", "--cloud", cloud.url, *two, "--collaborate", "ensemble=0.3,0.2")
    assert (result.status, result.out) == (exits.FAILED, "")
    assert "id 4: '!' here, '&' there; id 9" in " ".join(result.err.split())


@pytest.mark.parametrize("given", ["keep=x", "x", "a b=x", "a="])
def test_names_that_no_model_can_have(given: str) -> None:
    with pytest.raises(SettingError, match="must be NAME=PATH"):
        targets._named_paths([given])
    with pytest.raises(SettingError, match="two models have one name"):
        targets._named_paths(["a=x", "a=y"])


def test_what_a_seed_does_not_promise(invoke, cloud) -> None:
    args = ("run", "x", "--cloud", cloud.url, "-n", "2", "--temp", "1", "--seed", "3")
    assert "a seed does not repeat the text" in " ".join(
        invoke(*args, "--rule", "ratio").err.split()
    )
    assert "seed does not" not in invoke(*args, "--rule", "coupled").err


# --- the tokenizers of both ends ------------------------------------------------------------


def test_different_tokenizers_are_refused_by_entry(invoke, cloud, altered_pack) -> None:
    def swap(content) -> None:
        vocabulary = content["model"]["vocab"]
        vocabulary["!"], vocabulary["&"] = vocabulary["&"], vocabulary["!"]

    pack = altered_pack(swap)
    result = invoke("run", PROMPT, "--cloud", cloud.url, "-md", pack)
    assert (result.status, result.out) == (exits.UNREACHABLE, "")
    assert "id 4: '&' here, '!' there" in result.err
    assert "id 9: '!' here, '&' there" in result.err


def test_a_special_token_that_differs_is_said_once(invoke, cloud, altered_pack) -> None:
    def rename(content) -> None:
        content["added_tokens"][2]["content"] = "<|person|>"
        vocabulary = content["model"]["vocab"]
        vocabulary["<|person|>"] = vocabulary.pop("<|user|>")

    pack = altered_pack(rename)
    common = ["run", PROMPT, "--cloud", cloud.url, "-n", "8"]
    result = invoke(*common, "-md", pack, "--raw")
    assert result.status == exits.DONE
    assert result.out == invoke(*common, "--draft", "off").out
    assert result.err.count("never drafted: 2") == 1


def test_padded_vocabularies_fit(invoke, start_cloud, models: Path, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    pytest.importorskip("torch")
    config = json.loads((models / "target" / "config.json").read_text())
    size = config["vocab_size"]
    weights = safetensors.load_file(models / "target" / "model.safetensors")
    for name, weight in weights.items():
        if weight.shape[0] == size:  # padding rows that would win if they were looked at
            weights[name] = np.concatenate([weight, 50 * weight[:64]])
    safetensors.save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": size + 64}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((models / "target" / name).read_bytes())
    padded = start_cloud("--model", tmp_path, "--alias", "padded")
    result = invoke("run", PROMPT, "--cloud", padded.url, "-n", "8", "--json", "-m", "padded")
    assert result.status == exits.DONE, result
    assert max(result.json["token_ids"]) < size
    padded.process.terminate()


# --- a process among others -----------------------------------------------------------------


def test_a_reader_that_leaves_ends_it_quietly(popen, cloud, read) -> None:
    process = popen("run", PROMPT, "--cloud", cloud.url, "--draft", "off", "-n", "1500",
                    "--ignore-eos")  # fmt: skip
    assert read(process, 40)
    process.stdout.close()
    assert process.wait(20) == exits.PIPE_CLOSED
    assert process.stderr.read() == b""


def test_ctrl_c_keeps_what_was_shown(popen, cloud, read) -> None:
    process = popen("run", PROMPT, "--cloud", cloud.url, "-n", "1500", "--ignore-eos")
    assert read(process, 40)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == exits.INTERRUPTED
    assert out
    assert err.strip() == b""


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs pseudo-terminals")
def test_a_terminal_gets_a_summary_and_no_colours_if_it_says_so(popen, cloud) -> None:
    master, slave = os.openpty()
    process = popen("run", PROMPT, "--cloud", cloud.url, "-n", "6", stdin=slave,
                    env={"NO_COLOR": "1"})  # fmt: skip
    out, err = process.communicate(timeout=30)
    os.close(master)
    os.close(slave)
    assert process.returncode == exits.DONE
    assert b"\x1b" not in out + err


def test_json_is_one_line_of_ascii(process, cloud) -> None:
    result = process("run", "é☃", "--cloud", cloud.url, "-n", "4", "--json", LC_ALL="C")
    assert result.status == exits.DONE
    assert result.out.isascii()
    assert json.loads(result.out)["prompt_tokens"] > 0
