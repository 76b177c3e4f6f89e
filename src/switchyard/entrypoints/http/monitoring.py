"""`/health`, `/health/live`, `/health/ready` and `/metrics`, the same in a gateway and in a worker.

They need no token, so they show codes only and cost little: details are for tokens of operators, and the metrics are
rendered at most once a second. Reads the metrics registry and the readiness checks, and refreshes the gauges; writes
nothing.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from prometheus_client import generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from switchyard.bootstrap import Engine
from switchyard.domain.errors import SwitchyardError, Unauthorized
from switchyard.entrypoints.http.errors import json_response, on_http_error, on_switchyard_error, starlette_response
from switchyard.entrypoints.http.transport.auth import BadTokens, TokenVerifier, authorization_header, verifier
from switchyard.entrypoints.http.transport.guard import GuardHeaders, client_address
from switchyard.flow.executions.strays import VenueProblem
from switchyard.flow.health.readiness import ReadinessChecks
from switchyard.ports.clock import Clock
from switchyard.settings import Settings
from switchyard.telemetry.metrics import Metrics

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# A rendering takes milliseconds of processor time, and scrapers read every 15 s or so.
KEPT_SECONDS = 1.0


class MonitoringRoutes:
    """The routes."""

    def __init__(
        self,
        *,
        metrics: "MetricsPage",
        tokens: TokenVerifier,
        problems: Callable[[], Sequence[VenueProblem]],
        bus_problem: Callable[[], str | None],
        books_problem: Callable[[], str | None],
        readiness: ReadinessChecks,
    ) -> None:
        self._tokens = tokens
        self._problems = problems
        self._bus_problem = bus_problem
        self._books_problem = books_problem
        self.routes = [
            Route("/health", self._show_health),
            *probe_routes(readiness, tokens),
            Route("/metrics", metrics.show),
        ]

    async def _show_health(self, request: Request) -> Response:
        problems, bus_problem, books_problem = self._problems(), self._bus_problem(), self._books_problem()
        if not problems and bus_problem is None and books_problem is None:
            return starlette_response(json_response(200, {"status": "ok"}))
        detailed = sees_details(request, self._tokens)
        # Still 200: the process runs, accepts orders and must not be restarted because of a venue or of Kafka.
        body: dict[str, object] = {"status": "degraded"}
        if bus_problem is not None:
            body["bus"] = bus_problem if detailed else "NOT_PUBLISHED"
        if books_problem is not None:
            body["books"] = f"the back office does not run: {books_problem}" if detailed else "NOT_RUNNING"
        venues = [
            {
                "venue": problem.venue,
                "state": "open" if problem.is_open else "closed",
                "reason": problem.reason if detailed else problem.code,
            }
            for problem in problems
        ]
        if venues:
            body["venues"] = venues
        return starlette_response(json_response(200, body))


class MetricsPage:
    """The metrics in Prometheus's text format, rendered at most once a second for all readers together."""

    def __init__(
        self, metrics: Metrics, refresh: Callable[[], Awaitable[None]], *, clock: Clock, token: str | None
    ) -> None:
        """`refresh` sets the gauges that are computed on demand; `token`: what `X-Metrics-Token` must be, if set."""
        self._registry = metrics.registry
        self._refresh = refresh
        self._clock = clock
        self._token = token
        self._turn = asyncio.Lock()
        self._number = 0
        self._last: tuple[float, bytes] | None = None

    async def show(self, request: Request) -> Response:
        """Answer `GET /metrics`."""
        token = request.headers.get("x-metrics-token", "")
        if self._token and not hmac.compare_digest(token.encode(), self._token.encode()):
            raise Unauthorized("METRICS_TOKEN", "X-Metrics-Token is missing or wrong")
        number, page = await self._rendered()
        # Tells readers who compare two pages whether the second one was rendered anew.
        return Response(page, media_type=METRICS_TYPE, headers={"ETag": f'"{number}"'})

    async def _rendered(self) -> tuple[int, bytes]:
        async with self._turn:
            if self._last is None or self._clock.monotonic() - self._last[0] >= KEPT_SECONDS:
                await self._refresh()
                self._number += 1
                self._last = self._clock.monotonic(), generate_latest(self._registry)
            return self._number, self._last[1]


def sees_details(request: Request, tokens: TokenVerifier) -> bool:
    """Whether the request has an operator's token. Any other one is ignored: a probe must not fail because of it."""
    try:
        grant = tokens.grant(authorization_header(request.scope))
    except Unauthorized:
        return False
    return grant.is_operator


def probe_routes(readiness: ReadinessChecks, tokens: TokenVerifier) -> list[Route]:
    """The routes of supervisors and balancers: whether to restart the process, and whether to send it requests."""

    async def show_live(_request: Request) -> Response:
        # Looks at nothing else: a restart helps only a process whose event loop does not answer.
        return starlette_response(json_response(200, {"status": "ok"}))

    async def show_ready(request: Request) -> Response:
        found = await readiness.look()
        shown = found if sees_details(request, tokens) else found.without_details()
        return starlette_response(json_response(503 if found.status == "not_ready" else 200, shown))

    return [Route("/health/live", show_live), Route("/health/ready", show_ready)]


def monitoring_routes(settings: Settings, engine: Engine, tokens: TokenVerifier) -> MonitoringRoutes:
    """Return the routes of a process with an engine."""
    return MonitoringRoutes(
        metrics=MetricsPage(engine.metrics, engine.observer.refresh, clock=engine.clock, token=settings.metrics_token),
        tokens=tokens,
        problems=engine.venue_problems,
        bus_problem=engine.bus_problem,
        books_problem=engine.books_problem,
        readiness=engine.readiness,
    )


def build_monitoring(settings: Settings, engine: Engine) -> ASGIApp:
    """Build an application of these routes, for a worker."""
    monitoring = monitoring_routes(settings, engine, verifier(settings, engine.wall_clock, engine.metrics))
    return guarded_routes(monitoring.routes, BadTokens(engine.clock))


def guarded_routes(routes: Sequence[BaseRoute], bad_tokens: BadTokens) -> ASGIApp:
    """Build an application of these routes, with error responses and with the headers that every answer carries."""

    async def on_error(request: Request, error: Exception) -> Response:
        return await on_switchyard_error(request, bad_tokens.judged(error, client_address(request.scope)))

    handlers: dict[Any, Any] = {SwitchyardError: on_error, HTTPException: on_http_error}
    app = Starlette(routes=routes, exception_handlers=handlers)
    # A redirect would name the host that the request claims.
    app.router.redirect_slashes = False
    return GuardHeaders(app)
