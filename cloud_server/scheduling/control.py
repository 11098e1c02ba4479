"""Speculation control by negative feedback: how many guesses a step may have judged in all.

CoSine's rule (arXiv 2503.10325): a verifier that idles raises the number, a backlog lowers it, and
if there are more guesses than allowed the longest drafts are trimmed first, step by step. The
figures are ours. An edge is told by the load in its verdicts (``docs/verifier.md``).
"""

from __future__ import annotations

from collections.abc import Sequence

LEAST = 8
"""Guesses that are always allowed, or nobody would know what they would do."""

MOST = 4096

RAISE, LOWER = 1.25, 0.8
"""Factors by which a step that found the verifier idle, or left work over, changes the number."""

IDLE = 0.1
"""Share of the time since the last step that counts as having idled."""


class SpeculationControl:
    """Owns the number. It starts high: an idle verifier is the usual beginning."""

    def __init__(self) -> None:
        self.allowed = MOST
        self._free_since: float | None = None
        self._begun: float | None = None

    def began(self, now: float, *, backlog: bool) -> None:
        """A step begins; ``backlog``: a cap left requests out or cut them short."""
        if self._free_since is not None and self._begun is not None:
            idle, since = now - self._free_since, now - self._begun
            if backlog:
                self.allowed = max(LEAST, int(self.allowed * LOWER))
            elif since > 0 and idle > IDLE * since:
                self.allowed = min(MOST, int(self.allowed * RAISE) + 1)
        self._begun = now

    def ended(self, now: float) -> None:
        """The step is over."""
        self._free_since = now

    def trim(self, lengths: Sequence[int]) -> list[int]:
        """Draft lengths whose sum is at most what is allowed: the longest give first."""
        level = max(lengths, default=0)
        left = sum(lengths) - self.allowed
        trimmed = list(lengths)
        while left > 0:
            level -= 1
            for i, length in enumerate(trimmed):
                if length > level and left > 0:
                    trimmed[i] = level
                    left -= length - level
        return trimmed
