"""Speculation control by negative feedback: how many guesses a step may have judged in all.

CoSine's rule (arXiv 2503.10325): a verifier with time to spare raises it, a backlog lowers it, and
if there are more guesses than allowed the longest drafts are trimmed first, step by step. The
figures are ours. An edge is told by the load in its verdicts (``docs/verifier.md``).
"""

from __future__ import annotations

from collections.abc import Sequence

LEAST = 8
"""Guesses that are always allowed, or nobody would know what they would do."""

MOST = 4096

RAISE, LOWER = 1.25, 0.8
"""Factors by which a step that took all the work, or left some over, changes the number."""


class SpeculationControl:
    """Owns the number. It starts high: an idle verifier is the usual beginning."""

    def __init__(self) -> None:
        self.allowed = MOST

    def stepped(self, *, backlog: bool) -> None:
        """A step begins; ``backlog``: even with no more than is allowed it exceeds a cap."""
        if backlog:
            self.allowed = max(LEAST, int(self.allowed * LOWER))
        else:
            self.allowed = min(MOST, int(self.allowed * RAISE) + 1)

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
