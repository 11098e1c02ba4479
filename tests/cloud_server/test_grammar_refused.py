"""Forms that are refused: by what is wrong with them, and by clouds that enforce none."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("llguidance")

from outrider.cloud_server.grammar import MAX_FORM, Grammars
from outrider.protocol import messages as m
from outrider.protocol.errors import SessionError
from outrider.protocol.events import AnswerRefused
from outrider.protocol.packing import PrefixDigest
from outrider.protocol.request import Request
from outrider.simulator.pair import ConnectionPair, config

PROMPT = (1, 2, 3)


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars([b"", b"{", b"}"], {0})


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("no json", "is not a form"),
        ("{}", "missing required field"),
        ('{"json": 3}', "is not a form"),
        ('{"json": true, "regex": "a"}', "unknown field"),
        ('{"json": {"type": "banana"}}', "banana"),
        ('{"json": {"type": "object", "uniqueItems": true, "if": {}}}', "uniqueItems"),
        (json.dumps({"json": {"$ref": "#/nowhere"}}), "cannot be enforced"),
        (json.dumps({"json": {"const": "a" * MAX_FORM}}), "at most"),
    ],
)
def test_forms_that_are_refused(grammars, form, words) -> None:
    with pytest.raises(SessionError, match=words) as error:
        grammars.check(form)
    assert error.value.code == "grammar"


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "array", "uniqueItems": True}, 'Unimplemented keys: ["uniqueItems"]'),
        ({"type": "string", "pattern": "a | ("}, "regex parse error: a | ( ^ error: unclosed"),
        ({"enum": []}, "Unsatisfiable schema: anyOf is empty"),
    ],
)
def test_the_reason_alone_is_said(grammars, schema, reason) -> None:
    form = json.dumps({"json": schema, "before": "<a>\n", "many": True})
    with pytest.raises(SessionError) as error:
        grammars.check(form)
    said = str(error.value)
    assert said.startswith(f"this form cannot be enforced: {reason}")
    for word in ("at 4", "start", "piece", "value", "%json", "\n"):
        assert word not in said


def refusal(pair: ConnectionPair, **request: object) -> AnswerRefused:
    session = pair.machine.session()
    pair.machine.open(session, Request(max_tokens=9, ids=PROMPT, **request))  # type: ignore[arg-type]
    (refused,) = [e for e in pair.settle() if isinstance(e, AnswerRefused)]
    return refused


def test_refusals_over_the_wire(grammars) -> None:
    cloud = config()
    cloud.constrain = grammars.check
    pair = ConnectionPair(cloud)
    pair.connect()
    pair.settle()
    assert refusal(pair, grammar='{"json": {"type": "banana"}}').code == "grammar"
    assert refusal(pair, grammar='{"json": true}', ignore_eos=True).code == "grammar"


def test_a_cloud_without_the_library() -> None:
    pair = ConnectionPair()
    pair.connect()
    early = refusal(pair, grammar='{"json": true}')  # sent before the welcome was there
    late = refusal(pair, grammar='{"json": true}')
    assert early.code == late.code == "unsupported"
    assert "'grammar'" in early.message == late.message
    open_ = m.Open(
        handle=5,
        session=bytes(8),
        secret=bytes(16),
        n=1,
        answer=1,
        base=0,
        digest=PrefixDigest([]).at(0),
        prompt_len=3,
        ids=PROMPT,
        max_tokens=9,
        grammar='{"json": true}',
    )
    pair.tell_cloud(open_)
    data = pair.connection.next_message(0.0)
    assert data is not None
    said = pair.codec.decode(data)
    assert isinstance(said, m.Refused)
    assert said.code == "unsupported"
    assert "llguidance is not installed" in said.message
