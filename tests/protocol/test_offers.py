"""The chain of the cloud's proposals, kept at both ends, and who is said to have proposed what."""

from __future__ import annotations

import pytest

from outrider.protocol.codec import Codec
from outrider.protocol.decoding.row import SparseRow
from outrider.protocol.errors import DecodeError, LocalProtocolError, RemoteProtocolError
from outrider.protocol.guesses import Guesses
from outrider.protocol.messages import Draft, Verdict
from outrider.protocol.offers import Offers
from outrider.protocol.origins import Origin, Origins

ROW = SparseRow((3, 9), (12, 4))


def test_both_ends_keep_the_same_chain() -> None:
    ids, copy = [1, 2], [1, 2]
    cloud, edge = Offers(ids), Offers(copy)
    cloud.propose(2, [5])
    assert cloud.news() == (0, (5,))
    assert cloud.news() == (1, ())  # told once
    edge.learn(0, (5,))
    cloud.propose(2, [5, 6, 7])
    assert cloud.news() == (1, (6, 7))
    edge.learn(1, (6, 7))
    assert edge.beyond([]) == (5, 6, 7)
    assert edge.beyond([5]) == (6, 7)
    assert edge.beyond([4]) == ()
    for text in (ids, copy):
        text.append(5)  # the text takes the first
    assert edge.ahead(3) == cloud.ahead(3) == (6, 7)
    cloud.propose(3, [6, 7, 8])
    assert cloud.news() == (2, (8,))
    edge.learn(2, (8,))
    for text in (ids, copy):
        text.append(0)  # and leaves the rest
    assert edge.ahead(4) == cloud.ahead(4) == ()
    cloud.propose(4, [1])
    assert cloud.news() == (0, (1,))
    with pytest.raises(RemoteProtocolError, match="behind 2, of which 0"):
        edge.learn(2, (1,))
    edge.clear()
    assert edge.beyond([]) == ()


def test_only_what_was_told_can_be_scored() -> None:
    ids = [1, 2]
    offers = Offers(ids)
    offers.propose(2, [5, 6])
    with pytest.raises(RemoteProtocolError, match="token 5 at 2 was not proposed"):
        offers.check([5], [True])  # nobody was told
    offers.news()
    offers.check([5, 6, 9], [True, True, False])
    with pytest.raises(RemoteProtocolError, match="token 9 at 3 was not proposed"):
        offers.check([5, 9], [True, True])


def test_origins() -> None:
    guesses = Guesses(1, 2)
    for token in (3, 9, 4):
        guesses.append(token)
        guesses.rows.append(ROW)
    guesses.scored.add(0)
    origins = Origins()
    assert origins.note(guesses, 0, [3, 9, 5], 2) == (1, 2)
    assert origins.tokens == [
        Origin(3, "cloud", 3, True, 0.75),
        Origin(9, "edge", 9, True, 0.25),
        Origin(5, "edge", 4, False, 0.0),
    ]
    assert (origins.right, origins.judged) == (1.0, 1.0)
    assert origins.note(guesses, 3, [7], 0) == (0, 0)  # nobody proposed there
    assert origins.tokens[-1] == Origin(7, None, None, None, None)
    origins.clear()
    assert not origins.tokens


@pytest.mark.parametrize("scored", [0, 1, 2])
def test_proposals_in_frames(scored: int) -> None:
    codec = Codec(16)
    frame = Draft(epoch=1, tokens=(5, 3), rows=(ROW, ROW), scored=scored)
    if scored == 0:
        with pytest.raises(LocalProtocolError, match="not one of its row"):
            codec.encode(frame)  # 5 was not drawn from it
        frame = Draft(epoch=1, tokens=(9, 3), rows=(ROW, ROW), scored=0)
    assert codec.decode(codec.encode(frame)) == frame


def test_frames_that_make_no_sense() -> None:
    codec = Codec(12)
    with pytest.raises(LocalProtocolError, match="only tokens with rows"):
        codec.encode(Draft(epoch=1, tokens=(5,), scored=0))
    good = codec.encode(Draft(epoch=1, tokens=(5,), rows=(ROW,), scored=1))
    at = good.index(bytes([0x84]))
    for bad in (good[: at + 1] + bytes([2]) + good[at + 2 :],  # more than there are
                good[: at + 2] + bytes([13]) + good[at + 3 :]):  # no such id  # fmt: skip
        with pytest.raises(DecodeError):
            codec.decode(bad)
    verdict = Verdict(answer=1, at=3, ids=(4,), offered_after=1, offered=(7, 8))
    data = codec.encode(verdict)
    assert codec.decode(data) == verdict
    none = codec.encode(Verdict(answer=1, at=3, ids=(4,)))
    with pytest.raises(DecodeError, match="announces proposals"):
        codec.decode(bytes([none[0] | 0x10]) + none[1:] + bytes([0, 0]))
