"""Epochs of guesses: what the edge has sent ahead, and which of it the cloud holds alive.

A session has *committed* ids, owned by the cloud. An *epoch* is one tree of guesses (a chain is
the usual case) hanging from one committed length, its *base*. The edge names epochs and numbers
nodes in the order sent; the cloud keeps one fact a node: alive, its path equals the committed ids
so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from outrider.protocol.decoding.row import SparseRow
from outrider.protocol.decoding.trees import is_chain
from outrider.protocol.errors import LocalProtocolError, RemoteProtocolError
from outrider.protocol.guesses import ROOT, Guesses


class EdgeWindow:
    """The edge's guesses: the current epoch, which of its nodes were sent, and older epochs that a
    verdict under way may still name.

    ``committed`` is the session's own list of ids, which the window reads and extends. ``least``:
    the newest guesses are kept until there are so many; the next frame saves the bytes of theirs.
    ``begun`` counts epochs begun: unlike a number, which an epoch of which nothing was sent hands
    on, it is never the same for two.
    """

    def __init__(self, committed: list[int], last_epoch: int = 0) -> None:
        self.committed = committed
        self.least = self.begun = 1
        self.current = Guesses(last_epoch + 1, len(committed))
        self.sent = 0
        self.announced = False
        self.tip = ROOT
        self._older: dict[int, Guesses] = {}
        self._sides: set[int] = set()

    @property
    def last_announced(self) -> int:
        """Number of the newest epoch of which a frame was sent."""
        return self.current.number if self.announced else self.current.number - 1

    @property
    def ahead(self) -> list[int]:
        """The chain of guesses after the committed text, newest epoch, sent or not.

        Of a tree: the first-sent guess at each place.
        """
        return self.current.first(self.tip)[0]

    def extend(
        self,
        tokens: Sequence[int],
        parents: Sequence[int] = (),
        rows: Sequence[SparseRow] = (),
        scored: int = 0,
    ) -> None:
        """Append a tree of guesses after the chain ahead: ``parents[i]`` is an earlier one or ROOT.

        Without parents they are a chain. A guess that stands there already is not made again.
        ``rows``: under the ratio rule, what each was drawn from; of the first ``scored`` the cloud
        made, what the edge thinks of them.
        """
        end = self.current.first(self.tip)[1]
        nodes: list[int] = []
        for token, parent in zip(tokens, parents or range(ROOT, len(tokens) - 1), strict=True):
            above = end if parent == ROOT else nodes[parent]
            known = self.current.children.get(above, {}).get(token)
            if known is None:
                known = self.current.append(token, len(self.current.tokens) - above)
            nodes.append(known)
        self.current.rows.extend(rows)
        self.current.scored.update(nodes[:scored])

    def branch(self, ahead: int, tokens: Sequence[int]) -> None:
        """Other guesses for what comes after the first ``ahead`` of the chain ahead.

        Raises:
            LocalProtocolError: no guess stands there, or the same one, or guesses go with rows.
        """
        current = self.current
        node, _ = current.follow(self.tip, self.ahead[: max(0, ahead)])
        under = current.children.get(node, {})
        if not 0 <= ahead < len(self.ahead) or tokens[0] in under or current.rows:
            raise LocalProtocolError(f"no branch with {tokens[0]} after {ahead} guesses")
        self._sides.add(len(current.tokens))
        for token in tokens:
            node = current.append(token, len(current.tokens) - node)

    def graft(self, theirs: Guesses, tip: int) -> int:
        """Repeat what hangs below node ``tip`` of another window over the same text; the number of
        guesses that are new here. Both texts must end at that node.
        """
        current, kept = self.current, {tip: self.tip}
        before = len(current.tokens)
        for node in range(tip + 1, len(theirs.tokens)):
            above = kept.get(theirs.parents[node])
            if above is None:
                continue  # beside the text
            token = theirs.tokens[node]
            known = current.children.get(above, {}).get(token)
            if known is None:
                known = current.append(token, len(current.tokens) - above)
                current.rows.extend(theirs.rows[node : node + 1])
            kept[node] = known
        return len(current.tokens) - before

    def hits(self, tokens: Sequence[int]) -> int:
        """How many of the chain's guesses these tokens refuse by going on with a branch's."""
        node, _ = self.current.follow(self.tip, tokens)
        hits = 0
        while node != self.tip:
            hits += node in self._sides
            node = self.current.parents[node]
        return hits

    @property
    def in_flight(self) -> int:
        """Nodes sent that no verdict has settled: those beyond the committed length."""
        length = len(self.committed)
        return sum(position >= length for position in self.current.positions[: self.sent])

    def restart(self) -> None:
        """Begin a new epoch at the committed end; guesses not yet sent are forgotten.

        Numbers have no gaps: an epoch of which nothing was sent is begun again under its own.
        """
        if self.announced:
            self._older[self.current.number] = self.current
        number = self.last_announced + 1
        self.current = Guesses(number, len(self.committed))
        self.sent, self.announced, self.tip, self.least = 0, False, ROOT, 1
        self._sides = set()
        self.begun += 1
        self._forget_settled()

    def unsent(self, room: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[SparseRow, ...]]:
        """The next tokens to send, at most ``room``, the deltas to their parents (none: a chain),
        and their rows: those of one number of levels.

        What is left waits for the next frame: a token that was drawn is never withheld.
        """
        current, start = self.current, self.sent
        if len(current.tokens) - start < self.least:
            return (), (), ()
        tokens = tuple(current.tokens[start : start + max(0, room)])
        rows = tuple(current.rows[start : start + len(tokens)])
        alike = next((i for i, r in enumerate(rows) if r.levels != rows[0].levels), len(tokens))
        alike = min(alike, self._proposals_first(start, len(tokens)))
        tokens, rows = tokens[:alike], rows[:alike]
        end = start + len(tokens)
        deltas = tuple(node - current.parents[node] for node in range(start, end))
        return tokens, deltas if any(delta != 1 for delta in deltas) else (), rows

    def _proposals_first(self, start: int, count: int) -> int:
        """Of so many nodes those that fit a frame, in which the cloud's proposals come first."""
        scored = [node in self.current.scored for node in range(start, start + count)]
        mixed = [i for i in range(1, count) if scored[i] and not scored[i - 1]]
        return mixed[0] if mixed else count

    def proposals(self, count: int, *, wanted: bool) -> int | None:
        """How many of the first ``count`` unsent nodes are the cloud's proposals; None if there is
        nothing to say of that: none are, and no more are ``wanted``."""
        scored = self.current.scored
        found = sum(node in scored for node in range(self.sent, self.sent + count))
        return found if count and (found or wanted) else None

    def void(self) -> None:
        """A new connection: nothing in flight counts any more, older epochs cannot be named."""
        self.restart()
        self._older.clear()

    def resolve(self, epoch: int, node: int, start: int) -> list[int]:
        """Tokens that a verdict names by ``node`` of the epoch with low byte ``epoch``.

        Raises:
            RemoteProtocolError: no such epoch or node, or it was never sent.
        """
        for guesses in (self.current, *self._older.values()):
            if guesses.number & 0xFF == epoch:
                limit = self.sent if guesses is self.current else len(guesses.tokens)
                if node >= limit or guesses.base > start:
                    break
                return guesses.path(node, start)
        raise RemoteProtocolError(f"verdict on node {node} of epoch {epoch}, which was not sent")

    def commit(self, tokens: Sequence[int], *, own: bool = False) -> bool:
        """Extend the committed ids; False if the current epoch does not end on them any more.

        The window then starts the next epoch: contradicted, overtaken, or past the last guess.
        ``own``: some were the cloud's own under the ratio rule, which ends the epoch in any case.
        """
        self.committed.extend(tokens)
        if own:
            self.restart()
            return False
        self.tip, matched = self.current.follow(self.tip, tokens)
        if matched == len(tokens):
            if not self.announced and not self.current.rows:
                self._shorten()
            self._forget_settled()
            return True
        self.restart()
        return False

    def _shorten(self) -> None:
        """Nobody knows of this epoch yet: let it hang from the committed end."""
        known, kept = self.current, {self.tip: ROOT}
        self.current, self.tip = Guesses(known.number, len(self.committed)), ROOT
        for node, (token, parent) in enumerate(zip(known.tokens, known.parents, strict=True)):
            if parent in kept:
                count = len(self.current.tokens)
                kept[node] = self.current.append(token, count - kept[parent])
        self._sides = {kept[node] for node in self._sides if node in kept}

    def _forget_settled(self) -> None:
        """An older epoch all of whose nodes lie in the committed text can no longer be named."""
        length = len(self.committed)
        self._older = {
            number: guesses
            for number, guesses in self._older.items()
            if guesses.positions and max(guesses.positions) >= length
        }


