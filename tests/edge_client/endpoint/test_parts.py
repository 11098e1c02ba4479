"""Turns at the drafter, sessions kept, tool calls read: each alone, without a socket."""

from __future__ import annotations

import json
import random

import pytest

from outrider.edge_client.endpoint import messages, tools
from outrider.edge_client.endpoint.errors import ApiError
from outrider.edge_client.endpoint.schema import ChatBody
from outrider.edge_client.endpoint.sessions import SessionPool
from outrider.edge_client.endpoint.tools import CallReader
from outrider.edge_client.endpoint.turns import READING, TURN, Turns
from outrider.edge_client.policy import Observed, Plan, Steady
from outrider.protocol.link import LinkEstimator
from outrider.runtime.text.template import takes_tools

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2]}}\n</tool_call>'
HERMES = "{% if tools %}{{ tools }}<tool_call>{% endif %}{{ messages[0].content }}"


def seen(session: int, emitted: int, behind: int = 0) -> Observed:
    return Observed(
        session=session,
        answer=1,
        now=0.0,
        link=LinkEstimator(),
        objective="latency",
        acceptance=None,
        judged=0,
        draft_step=None,
        prefill_rate=None,
        behind=behind,
        left=100,
        emitted=emitted,
    )


# --- turns ------------------------------------------------------------------------------------


def test_one_answer_has_the_drafter_for_itself() -> None:
    turns = Turns(Steady(Plan(2, 4)))
    turns.begin(0, draft=True)
    assert all(turns.plan(seen(0, n)).frame == 2 for n in range(0, 1000, 10))


def test_answers_take_turns_in_the_order_in_which_they_asked() -> None:
    turns = Turns(Steady(Plan(2, 4)))
    emitted = dict.fromkeys(range(3), 0)
    had: dict[int, int] = dict.fromkeys(range(3), 0)
    for session in emitted:
        turns.begin(session, draft=True)
    for _ in range(3 * TURN * 4):
        drafting = [s for s in emitted if turns.plan(seen(s, emitted[s])).frame]
        assert len(drafting) <= 1
        for session in drafting:
            had[session] += 1
        for session in emitted:
            emitted[session] += 1
    assert min(had.values()) > 0.8 * max(had.values())


def test_a_long_text_that_had_to_be_read_gives_a_longer_turn() -> None:
    turns = Turns(Steady(Plan(2, 4)))
    turns.plan(seen(0, 0, behind=1000))
    turns.plan(seen(1, 0))
    end = int(TURN + 1000 * READING)
    assert turns.plan(seen(0, end - 1)).frame == 2
    assert turns.plan(seen(0, end)).frame == 0
    assert turns.plan(seen(1, 0)).frame == 2


def test_an_answer_that_ends_passes_its_turn_on() -> None:
    turns = Turns(Steady(Plan(2, 4)))
    turns.plan(seen(0, 0))
    assert turns.plan(seen(1, 0)).frame == 0
    turns.end(0)
    assert turns.plan(seen(1, 0)).frame == 2
    turns.end(1)
    turns.end(1)
    assert turns.plan(seen(5, 0)).frame == 2


def test_an_answer_for_which_drafting_does_not_pay_does_not_keep_the_drafter() -> None:
    class Picky(Steady):
        def plan(self, observed: Observed) -> Plan:
            return Plan(0, 0) if observed.session == 0 else Plan(1, 1)

    turns = Turns(Picky(Plan(1, 1)))
    assert turns.plan(seen(0, 0)).frame == 0
    assert turns.plan(seen(1, 0)).frame == 0  # it is the other's turn still
    assert turns.plan(seen(0, 1)).frame == 0
    assert turns.plan(seen(1, 1)).frame == 1


def test_drafting_turned_off() -> None:
    planned: list[int] = []
    turns = Turns(Steady(Plan(3, 3)), planned.append)
    turns.begin(0, draft=False)
    assert turns.plan(seen(0, 0)) == Plan(0, 0)
    assert turns.plan(seen(1, 0)).frame == 3
    turns.end(0)
    turns.begin(0, draft=True)
    turns.end(1)
    assert turns.plan(seen(0, 0)).frame == 3
    assert planned == [3, 3]


# --- sessions ---------------------------------------------------------------------------------


class Session:
    def __init__(self, ids=()) -> None:
        self.ids = list(ids)
        self.handle = id(self)


class Client:
    """As much of a client as the pool needs; counts what is closed."""

    def __init__(self) -> None:
        self.closed: list[Session] = []
        self.machine = self.courier = self

    def session(self) -> Session:
        return Session()

    def close(self, session: Session) -> None:
        self.closed.append(session)

    def events(self) -> list[object]:
        return []

    def wake(self) -> None: ...


