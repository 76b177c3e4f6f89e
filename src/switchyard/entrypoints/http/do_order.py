"""`POST /do/order` (seed 000), with the Do-Layer's own answers and seed 003's error bodies.

Places through `DoOrderService`, behind the client's rate limit; writes one log line and one metric per request.
"""

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from switchyard.domain.errors import InvalidKey, SwitchyardError, TooManyRequests, Unauthorized
from switchyard.domain.ids import AccountId
from switchyard.domain.orders.keys import checked_key
from switchyard.domain.values import LABEL_LENGTH_MAX
from switchyard.entrypoints.http.errors import RETRY_SECONDS, as_answered, do_error_response, starlette_response
from switchyard.entrypoints.http.transport.auth import BadTokens, TokenVerifier, authorization_header
from switchyard.entrypoints.http.transport.bodies import ClientGone, parse_object, read_body
from switchyard.entrypoints.http.transport.guard import client_address, is_loopback, limited_as, sign_of_proxy
from switchyard.flow.intake.do_orders import DoOrderResult, DoOrderService
from switchyard.ports.cache import SharedRate
from switchyard.ports.clock import Clock, Randomness, fresh_ulid
from switchyard.telemetry.metrics import Metrics
from switchyard.telemetry.traces import annotate

log = structlog.get_logger()

DO_ORDER_PATH = "/do/order"
REQUEST_ID_HEADER = "X-Request-Id"


class DoOrderRoutes:
    """The one route of the Do-Layer."""

    def __init__(
        self,
        *,
        service: DoOrderService,
        tokens: TokenVerifier,
        rate: SharedRate,
        default_account: AccountId,
        needs_token: bool | None,
        bad_tokens: BadTokens,
        clock: Clock,
        randomness: Randomness,
        metrics: Metrics,
    ) -> None:
        """`needs_token`: whether a token is required; None: only from clients on other machines.

        A request that may have come through a proxy always needs one: its client may be anywhere.
        """
        self._service = service
        self._tokens = tokens
        self._rate = rate
        self._default_account = default_account
        self._needs_token = needs_token
        self._bad_tokens = bad_tokens
        self._clock = clock
        self._randomness = randomness
        self._metrics = metrics
        self.routes = [Route(DO_ORDER_PATH, self._post, methods=["POST"])]

    async def _post(self, request: Request) -> Response:
        started = self._clock.monotonic()
        fields = _LogFields(fresh_ulid(self._clock, self._randomness))
        try:
            result = await self._place(request, fields)
            response = _result_response(result)
            status, reason_code = result.result_status, result.reason_code
            fields.order_id = result.order_id
        except ClientGone:
            return Response(status_code=400)  # the connection is closed: this response is never sent
        except Exception as error:
            if not isinstance(error, SwitchyardError):
                log.exception("request_failed", method="POST", path=DO_ORDER_PATH, x_request_id=fields.request_id)
            answered = as_answered(error, request.method)
            wire, body = do_error_response(self._bad_tokens.judged(answered, client_address(request.scope)))
            response = starlette_response(wire)
            status, reason_code = body.error, body.reason_code
        self._metrics.do_requests.labels(status).inc()
        log.info(
            "do_order",
            x_request_id=fields.request_id,
            trace_id=fields.trace_id,
            order_id=fields.order_id,
            idempotency_key=fields.key,
            http_status=response.status_code,
            status=status,
            reason_code=reason_code,
            latency_ms=round((self._clock.monotonic() - started) * 1000, 3),
        )
        annotate(
            x_request_id=fields.request_id,
            trace_id=fields.trace_id,
            order_id=fields.order_id,
            idempotency_key=fields.key,
            status=status,
            reason_code=reason_code,
        )
        response.headers[REQUEST_ID_HEADER] = fields.request_id
        return response

    async def _place(self, request: Request, fields: "_LogFields") -> DoOrderResult:
        account, client = self._caller(request)
        wait = await self._rate.take(client)
        if wait is not None:
            raise TooManyRequests(wait)
        keys = request.headers.getlist("idempotency-key")
        if len(keys) > 1:
            raise InvalidKey("must be given once")
        key = fields.key = checked_key(keys[0]) if keys else None
        body = parse_object(await read_body(request.receive))
        fields.trace_id = _loggable(body.get("trace_id"))
        return await self._service.place(account, body, key)

    def _caller(self, request: Request) -> tuple[AccountId, str]:
        """Return the account and the rate limit's client: the account with a token, else the address."""
        authorization = authorization_header(request.scope)
        address = client_address(request.scope)
        needs_token = not is_loopback(address) if self._needs_token is None else self._needs_token
        if authorization is not None or needs_token:
            account = self._tokens.verify(authorization)
            return account, f"account:{account}"
        sign = sign_of_proxy(request.scope)
        if sign is not None:
            raise Unauthorized("TOKEN_MISSING", f"the request needs Authorization: Bearer <token>, because {sign}")
        return self._default_account, f"address:{limited_as(address)}"


class _LogFields(msgspec.Struct):
    """The request's fields for the log line, as far as they were read."""

    request_id: str
    order_id: str | None = None
    key: str | None = None
    trace_id: str | None = None


def _loggable(trace_id: object) -> str | None:
    """Return the trace id if it is short and printable: it is not validated yet, and a log line must not be forged."""
    if isinstance(trace_id, str) and trace_id.isprintable() and len(trace_id) <= LABEL_LENGTH_MAX:
        return trace_id
    return None


def _result_response(result: DoOrderResult) -> Response:
    headers = {"Idempotent-Replayed": "true"} if result.replayed else {}
    if result.http_status == 503:
        headers["Retry-After"] = str(RETRY_SECONDS)
    return Response(result.body, result.http_status, headers, "application/json")
