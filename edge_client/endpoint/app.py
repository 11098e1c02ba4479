"""The routes of the endpoint."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from outrider.edge_client.endpoint import page, schema, wishes
from outrider.edge_client.endpoint.answers import Answering
from outrider.edge_client.endpoint.errors import ApiError, translate
from outrider.edge_client.endpoint.guard import Guard, refusal
from outrider.edge_client.endpoint.metrics import Metrics
from outrider.edge_client.endpoint.replies import Kind
from outrider.edge_client.endpoint.service import Service
from outrider.edge_client.endpoint.stream import GONE, ClientGoneError, EventStream, until_gone
from outrider.edge_client.endpoint.wishes import Wish
from outrider.protocol.edge import State
from outrider.protocol.errors import SettingError
from outrider.runtime.net.keys import KeyFile

_log = logging.getLogger("outrider.endpoint")

ROUTES = ("/v1/models", "/v1/chat/completions", "/v1/completions", "/health", "/metrics", "/status")


class LinkControl(Protocol):
    """A link that can be made another one; ``current`` is one of ``names``, ``note`` for people."""

    names: tuple[str, ...]
    current: str
    note: str

    def choose(self, name: str) -> None:
        """Be this one. Raises ``SettingError`` for a name that is none."""


@dataclass(slots=True, kw_only=True)
class Endpoint:
    """What the routes work with. ``service`` is there once models are loaded and the link is up.

    ``link``: the page may change the link to the cloud, for a demonstration.
    """

    alias: str | None = None
    keys: KeyFile | None = None
    origins: tuple[str, ...] = ()
    loopback: bool = True
    max_body: int = 8 << 20
    metrics: Metrics = field(default_factory=Metrics)
    link: LinkControl | None = None
    service: Service | None = None
    since: int = field(default_factory=lambda: int(time.time()))

    @property
    def ready(self) -> Service:
        """The service.

        Raises:
            ApiError: it is still being loaded.
        """
        if self.service is None:
            raise ApiError(
                503,
                "still loading",
                kind="unavailable_error",
                code="loading",
                retry_after=1.0,
            )
        return self.service

    @property
    def names(self) -> list[str]:
        """What a request may call the model."""
        served = self.ready.model
        return [served] if self.alias in (None, served) else [self.alias or "", served]

    def called(self, model: str | None) -> str:
        """The model's name in a response.

        Raises:
            ApiError: the request means another model.
        """
        if not model:
            return self.names[0]
        if model not in self.names:
            raise ApiError(
                404,
                f"the model {model!r} is not served here; there is {', '.join(self.names)} "
                "(--alias gives it another name)",
                param="model",
                code="model_not_found",
            )
        return model


def build(
    endpoint: Endpoint, life: Callable[[], AbstractAsyncContextManager[None]] | None = None
) -> ASGIApp:
    """The application. ``life`` is entered when it starts and left when it stops."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        if life is None:
            yield
            return
        async with life():
            yield

    routes = _Routes(endpoint)
    app = Starlette(
        routes=[
            Route("/v1/models", routes.models, methods=["GET"]),
            Route("/v1/models/{name:path}", routes.model, methods=["GET"]),
            Route("/v1/chat/completions", routes.chat, methods=["POST"]),
            Route("/v1/completions", routes.completions, methods=["POST"]),
            Route("/health", routes.health, methods=["GET"]),
            Route("/metrics", routes.metrics, methods=["GET"]),
            Route("/status", routes.status, methods=["GET"]),
            Route("/demo/link", routes.link, methods=["GET", "POST"]),
            *page.routes(),
        ],
        exception_handlers={ApiError: _refused, HTTPException: _no_route, Exception: _failed},
        lifespan=lifespan,
    )
    return Guard(
        app,
        keys=endpoint.keys,
        origins=endpoint.origins,
        loopback=endpoint.loopback,
        max_body=endpoint.max_body,
        counted=lambda path, status: _count(endpoint.metrics, path, status),
    )


