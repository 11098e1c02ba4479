"""An answer's figures, for scripts and for people. The names of the JSON keys are a contract."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

from outrider.edge_client.answer import Answer


def figures(answer: Answer) -> dict[str, Any]:
    """What both ``run --json`` and ``demo --json`` say about an answer. None: not known."""
    count = len(answer.ids)
    return {
        "text": answer.text,
        "tokens": count,
        "token_ids": list(answer.ids),
        "prompt_ids": list(answer.prompt_ids),
        "prompt_tokens": len(answer.prompt_ids),
        "cached_tokens": answer.cached,
        "finish_reason": answer.reason,
        "seed": answer.seed,
        "rule": answer.rule,
        "acceptance_rate": answer.acceptance_rate,
        "mean_acceptance_length": answer.mean_acceptance_length,
        "tokens_per_second": answer.tokens_per_second,
        "decode_tokens_per_second": answer.decode_tokens_per_second,
        "ttft_s": answer.first_token,
        "bytes_up_per_token": _per(answer.bytes_up, count),
        "bytes_down_per_token": _per(answer.bytes_down, count),
        "target_passes_per_token": _per(answer.passes, count),
        "drafted": answer.drafted,
        "accepted": answer.accepted,
        "frames": answer.frames,
        "rtt_ms": None if answer.rtt is None else answer.rtt * 1000,
        "degraded": answer.degraded,
    }


def origins(answer: Answer) -> dict[str, Any]:
    """What a text of several models adds: who proposed each token, and what came of it."""
    made = answer.origins
    return {
        "proposals": [origin._asdict() for origin in made],
        "proposed_by": dict(Counter(origin.proposer or "unknown" for origin in made)),
    }


def unverified(answer: Answer) -> dict[str, Any]:
    """What ``--offline local`` adds: what is not part of the answer, kept apart from it."""
    return {
        "verified_tokens": len(answer.ids),
        "unverified_text": answer.unverified,
        "unverified_tokens": answer.unverified_tokens,
        "offline_tokens": answer.offline_tokens,
        "corrected_tokens": answer.corrected,
        "reconnects": answer.reconnects,
    }


def print_json(value: dict[str, Any]) -> None:
    """One object on one line of stdout; plain ASCII, so that no locale can spoil it."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def summary(answer: Answer, mode: str) -> str:
    """One line for people, after the text."""
    numbers = figures(answer)
    parts = [
        f"{numbers['tokens']} tokens",
        f"{numbers['tokens_per_second']:.1f} tok/s",
    ]
    if answer.acceptance_rate is not None:
        parts.append(
            f"accepted {answer.accepted} of {answer.drafted} ({answer.acceptance_rate:.0%})"
        )
    for key, text in (
        ("bytes_up_per_token", "{:.1f} B/token up"),
        ("bytes_down_per_token", "{:.1f} down"),
        ("target_passes_per_token", "{:.2f} passes/token"),
        ("rtt_ms", "RTT {:.1f} ms"),
    ):
        if numbers[key] is not None:
            parts.append(text.format(numbers[key]))
    if answer.seed is not None:
        parts.append(f"seed {answer.seed}")
    return " | ".join([*parts, mode])


def _per(total: int | None, count: int) -> float | None:
    return total / count if total is not None and count else None
