"""The conformance tables in docs/endpoint.md, row by row."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from outrider.edge_client.endpoint.metrics import Metrics
from outrider.edge_client.endpoint.schema import HARMLESS, ChatBody, CompletionBody

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "endpoint.md").read_text("utf-8")
ROW = re.compile(r"^\| `(\w+)` \| `(.*)` \| (.*) \|$", re.M)
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
COMPLETION: dict[str, Any] = {"prompt": "Hello", "max_tokens": 2}


def rows(heading: str) -> list[tuple[str, Any, str]]:
    part = PAGE[PAGE.index(heading) :].split("\n\n")[1]
    found = [(m[1], json.loads(m[2]), m[3]) for m in ROW.finditer(part)]
    assert len(found) == part.count("\n") - 1
    return found


CHATS, COMPLETIONS = rows("\nChats:"), rows("\nCompletions, where")


def check(running, path: str, row: tuple[str, Any, str]) -> None:
    field, value, answer = row
    asked = (CHAT if path.startswith("/v1/chat") else COMPLETION) | {field: value}
    if field == "stream_options":
        status, _, came = running.call("POST", path, asked)
        assert (status, came["error"]["param"]) == (400, field)
        asked |= {"stream": True}
    if field == "tools":  # the embedded target has no place for them; see test_tools.py
        answer = "refused"
    status, headers, came = running.call("POST", path, asked)
    if answer.startswith("refused"):
        assert status == (404 if field == "model" else 400), came
        assert came["error"]["param"].startswith(field)
        assert came["error"]["message"]
        return
    assert status == 200, came
    if asked.get("stream"):
        assert headers["content-type"].startswith("text/event-stream")
        assert ('"usage":{' in came) == ("stream_options" in asked)
        return
    prompts = value if field == "prompt" and isinstance(value, list) else [value]
    expected = asked.get("n", 1) * (len(prompts) if isinstance(prompts[0], str) else 1)
    assert len(came["choices"]) == expected


@pytest.mark.parametrize(("field", "value", "answer"), CHATS)
def test_chats(embedded, field, value, answer) -> None:
    check(embedded, "/v1/chat/completions", (field, value, answer))


@pytest.mark.parametrize(("field", "value", "answer"), COMPLETIONS)
def test_completions(embedded, field, value, answer) -> None:
    check(embedded, "/v1/completions", (field, value, answer))


def test_no_field_is_missing() -> None:
    chat, plain = {row[0] for row in CHATS}, {row[0] for row in COMPLETIONS}
    assert set(ChatBody.__struct_fields__) <= chat
    assert set(CompletionBody.__struct_fields__) <= chat | plain
    assert set(HARMLESS) <= chat | plain


def test_every_metric_is_named() -> None:
    families = list(Metrics().registry.collect())
    missing = {f.name for f in families if f"{f.name.removeprefix('outrider:')}" not in PAGE}
    assert missing == set()
