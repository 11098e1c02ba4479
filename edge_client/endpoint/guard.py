"""Who may speak to the endpoint, and how much: checked before a request reaches any route.

A program on this machine may do what its user may. A web page may not, unless its origin was
allowed: a browser would carry requests from anywhere to this machine, and by a name that an
attacker's resolver points here even read the answers. So origins and, on loopback, host names are
looked at as well as the key.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider.edge_client.endpoint import page
from outrider.edge_client.endpoint.errors import ApiError
from outrider.runtime.net.address import is_loopback
from outrider.runtime.net.keys import KeyFile

OPEN_PATHS = frozenset({"/health", *page.FILES})
"""What needs no key: whether the endpoint lives, and a page that holds no data of anybody."""

CORS_HEADERS = {
    "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
    "Access-Control-Allow-Headers": "Authorization, Content-Type",
    "Access-Control-Max-Age": "600",
}


class Guard:
    """Host, origin, key and size of every request."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: KeyFile | None,
        origins: tuple[str, ...],
        loopback: bool,
        max_body: int,
        counted: Callable[[str, int], None],
    ) -> None:
        """``origins`` may hold ``*``; ``counted(path, status)`` is told of every response."""
        self._app = app
        self._keys = keys
        self._origins = origins
        self._loopback = loopback
        self._max_body = max_body
        self._counted = counted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008, "reason": "no such route"})
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        allowed = origin is None or self._same(origin, headers) or self._listed(origin)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._counted(scope["path"], message["status"])
                if origin is not None and self._listed(origin):
                    found = MutableHeaders(scope=message)
                    found["Access-Control-Allow-Origin"] = origin
                    found.add_vary_header("Origin")
            await send(message)

        try:
            self._admit(scope, headers, origin, allowed)
        except ApiError as error:
            await refusal(error)(scope, receive, answer)
            return
        if scope["method"] == "OPTIONS" and origin is not None:
            await Response(status_code=204, headers=CORS_HEADERS)(scope, receive, answer)
            return
        await self._app(scope, self._bounded(receive, headers), answer)

    def _admit(self, scope: Scope, headers: Headers, origin: str | None, allowed: bool) -> None:
        host = headers.get("host", "")
        if self._loopback and not is_loopback(_hostname(host)):
            raise ApiError(403, f"host {host!r} is not this machine", code="host")
        if not allowed:
            raise ApiError(
                403,
                f"web pages of {origin} may not use this endpoint; --cors-origin allows it",
                code="origin",
            )
        if scope["method"] == "OPTIONS" and origin is not None:
            return  # a browser asks without its key
        if not self._knows(headers) and scope["path"] not in OPEN_PATHS:
            missing = "authorization" not in headers
            raise ApiError(
                401,
                "no API key: send it as Authorization: Bearer KEY" if missing else "wrong API key",
                code="invalid_api_key",
            )
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._max_body:
            raise self.too_large()

    def too_large(self) -> ApiError:
        """What a body beyond the limit is told."""
        return ApiError(
            413, f"the body is larger than {self._max_body} bytes", code="request_too_large"
        )

    def _bounded(self, receive: Receive, headers: Headers) -> Receive:
        """Bodies without a length are counted as they come."""
        if "content-length" in headers:
            return receive
        came = 0

        async def counted() -> Message:
            nonlocal came
            message = await receive()
            if message["type"] == "http.request":
                came += len(message.get("body", b""))
                if came > self._max_body:
                    raise self.too_large()
            return message

        return counted

    def _knows(self, headers: Headers) -> bool:
        if self._keys is None:
            return True
        key = self._keys.bearer(headers.get("authorization"))
        return key is not None and not key.expired()

    def _listed(self, origin: str) -> bool:
        return "*" in self._origins or origin in self._origins

    @staticmethod
    def _same(origin: str, headers: Headers) -> bool:
        """The page came from this endpoint."""
        return origin.partition("://")[2] == headers.get("host")


def _hostname(host: str) -> str:
    """A Host header without its port; nothing for one that is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def refusal(error: ApiError) -> Response:
    """The response that tells it."""
    return JSONResponse(error.body, error.status, error.headers)
