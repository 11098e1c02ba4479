"""One thing that was looked at: how it is, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Check:
    """``says`` is for people, ``do`` what to do (None: nothing), ``facts`` for programs."""

    name: str
    state: State
    says: str
    do: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "name": self.name,
            "state": self.state,
            "says": self.says,
            "do": self.do,
            "facts": self.facts,
        }


def ok(name: str, says: str, **facts: Any) -> Check:
    """All is well."""
    return Check(name, "ok", says, None, facts)


def warning(name: str, says: str, do: str, **facts: Any) -> Check:
    """It works, but worse than it could, or it may not."""
    return Check(name, "warning", says, do, facts)


def problem(name: str, says: str, do: str, **facts: Any) -> Check:
    """It does not work."""
    return Check(name, "problem", says, do, facts)
