"""What a gateway is told, as a line of JSON."""

from __future__ import annotations

import pytest

from outrider.cloud_server.cluster.launcher import Roster
from outrider.protocol.errors import SettingError


def test_there_and_back() -> None:
    roster = Roster({"a": "ws://127.0.0.1:1"}, ("a",), ("ws://127.0.0.1:2",), 3)
    assert Roster.from_json(roster.to_json()) == roster
    assert "\n" not in roster.to_json()


@pytest.mark.parametrize(
    "line", [b"\n", b"{}", b"[]", b'{"replicas": {"a": 1}}', b"\xff", b"ready"]
)
def test_what_is_no_roster_is_told(line: bytes) -> None:
    with pytest.raises(SettingError, match="lines of JSON by `outrider cloud cluster`"):
        Roster.from_json(line)
