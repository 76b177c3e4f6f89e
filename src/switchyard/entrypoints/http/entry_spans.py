"""The entry spans: one for each request that changes something, and for every request to the PDCA API.

Stands in front of the routes where traces are on. Continues the trace of the header `traceparent`.
"""

import re
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from switchyard.ports.tracing import Tracer
from switchyard.telemetry.traces import entered

OPERATIONS: Final = {
    ("POST", "/do/order"): "do.order",
    ("POST", "/orders"): "orders",
    ("POST", "/orders/cancel-all"): "orders.cancel_all",
    ("POST", "/orders/{order_id}/cancel"): "orders.cancel",
    ("PATCH", "/orders/{order_id}"): "orders.amend",
    ("POST", "/positions/{symbol}/close"): "positions.close",
    ("POST", "/pdca/recheck"): "pdca.recheck",
    ("POST", "/pdca/recheck_all"): "pdca.recheck_all",
    ("GET", "/pdca/recheck/{request_id}"): "pdca.progress",
    ("PUT", "/pdca/strategies/{strategy_id}"): "pdca.strategy",
    ("GET", "/gui/strategies"): "gui.strategies",
    ("GET", "/gui/strategies/{strategy_id}"): "gui.strategy",
    ("GET", "/pdca/downloads/{request_id}/{strategy_id}/{name}"): "pdca.download_url",
    ("GET", "/pdca/artifacts/{request_id}/{strategy_id}/{name}"): "pdca.download",
}
"""The name of the span of each method and route."""
_PATTERNS = [
    (method, re.compile(re.sub(r"{\w+}", "[^/]+", route)), route) for method, route in OPERATIONS if "{" in route
]


class EntrySpans:
    """An ASGI application around another one."""

    def __init__(self, tracer: Tracer, serve: ASGIApp) -> None:
        self._tracer = tracer
        self._serve = serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, in a span if it is one of OPERATIONS."""
        method, route = scope["method"], route_of(scope["method"], scope["path"])
        if route is None:
            await self._serve(scope, receive, send)
            return
        span = self._tracer.entry(OPERATIONS[method, route], _traceparent(scope))
        span.set("http.request.method", method)
        span.set("http.route", route)

        async def observed(message: Message) -> None:
            if message["type"] == "http.response.start":
                status: int = message["status"]
                span.set("http.response.status_code", status)
                if status >= 500:
                    span.fail(str(status))
            await send(message)

        try:
            with entered(span):
                # A copy: the server writes the answer to its own scope directly, past `observed`.
                await self._serve(dict(scope), receive, observed)
        except BaseException as error:
            span.fail(type(error).__name__)
            raise
        finally:
            span.end()


def route_of(method: str, path: str) -> str | None:
    """The route of a request with an entry span; none for any other."""
    if (method, path) in OPERATIONS:
        return path
    for of_method, pattern, route in _PATTERNS:
        if method == of_method and pattern.fullmatch(path):
            return route
    return None


def _traceparent(scope: Scope) -> str | None:
    """The header; none where it is missing or, against its specification, repeated."""
    found = [value for name, value in scope["headers"] if name == b"traceparent"]
    return found[0].decode("latin-1").strip() if len(found) == 1 else None
