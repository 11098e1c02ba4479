"""The messages of a chat, checked and brought into the form that chat templates read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from outrider.edge_client.endpoint.errors import bad, unsupported

ROLES = ("system", "developer", "user", "assistant", "tool")


def plain(
    messages: list[dict[str, Any]], template: str | None, *, tools: bool
) -> list[dict[str, Any]]:
    """Messages with text alone.

    ``template`` is the source of the target's chat template, where it is known here; ``tools``:
    the cloud's has a place for them. A developer's message is the system's for templates that know
    no other.

    Raises:
        ApiError: a message that is none, with its place.
    """
    if not messages:
        raise bad("messages is empty; at least one message is needed", "messages")
    known, tools = template or "", tools or "tools" in (template or "")
    return [_one(m, f"messages[{i}]", known, tools=tools) for i, m in enumerate(messages)]


def _one(message: Mapping[str, Any], where: str, template: str, *, tools: bool) -> dict[str, Any]:
    role = message.get("role")
    if role not in ROLES:
        raise bad(f"{where}.role is {role!r}; it must be one of {', '.join(ROLES)}", where)
    calls = message.get("tool_calls") or None
    if (role == "tool" or calls) and not tools:
        raise unsupported(where, "the target's chat template knows no tools")
    if role == "developer" and "developer" not in template:
        role = "system"
    content = message.get("content")
    if content is None and not calls:
        raise bad(f"{where}.content is missing", f"{where}.content")
    found: dict[str, Any] = {"role": role, "content": _text(content, f"{where}.content")}
    if isinstance(message.get("name"), str):
        found["name"] = message["name"]
    if isinstance(message.get("tool_call_id"), str):
        found["tool_call_id"] = message["tool_call_id"]
    if calls:
        found["tool_calls"] = _calls(calls, f"{where}.tool_calls")
    return found


def _text(content: object, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad(f"{where} is neither a text nor a list of parts", where)
    parts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise unsupported(f"{where}[{i}]", f"a part of type {kind!r}; the target reads text")
        if not isinstance(part.get("text"), str):
            raise bad(f"{where}[{i}].text is missing", f"{where}[{i}]")
        parts.append(part["text"])
    return "".join(parts)


def _calls(calls: object, where: str) -> list[dict[str, Any]]:
    """Earlier calls, with their arguments as objects: that is how templates write them out."""
    if not isinstance(calls, list):
        raise bad(f"{where} is not a list", where)
    found = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise bad(f"{where}[{i}] has no function with a name", f"{where}[{i}]")
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except ValueError:
                raise bad(
                    f"{where}[{i}].function.arguments is not JSON", f"{where}[{i}].function"
                ) from None
        called = {"name": function["name"], "arguments": arguments or {}}
        found.append({"id": call.get("id"), "type": "function", "function": called})
    return found
