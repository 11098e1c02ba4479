from __future__ import annotations

import msgspec
import pytest

from outrider.protocol import cloud as cloud_module
from outrider.protocol import edge as edge_module
from outrider.protocol.codec import Codec
from outrider.protocol.errors import LocalProtocolError, SettingError
from outrider.protocol.events import AnswerOpened, LinkFailed, LinkReady
from outrider.protocol.fingerprint import SEGMENT, Fingerprint, Vocabulary
from outrider.protocol.messages import Goodbye, Hello, Mismatch, Part, Segment, SegmentAsk, Welcome
from outrider.simulator.pair import LIMITS, ConnectionPair, config, letters

PRINT = letters().fingerprint()


def failure(pair: ConnectionPair) -> str:
    events = pair.settle()
    failures = [event.error for event in events if isinstance(event, LinkFailed)]
    assert len(failures) == 1
    assert pair.machine.failure is failures[0]
    assert pair.machine.state is edge_module.State.FAILED
    return f"{failures[0].code}: {failures[0]}"


def greeted(hello: Hello, cloud: Vocabulary | None = None) -> ConnectionPair:
    """A cloud that was sent this hello."""
    pair = ConnectionPair(config(cloud))
    pair.connection.receive(Codec().encode(hello), 0.0)
    return pair


def hello(version: int = 1, fingerprint: Fingerprint = PRINT) -> Hello:
    return Hello(version=version, agent="test", fingerprint=fingerprint, max_message=1 << 20)


def said(pair: ConnectionPair) -> list[object]:
    messages = []
    while (data := pair.connection.next_message(0.0)) is not None:
        messages.append(Codec(PRINT.size).decode(data))
    return messages


def test_a_pair_that_agrees() -> None:
    pair = ConnectionPair()
    pair.connect()
    (event,) = pair.settle()
    assert isinstance(event, LinkReady)
    assert event.never_draft == frozenset()
    assert event.welcome == pair.machine.welcome
    assert (event.welcome.model, event.welcome.eos, event.welcome.limits) == ("test", (0,), LIMITS)
    assert event.welcome.same_template
    assert event.welcome.specials is None


@pytest.mark.parametrize("version", [0, 2, 99], ids=["older", "newer", "much newer"])
def test_another_version_names_both(version: int) -> None:
    (goodbye,) = said(greeted(hello(version)))
    assert isinstance(goodbye, Goodbye)
    assert goodbye.code == "version"
    assert f"wire version {version}" in goodbye.message
    assert "speaks 1" in goodbye.message


def test_a_version_with_another_hello_is_told_so_too() -> None:
    pair = ConnectionPair()
    pair.connection.receive(b"\x80" + msgspec.msgpack.encode([7, "something else"]), 0.0)
    (goodbye,) = said(pair)
    assert isinstance(goodbye, Goodbye)
    assert goodbye.code == "version"


@pytest.mark.parametrize("size", [0, 2**31])
def test_a_vocabulary_of_no_size(size: int) -> None:
    pair = greeted(hello(fingerprint=msgspec.structs.replace(PRINT, size=size)))
    (goodbye,) = said(pair)
    assert isinstance(goodbye, Goodbye)
    assert goodbye.code == "protocol"


def test_other_tokens_are_named() -> None:
    theirs = [f"t{i}".encode() for i in range(3000)]
    mine = list(theirs)
    mine[2047:2050] = [b"x", b"", b"z"]
    pair = ConnectionPair(
        config(Vocabulary(tuple(theirs), {}, None)), edge=Vocabulary(tuple(mine), {}, None)
    )
    session = pair.open(1, 2)  # in the same flight, and ignored
    pair.connect()
    text = failure(pair)
    assert text.startswith("tokenizer: ")
    assert "3000 tokens here, 3000 there" in text
    assert "id 2047: 'x' here, 't2047' there)" in text
    assert session.key not in pair.table.sessions


def test_a_smaller_vocabulary() -> None:
    pair = ConnectionPair(config(letters(26)), edge=letters(27))
    pair.connect()
    assert "id 26: 't26' here, no such id there" in failure(pair)


def test_a_vocabulary_with_segments_that_the_cloud_lacks() -> None:
    pair = ConnectionPair(config(letters(SEGMENT)), edge=letters(SEGMENT + 1))
    pair.connect()
    assert f"id {SEGMENT}: 't{SEGMENT}' here, no such id there" in failure(pair)


def test_padding_does_not_count() -> None:
    """Both checkpoints have 26 tokens; how wide their rows are is nobody's business."""
    pair = ConnectionPair(config(letters(26)), edge=letters(26))
    pair.connect()
    assert isinstance(pair.settle()[0], LinkReady)


def test_a_special_token_that_differs_is_never_drafted() -> None:
    entries = letters().entries
    cloud = Vocabulary(entries, {0: b"<end>", 1: b"<a>"}, None)
    edge = Vocabulary(entries, {0: b"<end>", 1: b"<b>"}, None)
    pair = ConnectionPair(config(cloud), edge=edge)
    pair.connect()
    (event,) = pair.settle()
    assert isinstance(event, LinkReady)
    assert event.never_draft == pair.machine.never_draft == {1}


