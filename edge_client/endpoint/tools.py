"""Tool calls, by the target's own template: it writes the tools out, and says how to call one.

What a target writes is read in the one form that most templates ask for (Hermes, Qwen and others):
``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``. Where a call is required the cloud
holds the target to that (``forms``); else a call that cannot be read stays in the text, to be seen.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from typing import Any

from outrider.edge_client.endpoint.errors import bad, unsupported
from outrider.edge_client.endpoint.schema import ChatBody
from outrider.runtime.text.template import TOOL_CALL, TOOL_CALL_END

OPEN, CLOSE = TOOL_CALL, TOOL_CALL_END


def offered(body: ChatBody, *, place: bool) -> list[dict[str, Any]] | None:
    """The tools to write into the prompt, if any. ``place``: the target's template has one.

    Raises:
        ApiError: it has not, or what is asked for would need to be forced.
    """
    choice = body.tool_choice
    forced = choice not in (None, "none", "auto")
    if not body.tools:
        if choice not in (None, "none", "auto"):
            raise bad("tool_choice without tools", "tool_choice")
        return None
    for i, tool in enumerate(body.tools):
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, dict):
            raise unsupported(f"tools[{i}]", "only tools of type function exist here")
        if not isinstance(function.get("name"), str):
            raise bad(f"tools[{i}].function.name is missing", f"tools[{i}].function.name")
        if function.get("strict") and not forced:
            raise unsupported(
                f"tools[{i}].function.strict", "only a call that tool_choice requires is forced"
            )
    if choice == "none":
        return None
    if not place:
        raise unsupported("tools", "the target's chat template has no place for them")
    if body.parallel_tool_calls is False and not forced:
        raise unsupported(
            "parallel_tool_calls", "only where tool_choice requires a call can it be the only one"
        )
    if (body.response_format or {}).get("type", "text") != "text":
        raise unsupported("response_format", "with tools an answer may be a call; leave out one")
    return body.tools


@dataclass(slots=True)
class CallReader:
    """Takes text as it comes, and gives text and whole calls in turn."""

    calls: int = 0
    _held: str = ""
    _inside: bool = field(default=False)

    def feed(self, text: str) -> list[str | dict[str, Any]]:
        """What is certain by now."""
        self._held += text
        found: list[str | dict[str, Any]] = []
        while True:
            mark = CLOSE if self._inside else OPEN
            at = self._held.find(mark)
            if at < 0:
                break
            part, self._held = self._held[:at], self._held[at + len(mark) :]
            found.append(self._call(part) if self._inside else part)
            self._inside = not self._inside
        if not self._inside:
            keep = _begun(self._held, OPEN)
            found.append(self._held[: len(self._held) - keep])
            self._held = self._held[len(self._held) - keep :]
        return [part for part in found if part]

    def finish(self) -> str:
        """What is left at the end: text, or a call that was never closed, as it stands."""
        rest = (OPEN if self._inside else "") + self._held
        self._held, self._inside = "", False
        return rest

    def _call(self, text: str) -> str | dict[str, Any]:
        try:
            call = json.loads(text)
            name, arguments = call["name"], call.get("arguments", {})
        except (ValueError, KeyError, TypeError, AttributeError):
            return OPEN + text + CLOSE
        if not isinstance(name, str):
            return OPEN + text + CLOSE
        self.calls += 1
        said = arguments if isinstance(arguments, str) else json.dumps(arguments)
        return {
            "index": self.calls - 1,
            "id": f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": name, "arguments": said},
        }


def _begun(text: str, mark: str) -> int:
    """How many last characters of ``text`` could begin ``mark``."""
    return next((n for n in range(len(mark) - 1, 0, -1) if text.endswith(mark[:n])), 0)
