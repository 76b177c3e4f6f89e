"""One request to the PDCA API: what every endpoint does before and after its own work.

Errors have seed 003's fixed form: `error`, `message`, and `retry_after` with 429 only. Counts requests per client.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec
import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Scope, Send

from switchyard.bootstrap import PdcaLimits, PdcaRateName
from switchyard.domain.errors import (
    BodyTooLarge,
    Forbidden,
    IdempotencyConflict,
    InvalidField,
    NotFound,
    OutcomeUnknown,
    RequestError,
    RunnerDown,
    SwitchyardError,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from switchyard.domain.strategies.registry import Tenants, tenants_digest
from switchyard.entrypoints.http.errors import (
    RETRY_SECONDS,
    Header,
    HostNotAllowed,
    OriginNotAllowed,
    UnknownTransferCoding,
    UnsupportedMediaType,
    WireResponse,
    allowed_methods,
    json_response,
    starlette_response,
)
from switchyard.entrypoints.http.transport.auth import BadTokens, authorization_header
from switchyard.entrypoints.http.transport.bodies import ClientGone
from switchyard.entrypoints.http.transport.guard import client_address, limited_as
from switchyard.entrypoints.http.transport.rs256 import PdcaTokens
from switchyard.ports.clock import Clock
from switchyard.ports.strategies import TooManyStrategies, UnknownStrategies
from switchyard.telemetry.metrics import PdcaMetrics
from switchyard.telemetry.traces import annotate

# Error class, HTTP status, `error`. The first match counts, so a subclass stands before its base. The catalogue of the
# seed, one code more (UNAVAILABLE), and BAD_REQUEST where HTTP itself has a status that says more than 400.
_TABLE: tuple[tuple[type[Exception], int, str], ...] = (
    (Unauthorized, 401, "UNAUTHORIZED"),
    (Forbidden, 403, "FORBIDDEN"),
    (OriginNotAllowed, 403, "FORBIDDEN"),
    (NotFound, 404, "NOT_FOUND"),
    (UnknownStrategies, 404, "NOT_FOUND"),
    (IdempotencyConflict, 409, "IDEMPOTENCY_CONFLICT"),
    (BodyTooLarge, 413, "BAD_REQUEST"),
    (UnsupportedMediaType, 415, "BAD_REQUEST"),
    (HostNotAllowed, 421, "BAD_REQUEST"),
    (TooManyRequests, 429, "RATE_LIMITED"),
    (UnknownTransferCoding, 501, "BAD_REQUEST"),
    (RequestError, 400, "BAD_REQUEST"),
    (TooManyStrategies, 400, "BAD_REQUEST"),
    (RunnerDown, 502, "AIRFLOW_DOWN"),
    (Unavailable, 503, "UNAVAILABLE"),
    (OutcomeUnknown, 503, "UNAVAILABLE"),
    (TimeoutError, 503, "UNAVAILABLE"),
    (Exception, 500, "INTERNAL_ERROR"),
)
# What a client may know of errors whose text is for the log.
_MESSAGES = {
    "AIRFLOW_DOWN": "Airflow does not answer; the request is stored (see Location) and will be submitted later",
    "UNAVAILABLE": "the service cannot answer now: repeat the request later, with the same Idempotency-Key if any",
    "INTERNAL_ERROR": "internal error",
    "IDEMPOTENCY_CONFLICT": "the Idempotency-Key was used with another body",
}


class PdcaErrorBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of every error."""

    error: str
    message: str
    retry_after: int | None = None


def pdca_error(error: Exception) -> tuple[WireResponse, str]:
    """Return the answer to an error, and its code for the metrics."""
    status, code = next((row[1], row[2]) for row in _TABLE if isinstance(error, row[0]))
    headers: list[Header] = []
    retry_after = None
    if isinstance(error, TooManyRequests):
        retry_after = max(1, math.ceil(error.retry_after.total_seconds()))
    if retry_after is not None or status == 503:
        headers.append((b"retry-after", b"%d" % (retry_after or RETRY_SECONDS)))
    if isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, UnknownTransferCoding):
        # Where the body ends is not certain, so nothing that follows may be read as a request.
        headers.append((b"connection", b"close"))
    message = _MESSAGES.get(code) or _message(error)
    return json_response(status, PdcaErrorBody(error=code, message=message, retry_after=retry_after), *headers), code


def _message(error: Exception) -> str:
    if isinstance(error, UnknownStrategies):
        return f"strategy not found: {', '.join(error.strategy_ids)}"
    return error.message if isinstance(error, RequestError) else str(error)


def http_error(error: HTTPException, request: Request) -> tuple[WireResponse, str]:
    """Return the answer to an error of Starlette's own: an unknown path, or a method that the route does not have."""
    if error.status_code == 404:
        return json_response(404, PdcaErrorBody(error="NOT_FOUND", message="route not found")), "NOT_FOUND"
    body = PdcaErrorBody(error="BAD_REQUEST", message="method not allowed")
    return json_response(error.status_code, body, allowed_methods(request)), "BAD_REQUEST"


class PdcaRates:
    """Counts requests."""

    def __init__(self, rates: PdcaLimits) -> None:
        """`rates`: the limit that each one shows, and the counter."""
        self._rates = rates

    async def take(self, name: PdcaRateName, client: str) -> tuple[list[Header], TooManyRequests | None]:
        """Count a request; returns the headers of its answer, and the error if it is over the rate."""
        limit, rate = self._rates[name]
        counted = await rate.count(f"pdca.{name}:{client}")
        headers = [
            (b"x-ratelimit-limit", b"%d" % limit),
            (b"x-ratelimit-remaining", b"%d" % counted.remaining),
            (b"x-ratelimit-reset", b"%d" % math.ceil(counted.reset.total_seconds())),
        ]
        return headers, None if counted.wait is None else TooManyRequests(counted.wait)


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
