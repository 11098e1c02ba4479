"""``outrider init``: with flags, at a terminal, and what it refuses before it writes anything."""

from __future__ import annotations

import os
import select
import stat
import sys
import termios
import time
import tomllib
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import terminal

from outrider.cli import exits, settings
from outrider.cli.init import _expectation
from outrider.protocol.errors import SettingError

KEY = "k3y-of-the-kitchen"


@pytest.fixture(scope="module")
def guarded(start_cloud, tmp_path_factory):
    """A cloud that wants a key."""
    pytest.importorskip("llama_cpp")
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text(KEY + "\n")
    keys.chmod(0o600)
    return start_cloud("--target-backend", "llama", "--api-key-file", str(keys))


@pytest.fixture
def no_models(monkeypatch, tmp_path):
    """Only what comes with Outrider is on this machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


def test_address_and_key_become_one_line(invoke, guarded, no_models, tmp_path) -> None:
    file = tmp_path / "new" / "config.toml"
    args = ("init", "--cloud", guarded.url, "--api-key", KEY, "--config", file)
    result = invoke(*args, "--json")
    assert result.status == exits.DONE, result.err
    found = result.json
    assert found["settings"] == str(file)
    assert Path(found["draft_model"]).name == "drafter"
    assert found["mode"]["objective"] == "balanced"
    assert found["mode"]["why"]
    assert found["measured"]["link"]["rtt_min_ms"] > 0
    assert tomllib.loads(file.read_text()) == {"cloud": f"{guarded.url},key={KEY}"}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    # It is what the other commands read.
    told = invoke("run", "--config", file, "-n", "4", "In the beginning")
    assert told.status == exits.DONE, told.err
    # A second one does not write over it without being told to, and keeps what was there.
    before = file.read_text()
    again = invoke("init", "--cloud", guarded.url, "--api-key", KEY, "--config", file)
    assert again.status == exits.USAGE
    assert "is there already" in again.err
    assert file.read_text() == before
    file.write_text(before + "threads = 2\n")
    over = invoke(*args, "--yes")
    assert over.status == exits.DONE, over.err
    assert file.read_text() == before
    assert "threads = 2" in file.with_name("config.toml.old").read_text()
    for words in ("drafter: ", "round trip", "Expect: ", f"Written: {file}"):
        assert words in over.out
    assert KEY not in over.out + over.err


def test_what_to_expect_says_the_mode_once() -> None:
    streaming = {"mode": "streaming", "frame": 1, "predicted_tps": 20.4, "cloud_tps": 9.6}
    why = {"why": "streaming, 1 a frame, 32 ahead"}
    said = "streaming, 1 a frame, 32 ahead, about 20 tokens a second (the cloud alone: 10)"
    assert _expectation(streaming | why) == said
    alone = {"mode": "cloud", "frame": 0, "predicted_tps": 9.6, "cloud_tps": 9.6}
    why = {"why": "drafting does not pay"}
    assert _expectation(alone | why) == (
        "cloud alone, about 10 tokens a second: drafting does not pay"
    )


def test_nothing_is_written_where_nothing_fits(
    invoke, guarded, no_models, altered_pack, tmp_path
) -> None:
    def swap(content) -> None:
        vocabulary = content["model"]["vocab"]
        vocabulary["!"], vocabulary["&"] = vocabulary["&"], vocabulary["!"]

    file = tmp_path / "config.toml"
    args = ("init", "--cloud", guarded.url, "--config", file, "--yes")
    pack = altered_pack(swap)
    stranger = invoke(*args, "--api-key", KEY, "--draft-model", pack)
    assert stranger.status == exits.UNREACHABLE
    assert "different tokenizers" in stranger.err
    refused = invoke(*args, "--api-key", "wrong")
    assert refused.status == exits.UNREACHABLE
    assert "key" in refused.err
    nobody = invoke("init", "--cloud", "127.0.0.1:9", "--config", file, "--yes")
    assert nobody.status == exits.UNREACHABLE
    silent = invoke("init", "--config", file)
    assert silent.status == exits.USAGE
    assert "give --cloud" in silent.err
    assert not file.exists()


def test_which_models_fit(guarded, no_models, altered_pack, models, monkeypatch) -> None:
    from outrider.cli.init import _choose
    from outrider.runtime.doctor import fitting
    from outrider.runtime.lm import memory

    def swap(content) -> None:
        vocabulary = content["model"]["vocab"]
        vocabulary["!"], vocabulary["&"] = vocabulary["&"], vocabulary["!"]

    own, large = models / "drafter", models / "target"
    here = [large, altered_pack(swap), own]
    found = fitting.find_fitting(guarded.url, here, key=KEY)
    assert found.unreachable is None
    assert found.target == "embedded-target"
    assert _choose(found) == own
    assert list(found.refused.values()) == ["another tokenizer than the target's"]
    monkeypatch.setattr(memory, "available", lambda: 1 << 20)
    small = fitting.find_fitting(guarded.url, [own], key=KEY)
    assert small.fit == ()
    assert "1 MiB are available" in next(iter(small.refused.values()))
    with pytest.raises(exits.NotConnectedError, match=r"outrider pull .* and run outrider init"):
        _choose(small)


def test_the_target_is_not_its_own_drafter(models) -> None:
    from outrider.runtime.doctor.fitting import _too_much
    from outrider.runtime.doctor.pairs import look

    (file,) = (models / "target").glob("*.gguf")
    found = look(file)
    assert _too_much(found, file.stem) == _too_much(found, file.name) == "it is the target itself"
    assert _too_much(found, "another") is None


def test_what_is_written_is_read_back(tmp_path) -> None:
    file = tmp_path / "config.toml"
    values = {"cloud": 'ws://x:1,key="\\', "draft-model": "/tmp/größer 🙂/\t"}
    settings.write_file(file, values)
    assert tomllib.loads(file.read_text("utf-8")) == values
    with pytest.raises(SettingError, match="cannot write"):
        settings.write_file(file / "below", values)


def test_at_a_terminal(guarded, home, tmp_path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("threads = 1\n")
    env = {k: v for k, v in os.environ.items() if not k.startswith("OUTRIDER_")}
    env |= {"XDG_CONFIG_HOME": str(home), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    env |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HF_HUB_CACHE": str(tmp_path / "hub")}
    args = ["-m", "outrider.cli.main", "init", "--config", str(file)]
    process, near = terminal.start(args, env)
    seen = ""
    for question, answer in (
        ("Write a new one?", "y"),
        ("Cloud (address", guarded.url),
        ("Its key", KEY),
        ("Next: ", None),
    ):
        seen += _until(near, question)
        while question == "Its key" and termios.tcgetattr(near)[3] & termios.ECHO:
            time.sleep(0.02)  # what is typed before would be shown, and thrown away
        if answer:
            os.write(near, f"{answer}\n".encode())
    assert process.wait(20) == exits.DONE
    assert KEY not in seen
    assert tomllib.loads(file.read_text()) == {"cloud": f"{guarded.url},key={KEY}"}
    assert file.with_name("config.toml.old").read_text() == "threads = 1\n"


def _until(near: int, words: str, seconds: float = 60) -> str:
    seen, end = "", time.monotonic() + seconds
    while words not in seen:
        assert time.monotonic() < end, seen
        if select.select([near], [], [], 0.2)[0]:
            try:
                seen += os.read(near, 4096).decode("utf-8", "replace")
            except OSError:  # the other end is gone
                raise AssertionError(seen) from None
    return seen