def pool(most: int = 4) -> tuple[SessionPool, Client]:
    client = Client()
    return SessionPool(client, most), client  # type: ignore[arg-type]


def test_the_longest_prefix_is_taken() -> None:
    kept, _ = pool()
    short, long, other = Session(range(10)), Session(range(30)), Session([9] * 50)
    for session in (short, long, other):
        kept.give(session)  # type: ignore[arg-type]
    assert kept.take(list(range(40))) == (long, 30)
    assert kept.take(list(range(40))) == (short, 10)
    fresh, base = kept.take(list(range(40)))
    assert (fresh.ids, base) == ([], 0)
    assert kept.idle == 1


def test_one_id_is_always_left_to_read() -> None:
    kept, _ = pool()
    session = Session(range(10))
    kept.give(session)  # type: ignore[arg-type]
    assert kept.take(list(range(10))) == (session, 9)


def test_another_conversation_that_begins_alike_keeps_its_place() -> None:
    kept, _ = pool()
    kept.give(Session(range(100)))  # type: ignore[arg-type]
    assert kept.take([*range(40), 7, 7])[1] == 0
    assert kept.take([*range(60), 7, 7])[1] == 60


def test_the_oldest_goes_first() -> None:
    kept, client = pool(2)
    sessions = [Session([i]) for i in range(4)]
    for session in sessions:
        kept.give(session)  # type: ignore[arg-type]
    assert client.closed == sessions[:2]
    assert kept.drop()
    assert kept.drop()
    assert not kept.drop()


# --- tools ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_calls_are_read_however_the_text_is_cut(seed: int) -> None:
    text = f"I will add. {CALL}\n{CALL.replace('add', 'sub')} <tool_x> done"
    rng, reader, at = random.Random(seed), CallReader(), 0
    parts: list[object] = []
    while at < len(text):
        size = rng.randrange(1, 12)
        parts += reader.feed(text[at : at + size])
        at += size
    parts.append(reader.finish())
    calls = [part for part in parts if isinstance(part, dict)]
    assert "".join(part for part in parts if isinstance(part, str)) == (
        "I will add. \n <tool_x> done"
    )
    assert [call["function"]["name"] for call in calls] == ["add", "sub"]
    assert [call["index"] for call in calls] == [0, 1]
    assert json.loads(calls[0]["function"]["arguments"]) == {"a": 1, "b": [2]}
    assert len({call["id"] for call in calls}) == 2


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>no JSON</tool_call>",
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": 5}</tool_call>',
        "<tool_call>[1]</tool_call>",
        '<tool_call>{"name": "never closed"',
        "<tool_cal",
    ],
)
def test_what_is_no_call_stays_in_the_text(text: str) -> None:
    reader = CallReader()
    found = reader.feed(text)
    assert "".join(map(str, found)) + reader.finish() == text
    assert reader.calls == 0


TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}


def test_tools_are_the_templates_to_write() -> None:
    assert tools.offered(ChatBody(tools=[TOOL]), place=True) == [TOOL]
    assert tools.offered(ChatBody(tools=[TOOL], tool_choice="none"), place=True) is None
    assert tools.offered(ChatBody(tools=[]), place=False) is None


@pytest.mark.parametrize(
    ("more", "template", "param"),
    [
        ({}, None, "tools"),
        ({}, "{{ messages }}", "tools"),
        ({}, "{{ tools }} in a form of its own", "tools"),
        ({"parallel_tool_calls": False}, HERMES, "parallel_tool_calls"),
        ({"tools": [{"type": "retrieval"}]}, HERMES, "tools[0]"),
        ({"tools": [{"type": "function", "function": {}}]}, HERMES, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]},
            HERMES,
            "tools[0].function.strict",
        ),
    ],
)
def test_tools_that_cannot_be_honoured(more, template, param) -> None:
    with pytest.raises(ApiError) as caught:
        tools.offered(ChatBody(**{"tools": [TOOL], **more}), place=takes_tools(template))
    assert caught.value.param == param


def test_earlier_calls_are_given_to_the_template_as_objects() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    chat = [
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ]
    plain = messages.plain(chat, HERMES, tools=True)
    assert plain[1]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert plain[2] == {"role": "tool", "content": "2", "tool_call_id": "c1"}
    call["function"]["arguments"] = "{broken"
    with pytest.raises(ApiError, match="not JSON"):
        messages.plain(chat, HERMES, tools=True)
