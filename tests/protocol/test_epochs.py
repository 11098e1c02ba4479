from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.protocol.epochs import CloudWindow, EdgeWindow
from outrider.protocol.errors import LocalProtocolError, RemoteProtocolError
from outrider.protocol.guesses import ROOT, Guesses


def tree(*nodes: tuple[int, int], base: int = 0) -> Guesses:
    guesses = Guesses(1, base)
    for token, delta in nodes:
        guesses.append(token, delta)
    return guesses


#        5 - 6 - 7          nodes 0 1 2
#       /     `- 8          node 3, under node 1
#   base
#       `9 - 6              nodes 4 5
BRANCHED = ((5, 1), (6, 1), (7, 1), (8, 2), (9, 5), (6, 1))


class TestGuesses:
    def test_positions_and_paths(self) -> None:
        guesses = tree(*BRANCHED, base=10)
        assert guesses.parents == [ROOT, 0, 1, 1, ROOT, 4]
        assert guesses.positions == [10, 11, 12, 12, 10, 11]
        assert guesses.position(ROOT) == 9
        assert guesses.path(3, 10) == [5, 6, 8]
        assert guesses.path(3, 11) == [6, 8]
        assert guesses.path(5, 12) == []

    def test_follow(self) -> None:
        guesses = tree(*BRANCHED)
        assert guesses.follow(ROOT, [5, 6, 8, 1]) == (3, 3)
        assert guesses.follow(ROOT, [9, 6]) == (5, 2)
        assert guesses.follow(1, [7]) == (2, 1)
        assert guesses.follow(ROOT, [1]) == (ROOT, 0)

    @pytest.mark.parametrize("delta", [0, -1, 3, 2**60])
    def test_bad_parents(self, delta: int) -> None:
        with pytest.raises(RemoteProtocolError, match="no such parent"):
            tree((5, 1), (6, delta))

    def test_repeats(self) -> None:
        with pytest.raises(RemoteProtocolError, match="repeats node 0"):
            tree((5, 1), (5, 2))
        tree((5, 1), (5, 1))  # the same token further down is another guess


