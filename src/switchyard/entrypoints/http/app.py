"""The gateway's ASGI application: its routes and its error handling.

`POST /orders` bypasses Starlette, whose routing alone would take as long as everything else in that request.
All other routes go through Starlette.
"""

from functools import partial

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from switchyard.bootstrap import Engine, taken_orders
from switchyard.domain.errors import RequestError, SwitchyardError
from switchyard.domain.market.routing import Router
from switchyard.domain.risk.checks import check_names
from switchyard.entrypoints.http.admin import AdminRoutes
from switchyard.entrypoints.http.do_order import DO_ORDER_PATH, DoOrderRoutes
from switchyard.entrypoints.http.entry_spans import EntrySpans
from switchyard.entrypoints.http.errors import (
    WireResponse,
    as_answered,
    do_error_response,
    error_reason,
    error_response,
    on_http_error,
    starlette_response,
)
from switchyard.entrypoints.http.market import MarketRoutes
from switchyard.entrypoints.http.monitoring import MonitoringRoutes, monitoring_routes
from switchyard.entrypoints.http.orders import AmendRoutes, OrderRoutes
from switchyard.entrypoints.http.pdca.api import PREFIXES as PDCA_PREFIXES
from switchyard.entrypoints.http.pdca.api import PdcaApi, build_pdca
from switchyard.entrypoints.http.positions import PositionRoutes, RiskRoutes
from switchyard.entrypoints.http.reference.routes import ReferenceRoutes
from switchyard.entrypoints.http.streams import StreamEndpoint, StreamRoutes
from switchyard.entrypoints.http.transport.auth import BadTokens, verifier
from switchyard.entrypoints.http.transport.bodies import ClientGone
from switchyard.entrypoints.http.transport.guard import (
    ConnectionCaps,
    GuardedApp,
    RequestGuard,
    client_address,
    do_order_needs_token,
    guarded,
    send_response,
    served_names,
    warn_of_exposure,
)
from switchyard.entrypoints.http.transport.protocol import WRITE_RESPONSE
from switchyard.entrypoints.http.transport.server import HttpServer, connection_caps
from switchyard.entrypoints.web.routes import DashboardRoutes, build_dashboard
from switchyard.ports.tracing import Tracer
from switchyard.settings import Settings
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()


class Gateway(GuardedApp):
    """The ASGI application."""

    def __init__(
        self,
        *,
        orders: OrderRoutes,
        amends: AmendRoutes,
        do_orders: DoOrderRoutes,
        positions: PositionRoutes,
        risk: RiskRoutes,
        streams: StreamRoutes,
        market: MarketRoutes,
        monitoring: MonitoringRoutes,
        admin: AdminRoutes,
        metrics: Metrics,
        guard: RequestGuard,
        caps: ConnectionCaps,
        bad_tokens: BadTokens,
        pdca: PdcaApi,
        dashboard: DashboardRoutes | None,
        tracer: Tracer | None = None,
    ) -> None:
        super().__init__(self._serve if tracer is None else EntrySpans(tracer, self._serve), guard, caps)
        self._orders = orders
        self._metrics = metrics
        self._bad_tokens = bad_tokens
        self._pdca = pdca
        self.routes = [
            *monitoring.routes,
            *do_orders.routes,
            *orders.routes,
            *amends.routes,
            *positions.routes,
            *risk.routes,
            *streams.routes,
            *admin.routes,
            *market.routes,
            *pdca.routes,
            *([] if dashboard is None else dashboard.routes),
            *ReferenceRoutes(None if dashboard is None else dashboard.show_page).routes,
        ]
        starlette = Starlette(
            routes=self.routes,
            exception_handlers={SwitchyardError: self._on_switchyard_error, HTTPException: on_http_error},
        )
        # A redirect would name the host that the request claims.
        starlette.router.redirect_slashes = False
        self._starlette: ASGIApp = starlette

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].startswith(PDCA_PREFIXES):
            await self._pdca(scope, receive, guarded(send))
            return
        if scope["path"] != "/orders" or scope["method"] != "POST":
            await self._starlette(scope, receive, guarded(send))
            return
        try:
            response = await self._orders.post(scope, receive)
        except SwitchyardError as error:
            response = self._error_response(error, scope)
        except ClientGone:
            return
        except Exception as error:
            log.exception("request_failed", method="POST", path="/orders")
            response = error_response(error)
        write = scope.get("extensions", {}).get(WRITE_RESPONSE)
        if write is None or not write(scope, response.encoded()):
            await send_response(response, send)

    async def reject(self, error: RequestError, scope: Scope, send: Send) -> None:
        """Answer a request that reaches no route, in the form of the route that it asks for."""
        if scope["path"].startswith(PDCA_PREFIXES):
            await self._pdca.reject(error, scope, send)
            return
        response = self._error_response(error, scope)
        await send_response(do_error_response(error)[0] if scope["path"] == DO_ORDER_PATH else response, send)

    async def _on_switchyard_error(self, request: Request, error: Exception) -> Response:
        return starlette_response(self._error_response(error, request.scope))

    def _error_response(self, error: Exception, scope: Scope) -> WireResponse:
        judged = self._bad_tokens.judged(as_answered(error, scope["method"]), client_address(scope))
        self._metrics.rejected.labels(error_reason(judged)).inc()
        return error_response(judged)