def test_the_next_cloud_may_agree_on_special_tokens() -> None:
    test = ConnectionPair(
        config(Vocabulary(letters().entries, {1: b"<a>"}, None)),
        edge=Vocabulary(letters().entries, {1: b"<b>"}, None),
    )
    test.connect()
    test.settle()
    test.table.config.vocabulary = test.machine.vocabulary
    test.connect()
    test.settle()
    assert test.machine.never_draft == frozenset()


def test_answers_open_in_the_first_flight() -> None:
    pair = ConnectionPair()
    pair.connect()
    pair.open(3, 4)
    sent = 0
    while pair.pull_up():
        sent += 1
    assert sent == 2  # hello and open, and nothing has come back yet
    assert [type(event) for event in pair.settle()] == [LinkReady, AnswerOpened]


def test_a_cloud_that_says_nothing() -> None:
    pair = ConnectionPair()
    pair.connect()
    deadline = pair.machine.next_timeout()
    assert deadline == edge_module.GREETING_SECONDS
    pair.machine.handle_timeout(deadline - 0.1)
    assert pair.machine.failure is None
    pair.machine.handle_timeout(deadline)
    assert pair.machine.failure is not None
    assert pair.machine.failure.code == "timeout"
    assert pair.machine.next_message(deadline) is None
    assert pair.machine.wants_close


def test_an_edge_that_says_nothing() -> None:
    pair = ConnectionPair()
    deadline = pair.connection.next_timeout()
    assert deadline == cloud_module.HELLO_SECONDS
    pair.connection.handle_timeout(deadline - 0.1)
    assert not pair.connection.wants_close
    pair.connection.handle_timeout(deadline)
    assert pair.connection.wants_close
    (goodbye,) = said(pair)
    assert isinstance(goodbye, Goodbye)
    assert goodbye.code == "timeout"
    assert pair.connection.next_timeout() is None


def test_the_wait_ends_with_the_hello() -> None:
    pair = ConnectionPair()
    pair.connect()
    pair.settle()
    assert pair.machine.next_timeout() is None
    assert pair.connection.next_timeout() == pair.table.config.idle_seconds
    pair.connection.handle_timeout(pair.table.config.idle_seconds - 1)
    pair.machine.handle_timeout(1e9)
    assert pair.machine.state is edge_module.State.READY
    assert pair.connection.state is cloud_module.State.READY


def test_segments_that_do_not_exist() -> None:
    other = letters(30).fingerprint()
    pair = greeted(hello(fingerprint=other))
    pair.connection.receive(Codec().encode(SegmentAsk(index=1)), 0.0)
    assert [type(message) for message in said(pair)] == [Mismatch, Goodbye]


def test_comparing_does_not_last_for_ever() -> None:
    pair = greeted(hello(fingerprint=letters(30).fingerprint()))
    pair.connection.handle_timeout(cloud_module.HELLO_SECONDS)
    assert pair.connection.wants_close


def test_a_mismatch_without_a_difference() -> None:
    pair = ConnectionPair()
    pair.connect()
    pair.tell_edge(Mismatch(size=26, segments=tuple(letters().segments())))
    assert "without a difference" in failure(pair)


def test_a_segment_that_was_not_asked_for() -> None:
    pair = ConnectionPair()
    pair.connect()
    pair.tell_edge(Mismatch(size=26, segments=(bytes(8),)))
    pair.tell_edge(Segment(index=1, entries=()))
    assert "0 was asked for" in str(pair.machine.failure)


@pytest.mark.parametrize(("frame", "flight"), [(7, 64), (64, 31)])
def test_limits_that_an_edge_could_break_unawares(frame: int, flight: int) -> None:
    limits = msgspec.structs.replace(LIMITS, max_nodes_per_frame=frame, max_nodes_in_flight=flight)
    with pytest.raises(SettingError, match="every cloud must allow 8 and 32"):
        config(limits=limits)


def test_connecting_again_replaces_the_connection() -> None:
    pair = ConnectionPair()
    pair.connect()
    pair.settle()
    pair.connect()
    assert pair.machine.state is edge_module.State.GREETING
    assert isinstance(pair.settle()[0], LinkReady)


def test_a_failed_link_can_be_tried_again() -> None:
    pair = ConnectionPair()
    pair.connect()
    pair.connection.close("shutdown", "going down", 0.0)
    assert failure(pair) == "shutdown: the cloud closed the connection: going down"
    pair.machine.connection_lost(0.0)
    assert pair.machine.state is edge_module.State.FAILED
    pair.connect()
    assert isinstance(pair.settle()[0], LinkReady)
    assert pair.machine.failure is None


def test_a_transition_that_does_not_exist_is_our_own_mistake() -> None:
    with pytest.raises(LocalProtocolError, match="welcome while down"):
        ConnectionPair().machine._move("welcome")


def test_welcome_in_parts() -> None:
    pair = ConnectionPair()
    pair.connect()
    while pair.pull_up():
        pass
    while pair.deliver_up():
        pass
    data = pair.connection.next_message(0.0)
    assert data is not None
    assert isinstance(pair.codec.decode(data), Welcome)
    for i in range(0, len(data), 10):
        piece = data[i : i + 10]
        pair.tell_edge(Part(last=i + 10 >= len(data), data=piece))
    assert pair.machine.state is edge_module.State.READY