class TestEdgeWindow:
    def sent(self, window: EdgeWindow, *tokens: int) -> None:
        for token in tokens:
            window.current.append(token)
        window.announced, window.sent = True, len(window.current.tokens)

    def test_an_epoch_that_was_not_announced_keeps_its_number(self) -> None:
        window = EdgeWindow([1, 2])
        window.restart()
        window.restart()
        assert (window.current.number, window.current.base, window.last_announced) == (1, 2, 0)
        self.sent(window, 3)
        assert window.last_announced == 1
        window.restart()
        assert (window.current.number, window.last_announced) == (2, 1)

    def test_right_guesses_go_on_in_their_epoch(self) -> None:
        window = EdgeWindow([1])
        self.sent(window, 2, 3, 4)
        assert window.in_flight == 3
        assert window.commit([2, 3])
        assert (window.ahead, window.in_flight, window.committed) == ([4], 1, [1, 2, 3])

    def test_guesses_are_kept_until_there_are_enough(self) -> None:
        window = EdgeWindow([1])
        window.least = 3
        window.extend([2, 3], [-1, 0])
        assert window.unsent(8) == ((), (), ())
        window.extend([4], [-1])
        assert window.unsent(8) == ((2, 3, 4), (), ())
        window.restart()
        window.extend([2], [-1])
        assert window.unsent(8)[0] == (2,)  # what was to be gathered was of another epoch

    def test_what_was_committed_before_it_was_sent_never_leaves(self) -> None:
        window = EdgeWindow([1])
        window.extend([2, 3, 8, 4], [-1, 0, 0, 1])  # 2, then 3 and 4, or 8
        assert window.commit([2])
        assert (window.current.number, window.current.base, window.tip) == (1, 2, -1)
        assert window.ahead == [3, 4]
        assert window.unsent(8) == ((3, 8, 4), (1, 2, 2), ())
        assert window.commit([8])
        assert (window.ahead, window.unsent(8)) == ([], ((), (), ()))
        self.sent(window, 5, 6)
        assert window.commit([5])
        assert window.current.base == 3  # the cloud knows it from there
        window = EdgeWindow([1])
        window.extend([2, 3, 4], [-1, 0, 1])
        window.branch(1, [7, 8])
        assert window.commit([2])
        assert [window.hits(t) for t in ([3], [7], [7, 8])] == [0, 1, 1]

    def test_branches_hang_beside_the_chain_and_wait(self) -> None:
        window = EdgeWindow([1])
        window.extend([2, 3, 4], [ROOT, 0, 1])
        window.branch(1, [7, 8])
        window.extend([5], [ROOT])
        assert window.ahead == [2, 3, 4, 5]
        assert window.unsent(9) == ((2, 3, 4, 7, 8, 5), (1, 1, 1, 3, 1, 3), ())
        assert [window.hits(t) for t in ([2, 3], [2, 7], [2, 7, 8, 1], [2, 9])] == [0, 1, 1, 0]
        window.announced, window.sent = True, 6
        assert window.commit([2, 7])  # refused, and foreseen: the epoch goes on
        assert window.ahead == [8]
        window.extend([9], [ROOT])
        assert window.ahead == [8, 9]
        assert window.unsent(9) == ((9,), (2,), ())
        assert window.hits([8, 9]) == 0
        cloud = CloudWindow([1])
        cloud.begin(1, 1)
        cloud.append(1, [2, 3, 4, 7, 8, 5], [1, 1, 1, 3, 1, 3])
        assert (cloud.chain(9), cloud.in_flight()) == ([2, 3, 4, 5], 6)
        cloud.committed += [2, 7]
        cloud.committed_grew()
        assert (cloud.chain(9), cloud.in_flight()) == ([8], 3)
        cloud.append(1, [9], [2])
        assert cloud.chain(9) == [8, 9]

    @pytest.mark.parametrize(("ahead", "token"), [(-1, 7), (2, 7), (0, 2), (1, 3)])
    def test_a_branch_needs_a_place_and_another_token(self, ahead: int, token: int) -> None:
        window = EdgeWindow([1])
        window.extend([2, 3], [ROOT, 0])
        with pytest.raises(LocalProtocolError, match="no branch"):
            window.branch(ahead, [token])

    @pytest.mark.parametrize("tokens", [[9], [2, 9], [2, 3, 4]], ids=["wrong", "half", "overtaken"])
    def test_a_text_that_leaves_the_guesses_begins_an_epoch(self, tokens: list[int]) -> None:
        window = EdgeWindow([1])
        self.sent(window, 2, 3)
        assert not window.commit(tokens)
        assert (window.current.number, window.current.base) == (2, 1 + len(tokens))
        assert (window.ahead, window.in_flight) == ([], 0)

    def test_a_verdict_names_older_epochs_while_it_can(self) -> None:
        window = EdgeWindow([1])
        self.sent(window, 2, 3)
        window.restart()
        self.sent(window, 7)
        assert window.resolve(1, 1, 1) == [2, 3]
        assert window.resolve(1, 0, 1) == [2]
        assert window.resolve(2, 0, 1) == [7]
        window.commit([2, 3])
        with pytest.raises(RemoteProtocolError, match="not sent"):
            window.resolve(1, 1, 3)

    @pytest.mark.parametrize(("epoch", "node"), [(1, 2), (2, 0), (0, 0)])
    def test_what_was_not_sent_cannot_be_named(self, epoch: int, node: int) -> None:
        window = EdgeWindow([1])
        self.sent(window, 2, 3)
        window.current.append(4)
        with pytest.raises(RemoteProtocolError, match=f"node {node} of epoch {epoch}"):
            window.resolve(epoch, node, 1)

    def test_a_base_beyond_the_start_cannot_be_named(self) -> None:
        window = EdgeWindow([1])
        self.sent(window, 2)
        with pytest.raises(RemoteProtocolError):
            window.resolve(1, 0, 0)

    def test_void(self) -> None:
        window = EdgeWindow([1])
        self.sent(window, 2)
        window.void()
        assert window.current.number == 2
        with pytest.raises(RemoteProtocolError):
            window.resolve(1, 0, 1)

    def test_trees(self) -> None:
        window = EdgeWindow([])
        window.current = tree(*BRANCHED)
        window.announced, window.sent = True, 6
        assert window.ahead == [5, 6, 7]  # the first sent of each level
        assert window.commit([9])
        assert window.ahead == [6]
        assert window.resolve(1, 5, 0) == [9, 6]


