"""What goes wrong at the endpoint, as the OpenAI API tells it: a status and one error object."""

from __future__ import annotations

from typing import Any

from outrider.protocol.errors import (
    BackendError,
    HandshakeError,
    LinkError,
    OutriderError,
    SessionError,
    SettingError,
)

BAD_REQUEST = frozenset(
    {"prompt", "prompt_empty", "prompt_too_long", "max_tokens", "stops", "logit_bias", "template"}
    | {"objective", "unsupported", "logprobs"}
)
"""Codes with which a cloud refuses an answer for what is in the request."""

QUOTAS = frozenset({"quota", "rate"})
"""Codes with which it refuses an answer for what this edge asked before."""

FIELDS = {"stops": "stop"}
"""The request's field that such a code is about, where it has another name."""


class ApiError(Exception):
    """A refusal. ``param`` names the field at fault, ``code`` is for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.retry_after = retry_after

    @property
    def body(self) -> dict[str, Any]:
        """The object that the client gets."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    @property
    def headers(self) -> dict[str, str]:
        """What goes with it."""
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        if self.retry_after is not None:
            headers["Retry-After"] = f"{max(1, round(self.retry_after))}"
        return headers


def bad(message: str, param: str | None, code: str | None = None) -> ApiError:
    """A request that makes no sense."""
    return ApiError(400, message, param=param, code=code)


def unsupported(param: str, why: str) -> ApiError:
    """A field that means something and cannot be honoured."""
    return ApiError(400, f"{param} is not supported: {why}", param=param, code="unsupported")


def translate(
    error: OutriderError, *, prompt: str = "messages", form: str = "response_format"
) -> ApiError:
    """What a failure of the edge or a refusal of the cloud is to the client.

    ``prompt`` is the field that the request has its prompt in, ``form`` what asks for a form.
    """
    if isinstance(error, SessionError) and error.code == "grammar":
        return bad(str(error), form, "unsupported")
    if isinstance(error, SessionError):
        if error.code == "prompt_too_long":
            return bad(str(error), prompt, "context_length_exceeded")
        if error.code in BAD_REQUEST:
            return bad(str(error), FIELDS.get(error.code, error.code), error.code)
        if error.retry_after is not None:
            ours = error.code in QUOTAS
            return ApiError(
                429 if ours else 503,
                str(error),
                kind="rate_limit_error" if ours else "overloaded_error",
                code=error.code,
                retry_after=error.retry_after,
            )
        return ApiError(502, str(error), kind="upstream_error", code=error.code)
    if isinstance(error, SettingError):
        return bad(str(error), None)
    if isinstance(error, LinkError):
        return ApiError(503, str(error), kind="upstream_error", code="link", retry_after=5.0)
    if isinstance(error, HandshakeError):
        return ApiError(502, str(error), kind="upstream_error", code=error.code)
    code = "backend" if isinstance(error, BackendError) else None
    return ApiError(500, str(error), kind="server_error", code=code)
