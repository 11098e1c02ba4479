"""Frames with branches, as both machines take them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.protocol.decoding.row import SparseRow
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.epochs import CloudWindow
from outrider.protocol.errors import LocalProtocolError, RemoteProtocolError
from outrider.protocol.messages import TREES, Draft
from outrider.protocol.request import Request
from outrider.protocol.session import CloudSession
from outrider.simulator.pair import ConnectionPair
from outrider.simulator.steps import opened

TREE = ((4, 5, 6, 7), (-1, -1, 0, 1))


def cloud_session(pair: ConnectionPair) -> CloudSession:
    return next(iter(pair.table.sessions.values()))


def test_a_tree_arrives_and_the_text_takes_its_second_branch(pair: ConnectionPair) -> None:
    session = opened(pair, 1, 2)
    session.guess(TREE[0], parents=TREE[1])
    pair.settle()
    cloud = cloud_session(pair)
    assert cloud.window.tree(9, 9, 9) == TREE
    cloud.commit([5, 7])
    pair.settle()
    assert (session.ids, session.window.current.number) == ([1, 2, 5, 7], 1)
    assert (session.nodes_accepted, session.right, session.judged) == (2, 2, 2)
    session.guess((9,))  # after the branch that was right, in the same epoch
    pair.settle()
    assert cloud.window.chain(9) == [9]


def test_what_was_refused_is_what_stood_there(pair: ConnectionPair) -> None:
    session = opened(pair, 1, 2)
    session.guess(TREE[0], parents=TREE[1])
    pair.settle()
    cloud_session(pair).commit([4, 8])
    (event,) = (e for e in pair.settle() if type(e).__name__ == "Committed")
    assert event.refused == (6,)  # type: ignore[attr-defined]
    assert (session.right, session.judged) == (1, 2)


def test_the_window_counts_nodes(pair: ConnectionPair) -> None:
    session = opened(pair, 1, 2)
    session.max_in_flight = 3
    session.guess(TREE[0], parents=TREE[1])
    pair.settle()
    cloud = cloud_session(pair)
    assert cloud.window.tree(9, 9, 9) == ((4, 5, 6), (-1, -1, 0))
    cloud.commit([5])
    pair.settle()  # two nodes of three are settled: the last one leaves
    assert cloud.window.tree(9, 9, 9) == ((7,), ())


def test_too_many_nodes_are_refused(pair: ConnectionPair) -> None:
    opened(pair, 1, 2).guess(TREE[0], parents=TREE[1])
    pair.settle()
    cloud = cloud_session(pair)
    cloud.commit([5])
    with pytest.raises(RemoteProtocolError, match="more than 2 guesses in flight"):
        cloud.draft(Draft(epoch=1, tokens=(3,), deltas=(2,)), 0.0, 2)
    cloud.draft(Draft(epoch=1, tokens=(2,), deltas=(3,)), 0.0, 4)


@pytest.mark.parametrize("deltas", [(1, 0), (2, 1), (1, 3)], ids=["cycle", "before", "far"])
def test_bad_parents_break_the_connection(pair: ConnectionPair, deltas: tuple[int, ...]) -> None:
    session = opened(pair, 1, 2)
    session.ride()
    pair.settle()  # the epoch is announced
    pair.tell_cloud(Draft(epoch=1, tokens=(3, 4), deltas=deltas))
    assert pair.connection.wants_close


def test_trees_under_the_ratio_rule_are_refused_at_both_ends(pair: ConnectionPair) -> None:
    session = pair.machine.session()
    warm = Sampling(temperature=1, ratio=True)
    pair.machine.open(session, Request(ids=(1, 2), max_tokens=50, sampling=warm))
    pair.settle()
    rows = (SparseRow((3, 4), (2, 2)),) * 2
    with pytest.raises(LocalProtocolError):
        session.guess((3, 4), rows, parents=(-1, -1))
    session.ride()
    pair.settle()
    with pytest.raises(RemoteProtocolError, match="never a tree"):
        cloud_session(pair).draft(Draft(epoch=1, tokens=(3, 4), deltas=(1, 2), rows=rows), 0.0, 64)


def test_only_a_cloud_whose_target_judges_trees_says_so() -> None:
    for trees in (False, True):
        pair = ConnectionPair()
        pair.table.config.trees = trees
        pair.connect()
        pair.settle()
        assert pair.machine.welcome is not None
        assert (TREES in pair.machine.welcome.features) is trees


def walked(window: CloudWindow, limit: int) -> list[int]:
    """The pending guesses found node by node, from the parents alone."""
    sent, node, tokens = window.guesses, window.tip, list[int]()
    if sent is None or not window.caught_up:
        return tokens
    while len(tokens) < limit and node in sent.parents:
        node = sent.parents.index(node)
        tokens.append(sent.tokens[node])
    return tokens


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from((1, 1, 1, 2, 3))),
        max_size=40,
    ),
    st.booleans(),
    st.integers(-1, 9),
)
def test_the_pending_chain_is_that_of_a_walk(
    history: list[tuple[int, int, int]], straight: bool, limit: int
) -> None:
    """Nodes, commits and new epochs in any order; ``straight``: no node is a branch."""
    window = CloudWindow([1, 2])
    window.begin(1, 2)
    for kind, token, delta in history:
        if kind == 0:
            window.committed.append(token)
            window.committed_grew()
        elif kind == 1 and token == 0:
            window.begin((window.last_epoch + 1) & 0xFF, len(window.committed))
        else:
            with contextlib.suppress(RemoteProtocolError):  # a repeat, or before the base
                window.append(window.last_epoch & 0xFF, (token,), (1 if straight else delta,))
        assert window.chain(limit) == walked(window, limit)
        assert window.guesses is not None
        assert window.branched or window.tree(9, 99, 9)[1] == ()
        assert not (straight and window.branched)
        assert window.guesses.first(window.tip)[0] == window.guesses.under(window.tip, 99)
