"""`/health`, `/health/live`, `/health/ready` and `/metrics`, the same in a gateway and in a worker.

Reads the metrics registry and the readiness checks, and refreshes the gauges; writes nothing.
"""

import hmac
from collections.abc import Callable, Sequence

from prometheus_client import generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from switchyard.bootstrap import Engine
from switchyard.domain.errors import SwitchyardError, Unauthorized
from switchyard.entrypoints.http.errors import json_response, on_http_error, on_switchyard_error, starlette_response
from switchyard.entrypoints.http.transport.addresses import client_address
from switchyard.entrypoints.http.transport.bad_tokens import BadTokens
from switchyard.entrypoints.http.transport.doors import Guarded
from switchyard.flow.executions.gate import VenueProblem
from switchyard.flow.gauges import Gauges
from switchyard.flow.health.readiness import ReadinessChecks
from switchyard.settings import Settings
from switchyard.telemetry.metrics import Metrics

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MonitoringRoutes:
    """The routes."""

    def __init__(
        self,
        *,
        metrics: Metrics,
        observer: Gauges,
        metrics_token: str | None,
        problems: Callable[[], Sequence[VenueProblem]],
        bus_problem: Callable[[], str | None],
        readiness: ReadinessChecks,
    ) -> None:
        self._metrics = metrics
        self._observer = observer
        self._metrics_token = metrics_token
        self._problems = problems
        self._bus_problem = bus_problem
        self.routes = [
            Route("/health", self._show_health),
            *probe_routes(readiness),
            Route("/metrics", self._show_metrics),
        ]

    async def _show_health(self, _request: Request) -> Response:
        problems, bus_problem = self._problems(), self._bus_problem()
        if not problems and bus_problem is None:
            return starlette_response(json_response(200, {"status": "ok"}))
        # Still 200: the process runs, accepts orders and must not be restarted because of a venue or of Kafka.
        body: dict[str, object] = {"status": "degraded"}
        if bus_problem is not None:
            body["bus"] = bus_problem
        venues = [
            {"venue": problem.venue, "state": "open" if problem.is_open else "closed", "reason": problem.reason}
            for problem in problems
        ]
        if venues:
            body["venues"] = venues
        return starlette_response(json_response(200, body))

    async def _show_metrics(self, request: Request) -> Response:
        check_metrics_token(request, self._metrics_token)
        await self._observer.refresh()
        return metrics_response(self._metrics)


def probe_routes(readiness: ReadinessChecks) -> list[Route]:
    """The routes of supervisors and balancers: whether to restart the process, and whether to send it requests."""

    async def show_live(_request: Request) -> Response:
        # Looks at nothing else: a restart helps only a process whose event loop does not answer.
        return starlette_response(json_response(200, {"status": "ok"}))

    async def show_ready(_request: Request) -> Response:
        found = await readiness.look()
        return starlette_response(json_response(503 if found.status == "not_ready" else 200, found))

    return [Route("/health/live", show_live), Route("/health/ready", show_ready)]


def check_metrics_token(request: Request, expected: str | None) -> None:
    """Raise Unauthorized unless the request has the token that `/metrics` requires, if any."""
    token = request.headers.get("x-metrics-token", "")
    if expected and not hmac.compare_digest(token.encode(), expected.encode()):
        raise Unauthorized("METRICS_TOKEN", "X-Metrics-Token is missing or wrong")


def metrics_response(metrics: Metrics) -> Response:
    """Return the registry in Prometheus's text format."""
    return Response(generate_latest(metrics.registry), media_type=METRICS_TYPE)


def build_monitoring(settings: Settings, engine: Engine) -> ASGIApp:
    """Build an application of these routes, for a worker."""
    monitoring = MonitoringRoutes(
        metrics=engine.metrics,
        observer=engine.observer,
        metrics_token=settings.metrics_token,
        problems=engine.venue_problems,
        bus_problem=engine.bus_problem,
        readiness=engine.readiness,
    )
    bad_tokens = BadTokens(engine.clock)

    async def on_error(request: Request, error: Exception) -> Response:
        return await on_switchyard_error(request, bad_tokens.judged(error, client_address(request.scope)))

    app = Starlette(
        routes=monitoring.routes, exception_handlers={SwitchyardError: on_error, HTTPException: on_http_error}
    )
    # A redirect would name the host that the request claims.
    app.router.redirect_slashes = False
    return Guarded(app)
