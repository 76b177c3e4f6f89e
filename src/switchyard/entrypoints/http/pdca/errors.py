"""Errors of the PDCA API in seed 003's fixed form: `error`, `message`, and `retry_after` with 429 only."""

import math

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request

from switchyard.domain.errors import (
    BodyTooLarge,
    Forbidden,
    IdempotencyConflict,
    NotFound,
    OutcomeUnknown,
    RequestError,
    RunnerDown,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
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
)
from switchyard.ports.strategies import TooManyStrategies, UnknownStrategies

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
