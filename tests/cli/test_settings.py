"""Flag beats environment beats file beats default; what nobody knows is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from outrider.cli import exits, settings
from outrider.cli.edge import EdgeOptions, read_key
from outrider.cli.main import app
from outrider.protocol.errors import SettingError


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """``seen(*args)``: the settings that ``outrider run`` would work with."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    command = typer.main.get_command(app)

    def parse(*args: str, path: tuple[str, ...] = ("run",)):
        context, found = command.make_context("outrider", list(path)), command
        for name in path:
            found = found.commands[name]
            context = found.make_context(
                name, list(args) if name == path[-1] else [name], parent=context
            )
        return context.params

    return parse


def commands():
    return dict(settings._commands(typer.main.get_command(app)))


# An endpoint has two keys. Its --api-key is what apps must show, as with other servers; the name
# api-key in a file or the environment stays the cloud's, as for every other command.
OTHER_FLAGS = {
    ("serve", "api_key"): "--cloud-api-key",
    ("serve", "api_key_file"): "--cloud-api-key-file",
    ("serve", "endpoint_key"): "--api-key",
    ("serve", "endpoint_key_file"): "--api-key-file",
}


def test_a_parameter_is_called_like_its_flag() -> None:
    for where, command in commands().items():
        for param in command.params:
            if param.param_type_name == "option":
                flag = OTHER_FLAGS.get((*where, param.name), "--" + param.name.replace("_", "-"))
                assert flag in param.opts, where