class _Routes:
    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def health(self, _: Request) -> Response:
        """200 once requests can be answered, 503 before."""
        service = self._endpoint.ready
        up = service.client.machine.state is State.READY
        return JSONResponse({"status": "ok", "link": "up" if up else "down"})

    async def models(self, _: Request) -> Response:
        listed = [self._model(name) for name in self._endpoint.names]
        return JSONResponse({"object": "list", "data": listed})

    async def model(self, request: Request) -> Response:
        return JSONResponse(self._model(self._endpoint.called(request.path_params["name"])))

    def _model(self, name: str) -> dict[str, object]:
        welcome = self._endpoint.ready.client.welcome
        return {
            "id": name,
            "object": "model",
            "created": self._endpoint.since,
            "owned_by": "outrider",
            "max_model_len": welcome.n_ctx,
        }

    async def metrics(self, _: Request) -> Response:
        service = self._endpoint.service
        text = self._endpoint.metrics.text(service.client if service else None)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    async def status(self, _: Request) -> Response:
        return JSONResponse(self._endpoint.ready.status())

    async def link(self, request: Request) -> Response:
        """The link under the demonstration, and another one if it is named."""
        control = self._endpoint.link
        if control is None:
            raise ApiError(404, "the link to the cloud is what it is", code="not_found")
        if request.method == "POST":
            body = schema.read_object(await request.body())
            try:
                control.choose(str(body.get("name")))
            except SettingError as error:
                raise translate(error) from error
        return JSONResponse(
            {"names": list(control.names), "current": control.current, "note": control.note}
        )

    async def chat(self, request: Request) -> Response:
        service = self._endpoint.ready
        body = schema.read(await request.body(), schema.ChatBody)
        name = self._endpoint.called(body.model)
        wanted, tools = wishes.of_chat(body, service.client.tokenizer, service.client.welcome)
        return await self._answer(request, "chat", name, body, wanted, tools=tools)

    async def completions(self, request: Request) -> Response:
        service = self._endpoint.ready
        body = schema.read(await request.body(), schema.CompletionBody)
        name = self._endpoint.called(body.model)
        wanted = wishes.of_completion(body, service.client.tokenizer, service.client.welcome)
        return await self._answer(request, "completion", name, body, wanted, tools=False)

    async def _answer(
        self,
        request: Request,
        kind: Kind,
        name: str,
        body: schema.Common,
        wanted: list[Wish],
        *,
        tools: bool,
    ) -> Response:
        answering = Answering(self._endpoint.ready, kind, name, wanted, tools=tools)
        try:
            if not body.stream:
                whole = await until_gone(request.receive, answering.whole())
                return JSONResponse(whole)
            usage = body.stream_options is not None and body.stream_options.include_usage
            chunks = answering.chunks(usage=usage)
            # A refusal is a status, not a stream: nothing is sent before the first chunk is there.
            first = await until_gone(request.receive, anext(chunks))
            return EventStream(first, chunks)
        except ClientGoneError:
            return Response(status_code=GONE)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return refusal(error)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = {
        404: f"there is no route {request.url.path}",
        405: f"{request.method} is not allowed on {request.url.path}",
    }.get(error.status_code, str(error.detail))
    found = ApiError(error.status_code, said, code=str(error.detail).lower().replace(" ", "_"))
    response = refusal(found)
    response.headers.update(error.headers or {})
    return response


async def _failed(_: Request, error: Exception) -> Response:
    _log.error("a request failed", exc_info=error)
    message = f"internal error: {type(error).__name__}"
    return refusal(ApiError(500, message, kind="server_error", code="internal"))


def _count(metrics: Metrics, path: str, status: int) -> None:
    route = path if path in ROUTES else "/v1/models" if path.startswith("/v1/models/") else "other"
    metrics.responses.labels(route, str(status)).inc()
