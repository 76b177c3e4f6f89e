"""The gateway's ASGI application: its routes and its error handling.

`POST /orders` bypasses Starlette, whose routing alone would take as long as everything else in that request.
All other routes go through Starlette.
"""

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from switchyard.bootstrap import Engine
from switchyard.domain.errors import SwitchyardError
from switchyard.entrypoints.http.do_order import DoOrderRoutes
from switchyard.entrypoints.http.errors import error_reason, error_response, on_http_error, starlette_response
from switchyard.entrypoints.http.monitoring import MonitoringRoutes
from switchyard.entrypoints.http.orders import OrderRoutes
from switchyard.entrypoints.http.reference.routes import ReferenceRoutes
from switchyard.entrypoints.http.streams import StreamEndpoint, StreamRoutes
from switchyard.entrypoints.http.transport.auth import TokenVerifier
from switchyard.entrypoints.http.transport.bodies import ClientGone
from switchyard.entrypoints.http.transport.protocol import WRITE_RESPONSE
from switchyard.settings import Settings, jwt_secret
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()


class Gateway:
    """The ASGI application."""

    def __init__(
        self,
        *,
        orders: OrderRoutes,
        do_orders: DoOrderRoutes,
        streams: StreamRoutes,
        monitoring: MonitoringRoutes,
        metrics: Metrics,
    ) -> None:
        self._orders = orders
        self._metrics = metrics
        self.routes = [
            *monitoring.routes,
            *do_orders.routes,
            *orders.routes,
            *streams.routes,
            *ReferenceRoutes().routes,
        ]
        self._starlette: ASGIApp = Starlette(
            routes=self.routes,
            exception_handlers={SwitchyardError: self._on_switchyard_error, HTTPException: on_http_error},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        if scope["path"] != "/orders" or scope["method"] != "POST":
            await self._starlette(scope, receive, send)
            return
        try:
            response = await self._orders.post(scope, receive)
        except SwitchyardError as error:
            self._count_rejection(error)
            response = error_response(error)
        except ClientGone:
            return
        except Exception as error:
            log.exception("request_failed", method="POST", path="/orders")
            response = error_response(error)
        write = scope.get("extensions", {}).get(WRITE_RESPONSE)
        if write is None or not write(scope, response.encoded()):
            await send({"type": "http.response.start", "status": response.status, "headers": response.headers})
            await send({"type": "http.response.body", "body": response.body})

    async def _on_switchyard_error(self, _request: Request, error: Exception) -> Response:
        self._count_rejection(error)
        return starlette_response(error_response(error))

    def _count_rejection(self, error: Exception) -> None:
        self._metrics.rejected.labels(error_reason(error)).inc()


def build_gateway(settings: Settings, engine: Engine) -> Gateway:
    """Build the application over a running engine."""
    tokens = TokenVerifier(
        jwt_secret(settings), clock=engine.wall_clock, audience=settings.jwt_audience, issuer=settings.jwt_issuer
    )
    endpoint = StreamEndpoint(engine.hub, engine.queries, keepalive_seconds=settings.sse_keepalive.total_seconds())
    return Gateway(
        orders=OrderRoutes(
            desk=engine.desks.orders,
            derived_desk=engine.desks.derived,
            can_derive=settings.idempotency.enabled,
            derives_for=settings.idempotency.derives_for,
            queries=engine.queries,
            tokens=tokens,
        ),
        do_orders=DoOrderRoutes(
            desk=engine.desks.do_orders,
            tokens=tokens,
            rate=engine.caches.rate,
            default_account=settings.do_default_account,
            needs_token=settings.do_requires_token,
            clock=engine.clock,
            metrics=engine.metrics,
        ),
        streams=StreamRoutes(endpoint, tokens),
        monitoring=MonitoringRoutes(
            metrics=engine.metrics,
            observer=engine.observer,
            metrics_token=settings.metrics_token,
            problems=engine.venue_problems,
        ),
        metrics=engine.metrics,
    )
