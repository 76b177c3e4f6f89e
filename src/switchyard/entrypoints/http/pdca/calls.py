"""One request to the PDCA API: what every endpoint does before and after its own work."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec
import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Scope, Send

from switchyard.bootstrap import PdcaRateName
from switchyard.domain.errors import IdempotencyConflict, InvalidField, RequestError, SwitchyardError
from switchyard.domain.strategies.registry import Tenants, tenants_digest
from switchyard.entrypoints.http.errors import Header, WireResponse, starlette_response
from switchyard.entrypoints.http.pdca.errors import http_error, pdca_error
from switchyard.entrypoints.http.pdca.rates import PdcaRates
from switchyard.entrypoints.http.transport.addresses import client_address, limited_as
from switchyard.entrypoints.http.transport.auth import authorization_header
from switchyard.entrypoints.http.transport.bad_tokens import BadTokens
from switchyard.entrypoints.http.transport.bodies import ClientGone
from switchyard.entrypoints.http.transport.rs256 import PdcaTokens
from switchyard.ports.clock import Clock
from switchyard.telemetry.metrics import PdcaMetrics
from switchyard.telemetry.traces import annotate

log = structlog.get_logger()

# The specification's bound of a whole request; the store and Airflow have shorter ones of their own.
REQUEST_SECONDS_MAX = 10.0
# The endpoint of a request that reaches none.
NO_ENDPOINT = "none"
ANSWER_BYTES_MAX = 1_000_000


class Call(msgspec.Struct):
    """A request under way, and what its log line says."""

    x_request_id: str
    started: float
    endpoint: str = NO_ENDPOINT
    client_id: str | None = None
    tenants: Tenants = frozenset()
    """Whose strategies, rechecks and artifacts exist for the caller; all, if None."""
    request_id: str | None = None
    outcome: str = "ok"
    headers: list[Header] = []


class Endpoint(NamedTuple):
    """A route and who may call it."""

    method: str
    path: str
    handle: Callable[[Request, Call], Awaitable[WireResponse]]
    rate: PdcaRateName
    audiences: frozenset[str]
    """Empty: the request needs no token."""
    scope: str | None

    @property
    def name(self) -> str:
        """Its label in metrics and logs."""
        return f"{self.method} {self.path}"


class Counter:
    """Passes requests to endpoints: token, scope, rate, time limit, error form, metrics and log line."""

    def __init__(
        self, *, tokens: PdcaTokens, rates: PdcaRates, bad_tokens: BadTokens, clock: Clock, metrics: PdcaMetrics
    ) -> None:
        self._tokens = tokens
        self._rates = rates
        self._bad_tokens = bad_tokens
        self._clock = clock
        self._metrics = metrics

    async def serve(self, endpoint: Endpoint, request: Request) -> Response:
        """Answer a request to an endpoint."""
        call: Call = request.scope["pdca"]
        call.endpoint = endpoint.name
        try:
            async with asyncio.timeout(REQUEST_SECONDS_MAX):
                await self._admit(endpoint, request, call)
                wire = await endpoint.handle(request, call)
        except ClientGone:
            call.outcome = "client_gone"
            return Response(status_code=400)  # the connection is closed: this response is never sent
        except Exception as error:
            if not isinstance(error, SwitchyardError | TimeoutError):
                log.exception("request_failed", endpoint=endpoint.name, x_request_id=call.x_request_id)
            elif not isinstance(error, RequestError):
                log.warning(
                    "pdca_request_not_served",
                    endpoint=endpoint.name,
                    x_request_id=call.x_request_id,
                    error=str(error) or repr(error),
                )
            wire = self._error(error, call, request.scope)
        return starlette_response(wire._replace(headers=[*wire.headers, *call.headers]))

    def http_error(self, error: HTTPException, request: Request) -> Response:
        """Answer a request that no endpoint takes."""
        wire, request.scope["pdca"].outcome = http_error(error, request)
        return starlette_response(wire)

    def rejected(self, error: RequestError, call: Call, scope: Scope) -> WireResponse:
        """Return the answer to a request that is not routed."""
        return self._error(error, call, scope)

    def note(self, call: Call, status: int) -> None:
        """Count and log an answered request."""
        latency_ms = round((self._clock.monotonic() - call.started) * 1000, 3)
        self._metrics.requests.labels(call.endpoint, call.outcome).inc()
        self._metrics.latency.labels(call.endpoint).observe(latency_ms)
        annotate(x_request_id=call.x_request_id, client_id=call.client_id, request_id=call.request_id)
        log.info(
            "pdca_api",
            x_request_id=call.x_request_id,
            client_id=call.client_id,
            endpoint=call.endpoint,
            http_status=status,
            latency_ms=latency_ms,
            **({} if call.request_id is None else {"request_id": call.request_id}),
        )

    async def _admit(self, endpoint: Endpoint, request: Request, call: Call) -> None:
        counted, grant = f"address:{limited_as(client_address(request.scope))}", None
        if endpoint.audiences:
            grant = await self._tokens.grant(authorization_header(request.scope), endpoint.audiences)
            call.client_id = grant.client_id
            # Clients of different accounts may have the same name.
            counted = f"client:{tenants_digest(grant.tenants)}:{grant.client_id}"
            call.tenants = grant.tenants
        # Before the scope: a client that may not do this must not do it without a limit.
        call.headers, over = await self._rates.take(endpoint.rate, counted)
        if over is not None:
            raise over
        if grant is not None and endpoint.scope is not None:
            grant.require(endpoint.scope)
        _check_once(request)

    def _error(self, error: Exception, call: Call, scope: Scope) -> WireResponse:
        judged = self._bad_tokens.judged(error, client_address(scope))
        if isinstance(error, IdempotencyConflict):
            self._metrics.conflicts.inc()
        wire, call.outcome = pdca_error(judged)
        return wire


def _check_once(request: Request) -> None:
    """Raise InvalidField for a repeated parameter: of `health=a&health=b` one would be left out in silence."""
    names = [name for name, _ in request.query_params.multi_items()]
    for name in names:
        if names.count(name) > 1:
            raise InvalidField(name, "must be given once")


def answering(call: Call, send: Send, on_start: Callable[[int], None]) -> Send:
    """Return a `send` that adds the request's id to its answer, and reports the answer's status."""

    async def send_answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", []), (b"x-request-id", call.x_request_id.encode())]
            message = {**message, "headers": headers}
            on_start(message["status"])
        await send(message)

    return send_answer
