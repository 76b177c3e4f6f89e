"""Errors as answers: mapped once, here at the edge."""

from http import HTTPStatus
from typing import NamedTuple

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from switchyard.domain.errors import (
    BodyTooLarge,
    IdempotencyConflict,
    InvalidField,
    InvalidJson,
    InvalidKey,
    NotFound,
    OrderFinal,
    OutcomeUnknown,
    RequestError,
    SwitchyardError,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from switchyard.domain.events import encode
from switchyard.entrypoints.http.streams import InvalidHeader

Headers = list[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")
# Long enough for a full queue to drain, short enough that nobody gives up on us.
RETRY_SECONDS = 1
RETRY_AFTER = (b"retry-after", b"%d" % RETRY_SECONDS)

# The first match counts, so a special case stands before its base.
_STATUS: tuple[tuple[type[RequestError], int], ...] = (
    (InvalidJson, 400),
    (InvalidKey, 400),
    (InvalidHeader, 400),
    (Unauthorized, 401),
    (NotFound, 404),
    (IdempotencyConflict, 409),
    (OrderFinal, 409),
    (BodyTooLarge, 413),
    (InvalidField, 422),
    (TooManyRequests, 429),
)


_STATUS_LINES = {status.value: f"{status.value} {status.phrase}".encode() for status in HTTPStatus}


class ErrorBody(msgspec.Struct, omit_defaults=True):
    """The one form of every error that the gateway answers with."""

    status: str
    reason: str
    message: str | None = None
    field: str | None = None


class WireResponse(NamedTuple):
    """A whole response."""

    status: int
    headers: Headers
    body: bytes

    def whole(self) -> bytes:
        """Everything as it goes over the wire."""
        head = b"".join([b"%b: %b\r\n" % header for header in self.headers])
        return b"HTTP/1.1 %b\r\n%b\r\n%b" % (_STATUS_LINES[self.status], head, self.body)


def answer(status: int, body: object, *headers: tuple[bytes, bytes]) -> WireResponse:
    """A JSON response."""
    content = encode(body)
    return WireResponse(status, [JSON, (b"content-length", b"%d" % len(content)), *headers], content)


def status_of(error: RequestError) -> int:
    """The HTTP status of a rejection, whatever form its body has."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 422)


def error_answer(error: SwitchyardError) -> WireResponse:
    """What the client is told; never more of a missing order than of a foreign one."""
    if isinstance(error, RequestError):
        status = status_of(error)
        if isinstance(error, NotFound):
            return answer(status, ErrorBody("NOT_FOUND", error.reason))
        if isinstance(error, Unauthorized):
            body = ErrorBody("UNAUTHORIZED", error.reason, error.message)
            return answer(status, body, (b"www-authenticate", b"Bearer"))
        return answer(status, ErrorBody("REJECTED", error.reason, error.message, error.field))
    if isinstance(error, OutcomeUnknown):
        message = "the order may or may not have been taken: repeat the request with the same Idempotency-Key"
        return answer(503, ErrorBody("UNKNOWN", error.reason, message), RETRY_AFTER)
    if isinstance(error, Unavailable):
        return answer(503, ErrorBody("REJECTED", error.reason, str(error)), RETRY_AFTER)
    return answer(500, ErrorBody("ERROR", "INTERNAL_ERROR"))


def response(given: WireResponse) -> Response:
    """The answer as Starlette sends it."""
    made = Response(given.body, given.status)
    made.raw_headers = given.headers
    return made


async def on_http_error(_request: Request, error: Exception) -> Response:
    """What Starlette itself rejects: a path that does not exist, a method that a route does not know."""
    assert isinstance(error, HTTPException)
    reason = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}.get(error.status_code, "REQUEST_REFUSED")
    status = "NOT_FOUND" if error.status_code == 404 else "REJECTED"
    return response(answer(error.status_code, ErrorBody(status, reason)))
