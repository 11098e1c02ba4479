from __future__ import annotations

import pytest

from outrider.protocol.errors import SettingError
from outrider.runtime.net.address import is_loopback, parse


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("localhost:8765", "ws://localhost:8765/v1/stream"),
        ("127.0.0.1:8765", "ws://127.0.0.1:8765/v1/stream"),
        ("[::1]:8765", "ws://[::1]:8765/v1/stream"),
        ("cloud.example:8765", "wss://cloud.example:8765/v1/stream"),
        ("10.0.0.7:8765", "wss://10.0.0.7:8765/v1/stream"),
        ("[2001:db8::1]:8765", "wss://[2001:db8::1]:8765/v1/stream"),
        ("ws://cloud.example", "ws://cloud.example:80/v1/stream"),
        ("wss://cloud.example", "wss://cloud.example:443/v1/stream"),
        ("wss://cloud.example/", "wss://cloud.example:443/v1/stream"),
        ("wss://cloud.example:9/behind/a/proxy", "wss://cloud.example:9/behind/a/proxy"),
    ],
)
def test_forms_of_an_address(text: str, url: str) -> None:
    assert parse(text).url == url


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected host:port"),
        (":8765", "expected host:port"),
        ("cloud example:8765", "expected host:port"),
        ("cloud.example", "name the port"),
        ("cloud.example:port", "1 to 65535"),
        ("cloud.example:0", "1 to 65535"),
        ("cloud.example:70000", "1 to 65535"),
        ("https://cloud.example", "use ws:// "),
        ("wss://user:secret@cloud.example", "give a key"),
        ("wss://cloud.example/?key=secret", "query"),
        ("ws://[::1", "Invalid IPv6"),
    ],
)
def test_what_is_refused(text: str, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        parse(text)


def test_a_password_in_an_address_is_not_repeated() -> None:
    with pytest.raises(SettingError) as caught:
        parse("wss://user:secret@cloud.example")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "LocalHost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "localhost.example", "cloud"])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)
