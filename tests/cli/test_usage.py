"""What can be said without a cloud: help, versions, and everything that is refused at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.cli import exits
from outrider.runtime.net.address import is_loopback

HEAVY = {
    "torch", "transformers", "onnxruntime", "llama_cpp", "tokenizers", "numpy", "websockets",
    "asyncio", "cryptography", "jinja2",
}  # fmt: skip


MODULES = 600
"""Most that a start without work imports: how long that takes depends on the machine."""


@pytest.mark.parametrize("args", [["--help"], ["run", "--help"], ["version"], ["--version"]])
def test_starts_light(args: list[str]) -> None:
    code = (
        "import sys\nfrom outrider.cli.main import main\n"
        f"try: main({args!r})\nexcept SystemExit as e: assert not e.code\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = done.stderr.split()
    assert not HEAVY & set(found)
    assert len(found) < MODULES


def test_help_has_an_example_and_the_statuses(invoke) -> None:
    for args in (["run"], ["demo"], ["cloud", "serve"], ["version"]):
        result = invoke(*args, "--help")
        assert result.status == exits.DONE
        assert "Example: outrider" in result.out
    assert "Exit status: 0 done" in " ".join(invoke("--help").out.split())


def test_the_page_names_every_status() -> None:
    page = Path(__file__).parents[2] / "docs" / "exits.md"
    rows = [line for line in page.read_text("utf-8").splitlines() if line.startswith("| ")]
    said = {int(cell) for row in rows if (cell := row.split("|")[1].strip()).isdecimal()}
    ours = {value for name, value in vars(exits).items() if name.isupper() and name != "EPILOG"}
    assert ours <= said
    assert said - ours == {128 + signal.SIGTERM}


def test_no_command_is_a_mistake(invoke) -> None:
    result = invoke()
    assert result.status == exits.USAGE
    assert "Usage: outrider" in result.out


def test_version(invoke) -> None:
    found = invoke("version", "--json").json
    assert found["wire"] >= 1
    assert found["libraries"]["numpy"]
    assert set(found) == {"outrider", "wire", "python", "libraries"}
    assert f"outrider {found['outrider']}\n" == invoke("--version").out
    assert "onnxruntime" in invoke("version").out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["run", "x", "--colour"], ["--colour"]),
        (["run", "x", "y"], ["y"]),
        (["rum"], ["rum"]),
        (["run", "x", "--temp", "hot"], ["--temp"]),
        (["run", "x", "--temp", "-1"], ["--temp"]),
        (["run", "x", "--top-p", "2"], ["top_p is 2.0"]),
        (["run", "x", "--draft-max", "65"], ["--draft-max"]),
        (["run", "x", "--draft", "maybe"], ["--draft"]),
        (["run", "x", "--seed", "-4"], ["seed"]),
        (["run", "x", "--max-tokens", "0"], ["--max-tokens"]),
        (["run", "x", "--logit-bias", "much"], ["--logit-bias 'much'", "ID=BIAS"]),
        (["run", "x", "--stop", ""], ["--stop is empty"]),
        (["run", "x", "--raw", "--system", "s"], ["--raw and --system contradict"]),
        (["run", "x", "--draft", "off", "--draft-max", "3"], ["--draft off and --draft-max"]),
        (["run", "x", "--api-key", "a", "--api-key-file", "f"], ["--api-key and --api-key-file"]),
        (["run", "x", "--tls-ca", "f", "--tls-fingerprint", "aa"], ["--tls-fingerprint and"]),
        (["run", "x", "--cloud", "http://127.0.0.1"], ["http://", "ws://"]),
        (["run", "x", "--cloud", "wss://127.0.0.1:9", "--tls-fingerprint", "a"], ["64 hex"]),
        (["run", "x", "--tls-fingerprint", "a" * 64], ["not encrypted", "wss://"]),
        (["run", "x", "--api-key-file", "/nonexistent"], ["/nonexistent", "No such file"]),
        (["run", ""], ["the prompt is empty"]),
        (["demo", "--prompt", "x", "--domain", "docs"], ["--prompt and --domain"]),
        (["demo", "--prompt", ""], ["the prompt is empty"]),
        (["demo", "--domain", "poems"], ["'poems'", "scripture"]),
        (["cloud", "serve", "--port", "65536"], ["--port"]),
        (["cloud", "serve", "--host", "0.0.0.0"], ["key file", "certificate"]),
        (["cloud", "serve", "--ssl-certfile", "c"], ["--ssl-keyfile"]),
        (["cloud", "serve", "--api-key-file", "/nonexistent"], ["/nonexistent"]),
        (["cloud", "serve", "--port", "0", "--dtype", "int3"], ["int3"]),
    ],
)  # fmt: skip
def test_refused_in_plain_words(invoke, args: list[str], words: list[str]) -> None:
    result = invoke(*args)
    assert result.status == exits.USAGE or ("int3" in words and result.status == exits.FAILED), (
        result
    )
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert "Traceback" not in result.err
    assert len(result.err.splitlines()) <= 3
    for word in words:
        assert word in result.err, result.err


def test_loopback_is_the_default() -> None:
    from outrider.cli.serve import serve

    assert is_loopback(serve.__kwdefaults__["host"])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"abc\xff", "not valid UTF-8 at byte 3 (0xff)"),
        ("né".encode()[:2], "at byte 1"),
        (b"", "the prompt is empty"),
        (b"\n", "the prompt is empty"),
    ],
)
def test_bad_standard_input(process, data: bytes, words: str) -> None:
    result = process("run", stdin=data)
    assert (result.status, result.out) == (exits.USAGE, "")
    assert words in result.err


def test_an_argument_that_is_not_utf8(home: Path, process) -> None:
    result = process("run", os.fsdecode(b"\xc3\xa9abc\xff"))
    assert result.status == exits.USAGE
    assert "not valid UTF-8 at byte 5" in result.err


def test_verbose_brings_the_traceback(process) -> None:
    quiet = process("run", "x", "--draft-model", "/nonexistent")
    loud = process("run", "x", "--draft-model", "/nonexistent", "--verbose")
    assert (quiet.status, loud.status) == (exits.FAILED, exits.FAILED)
    assert "Traceback" not in quiet.err
    assert "Traceback" in loud.err


def test_an_unforeseen_error_is_one_line(invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    from outrider.cli import prompt

    def broken(_given: str) -> str:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(prompt, "read_prompt", broken)
    result = invoke("run", "x")
    assert result.status == exits.FAILED
    assert result.err == "error: ZeroDivisionError: oh\nthis is a bug; --verbose shows where\n"


@pytest.mark.parametrize("args", [["version"], ["version", "--json"], ["run", "--help"]])
def test_a_full_disk_is_nobodys_bug(args: list[str]) -> None:
    shell = ["sh", "-c", 'exec "$@" > /dev/full', "sh", sys.executable, "-m", "outrider.cli.main"]
    done = subprocess.run([*shell, *args], capture_output=True, text=True, check=False)
    assert done.returncode == exits.FAILED
    assert done.stderr == "error: cannot write the output: No space left on device\n"


def test_benchmarks_that_lack_a_library_name_the_extra(
    invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "outrider.benchmarks.app", None)
    result = invoke("bench", "quick")
    assert result.status == exits.FAILED
    assert result.err.startswith("error: ")


def test_the_quick_table_fits_a_narrow_terminal() -> None:
    import io

    from rich.console import Console

    from outrider.benchmarks.app import quick_table

    row = {"domain": "scripture", "temperature": 1.0, "cloud_streaming_tokens_per_second": 1000.0,
           "tokens_per_second": 1000.0, "speedup": 1.25, "acceptance_rate": 0.5,
           "target_passes_per_token": 0.5, "bytes_up_per_token": 10.0,
           "bytes_down_per_token": 10.0}  # fmt: skip
    screen = Console(file=io.StringIO(), width=80)
    screen.print(quick_table({"paced_ms": 25.0, "rows": [row]}))
    assert isinstance(screen.file, io.StringIO)
    assert "…" not in screen.file.getvalue()
    assert "B down" in screen.file.getvalue()


def test_what_the_help_says(invoke) -> None:
    assert "completion" not in invoke("bench", "--help").out

    def said(*args: str) -> str:
        return " ".join(invoke(*args, "--help").out.replace("│", " ").split())

    assert "[default: cost]" in said("demo")
    assert "default: balanced" not in said("demo")
    assert "(default: balanced)" in said("run")
    assert "model that was pulled" in said("run")
    assert "figures follow on standard error" in said("run")


# --- model files ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.onnx", "drafter-q8_0.gguf"])
@pytest.mark.parametrize("keep", [0, 64, 0.5])
def test_a_drafter_file_that_is_cut_off(
    invoke, models: Path, tmp_path: Path, name: str, keep: float
) -> None:
    data = (models / "drafter" / name).read_bytes()
    for file in (models / "drafter").glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    size = int(len(data) * keep) if isinstance(keep, float) else keep
    (tmp_path / name).write_bytes(data[:size])
    result = invoke("run", "x", "--draft-model", tmp_path)
    assert (result.status, result.out) == (exits.FAILED, "")
    assert name in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["run", "x", "-md", "{tmp}/none"], "no such file or folder"),
        (["run", "x", "-md", "{tmp}/empty"], "neither model.onnx nor a .gguf"),
        (["run", "x", "-md", "{tmp}/empty", "--draft", "off"], "tokenizer.json"),
        (["run", "x", "-md", "{tmp}/notes.txt"], "notes.txt"),
        (["cloud", "serve", "--port", "0", "-m", "{tmp}/none"], "does not exist"),
        (["cloud", "serve", "--port", "0", "-m", "{tmp}/none.gguf"], "none.gguf"),
        (["cloud", "serve", "--port", "0", "-m", "{tmp}/bad.gguf"], "bad.gguf"),
        (["cloud", "serve", "--port", "0", "-m", "{tmp}"], "config.json"),
        (["cloud", "serve", "--port", "0", "-m", "{tmp}/strange"], "strange"),
        (["cloud", "serve", "--port", "0", "-m", "{tmp}/cut"], "cut"),
    ],
)
def test_model_files_that_are_missing_or_wrong(
    invoke, models: Path, tmp_path: Path, args: list[str], words: str
) -> None:
    (tmp_path / "notes.txt").write_text("not a model")
    (tmp_path / "bad.gguf").write_bytes((models / "target" / "target-f16.gguf").read_bytes()[:5000])
    (tmp_path / "empty").mkdir()
    for name in ("strange", "cut"):
        (tmp_path / name).mkdir()
        for file in (models / "target").glob("*.json"):
            (tmp_path / name / file.name).write_bytes(file.read_bytes())
    config = json.loads((models / "target" / "config.json").read_text())
    config |= {"model_type": "quincunx", "architectures": ["QuincunxForCausalLM"]}
    (tmp_path / "strange" / "config.json").write_text(json.dumps(config))
    weights = (models / "target" / "model.safetensors").read_bytes()
    (tmp_path / "cut" / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    result = invoke(*(arg.replace("{tmp}", str(tmp_path)) for arg in args))
    assert result.status in (exits.FAILED, exits.USAGE)
    assert result.out == ""
    assert words in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("outrider ser", "serve"),
        ("outrider serve --clo", "--cloud"),
        ("outrider bench rea", "real"),
    ],
)
def test_shell_completion(process, typed: str, offered: str) -> None:
    env = {"_OUTRIDER_COMPLETE": "complete_bash", "COMP_WORDS": typed}
    found = process(**env, COMP_CWORD=str(typed.count(" ")))
    assert found.status == exits.DONE
    assert offered in found.out.splitlines()
