"""Encodes requests and decodes responses of the HTTP API, and says when a request is repeated; performs no I/O."""

import random
from decimal import Decimal
from typing import Any, Literal, TypeVar

import msgspec

from switchyard.client.errors import ApiError, UnreadableResponse
from switchyard.domain.errors import InvalidField
from switchyard.domain.ids import OrderId
from switchyard.domain.market.health import VenueState
from switchyard.domain.market.quotes import ListedInstrument, listed_instrument
from switchyard.domain.orders.amends import AmendStatus
from switchyard.domain.orders.keys import Amount, decimal_of
from switchyard.domain.orders.order import OrderRequest, OrderSnapshot
from switchyard.domain.values import positive_amount

ExactAmount = Decimal | int | str


def exact_amount(value: ExactAmount, name: str) -> Decimal:
    """The amount as a decimal; raises InvalidField for a float and for a text that is not a number."""
    if isinstance(value, float):
        text = float.__repr__(value)
        raise InvalidField(
            name,
            f"must be an int, a str or a Decimal, not the float {text}: binary floats cannot represent most decimal "
            f"numbers exactly; pass '{text}' or Decimal('{text}')",
        )
    number = decimal_of(value)
    if number is None or not number.is_finite():
        raise InvalidField(name, f"must be an int, a str or a Decimal with a finite number, not {value!r}")
    return number


T = TypeVar("T")

# An error page of a proxy may be long; its beginning is enough to identify the problem.
TEXT_SHOWN_MAX = 200
# Errors of `/do/order` after which no order is at the broker or on its way there.
_NOT_PLACED = frozenset({"BROKER_DOWN", "JOURNAL_UNAVAILABLE", "QUEUE_DELAY", "QUEUE_REJECT"})
# Messages for responses that contain only a code.
_DEFAULT_MESSAGES = {
    401: "the gateway rejected the token",
    404: "this account has no such order or position",
    503: "the gateway is temporarily unavailable",
}


class Acknowledgement(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The result of `place`, `close_position` and `cancel`: the request is durable; the stream shows its outcome."""

    order_id: OrderId
    status: str
    idempotency_key: str | None = None
    """The key under which the order was placed; None for a cancel."""
    replayed: bool = False
    """Whether an earlier request with the same key placed this order."""


class VenueStates(msgspec.Struct, frozen=True):
    """The body of `GET /venues`."""

    venues: list[VenueState]


class AmendResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The result of `amend`: the amend is durable; `status` tells what became of it so far."""

    order_id: OrderId
    amend_id: str
    """The client order id of the amend at the venue."""
    status: AmendStatus
    reason: str | None = None
    """Why it was refused."""
    idempotency_key: str | None = None
    replayed: bool = False
    """Whether an earlier request with the same key made this amend."""


class OrderPlacementResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a placement with a derived key; the field names are those of the specification."""

    success: bool
    status: Literal["placed", "duplicate_detected", "processing", "failed"]
    message: str
    orderId: OrderId | None = None  # noqa: N815
    """The order that this request, or the request it duplicates, placed."""
    fromCache: bool = False  # noqa: N815
    """Whether the gateway answered from its cache."""
    requestId: str | None = None  # noqa: N815
    """The id of this request, if it placed the order."""
    originalRequestId: str | None = None  # noqa: N815
    """The id of the request that this one duplicates."""


class PlacementResponse(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The response to an order without a key: an acknowledgement, or the request that it duplicates."""

    order_id: OrderId
    status: Literal["ACCEPTED", "duplicate_detected", "processing", "failed"]
    success: bool = True
    message: str = "Order placed successfully"
    from_cache: bool = False
    request_id: str | None = None
    original_request_id: str | None = None

    def result(self) -> OrderPlacementResult:
        """Convert to the result type of the SDK."""
        return OrderPlacementResult(
            success=self.success,
            status="placed" if self.status == "ACCEPTED" else self.status,
            message=self.message,
            orderId=self.order_id,
            fromCache=self.from_cache,
            requestId=self.request_id,
            originalRequestId=self.original_request_id,
        )


class OrderPage(msgspec.Struct, frozen=True, rename="camel"):
    """The body of `GET /orders`."""

    orders: list[OrderSnapshot]
    next_cursor: str | None = None


class InstrumentPage(msgspec.Struct, frozen=True, rename="camel"):
    """The body of `GET /instruments`."""

    instruments: list[msgspec.Raw]
    next_cursor: str | None = None

    def listed(self) -> list[ListedInstrument]:
        """The instruments; raises UnreadableResponse if one does not match the type."""
        try:
            return [listed_instrument(_exact_members(bytes(raw))) for raw in self.instruments]
        except msgspec.ValidationError as error:
            raise UnreadableResponse(f"the response cannot be decoded: {error}; check the gateway URL") from None


def order_by_content(
    symbol: str, side: str, quantity: Amount, order_type: str, limit_price: Amount | None, stop_price: Amount | None
) -> OrderRequest:
    """Build the request with exact amounts; raises InvalidField for an invalid amount, the gateway checks the rest."""
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
        raise InvalidField(name, f"must be a number, not {value!r}")
    return positive_amount(number, name)


_exact_members = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal).decode
# Fractions in free-form data become decimals, so that they keep the value that was sent.
_exact = msgspec.json.Decoder(float_hook=Decimal)


