"""`/`, `/docs` and the OpenAPI document; open to everyone. Reads only files of the package, each of them once."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from switchyard import __version__
from switchyard.entrypoints.http.errors import json_response, starlette_response
from switchyard.entrypoints.http.reference.bundle import as_json, as_yaml
from switchyard.entrypoints.http.reference.page import STYLE_PATH, reference_page

HTML = "text/html; charset=utf-8"
# The page needs its style sheet and an empty icon, nothing else.
PAGE_POLICY = "default-src 'none'; style-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'"
INDEX = {
    "name": "switchyard",
    "version": __version__,
    "docs": "/docs",
    "openapi": ["/openapi.json", "/openapi.yaml"],
    "health": "/health",
}


class ReferenceRoutes:
    """The routes."""

    def __init__(self, front_page: Callable[[Request], Awaitable[Response]] | None = None) -> None:
        """`front_page`: what a browser gets at `/`; the reference where it is none."""
        self._front_page = front_page or _route(reference_page, HTML)
        self.routes = [
            Route("/", self._show_index),
            Route("/docs", _route(reference_page, HTML)),
            Route(STYLE_PATH, _route(_style, "text/css; charset=utf-8")),
            Route("/openapi.json", _route(as_json, "application/json")),
            Route("/openapi.yaml", _route(as_yaml, "text/plain; charset=utf-8")),
        ]

    async def _show_index(self, request: Request) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            response = await self._front_page(request)
        else:
            response = starlette_response(json_response(200, INDEX))
        response.headers["Vary"] = "Accept"
        return response


def _route(build: Callable[[], bytes], media_type: str) -> Callable[[Request], Awaitable[Response]]:
    async def show(_request: Request) -> Response:
        return await _content(build, media_type)

    return show


async def _content(build: Callable[[], bytes], media_type: str) -> Response:
    # The first call parses the contract, which would hold up the orders of that moment.
    headers = {"Content-Type": media_type}
    if media_type == HTML:
        headers["Content-Security-Policy"] = PAGE_POLICY
    return Response(await asyncio.to_thread(build), headers=headers)


@cache
def _style() -> bytes:
    return (files("switchyard.entrypoints.http.reference") / "reference.css").read_bytes()