class TestCloudWindow:
    def window(self, *committed: int) -> CloudWindow:
        return CloudWindow(list(committed))

    def grow(self, window: CloudWindow, *tokens: int) -> None:
        window.committed.extend(tokens)
        window.committed_grew()

    def test_nothing_before_an_epoch_is_announced(self) -> None:
        window = self.window(1)
        window.append(1, (2,), ())
        assert window.chain(9) == []
        assert not window.caught_up
        assert window.settled(0) is None

    def test_epochs_have_no_gaps(self) -> None:
        window = self.window(1)
        window.begin(1, 1)
        with pytest.raises(RemoteProtocolError, match="2 is next"):
            window.begin(3, 1)
        window.void(254)
        window.begin(255, 1)
        window.begin(0, 1)
        assert window.last_epoch == 256

    def test_base_beyond_the_text(self) -> None:
        with pytest.raises(RemoteProtocolError, match="beyond"):
            self.window(1).begin(1, 2)

    def test_nodes_of_another_epoch(self) -> None:
        window = self.window(1)
        window.begin(1, 1)
        with pytest.raises(RemoteProtocolError, match="not the current"):
            window.append(2, (5,), ())

    def test_pending_guesses_and_what_settles_them(self) -> None:
        window = self.window(1)
        window.begin(1, 1)
        window.append(1, (2, 3, 4), ())
        assert window.chain(2) == [2, 3]
        assert window.settled(1) is None
        self.grow(window, 2, 3)
        assert window.chain(9) == [4]
        assert window.settled(1) == 1
        assert window.settled(3) is None
        self.grow(window, 9)
        assert window.chain(9) == []
        assert not window.caught_up
        assert window.settled(1) == 1  # what was right before still has a name
        self.grow(window, 4)
        assert window.settled(1) == 1  # and what comes after the contradiction stays dead

    def test_how_far_the_guesses_were_right(self) -> None:
        window = self.window(1)
        assert window.tip_position is None
        assert not window.contradicted
        window.begin(1, 1)
        window.append(1, (2, 3), ())
        assert (window.tip_position, window.contradicted) == (0, False)
        self.grow(window, 2)
        assert (window.tip_position, window.contradicted) == (1, False)
        self.grow(window, 9)
        assert (window.tip_position, window.contradicted) == (1, True)

    def test_guesses_that_arrive_late_are_compared(self) -> None:
        window = self.window(1)
        window.begin(1, 1)
        self.grow(window, 2, 3)
        assert not window.caught_up
        window.append(1, (2, 3, 7), ())
        assert window.caught_up
        assert window.chain(9) == [7]
        window.append(1, (8,), ())
        assert window.chain(9) == [7, 8]

    def test_an_older_base(self) -> None:
        window = self.window(1, 2, 3)
        window.begin(1, 1)
        window.append(1, (2, 3, 4), ())
        assert window.chain(9) == [4]
        assert window.settled(0) is None  # the base lies after what is told
        assert window.settled(1) == 1

    def test_siblings_live_on(self) -> None:
        window = self.window()
        window.begin(1, 0)
        tokens, deltas = zip(*BRANCHED, strict=True)
        window.append(1, tokens, deltas)
        assert window.chain(9) == [5, 6, 7]
        self.grow(window, 5, 6, 8)
        assert window.settled(0) == 3
        window.append(1, (1,), (3,))  # under node 3, which is the tip
        assert window.chain(9) == [1]

    def test_void(self) -> None:
        window = self.window(1)
        window.begin(1, 1)
        window.append(1, (2,), ())
        window.void(7)
        assert window.chain(9) == []
        window.append(1, (3,), ())  # a late frame means nothing
        window.begin(8, 1)


def alive(window: CloudWindow, node: int, committed: Sequence[int]) -> bool:
    """The definition: the node's path is what was committed, as far as both go."""
    guesses = window.guesses
    assert guesses is not None
    path = guesses.path(node, guesses.base)
    known = list(committed[guesses.base :])
    return all(a == b for a, b in zip(path, known, strict=False))


