"""The objects that answers become: whole responses, and the chunks of a stream."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from outrider.edge_client.answer import Ahead, Answer, Piece
from outrider.edge_client.endpoint.logprobs import Told
from outrider.edge_client.endpoint.tools import CallReader
from outrider.protocol.decoding.sampling import Rule
from outrider.runtime.text.tokenizer import Tokenizer
from outrider.runtime.text.utf8 import Utf8Stream

DONE = b"data: [DONE]\n\n"

Kind = Literal["chat", "completion"]
_encode = msgspec.json.Encoder().encode


def event(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + _encode(data) + b"\n\n"


@dataclass(slots=True)
class Choice:
    """One choice as it grows. ``ended`` is its answer, ``shown`` how many characters came of it."""

    index: int
    calls: CallReader | None
    seed: int
    told: Told | None = None
    text: str = ""
    shown: int = 0
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    ended: Answer | None = None
    begun: bool = False
    bytes_up: int = 0
    bytes_down: int = 0
    trace: Utf8Stream = field(default_factory=Utf8Stream)

    def take(self, text: str) -> list[str | dict[str, Any]]:
        """New text, as what the client gets of it: texts and tool calls in turn."""
        self.shown += len(text)
        if self.calls is not None:
            return self._keep(self.calls.feed(text))
        return self._keep([text] if text else [])

    def rest(self) -> list[str | dict[str, Any]]:
        """What was held back, at the end."""
        left = self.calls.finish() if self.calls else ""
        return self._keep([left] if left else [])

    def _keep(self, parts: list[str | dict[str, Any]]) -> list[str | dict[str, Any]]:
        for part in parts:
            if isinstance(part, str):
                self.text += part
            else:
                self.tool_calls.append(part)
        return parts

    @property
    def reason(self) -> str | None:
        """Why it ended, in OpenAI's words."""
        if self.ended is None:
            return None
        return (
            "tool_calls" if self.tool_calls and self.ended.reason == "stop" else self.ended.reason
        )

    def figures(self, mode: str, rule: Rule) -> dict[str, Any]:
        """What it cost: our own addition to a choice."""
        answer = self.ended
        assert answer is not None
        return {
            "seed": self.seed if rule is not Rule.GREEDY else None,
            "rule": rule.value,
            "drafts": answer.frames,
            "drafted": answer.drafted,
            "accepted": answer.accepted,
            "target_passes": answer.passes,
            "bytes_up": answer.bytes_up,
            "bytes_down": answer.bytes_down,
            "reconnects": answer.reconnects,
            "degraded": answer.degraded,
            "mode": mode,
        }


