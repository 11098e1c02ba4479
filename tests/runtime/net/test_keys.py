from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from outrider.protocol.errors import SettingError
from outrider.protocol.quota import NO_QUOTA, Quota
from outrider.runtime.net.keys import (
    KeyFile,
    append_line,
    check_key,
    hashed_line,
    read_key_file,
    remove_name,
)

LONG = "a-key-that-nobody-guesses"


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    file = path / "keys"
    file.write_text(text)
    file.chmod(mode)
    return file


def name_of(keys: KeyFile, header: str) -> str | None:
    found = keys.bearer(header)
    return found.name if found else None


def test_names_comments_and_bare_keys(tmp_path: Path) -> None:
    keys = KeyFile.load(write(tmp_path, f"# ours\n\n kitchen-pi:{LONG}1 \n{LONG}2\n"))
    assert len(keys) == 2
    assert name_of(keys, f"Bearer {LONG}1") == "kitchen-pi"
    assert name_of(keys, f"bearer  {LONG}2 ") == "line-4"


def test_two_keys_of_one_name_while_one_replaces_the_other(tmp_path: Path) -> None:
    keys = KeyFile.load(write(tmp_path, f"pi:{LONG}1\npi:{LONG}2\n"))
    assert name_of(keys, f"Bearer {LONG}1") == name_of(keys, f"Bearer {LONG}2") == "pi"


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
        (f"two words:{LONG}", "line 1: a key"),
        (f"two/words:{LONG}", "line 1: a name"),
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


def test_a_hash_stands_for_its_key(tmp_path: Path) -> None:
    digest = hashlib.sha256(LONG.encode()).hexdigest()
    file = write(tmp_path, f"pi:sha256:{digest}\nsha256:{'0' * 64}\n")
    keys = KeyFile.load(file)
    assert name_of(keys, f"Bearer {LONG}") == "pi"
    assert name_of(keys, f"Bearer sha256:{digest}") is None  # who steals the file gets nowhere
    assert name_of(keys, f"Bearer {digest}") is None
    assert [key.name for key in keys.keys] == ["pi", "line-2"]
    with pytest.raises(SettingError, match="hash of a key"):
        read_key_file(file)


def test_quotas_and_ends(tmp_path: Path) -> None:
    line = (
        f"pi:{LONG} sessions=2 draft=4 objective=cost tokens-per-minute=600 expires=2030-01-31\n"
        f"{LONG}2 expires=2030-01-31T12:30:00Z\n"
    )
    first, second = KeyFile.load(write(tmp_path, line)).keys
    assert first.quota == Quota(sessions=2, draft=4, objective="cost", tokens_per_minute=600)
    assert not first.expired(datetime(2030, 1, 31, 23, 59, tzinfo=UTC))
    assert first.expired(datetime(2030, 2, 1, tzinfo=UTC))
    assert second.name == "line-2"
    assert second.quota == NO_QUOTA
    assert not second.expired(datetime(2030, 1, 31, 12, 29, tzinfo=UTC))
    assert second.expired(datetime(2030, 1, 31, 12, 30, tzinfo=UTC))


@pytest.mark.parametrize(
    "item",
    ["sessions=0", "sessions=x", "draft=-1", "objective=speed", "tokens-per-minute=1e3",
     "expires=soon", "expires=2030-13-01", "colour=red", "a-second-word"],
)  # fmt: skip
def test_what_may_not_follow_a_key(tmp_path: Path, item: str) -> None:
    with pytest.raises(SettingError, match="line 1: ") as caught:
        KeyFile.load(write(tmp_path, f"pi:{LONG} {item}"))
    assert LONG not in str(caught.value)
    assert "a-second-word" not in str(caught.value)  # it may be half of a key


def test_keys_of_one_name_share_one_quota(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="line 2: 'pi' stands above with another quota"):
        KeyFile.load(write(tmp_path, f"pi:{LONG}1 sessions=1\npi:{LONG}2 sessions=2\n"))


def test_a_line_is_added_and_a_name_taken_out(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    append_line(file, hashed_line("pi", LONG, {"sessions": 2, "draft": None}))
    assert file.stat().st_mode & 0o777 == 0o600
    assert LONG not in file.read_text()
    file.write_text(f"# who has one\n{file.read_text().strip()}")  # no line end at the end
    append_line(file, hashed_line("hut", f"{LONG}2", {}))
    append_line(file, hashed_line("pi", f"{LONG}3", {"sessions": 2}))
    keys = KeyFile.load(file)
    assert name_of(keys, f"Bearer {LONG}") == name_of(keys, f"Bearer {LONG}3") == "pi"
    pi, hut, _ = keys.keys
    assert remove_name(file, "nobody") == 0
    assert remove_name(file, "pi") == 2
    assert file.read_text().startswith("# who has one\nhut:sha256:")
    assert file.stat().st_mode & 0o777 == 0o600
    left = KeyFile.load(file)
    assert left.accepts(hut)
    assert not left.accepts(pi)
    assert remove_name(file, "hut") == 1
    assert len(KeyFile.load(file, empty=True)) == 0
    with pytest.raises(SettingError, match="a name is"):
        hashed_line("two words", LONG, {})
