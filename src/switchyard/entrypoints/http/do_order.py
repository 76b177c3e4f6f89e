"""`POST /do/order` (seed 000): the Do-Layer's way in, with its own answers and errors."""

import math

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response

from switchyard.domain.errors import (
    ConstraintViolated,
    IdempotencyConflict,
    InvalidKey,
    OutcomeUnknown,
    RequestError,
    SwitchyardError,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from switchyard.domain.events import encode
from switchyard.domain.idempotency import checked_key
from switchyard.domain.ids import AccountId
from switchyard.domain.orders import LABEL_LENGTH_MAX
from switchyard.entrypoints.http.errors import RETRY_SECONDS, status_of
from switchyard.entrypoints.http.transport.auth import TokenVerifier
from switchyard.entrypoints.http.transport.bodies import ClientGone, parse_object, read_body
from switchyard.flow.intake.do_orders import DoDesk, DoOrderResult
from switchyard.ports.clock import Clock
from switchyard.ports.rates import SharedRate
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()


class DoError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The one form of every error of this route."""

    error: str
    message: str
    field: str | None = None
    reason_code: str | None = None
    idempotency_key: str | None = None
    retry_after: int | None = None


class DoOrders:
    """The route."""

    def __init__(
        self,
        *,
        desk: DoDesk,
        tokens: TokenVerifier,
        rate: SharedRate,
        default_account: AccountId,
        needs_token: bool,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._desk = desk
        self._tokens = tokens
        self._rate = rate
        self._default_account = default_account
        self._needs_token = needs_token
        self._clock = clock
        self._metrics = metrics

    async def post(self, request: Request) -> Response:
        """One request."""
        begun = self._clock.monotonic()
        told = _Told()
        try:
            answer = await self._place(request, told)
            response = _shown(answer)
            status, reason = answer.result_status, answer.reason_code
        except SwitchyardError as error:
            response, problem = _rejection(error)
            status, reason = problem.error, problem.reason_code
        except ClientGone:
            return Response(status_code=400)  # nobody reads it
        except Exception:
            log.exception("a request failed in an unexpected way")
            response, problem = _rejection(None)
            status, reason = problem.error, problem.reason_code
        self._metrics.do_requests.labels(status).inc()
        log.info(
            "do.order",
            trace_id=told.trace_id,
            idempotency_key=told.key,
            status=status,
            reason_code=reason,
            latency_ms=round((self._clock.monotonic() - begun) * 1000, 3),
        )
        return response

    async def _place(self, request: Request, told: "_Told") -> DoOrderResult:
        account, client = self._caller(request)
        wait = await self._rate.take(client)
        if wait is not None:
            raise TooManyRequests(wait)
        keys = request.headers.getlist("idempotency-key")
        if len(keys) > 1:
            raise InvalidKey("must be given once")
        key = told.key = checked_key(keys[0]) if keys else None
        body = parse_object(await read_body(request.receive))
        told.trace_id = _loggable(body.get("trace_id"))
        return await self._desk.place(account, body, key)

    def _caller(self, request: Request) -> tuple[AccountId, str]:
        """The account, and who is limited: the account's token, or else the address."""
        tokens = request.headers.getlist("authorization")
        if len(tokens) > 1:
            raise Unauthorized("TOKEN_MALFORMED", "Authorization must be given once")
        if tokens or self._needs_token:
            account = self._tokens.verify(tokens[0].encode("latin-1") if tokens else None)
            return account, f"account:{account}"
        address = request.client.host if request.client is not None else "-"
        return self._default_account, f"address:{address}"


class _Told(msgspec.Struct):
    """What is known of a request for its log line, however far it came."""

    key: str | None = None
    trace_id: str | None = None


def _loggable(trace_id: object) -> str | None:
    """The request is not checked yet, and a log line must not be what a caller makes of it."""
    if isinstance(trace_id, str) and trace_id.isprintable() and len(trace_id) <= LABEL_LENGTH_MAX:
        return trace_id
    return None


def _shown(answer: DoOrderResult) -> Response:
    headers = {"Idempotent-Replayed": "true"} if answer.replayed else {}
    if answer.http_status == 503:
        headers["Retry-After"] = str(RETRY_SECONDS)
    return Response(answer.body, answer.http_status, headers, "application/json")


def _rejection(error: SwitchyardError | None) -> tuple[Response, DoError]:
    headers = {}
    if isinstance(error, RequestError):
        status = status_of(error)
        retry_after = math.ceil(error.retry_after.total_seconds()) if isinstance(error, TooManyRequests) else None
        if retry_after is not None:
            headers["Retry-After"] = str(retry_after)
        if isinstance(error, Unauthorized):
            headers["WWW-Authenticate"] = "Bearer"
        problem = DoError(
            error=error.reason,
            message="body differs" if isinstance(error, IdempotencyConflict) else error.message,
            field=error.field,
            reason_code=error.reason_code if isinstance(error, ConstraintViolated) else None,
            idempotency_key=error.key if isinstance(error, IdempotencyConflict) else None,
            retry_after=retry_after,
        )
    elif isinstance(error, Unavailable):
        status, problem = 503, DoError(error=error.reason, message=str(error), retry_after=RETRY_SECONDS)
        headers["Retry-After"] = str(RETRY_SECONDS)
    elif isinstance(error, OutcomeUnknown):
        message = "the order may or may not have been taken: repeat the request with the same key"
        status, problem = 503, DoError(error=error.reason, message=message, retry_after=RETRY_SECONDS)
        headers["Retry-After"] = str(RETRY_SECONDS)
    else:
        status, problem = 500, DoError(error="INTERNAL_ERROR", message="internal error")
    return Response(encode(problem), status, headers, "application/json"), problem