def read(body: bytes | str, kind: type[T]) -> T:
    """Decode a response body; raises UnreadableResponse if it does not match the type."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise UnreadableResponse(f"the response cannot be decoded: {error}; check the gateway URL") from None


def read_anything(body: bytes | str) -> Any:
    """Decode JSON of any shape, with fractions as decimals; text that is not JSON is returned unchanged."""
    try:
        return _exact.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body.decode("utf-8", "replace") if isinstance(body, bytes) else body


def api_error(status: int, body: bytes, retry_after: str = "") -> ApiError:
    """Build the error from any of the error formats of the API."""
    document = read_anything(body)
    if isinstance(document, dict):
        reason = str(document.get("reason") or document.get("error") or f"HTTP_{status}")
        message = str(document.get("message") or document.get("detail") or _DEFAULT_MESSAGES.get(status, ""))
        field = document.get("field")
        error = ApiError(status, reason, message, field and str(field))
        error.order_id = document.get("orderId")
        error.reason_code = document.get("reason_code")
        # With these the gateway states that no order can be executed. Any other 5xx may come from a proxy.
        is_refused = document.get("status") == "REJECTED" or document.get("error") in _NOT_PLACED
        error.in_doubt = status >= 500 and not is_refused
    else:
        # Some errors are a bare code, and a proxy sends its own error page.
        text = str(document).strip()[:TEXT_SHOWN_MAX]
        error = ApiError(status, text, "") if _is_reason(text) else ApiError(status, f"HTTP_{status}", text)
    if retry_after.isascii() and retry_after.isdigit():
        error.retry_after_seconds = float(retry_after)
    return error


def _is_reason(text: str) -> bool:
    return text.isupper() and text.replace("_", "").isalnum()


# Bounds the exponent; any practical first delay has reached its cap long before.
DOUBLINGS_MAX = 16


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """Exponential backoff; with the defaults a request fails after about two seconds of waiting."""

    attempts_max: int = 5
    """Attempts per request, including the first."""
    first_seconds: float = 0.1
    """The delay after the first failure; it doubles after each further one."""
    seconds_max: float = 2.0
    """The longest delay, also if the gateway requests a longer one."""
    jitter: float = 0.5
    """The largest part of a delay that is left out at random, from 0 to 1."""

    def delay(self, failures: int, requested_seconds: float = 0.0) -> float:
        """The delay in seconds after this many consecutive failures: at least what the server requested, up to the cap.

        The jitter prevents clients that lost the same server from reconnecting at the same time.
        """
        backoff = self.first_seconds * (1 << min(failures - 1, DOUBLINGS_MAX)) * random.uniform(1.0 - self.jitter, 1.0)
        return min(max(backoff, requested_seconds), self.seconds_max)


# The specification of `/do/order` recommends three repeats, after 1, 2 and 4 seconds.
DO_ORDER_RETRY = Retry(attempts_max=4, first_seconds=1.0, seconds_max=4.0, jitter=0.0)