@dataclass(slots=True)
class Reply:
    """A response to one request."""

    kind: Kind
    model: str
    fingerprint: str
    choices: list[Choice]
    rule: Rule
    id: str = ""
    created: int = 0

    def __post_init__(self) -> None:
        prefix = "chatcmpl" if self.kind == "chat" else "cmpl"
        self.id = self.id or f"{prefix}-{secrets.token_hex(12)}"
        self.created = self.created or int(time.time())

    # --- the whole --------------------------------------------------------------------------

    def whole(self, mode: str) -> dict[str, Any]:
        """The response, once every choice has ended."""
        made = [self._choice(choice, mode) for choice in self.choices]
        name = "chat.completion" if self.kind == "chat" else "text_completion"
        return self._head(name, made) | {"usage": self.usage(), "timings": self.timings()}

    def _choice(self, choice: Choice, mode: str) -> dict[str, Any]:
        end = {
            "index": choice.index,
            "logprobs": self._logprobs(choice),
            "finish_reason": choice.reason,
            "outrider": choice.figures(mode, self.rule),
        }
        if self.kind == "completion":
            return {"text": choice.text} | end
        calls = [{k: v for k, v in call.items() if k != "index"} for call in choice.tool_calls]
        said: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if calls:
            said |= {"content": choice.text or None, "tool_calls": calls}
        return {"message": said} | end

    def _logprobs(self, choice: Choice) -> dict[str, Any] | None:
        """Those of the text shown by now that were not told before, if they are wanted."""
        if choice.told is None:
            return None
        entries = choice.told.shown(choice.shown)
        if self.kind == "completion":
            return choice.told.of_completion(entries)
        return choice.told.of_chat(entries)

    def usage(self) -> dict[str, Any]:
        """Tokens of the prompts, each counted once, and of all choices."""
        answers = [c.ended for c in self.choices if c.ended is not None]
        prompts = {answer.prompt_ids: answer.cached for answer in reversed(answers)}
        prompt = sum(map(len, prompts))
        emitted = sum(len(answer.ids) for answer in answers)
        drafted = sum(answer.drafted for answer in answers)
        accepted = sum(answer.accepted for answer in answers)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": emitted,
            "total_tokens": prompt + emitted,
            "prompt_tokens_details": {"cached_tokens": sum(prompts.values())},
            "completion_tokens_details": {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": drafted - accepted,
            },
        }

    def timings(self) -> dict[str, Any]:
        """Counts and milliseconds by llama.cpp's names; of several choices the longest times."""
        answers = [c.ended for c in self.choices if c.ended is not None]
        prompt_ms = max(((a.first_token or a.seconds) * 1e3 for a in answers), default=0.0)
        whole_ms = max((a.seconds * 1e3 for a in answers), default=0.0)
        emitted = sum(len(a.ids) for a in answers)
        prompt = sum(len(a.prompt_ids) - a.cached for a in answers)
        predicted_ms = max(0.0, whole_ms - prompt_ms)
        return {
            "cache_n": sum(a.cached for a in answers),
            "prompt_n": prompt,
            "prompt_ms": prompt_ms,
            "prompt_per_second": prompt / prompt_ms * 1e3 if prompt_ms else None,
            "predicted_n": emitted,
            "predicted_ms": predicted_ms,
            "predicted_per_second": emitted / predicted_ms * 1e3 if predicted_ms else None,
            "draft_n": sum(a.drafted for a in answers),
            "draft_n_accepted": sum(a.accepted for a in answers),
        }

    # --- chunks -----------------------------------------------------------------------------

    def chunk(
        self, choice: Choice, part: str | dict[str, Any] | None, trace: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """A piece of one choice; the first also says who speaks. None: nothing but the trace."""
        if self.kind == "completion":
            made: dict[str, Any] = {"index": choice.index, "text": part or ""}
        else:
            delta: dict[str, Any] = {}
            if not choice.begun:
                delta = {"role": "assistant", "content": ""}
            if isinstance(part, str):
                delta["content"] = part
            elif part is not None:
                delta["tool_calls"] = [part]
            made = {"index": choice.index, "delta": delta}
        choice.begun = True
        made |= {"logprobs": self._logprobs(choice), "finish_reason": None}
        chunk = self._chunk([made])
        return chunk if trace is None else chunk | {"outrider": trace}

    def last(self, choice: Choice, mode: str) -> dict[str, Any]:
        """The chunk with which a choice ends."""
        nothing: dict[str, Any] = {"text": ""} if self.kind == "completion" else {"delta": {}}
        made: dict[str, Any] = {"index": choice.index, **nothing}
        made |= {"logprobs": self._logprobs(choice), "finish_reason": choice.reason}
        made |= {"outrider": choice.figures(mode, self.rule)}
        over = all(other.ended is not None for other in self.choices)
        return self._chunk([made]) | ({"timings": self.timings()} if over else {})

    def usage_chunk(self) -> dict[str, Any]:
        """What comes before the end where usage was asked for."""
        return self._chunk([]) | {"usage": self.usage()}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        name = "chat.completion.chunk" if self.kind == "chat" else "text_completion"
        return self._head(name, choices)

    def _head(self, name: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": name,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }


def trace_of(happened: Piece | Ahead, choice: Choice, tokenizer: Tokenizer) -> dict[str, Any]:
    """What the live view shows of a piece or of guesses: text by whose it was."""
    if isinstance(happened, Ahead):
        return {"ahead": happened.text}
    own = choice.trace.feed(_bytes(happened.tokens[: happened.accepted], tokenizer))
    others = choice.trace.feed(_bytes(happened.tokens[happened.accepted :], tokenizer))
    return {
        "accepted": own,
        "corrected" if happened.refused else "target": others,
        "refused": tokenizer.decode(happened.refused[:1]),  # those behind it are void, not wrong
        "tokens": len(happened.tokens),
        "accepted_tokens": happened.accepted,
    }


def _bytes(tokens: tuple[int, ...], tokenizer: Tokenizer) -> bytes:
    return b"".join(map(tokenizer.token_bytes, tokens))
