"""The live view: one static page and what it needs, all from here."""

from __future__ import annotations

from functools import partial
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
}

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def routes() -> list[Route]:
    """One for each file."""
    return [
        Route(path, partial(_file, name=name, kind=kind), methods=["GET"])
        for path, (name, kind) in FILES.items()
    ]


async def _file(_: Request, *, name: str, kind: str) -> Response:
    data = (files("outrider.edge_client.endpoint") / "static" / name).read_bytes()
    return Response(data, media_type=kind, headers=HEADERS)