def build_gateway(settings: Settings, engine: Engine) -> Gateway:
    """Build the application over a running engine."""
    tokens = verifier(settings, engine.wall_clock, engine.metrics)
    bad_tokens = BadTokens(engine.clock)
    endpoint = StreamEndpoint(
        engine.hub,
        engine.queries,
        clock=engine.wall_clock,
        keepalive_seconds=settings.sse_keepalive.total_seconds(),
        per_account_max=settings.streams_per_account_max,
    )
    return Gateway(
        orders=OrderRoutes(
            service=engine.services.orders,
            derived_service=engine.services.derived,
            can_derive=settings.idempotency.enabled,
            derives_for=settings.idempotency.derives_for,
            check_names=partial(check_names, settings.risk, taken_orders(settings)),
            doubt_of=engine.doubt_of,
            queries=engine.queries,
            window=engine.window,
            tokens=tokens,
        ),
        amends=AmendRoutes(
            engine.services.amends,
            tokens,
            can_derive=settings.idempotency.enabled,
            derives_for=settings.idempotency.derives_for,
        ),
        do_orders=DoOrderRoutes(
            service=engine.services.do_orders,
            tokens=tokens,
            rate=engine.caches.rate,
            default_account=settings.do_default_account,
            needs_token=do_order_needs_token(settings, engine.sends),
            bad_tokens=bad_tokens,
            clock=engine.clock,
            randomness=engine.randomness,
            metrics=engine.metrics,
        ),
        positions=PositionRoutes(
            close_service=engine.services.closing,
            cancel_service=engine.services.cancel_all,
            accounts=engine.services.accounts,
            queries=engine.queries,
            limits=engine.services.limits,
            clock=engine.clock,
            can_derive=settings.idempotency.enabled,
            derives_for=settings.idempotency.derives_for,
            tokens=tokens,
        ),
        risk=RiskRoutes(engine.services.limits, tokens, engine.clock),
        streams=StreamRoutes(endpoint, tokens),
        market=MarketRoutes(
            quotes=engine.quotes,
            catalogue=engine.catalogue,
            router=Router(settings.default_route, settings.symbol_routes),
            venues=settings.venue_names,
            venue_states=engine.venue_states,
            tokens=tokens,
        ),
        monitoring=monitoring_routes(settings, engine, tokens),
        admin=AdminRoutes(engine.kill_switch, tokens),
        metrics=engine.metrics,
        guard=RequestGuard(served_names(settings)),
        caps=connection_caps(settings, engine.metrics),
        bad_tokens=bad_tokens,
        pdca=build_pdca(settings, engine, bad_tokens),
        dashboard=build_dashboard(settings, engine.office, tokens),
        tracer=engine.tracer,
    )


def build_server(settings: Settings, engine: Engine) -> HttpServer:
    """Build the server of the application, with the settings' limits; not started yet."""
    gateway = build_gateway(settings, engine)
    warn_of_exposure(settings, engine.sends)
    return HttpServer(gateway, host=settings.host, port=settings.port, caps=gateway.caps)
