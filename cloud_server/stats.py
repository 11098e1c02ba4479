"""What a verifier's engine did since it started."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

from outrider.cloud_server.planner import Part


@dataclass(slots=True)
class EngineStats:
    """Counters since the start; the names follow the field's metrics.

    ``own_...`` is what the verifier guessed itself, by look-up or draft model; of the latter alone
    ``own_drafts`` is how often it was asked, ``own_seconds`` for how long it worked.
    ``runs[n]``: drafts of which n guesses were right.
    """

    passes: int = 0
    target_seconds: float = 0.0
    tokens: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_trees: int = 0
    runs: list[int] = field(default_factory=lambda: [0])
    own_draft_tokens: int = 0
    own_accepted_tokens: int = 0
    own_drafts: int = 0
    own_seconds: float = 0.0
    own_dropped: int = 0
    failures: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0

    def count(self, part: Part, accepted: int, kept: int) -> None:
        """Drafts are the edge's; what the verifier guessed itself is counted apart."""
        self.tokens += kept
        theirs = len(part.chain) - part.own
        self.own_draft_tokens += part.own
        self.own_accepted_tokens += max(0, accepted - theirs)
        if not theirs:
            return
        accepted = min(accepted, theirs)
        self.num_drafts += 1
        self.num_trees += bool(part.parents)
        self.num_draft_tokens += theirs
        self.num_accepted_tokens += accepted
        if accepted >= len(self.runs):
            self.runs.extend([0] * (1 + accepted - len(self.runs)))
        self.runs[accepted] += 1

    @property
    def accepted_per_position(self) -> list[int]:
        """How often the first guess of a draft was right, the second, and so on."""
        return list(accumulate(self.runs[:0:-1]))[::-1]
