"""Whether the drafter can be asked: it is well, away for a while, or gone for good."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.protocol.errors import AwayError, BackendError


@dataclass(slots=True)
class Health:
    """``failed``: the error that stopped the drafter. ``away``: why it is left alone for now."""

    failed: BackendError | None = None
    away: AwayError | None = None
    _back: float = 0.0

    def rests(self, now: float) -> bool:
        """It is not to be asked."""
        return self.failed is not None or (self.away is not None and now < self._back)

    @property
    def trouble(self) -> BackendError | None:
        """What is wrong with it, if anything is."""
        away = self.away if self.away is not None and not self.away.busy else None
        return self.failed or away

    @property
    def notice(self) -> str:
        """The same for people."""
        how = "stopped" if self.failed is not None else "paused"
        return f"drafting {how}, the cloud goes on alone: {self.trouble}"

    def check(self) -> None:
        """Refuse what cannot do without it.

        Raises:
            BackendError: it is gone for good.
        """
        if self.failed is not None:
            raise BackendError(f"the model at this edge has failed: {self.failed}")

    def worked(self) -> None:
        """It did what it was asked for."""
        self.away = None

    def raised(self, error: BackendError, now: float) -> None:
        """It did not."""
        if isinstance(error, AwayError):
            self.away, self._back = error, now + error.retry_after
        else:
            self.failed = error
