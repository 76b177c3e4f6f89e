"""Requests and answers as bytes: everything about the API that is not waiting for it."""

from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, TypeVar

import msgspec

from switchyard.client.errors import ApiError, UnreadableResponse
from switchyard.domain.derived_keys import Amount, decimal_of
from switchyard.domain.errors import InvalidField
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.money import positive_amount
from switchyard.domain.orders import OrderRequest, OrderSnapshot

T = TypeVar("T")

# A proxy's error page may be long; this much of it names the problem.
TEXT_SHOWN_MAX = 200
# The gateway words these in one code only; people deserve a sentence.
_PLAIN_WORDS = {
    401: "the gateway does not accept the token",
    404: "there is no such order in this account",
    503: "the gateway cannot take the request now",
}


class Acknowledgement(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer to `place` and `cancel`: the wish is durable; its outcome follows in the stream."""

    order_id: OrderId
    status: str
    idempotency_key: str | None = None
    replayed: bool = False
    """Whether an earlier request with the same key had placed this order."""


class OrderPlacementResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an order that is recognised by its content, under the specification's own names."""

    success: bool
    status: Literal["placed", "duplicate_detected", "processing", "failed"]
    message: str
    orderId: OrderId | None = None  # noqa: N815
    """The order that this request, or the one it repeats, has made."""
    fromCache: bool = False  # noqa: N815
    requestId: str | None = None  # noqa: N815
    """This request's, where it made an order."""
    originalRequestId: str | None = None  # noqa: N815
    """That of the request which this one repeats."""


class PlacementResponse(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The two answers to an order without a key: an acknowledgement, or which request it repeats."""

    order_id: OrderId
    status: Literal["ACCEPTED", "duplicate_detected", "processing", "failed"]
    success: bool = True
    message: str = "Order placed successfully"
    from_cache: bool = False
    request_id: str | None = None
    original_request_id: str | None = None

    def result(self) -> OrderPlacementResult:
        """The same for callers."""
        return OrderPlacementResult(
            success=self.success,
            status="placed" if self.status == "ACCEPTED" else self.status,
            message=self.message,
            orderId=self.order_id,
            fromCache=self.from_cache,
            requestId=self.request_id,
            originalRequestId=self.original_request_id,
        )


class RecordedEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One line of the journal; `data` stays as it was written."""

    epoch: int
    shard: int
    seq: int
    at: datetime
    type: str
    account_id: AccountId
    order_id: OrderId | None
    data: msgspec.Raw
    hash: str


class OrderPage(msgspec.Struct, frozen=True, rename="camel"):
    """The body of `GET /orders`."""

    orders: list[OrderSnapshot]
    next_cursor: str | None = None


class EventPage(msgspec.Struct, frozen=True):
    """The body of `GET /orders/{orderId}/events` and `GET /accounts/{accountId}/events`."""

    events: list[RecordedEvent]


def order_by_content(
    symbol: str, side: str, quantity: Amount, order_type: str, limit_price: Amount | None, stop_price: Amount | None
) -> OrderRequest:
    """The request, its amounts exact, or an InvalidField that names the argument; the gateway judges the rest."""
    return OrderRequest(
        symbol=symbol,
        side=side.upper(),  # type: ignore[arg-type]
        type=order_type.upper(),  # type: ignore[arg-type]
        qty=_exact_amount(quantity, "quantity"),
        price=None if limit_price is None else _exact_amount(limit_price, "limit_price"),
        stop_price=None if stop_price is None else _exact_amount(stop_price, "stop_price"),
    )


def _exact_amount(value: Amount, name: str) -> Decimal:
    number = decimal_of(value)
    if number is None:
        raise InvalidField(name, "must be a number")
    return positive_amount(number, name)


# Numbers in free-form data are read from their text, so that they stay the numbers that were sent.
_exact = msgspec.json.Decoder(float_hook=Decimal)


def read(body: bytes | str, kind: type[T]) -> T:
    """The answer as a value, its numbers as decimals."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise UnreadableResponse(f"the answer cannot be read: {error}") from None


def read_anything(body: bytes | str) -> Any:
    """JSON of any shape, its fractions as decimals; what is not JSON stays text."""
    try:
        return _exact.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body.decode("utf-8", "replace") if isinstance(body, bytes) else body


def api_error(status: int, body: bytes, retry_after: str = "") -> ApiError:
    """The rejection, from whichever of the error forms the answer has."""
    document = read_anything(body)
    if isinstance(document, dict):
        reason = str(document.get("reason") or document.get("error") or f"HTTP_{status}")
        message = str(document.get("message") or _PLAIN_WORDS.get(status, ""))
        field = document.get("field")
        error = ApiError(status, reason, message, field and str(field))
        # A gateway that says so has certainly not taken the request; a proxy in front of it cannot know.
        error.in_doubt = status >= 500 and document.get("status") != "REJECTED"
    else:
        # Some rejections are a bare word, and a proxy answers with a page of its own.
        text = str(document).strip()[:TEXT_SHOWN_MAX]
        error = ApiError(status, text, "") if _is_reason(text) else ApiError(status, f"HTTP_{status}", text)
    if retry_after.isascii() and retry_after.isdigit():
        error.retry_after_seconds = float(retry_after)
    return error


def _is_reason(text: str) -> bool:
    return text.isupper() and text.replace("_", "").isalnum()
