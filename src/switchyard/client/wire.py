"""Requests and answers as bytes: everything about the API that is not waiting for it."""

from datetime import datetime
from decimal import Decimal
from typing import Any, TypeVar

import msgspec

from switchyard.client.errors import ApiError, UnreadableAnswer
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.orders import OrderSnapshot

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


# Numbers in free-form data are read from their text, so that they stay the numbers that were sent.
_exact = msgspec.json.Decoder(float_hook=Decimal)


def read(body: bytes | str, kind: type[T]) -> T:
    """The answer as a value, its numbers as decimals."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise UnreadableAnswer(f"the answer cannot be read: {error}") from None


def read_anything(body: bytes | str) -> Any:
    """JSON of any shape, its fractions as decimals; what is not JSON stays text."""
    try:
        return _exact.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body.decode("utf-8", "replace") if isinstance(body, bytes) else body


def api_error(status: int, body: bytes, retry_after: str = "") -> ApiError:
    """The refusal, from whichever of the error forms the answer has."""
    document = read_anything(body)
    if isinstance(document, dict):
        reason = str(document.get("reason") or document.get("error") or f"HTTP_{status}")
        message = str(document.get("message") or _PLAIN_WORDS.get(status, ""))
        field = document.get("field")
        error = ApiError(status, reason, message, field and str(field))
        # A gateway that says so has certainly not taken the request; a proxy in front of it cannot know.
        error.in_doubt = status >= 500 and document.get("status") != "REJECTED"
    else:
        # Some refusals are a bare word, and a proxy answers with a page of its own.
        text = str(document).strip()[:TEXT_SHOWN_MAX]
        error = ApiError(status, text, "") if _is_reason(text) else ApiError(status, f"HTTP_{status}", text)
    if retry_after.isascii() and retry_after.isdigit():
        error.retry_after_seconds = float(retry_after)
    return error


def _is_reason(text: str) -> bool:
    return text.isupper() and text.replace("_", "").isalnum()