class CloudWindow:
    """The cloud's view of the newest epoch of one session.

    ``tip`` is the deepest node whose whole path equals committed ids. Below it live the pending
    guesses; everything else is dead and is never looked at again. Nodes keep their numbers, dead
    or alive, because the edge counts them.
    """

    def __init__(self, committed: list[int]) -> None:
        self.committed = committed
        self.guesses: Guesses | None = None
        self.last_epoch = 0
        self.tip = ROOT
        self._over = False

    def end(self) -> None:
        """The cloud goes its own way: whatever was or will be sent of this epoch is dead.

        Its nodes can still be named in a verdict.
        """
        self._over = True

    def void(self, last_epoch: int) -> None:
        """A new connection or answer: no epoch until a newer one is announced."""
        self.guesses, self.tip = None, ROOT
        self.last_epoch = last_epoch

    def begin(self, low: int, base: int, *, ratio: bool = False) -> None:
        """The edge announces the next epoch, whose number has the low byte ``low``.

        Under the ratio rule (``ratio``) it is over if the cloud has gone on alone meanwhile.

        Raises:
            RemoteProtocolError: the number is not the next one, or the base is beyond the text.
        """
        number = self.last_epoch + 1
        if number & 0xFF != low:
            raise RemoteProtocolError(f"epoch {low} announced where {number & 0xFF} is next")
        if base > len(self.committed):
            raise RemoteProtocolError(
                f"epoch {number} hangs from {base}, beyond the committed text"
            )
        self.guesses, self.last_epoch, self.tip = Guesses(number, base), number, ROOT
        self._over = ratio and base < len(self.committed)
        self._advance()

    def append(
        self,
        low: int,
        tokens: Sequence[int],
        deltas: Sequence[int],
        rows: Sequence[SparseRow] = (),
        scored: int = 0,
    ) -> None:
        """Nodes arrive. Those that contradict what was committed meanwhile are dead on arrival.

        The first ``scored`` of them are proposals of this cloud.

        Raises:
            RemoteProtocolError: the epoch is not the announced one, or a node is malformed.
        """
        if self.guesses is None:
            return  # an epoch that was voided: its late frames mean nothing
        if self.guesses.number & 0xFF != low:
            raise RemoteProtocolError(f"nodes for epoch {low}, which is not the current one")
        first = len(self.guesses.tokens)
        for i, token in enumerate(tokens):
            self.guesses.append(token, deltas[i] if deltas else 1)
        self.guesses.rows.extend(rows)
        self.guesses.scored.update(range(first, first + scored))
        self._advance()

    def committed_grew(self) -> None:
        """Compare every node with the ids committed since, whoever they came from."""
        self._advance()

    @property
    def caught_up(self) -> bool:
        """The committed text ends on a node (or the base): guesses below it are worth a pass."""
        sent = self.guesses
        if sent is None or self._over:
            return False
        return sent.position(self.tip) + 1 == len(self.committed)

    @property
    def tip_position(self) -> int | None:
        """Sequence index of the deepest guess that was right (of the base's last id: none was)."""
        return None if self.guesses is None else self.guesses.position(self.tip)

    @property
    def contradicted(self) -> bool:
        """The text went on otherwise than every guess below the tip."""
        if self.guesses is None or not self.guesses.children.get(self.tip):
            return False
        return not self.caught_up

    @property
    def branched(self) -> bool:
        """The epoch's guesses are not all one chain."""
        return self.guesses is not None and self.guesses.branched

    def chain(self, limit: int) -> list[int]:
        """Pending guesses to judge: from the tip down, first-sent child first, up to ``limit``."""
        if self.guesses is None or not self.caught_up:
            return []
        return self.guesses.under(self.tip, limit)

    def tree(self, depth: int, nodes: int, leaves: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Pending guesses to judge: all below the tip, in the order sent, and their parents.

        Parents are indices among them, ``ROOT`` for the tip; there are none for a chain. At most
        ``nodes`` guesses, ``depth`` in a row, ``leaves`` ends: a branch too many is left out.
        """
        if not self.caught_up or self.guesses is None:
            return (), ()
        sent = self.guesses
        deepest = sent.position(self.tip) + depth
        kept = {self.tip: ROOT}
        tokens: list[int] = []
        parents: list[int] = []
        for node in range(self.tip + 1, len(sent.tokens)):
            if len(tokens) == nodes:
                break
            above = kept.get(sent.parents[node])
            if above is None or sent.positions[node] > deepest:
                continue
            if above in parents:  # a branch
                if leaves <= 1:
                    continue
                leaves -= 1
            kept[node] = len(tokens)
            tokens.append(sent.tokens[node])
            parents.append(above)
        return tuple(tokens), () if is_chain(parents) else tuple(parents)

    def chain_rows(self, limit: int) -> tuple[SparseRow, ...]:
        """What the guesses of :meth:`chain` were drawn from, under the ratio rule."""
        if not self.caught_up or self.guesses is None:
            return ()
        return tuple(islice(self.guesses.rows, self.tip + 1, self.tip + 1 + limit))

    def chain_scored(self, limit: int) -> tuple[bool, ...]:
        """Which of the guesses of :meth:`chain` are this cloud's own proposals."""
        if self.guesses is None:
            return ()
        first = self.tip + 1
        return tuple(n in self.guesses.scored for n in range(first, first + len(self.chain(limit))))

    def in_flight(self) -> int:
        """Nodes beyond the committed text, dead ones included: what the edge's window counts."""
        if self.guesses is None:
            return 0
        length = len(self.committed)
        return sum(position >= length for position in self.guesses.positions)

    def settled(self, told: int) -> int | None:
        """The tip as a verdict names it: its number if it says anything from index ``told`` on."""
        if self.guesses is None or self.tip == ROOT or self.guesses.base > told:
            return None
        return self.tip if self.guesses.positions[self.tip] >= told else None

    def _advance(self) -> None:
        if self.guesses is not None and not self._over:
            start = self.guesses.position(self.tip) + 1
            self.tip, _ = self.guesses.follow(self.tip, self.committed[start:])