@given(st.data())
def test_window_equals_the_definition(data: st.DataObject) -> None:
    """Random trees and commits in any order: the chain is a live path, the tip the deepest."""
    window = CloudWindow([])
    window.begin(1, 0)
    token = st.integers(0, 2)
    for _ in range(data.draw(st.integers(0, 25))):
        if data.draw(st.booleans()):
            window.committed.append(data.draw(token))
            window.committed_grew()
        else:
            assert window.guesses is not None
            delta = data.draw(st.integers(1, len(window.guesses.tokens) + 1))
            try:
                window.append(1, (data.draw(token),), (delta,))
            except RemoteProtocolError:
                continue
        guesses, length = window.guesses, len(window.committed)
        assert guesses is not None
        settled = [
            node
            for node in range(len(guesses.tokens))
            if guesses.positions[node] < length and alive(window, node, window.committed)
        ]
        deepest = max(settled, key=lambda node: guesses.positions[node], default=ROOT)
        assert window.tip == deepest
        pending = [
            node
            for node in range(len(guesses.tokens))
            if guesses.positions[node] == length and alive(window, node, window.committed)
        ]
        assert window.chain(1) == [guesses.tokens[node] for node in pending[:1]]


class TestTreesAtTheEdge:
    def test_a_tree_hangs_from_the_end_of_the_chain(self) -> None:
        window = EdgeWindow([1])
        window.extend([2, 3], [ROOT, 0])
        window.extend([4, 5, 6, 7], [ROOT, ROOT, 0, 1])
        assert window.current.parents == [ROOT, 0, 1, 1, 2, 3]
        assert window.ahead == [2, 3, 4, 6]
        assert window.unsent(3) == ((2, 3, 4), (), ())
        window.announced, window.sent = True, 3
        assert window.unsent(9) == ((5, 6, 7), (2, 2, 2), ())

    def test_a_guess_that_stands_is_not_made_again(self) -> None:
        window = EdgeWindow([1])
        window.extend([2, 3, 4], [ROOT, ROOT, 1])
        window.announced, window.sent = True, 3
        assert window.commit([3])  # answered by the other branch
        assert window.ahead == [4]
        window.tip = 1  # nothing below the tip but what was sent
        window.extend([5, 5], [ROOT, ROOT])
        assert window.current.tokens == [2, 3, 4, 5]

    def test_a_refusal_is_answered_by_another_branch(self) -> None:
        window = EdgeWindow([1])
        window.extend([2, 3, 4], [ROOT, ROOT, 0])
        window.announced, window.sent = True, 3
        assert window.commit([3])
        assert (window.current.number, window.ahead) == (1, [])
        window.extend([6], [ROOT])
        assert (window.current.parents[3], window.unsent(9)[1]) == (1, (2,))


class TestTreesAtTheCloud:
    def window(self) -> CloudWindow:
        window = CloudWindow([0])
        window.begin(1, 1)
        window.append(1, [t for t, _ in BRANCHED], [d for _, d in BRANCHED])
        return window

    def test_all_below_the_tip(self) -> None:
        window = self.window()
        assert window.tree(9, 9, 9) == ((5, 6, 7, 8, 9, 6), (-1, 0, 1, 1, -1, 4))
        window.committed.extend([5, 6])
        window.committed_grew()
        assert window.tree(9, 9, 9) == ((7, 8), (-1, -1))
        assert window.in_flight() == 2

    def test_bounds(self) -> None:
        window = self.window()
        assert window.tree(1, 9, 9) == ((5, 9), (-1, -1))
        assert window.tree(9, 4, 9) == ((5, 6, 7, 8), (-1, 0, 1, 1))
        assert window.tree(9, 9, 2) == ((5, 6, 7, 8), (-1, 0, 1, 1))
        assert window.tree(9, 9, 1) == ((5, 6, 7), ())  # a chain
        assert window.tree(9, 0, 9) == ((), ())

    def test_nodes_under_a_dead_parent_are_dropped_quietly(self) -> None:
        window = self.window()
        window.committed.append(9)
        window.committed_grew()
        window.append(1, (3, 4), (5, 3))  # under nodes 1 (dead) and 4 (alive)
        assert window.tree(9, 9, 9) == ((6, 4), (-1, -1))
        with pytest.raises(RemoteProtocolError, match="repeats node"):
            window.append(1, (3,), (7,))
