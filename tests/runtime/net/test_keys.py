from __future__ import annotations

from pathlib import Path

import pytest

from outrider.protocol.errors import SettingError
from outrider.runtime.net.keys import KeyFile, check_key, read_key_file

LONG = "a-key-that-nobody-guesses"


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    file = path / "keys"
    file.write_text(text)
    file.chmod(mode)
    return file


def test_names_comments_and_bare_keys(tmp_path: Path) -> None:
    keys = KeyFile.load(write(tmp_path, f"# ours\n\n kitchen-pi:{LONG}1 \n{LONG}2\n"))
    assert len(keys) == 2
    assert keys.bearer(f"Bearer {LONG}1") == "kitchen-pi"
    assert keys.bearer(f"bearer  {LONG}2 ") == "line-4"


def test_two_keys_of_one_name_while_one_replaces_the_other(tmp_path: Path) -> None:
    keys = KeyFile.load(write(tmp_path, f"pi:{LONG}1\npi:{LONG}2\n"))
    assert keys.bearer(f"Bearer {LONG}1") == keys.bearer(f"Bearer {LONG}2") == "pi"


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "Bearer wrong", f"Basic {LONG}", LONG, "Bearer \udcff"],
)
def test_what_opens_nothing(tmp_path: Path, header: str | None) -> None:
    assert KeyFile.load(write(tmp_path, LONG)).bearer(header) is None


def test_the_keys_are_not_kept(tmp_path: Path) -> None:
    keys = KeyFile.load(write(tmp_path, f"pi:{LONG}"))
    assert LONG not in repr(keys)
    assert LONG not in repr(vars(keys))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no key in it"),
        ("# nothing but a comment\n", "no key in it"),
        (f"two words:{LONG}", "line 1: a name"),
        ("name:", "line 1: a key"),
        ("pi:with a space", "line 1: a key"),
    ],
)
def test_what_a_file_may_not_hold(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        KeyFile.load(write(tmp_path, text))


def test_a_missing_and_a_binary_file(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="No such file"):
        KeyFile.load(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingError, match="not a text file"):
        KeyFile.load(tmp_path / "binary")


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_file_that_others_can_read_is_warned_about(
    tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    KeyFile.load(write(tmp_path, LONG, mode))
    assert "chmod 600" in caplog.text


def test_a_short_key_is_warned_about_without_being_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    KeyFile.load(write(tmp_path, "pi:hunter2"))
    assert "short" in caplog.text
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("key", ["", "a b", "line\r\nHost: evil", "schlüssel", "x" * 513])
def test_a_key_that_cannot_stand_in_a_header(key: str) -> None:
    with pytest.raises(SettingError, match="key"):
        check_key(key)


def test_the_key_of_an_edge(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys"
    file.write_text("# mine\n\nme: the-first-key-of-all \nanother-key-beside-it\n")
    file.chmod(0o600)
    assert read_key_file(file) == "the-first-key-of-all"
    assert not caplog.text
    file.chmod(0o644)
    assert read_key_file(str(file)) == "the-first-key-of-all"
    assert "can be read by other users" in caplog.text
    file.write_text("# nothing\n")
    with pytest.raises(SettingError, match="there is no key in it"):
        read_key_file(file)
    with pytest.raises(SettingError, match="No such file"):
        read_key_file(tmp_path / "absent")
