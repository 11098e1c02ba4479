"""Forms that a request asks the text to have: the target is held to them in the cloud."""

from __future__ import annotations

import json
from typing import Any

from outrider.edge_client.endpoint.errors import bad, unsupported
from outrider.edge_client.endpoint.schema import ChatBody
from outrider.protocol.messages import GRAMMAR, Welcome
from outrider.runtime.text.template import TOOL_CALL, TOOL_CALL_END

WHY_NOT = "this cloud cannot hold the target's text to a form: llguidance is not installed there"


def of_response(body: ChatBody, welcome: Welcome) -> str | None:
    """The form that ``response_format`` asks for; None: any text will do.

    Raises:
        ApiError: it is none, or this cloud enforces none.
    """
    asked = body.response_format or {"type": "text"}
    kind = asked.get("type")
    if kind == "text":
        return None
    if kind not in ("json_object", "json_schema"):
        raise unsupported("response_format", f"type {kind!r}; there is text, json_object and so on")
    schema: Any = {"type": "object"}
    if kind == "json_schema":
        named = asked.get("json_schema")
        schema = named.get("schema") if isinstance(named, dict) else None
        if not isinstance(schema, dict):
            raise bad("response_format.json_schema.schema is missing", "response_format")
    if GRAMMAR not in welcome.features:
        raise unsupported("response_format", WHY_NOT)
    return json.dumps({"json": schema})


def of_calls(body: ChatBody, offered: list[dict[str, Any]] | None, welcome: Welcome) -> str | None:
    """The form of an answer that must call a tool, as the target's template writes calls.

    Raises:
        ApiError: no such tool, or this cloud enforces no form.
    """
    choice = body.tool_choice
    if offered is None or choice in (None, "auto"):
        return None
    functions = [tool["function"] for tool in offered]
    if isinstance(choice, dict):
        wanted = (choice.get("function") or {}).get("name")
        functions = [f for f in functions if f["name"] == wanted]
        if choice.get("type") != "function" or not functions:
            known = ", ".join(repr(tool["function"]["name"]) for tool in offered)
            raise bad(
                f"tool_choice names {wanted!r}, which is none of the tools: {known}", "tool_choice"
            )
    elif choice != "required":
        raise bad("tool_choice is none, auto, required or one of the tools", "tool_choice")
    if GRAMMAR not in welcome.features:
        raise unsupported("tool_choice", WHY_NOT)
    calls = [_call(function) for function in functions]
    form = {
        "json": calls[0] if len(calls) == 1 else {"anyOf": calls},
        "before": f"{TOOL_CALL}\n",
        "after": f"\n{TOOL_CALL_END}",
        "many": choice == "required" and body.parallel_tool_calls is not False,
    }
    return json.dumps(form)


def _call(function: dict[str, Any]) -> dict[str, Any]:
    parameters = function.get("parameters") or {"type": "object"}
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, "arguments": parameters},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
