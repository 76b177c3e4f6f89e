"""The one table from errors to HTTP, and the two forms of an error's body.

Seed 001's form (`ErrorBody`) is for every route but `/do/order`, which has seed 003's (`DoErrorBody`).
"""

import math
from datetime import timedelta
from http import HTTPStatus
from typing import NamedTuple

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from switchyard.domain.errors import (
    AmendPending,
    BodyTooLarge,
    CancelPending,
    ConstraintViolated,
    CredentialPaused,
    Forbidden,
    IdempotencyConflict,
    InvalidField,
    InvalidJson,
    InvalidKey,
    JournalUnavailable,
    KillCleared,
    NotFound,
    NotReplicated,
    OrderFinal,
    OutcomeUnknown,
    PositionClosing,
    RequestError,
    RiskRejected,
    SwitchyardError,
    TooManyAmends,
    TooManyKills,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    UnknownSymbol,
    VersionMismatch,
)
from switchyard.domain.journal.events import encode
from switchyard.domain.reconcile.breaks import BreakChanged

Header = tuple[bytes, bytes]

JSON = (b"content-type", b"application/json")
# On every answer: no browser may guess another type, keep a copy, or run or embed it. A page of ours that needs
# scripts sets a policy of its own.
GUARD_HEADERS: tuple[Header, ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
_GUARD_LINES = b"".join([b"%b: %b\r\n" % header for header in GUARD_HEADERS])
# Long enough for a full queue to drain, short enough that a waiting client does not give up.
RETRY_SECONDS = 1
REPLAYED: Header = (b"idempotent-replayed", b"true")


class InvalidHeader(InvalidField):
    """A header is malformed: 400, where a wrong field of the body is 422."""


class InvalidHost(InvalidHeader):
    """The Host header is missing, repeated or malformed."""

    reason = "INVALID_HOST"

    def __init__(self, message: str) -> None:
        super().__init__("Host", message)


class HostNotAllowed(RequestError):
    """The request is for a host name that this gateway does not serve."""

    reason = "HOST_NOT_ALLOWED"

    def __init__(self) -> None:
        super().__init__("Host: not a name of this gateway; SWITCHYARD_ALLOWED_HOSTS adds names", field="Host")


class OriginNotAllowed(RequestError):
    """A page of another site sent a request that changes something."""

    reason = "ORIGIN_NOT_ALLOWED"

    def __init__(self) -> None:
        super().__init__("Origin: pages of other sites may not send this request", field="Origin")


class UnsupportedMediaType(RequestError):
    """The body is not plain JSON; `field` names the header that says so."""

    reason = "UNSUPPORTED_MEDIA_TYPE"

    def __init__(self, header: str, message: str) -> None:
        super().__init__(f"{header}: {message}", field=header)


class UnknownTransferCoding(RequestError):
    """The body has a transfer coding other than `chunked`."""

    reason = "UNKNOWN_TRANSFER_CODING"

    def __init__(self) -> None:
        super().__init__("Transfer-Encoding: must be chunked, in HTTP/1.1", field="Transfer-Encoding")


class TooManyBadTokens(TooManyRequests):
    """The address has sent too many invalid tokens, and this one is invalid too."""

    reason = "TOO_MANY_BAD_TOKENS"

    def __init__(self, retry_after: timedelta, cause: str) -> None:
        super().__init__(retry_after)
        self.message = f"too many invalid tokens from this address; this one: {cause}"


class TooManyStreams(TooManyRequests):
    """The account has as many open streams as it may have."""

    reason = "TOO_MANY_STREAMS"

    def __init__(self, streams_max: int) -> None:
        super().__init__(timedelta(seconds=RETRY_SECONDS))
        self.message = f"the account has {streams_max} open streams, the maximum: close one first"


class TooManyConnections(TooManyRequests):
    """The client has as many open requests as one address may have."""

    reason = "TOO_MANY_CONNECTIONS"

    def __init__(self, connections_max: int) -> None:
        super().__init__(timedelta(seconds=RETRY_SECONDS))
        self.message = f"this address has {connections_max} open connections, the maximum: close one first"


# Error class, HTTP status, `status` in seed 001's body. The first match counts, so a subclass stands before its base.
_TABLE: tuple[tuple[type[Exception], int, str], ...] = (
    (InvalidJson, 400, "REJECTED"),
    (InvalidKey, 400, "REJECTED"),
    (InvalidHeader, 400, "REJECTED"),
    (Unauthorized, 401, "UNAUTHORIZED"),
    (OriginNotAllowed, 403, "REJECTED"),
    (Forbidden, 403, "REJECTED"),
    (NotFound, 404, "NOT_FOUND"),
    (IdempotencyConflict, 409, "REJECTED"),
    (OrderFinal, 409, "REJECTED"),
    (AmendPending, 409, "REJECTED"),
    (CancelPending, 409, "REJECTED"),
    (TooManyAmends, 409, "REJECTED"),
    (VersionMismatch, 412, "REJECTED"),
    (PositionClosing, 409, "REJECTED"),
    (KillCleared, 409, "REJECTED"),
    (TooManyKills, 409, "REJECTED"),
    (BreakChanged, 409, "REJECTED"),
    (BodyTooLarge, 413, "REJECTED"),
    (UnsupportedMediaType, 415, "REJECTED"),
    (HostNotAllowed, 421, "REJECTED"),
    (TooManyRequests, 429, "REJECTED"),
    (UnknownTransferCoding, 501, "REJECTED"),
    (RequestError, 422, "REJECTED"),
    (OutcomeUnknown, 503, "UNKNOWN"),
    (Unavailable, 503, "REJECTED"),
    (Exception, 500, "ERROR"),
)
_OUTCOME_UNKNOWN = "the request may or may not have taken effect: repeat it with the same key"
_READS = frozenset({"GET", "HEAD"})
_STATUS_LINES = {status.value: f"{status.value} {status.phrase}".encode() for status in HTTPStatus}


class ErrorBody(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Seed 001's error body."""

    status: str
    reason: str
    message: str | None = None
    field: str | None = None
    detail: str | None = None
    """In place of the message, where a pre-trade check rejected the order."""
    order_id: str | None = None
    """The order that was stored as rejected."""


class DoErrorBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Seed 003's error body."""

    error: str
    message: str
    field: str | None = None
    reason_code: str | None = None
    idempotency_key: str | None = None
    retry_after: int | None = None


class WireResponse(NamedTuple):
    """A whole response."""

    status: int
    headers: list[Header]
    body: bytes

    def encoded(self) -> bytes:
        """Return the response as bytes for the socket."""
        head = b"".join([b"%b: %b\r\n" % header for header in self.headers])
        return b"HTTP/1.1 %b\r\n%b%b\r\n%b" % (_STATUS_LINES[self.status], head, _GUARD_LINES, self.body)


class _HttpError(NamedTuple):
    """An error as the table has it, before it gets one of the two bodies."""

    http_status: int
    status: str
    reason: str
    message: str | None
    """None for an unexpected error, whose text is for the log only."""
    field: str | None
    retry_after: int | None
    headers: tuple[Header, ...]


def json_response(status: int, body: object, *headers: Header) -> WireResponse:
    """Return a JSON response."""
    content = encode(body)
    return WireResponse(status, [JSON, (b"content-length", b"%d" % len(content)), *headers], content)


def error_response(error: Exception) -> WireResponse:
    """Return the error in seed 001's form."""
    found = _in_table(error)
    # No message for a missing order: the answer must be the same as for another account's order.
    message = None if isinstance(error, NotFound) else found.message
    body = ErrorBody(found.status, found.reason, message, found.field)
    if isinstance(error, RiskRejected):
        body = ErrorBody(found.status, found.reason, detail=error.message, order_id=error.order_id)
    return json_response(found.http_status, body, *found.headers)


def do_error_response(error: Exception) -> tuple[WireResponse, DoErrorBody]:
    """Return the error in seed 003's form, and its body for the log line."""
    found = _in_table(error)
    if isinstance(error, RiskRejected):  # over the account's rate; every other rejection is an order's result
        found = found._replace(http_status=429, reason=TooManyRequests.reason)
    body = DoErrorBody(
        error=_do_error(error, found.reason),
        message="body differs" if isinstance(error, IdempotencyConflict) else found.message or "internal error",
        field=found.field,
        reason_code=_reason_code(error),
        idempotency_key=error.key if isinstance(error, IdempotencyConflict) else None,
        retry_after=found.retry_after,
    )
    return json_response(found.http_status, body, *found.headers), body


def _do_error(error: Exception, reason: str) -> str:
    """Return the code of seeds 000 and 003: one for every wrong field, every bad token and every useless broker."""
    if isinstance(error, Unauthorized):
        return "UNAUTHORIZED"
    if isinstance(error, CredentialPaused):
        return "BROKER_DOWN"
    return "VALIDATION_ERROR" if isinstance(error, UnknownSymbol) else reason


def _reason_code(error: Exception) -> str | None:
    """Return what the code leaves out."""
    if isinstance(error, ConstraintViolated):
        return error.reason_code
    shown = UnknownSymbol | Unauthorized | RiskRejected | CredentialPaused
    return error.reason if isinstance(error, shown) else None


def as_answered(error: Exception, method: str) -> Exception:
    """Return the error that a request of this method is answered with: a read stores nothing, so it has no outcome."""
    if method not in _READS:
        return OutcomeUnknown(str(error)) if isinstance(error, NotReplicated) else error
    if not isinstance(error, OutcomeUnknown | JournalUnavailable):
        return error
    # The text of an unknown outcome is for the log.
    text = "the database cannot confirm what it shows" if isinstance(error, OutcomeUnknown) else _own_text(error)
    return JournalUnavailable(f"{text}: read again")


def error_reason(error: Exception) -> str:
    """Return the error's code, which is also its label in the metrics."""
    return _in_table(error).reason


def starlette_response(response: WireResponse) -> Response:
    """Return the response in the form that Starlette sends."""
    converted = Response(response.body, response.status)
    converted.raw_headers = response.headers
    return converted


async def on_switchyard_error(request: Request, error: Exception) -> Response:
    """Answer an error that a Starlette route raised."""
    assert isinstance(error, SwitchyardError)
    return starlette_response(error_response(as_answered(error, request.method)))


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answer an error of Starlette's own: an unknown path, or a method that the route does not have."""
    assert isinstance(error, HTTPException)
    reason = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}.get(error.status_code, "REQUEST_REFUSED")
    status = "NOT_FOUND" if error.status_code == 404 else "REJECTED"
    headers = [allowed_methods(request)] if error.status_code == 405 else []
    return starlette_response(json_response(error.status_code, ErrorBody(status, reason), *headers))


def allowed_methods(request: Request) -> Header:
    """Return the Allow header of a path; Starlette's own has the methods of one route only."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    found = [route.methods or () for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return b"allow", ", ".join(sorted(set().union(*found))).encode()


def _own_text(error: Exception) -> str:
    """Return an error's text without the library's error that it quotes, which may name hosts and files."""
    text, cause = str(error), error.__cause__
    return text if cause is None else text.removesuffix(f": {cause!r}").removesuffix(f": {cause}")


def _in_table(error: Exception) -> _HttpError:
    http_status, status = next((row[1], row[2]) for row in _TABLE if isinstance(error, row[0]))
    reason, message, field, retry_after = "INTERNAL_ERROR", None, None, None
    headers: list[Header] = []
    if isinstance(error, RequestError):
        reason, message, field = error.reason, error.message, error.field
    elif isinstance(error, Unavailable | OutcomeUnknown):
        reason, retry_after = error.reason, RETRY_SECONDS
        message = _OUTCOME_UNKNOWN if isinstance(error, OutcomeUnknown) else _own_text(error)
    if isinstance(error, TooManyRequests | RiskRejected) and error.retry_after is not None:
        retry_after = math.ceil(error.retry_after.total_seconds())
    if retry_after is not None:
        headers.append((b"retry-after", b"%d" % retry_after))
    if isinstance(error, RiskRejected) and error.replayed:
        headers.append(REPLAYED)
    if isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, UnknownTransferCoding):
        # Where the body ends is not certain, so nothing that follows may be read as a request.
        headers.append((b"connection", b"close"))
    return _HttpError(http_status, status, reason, message, field, retry_after, tuple(headers))