def test_the_order(seen, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    assert seen()["temp"] == 0.0
    file.write_text("temp = 0.1")
    monkeypatch.setenv("OUTRIDER_CONFIG", str(file))
    assert seen()["temp"] == 0.1
    file.write_text("temp = 0.1\n[run]\ntemp = 0.2")
    assert seen()["temp"] == 0.2
    monkeypatch.setenv("OUTRIDER_TEMP", "0.3")
    assert seen()["temp"] == 0.3
    assert seen("--temp", "0.4")["temp"] == 0.4


def test_the_file_of_the_user(seen, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "outrider" / "config.toml"
    file.parent.mkdir()
    file.write_text('cloud = "ws://127.0.0.1:1"\nstop = ["a b", "c"]\n[demo]\nmax-tokens = 3')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert seen()["cloud"] == "ws://127.0.0.1:1"
    assert seen()["stop"] == ["a b", "c"]
    assert seen()["max_tokens"] == 256
    other = tmp_path / "other.toml"
    other.write_text("seed = 5")
    found = seen("--config", str(other))
    assert (found["seed"], found["cloud"]) == (5, "ws://127.0.0.1:8471")


def test_every_kind_of_value(seen, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(
        'draft = "off"\nraw = true\ndraft_max = 3\ndraft-model = "here"\nlogit-bias = "5=1"\n'
        "[cloud.serve]\nport = 9"
    )
    found = seen("--config", str(file))
    assert found["draft"].value == "off"
    assert found["raw"] is True
    assert found["draft_max"] == 3
    assert found["draft_model"] == ["here"]
    assert found["logit_bias"] == ["5=1"]
    assert seen("--config", str(file), path=("cloud", "serve"))["port"] == 9
    monkeypatch.setenv("OUTRIDER_STOP", "one two\nthree")
    monkeypatch.setenv("OUTRIDER_RAW", "false")
    found = seen("--config", str(file))
    assert (found["stop"], found["raw"]) == (["one two", "three"], False)
    assert seen("--stop", "x")["stop"] == ["x"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tempp = 1", ["no command has a flag", "'tempp'"]),
        ("[run]\nport = 1", ["outrider run has no flag", "'port'"]),
        ("[runn]\ntemp = 1", ["no command named 'runn'"]),
        ("[cloud.sserve]\nport = 1", ["no command outrider cloud sserve"]),
        ("[cloud]\nport = 1", ["no command outrider cloud port"]),
        ("temp = [1]", ["temp takes one value"]),
        ("raw = 'yes'", ["raw takes true or false"]),
        ("temp = true", ["temp takes a value"]),
        ("temp = ", ["settings.toml"]),
        ("config = 'x'", ["no command has a flag", "'config'"]),
    ],
)
def test_a_file_with_a_mistake(seen, tmp_path: Path, text: str, words: list[str]) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    with pytest.raises(SettingError) as raised:
        seen("--config", str(file))
    for word in [*words, str(file)]:
        assert word in str(raised.value)


def test_a_file_that_cannot_be_read(seen, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="No such file"):
        seen("--config", str(tmp_path / "missing.toml"))
    file = tmp_path / "binary.toml"
    file.write_bytes(b"temp = 1 # \xff")
    with pytest.raises(SettingError, match="not UTF-8 at byte 11"):
        seen("--config", str(file))


def test_names_from_other_programs(seen) -> None:
    assert seen("--spec-draft-n-max", "5")["draft_max"] == 5
    assert seen("--draft-n=5")["draft_max"] == 5
    assert seen("-md", "x")["draft_model"] == ["x"]
    assert seen("--model-draft", "x")["draft_model"] == ["x"]
    assert seen("--predict", "5")["max_tokens"] == 5
    serve = ("cloud", "serve")
    assert seen("-np", "3", path=serve)["max_sessions"] == 3
    assert seen("--max-model-len", "64", path=serve)["ctx_size"] == 64
    assert seen("--ssl-cert-file", "c", path=serve)["ssl_certfile"] == Path("c")
    assert seen("--served-model-name", "n", path=serve)["alias"] == "n"
    assert seen("--", "--draft-n")["prompt"] == "--draft-n"


@pytest.mark.parametrize("flag", sorted(settings.HINTS))
def test_flags_without_a_counterpart_say_what_to_do(seen, flag: str) -> None:
    with pytest.raises(SettingError, match="is not a flag here"):
        seen(flag, "1")


@pytest.mark.parametrize(
    ("near", "far"),
    [
        ("api-key", "api-key-file"),
        ("api-key-file", "api-key"),
        ("tls-ca", "tls-fingerprint"),
        ("system", "raw"),
        ("raw", "system"),
    ],
)
def test_of_two_that_exclude_each_other_the_nearer_counts(
    seen, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, near: str, far: str
) -> None:
    def value(name: str) -> str:
        return "true" if name == "raw" else '"x"'

    file = tmp_path / "settings.toml"
    file.write_text(f"{far} = {value(far)}")
    one, other = near.replace("-", "_"), far.replace("-", "_")
    flag = [f"--{near}"] if near == "raw" else [f"--{near}", "y"]
    found = seen("--config", str(file), *flag)
    assert str(found[one]) == ("True" if near == "raw" else "y")
    assert not found[other]
    monkeypatch.setenv(f"OUTRIDER_{one.upper()}", "true" if near == "raw" else "z")
    assert not seen("--config", str(file))[other]
    file.write_text(f"{far} = {value(far)}\n{near} = {value(near)}")
    assert seen("--config", str(file), *flag)[one]
    monkeypatch.delenv(f"OUTRIDER_{one.upper()}")
    with pytest.raises(SettingError, match="contradict each other") as raised:
        seen("--config", str(file))
    assert f"'{near}' in {file}" in str(raised.value)
    assert f"'{far}' in {file}" in str(raised.value)


def test_from_the_environment_both(seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_API_KEY", "a")
    monkeypatch.setenv("OUTRIDER_API_KEY_FILE", "b")
    with pytest.raises(SettingError, match="OUTRIDER_API_KEY, and OUTRIDER_API_KEY_FILE"):
        seen()
    assert seen("--api-key", "c")["api_key_file"] is None


@pytest.mark.parametrize("given", ["k-1", "name:k-1", "name: k-1"])
def test_a_key_may_have_its_name_before_it(tmp_path: Path, given: str) -> None:
    file = tmp_path / "keys.txt"
    file.write_text(f"# comment\n{given}\n")
    assert read_key(EdgeOptions(cloud="", api_key=given)) == "k-1"
    assert read_key(EdgeOptions(cloud="", api_key_file=file)) == "k-1"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temp", "hot"),
        ("temp", "-1"),
        ("temp", "1000"),
        ("draft-max", "99"),
        ("policy", "none"),
        ("top-p", "7"),
        ("repeat-penalty", "0"),
        ("logit-bias", "much"),
        ("cloud", "http://x"),
        ("api-key-file", "/nonexistent"),
    ],
)
def test_a_bad_value_is_blamed_on_its_source(
    invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str
) -> None:
    flag = ["run", "x", "--draft", "off"]
    file = tmp_path / "settings.toml"
    file.write_text(f'{name} = "{value}"')
    result = invoke(*flag, "--config", file)
    assert (result.status, f"'{name}' in {file}" in result.err) == (exits.USAGE, True), result.err
    variable = f"OUTRIDER_{name.upper().replace('-', '_')}"
    monkeypatch.setenv(variable, value)
    result = invoke(*flag)
    assert (result.status, variable in result.err) == (exits.USAGE, True), result.err
    assert "Value error" not in result.err


def test_a_secret_is_never_echoed(invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secret = "squeamish-ossifrage"
    file = tmp_path / "settings.toml"
    file.write_text(f'api-key = ["{secret}"]')
    monkeypatch.setenv("OUTRIDER_API_KEY", secret)
    for args in (
        ["run", "--config", str(file), "x"],
        ["run", "--help"],
        ["run", "x", "--cloud", "ws://127.0.0.1:9", "--draft", "off", "--verbose"],
        ["run", "x", "--cloud", "ws://10.0.0.1:9", "--draft", "off", "--verbose"],
        ["run", "x", "--api-key", secret, "--api-key-file", str(file)],
        ["run", "x", "--api-key-file", str(file), "--cloud", "x", "--draft", "off"],
    ):
        result = invoke(*args)
        assert secret not in result.out + result.err, args
