from __future__ import annotations

from outrider.protocol.fingerprint import (
    SEGMENT,
    Vocabulary,
    describe_difference,
    differing_specials,
    first_segment,
)

ENTRIES = tuple(f"token {i}".encode() for i in range(2500))


def test_equal_contents_are_equal() -> None:
    assert Vocabulary(ENTRIES, {}, "t").fingerprint() == Vocabulary(ENTRIES, {}, "t").fingerprint()


def test_each_part_has_its_own_hash() -> None:
    one = Vocabulary(ENTRIES, {3: b"<s>"}, "t").fingerprint()
    template = Vocabulary(ENTRIES, {3: b"<s>"}, "other").fingerprint()
    special = Vocabulary(ENTRIES, {3: b"<x>"}, "t").fingerprint()
    changed = (*ENTRIES[:7], b"!", *ENTRIES[8:])
    ordinary = Vocabulary(changed, {3: b"<s>"}, "t").fingerprint()
    assert (one.ordinary, one.special) == (template.ordinary, template.special)
    assert one.template != template.template
    assert one.special != special.special
    assert one.ordinary == special.ordinary  # its entry is not an ordinary one
    assert one.ordinary != ordinary.ordinary
    assert Vocabulary(ENTRIES, {}, None).fingerprint().size == 2500


def test_moving_a_byte_between_tokens_is_noticed() -> None:
    one, other = Vocabulary((b"ab", b"c"), {}, None), Vocabulary((b"a", b"bc"), {}, None)
    assert one.fingerprint().ordinary != other.fingerprint().ordinary


def test_segments() -> None:
    vocabulary = Vocabulary(ENTRIES, {1024: b"<s>"}, None)
    assert len(vocabulary.segments()) == 3
    assert vocabulary.segment(0) == ENTRIES[:SEGMENT]
    assert vocabulary.segment(1)[0] == b""
    assert len(vocabulary.segment(2)) == 2500 - 2 * SEGMENT
    assert vocabulary.segment(3) == ()


def test_first_segment() -> None:
    mine = Vocabulary(ENTRIES, {}, None).segments()
    changed = (*ENTRIES[:1500], b"!", *ENTRIES[1501:])
    assert first_segment(mine, mine) is None
    assert first_segment(mine, Vocabulary(changed, {}, None).segments()) == 1
    assert first_segment(mine, mine[:2]) == 2
    assert first_segment(mine[:2], mine) == 2


def test_differences_are_named_first_three() -> None:
    text = describe_difference(1, [b"a", b"b", b"\xff", b"d", b"e"], [b"a", b"x", b"", b"y"])
    assert text == (
        "id 1025: 'b' here, 'x' there; id 1026: '\\\\xff' here, special or unused there; "
        "id 1027: 'd' here, 'y' there"
    )
    assert describe_difference(0, [], [b"a"]) == "id 0: no such id here, 'a' there"


def test_differing_specials() -> None:
    assert differing_specials({1: b"a", 2: b"b"}, {1: b"a", 2: b"x", 3: b"c"}) == {2, 3}
