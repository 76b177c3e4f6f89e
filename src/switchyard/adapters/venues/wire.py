"""The HTTP protocol of a broker: what the adapter and the simulator both read and write.

| request | answer |
|---|---|
| `POST /orders`, header `Idempotency-Key` | `OrderResponse`; 400 or 422 rejected, 409 processed before |
| `GET /orders/{client_order_id}` | `OrderResponse`; 404 `UNKNOWN_ORDER` |
| `POST /orders/{client_order_id}/cancel` | `OrderResponse`; 404 `UNKNOWN_ORDER`, 409 `ORDER_FINAL` |
| `PATCH /orders/{client_order_id}` | `OrderResponse`; 404, 409 as above; 400 `QTY_FILLED`: not more than is filled |
| `GET /orders?open=true&after=CURSOR` | `OpenOrders`, a page at a time |
| `GET /reports?after=N&limit=M` | `Reports`; waits a short while when there are none |
| `GET /quotes/{symbol}` | `QuoteResponse` |
| `GET /statement?after=N&limit=M` | `Statement` |

Every other answer is an `ErrorResponse`. Amounts are JSON numbers and exact: they are never read as binary floats.
"""

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Final, Literal

import msgspec

from switchyard.domain.errors import InvalidField
from switchyard.domain.money import ZERO, positive_amount
from switchyard.domain.orders import OrderType, Side, TimeInForce
from switchyard.domain.reports import ReportStatus

IDEMPOTENCY_HEADER: Final = "Idempotency-Key"
# Error names that mean something to a program; all others are for people.
UNKNOWN_ORDER: Final = "UNKNOWN_ORDER"
ORDER_FINAL: Final = "ORDER_FINAL"
REQUEST_EXPIRED: Final = "REQUEST_EXPIRED"

# Longer than any venue's ids, short enough for a log line and a column.
Id = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
Text = Annotated[str, msgspec.Meta(max_length=512)]
BrokerStatus = Literal["accepted", "partially_filled", "filled", "canceled", "rejected", "expired"]

REPORT_STATUS: Final[dict[BrokerStatus, ReportStatus]] = {
    "accepted": "WORKING",
    "partially_filled": "PARTIALLY_FILLED",
    "filled": "FILLED",
    "canceled": "CANCELED",
    "rejected": "REJECTED",
    "expired": "EXPIRED",
}
BROKER_STATUS: Final[dict[ReportStatus, BrokerStatus]] = {ours: theirs for theirs, ours in REPORT_STATUS.items()}


class PlaceOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /orders`; a misspelt limit price must not become a market order."""

    idempotency_key: Id
    client_order_id: Id
    symbol: Id
    intent: Side
    qty: Decimal
    """In units, never in lots."""
    type: OrderType
    time_in_force: TimeInForce
    limit_price: Decimal | None = None
    stop_price: Decimal | None = None
    trace_id: Text | None = None
    meta: dict[str, str] = {}
    expires_at: datetime | msgspec.UnsetType = msgspec.UNSET
    """The broker rejects the order (400 `REQUEST_EXPIRED`) when it arrives later; only sent where it promises that."""


class AmendOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `PATCH /orders/{client_order_id}`: what is left out stays as it is."""

    qty: Decimal | None = None
    """In all, what is filled already included."""
    limit_price: Decimal | None = None

    def __post_init__(self) -> None:
        _check_amounts(self.qty, self.limit_price)
        if not self.qty and not self.limit_price:
            raise ValueError("qty or limit_price is needed, and greater than 0")


class Fill(msgspec.Struct, frozen=True, kw_only=True):
    """One execution of an order."""

    exec_id: Id
    qty: Decimal
    price: Decimal
    at: datetime

    def __post_init__(self) -> None:
        _check_amounts(self.qty, self.price)


class OrderResponse(msgspec.Struct, frozen=True, kw_only=True):
    """An order as the broker has it; a broker may leave out what has a default."""

    broker_order_id: Id
    accepted_at: datetime
    status: BrokerStatus
    idempotency_key: Id
    client_order_id: Id | None = None
    """None: the same as the idempotency key."""
    symbol: Id | None = None
    intent: Side | None = None
    qty: Decimal | None = None
    filled_qty: Decimal = ZERO
    fills: tuple[Fill, ...] = ()

    def __post_init__(self) -> None:
        _check_amounts(self.qty, self.filled_qty)


class ErrorResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why the broker did not do it."""

    error: Id
    message: Text = ""
    order: OrderResponse | None = None
    """With 409: the order that was processed before, where the broker shows it."""


class OpenOrders(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the orders that may still be filled, in the order of their acceptance."""

    orders: tuple[OrderResponse, ...]
    next: Id | None = None
    """The cursor of the next page; none on the last."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Something happened to an order; `exec_id` is unique at this broker."""

    exec_id: Id
    client_order_id: Id
    broker_order_id: Id
    status: BrokerStatus
    at: datetime
    last_qty: Decimal = ZERO
    last_price: Decimal | None = None
    filled_qty: Decimal = ZERO
    """In total, this report included."""
    reason: Text | None = None

    def __post_init__(self) -> None:
        _check_amounts(self.last_qty, self.last_price, self.filled_qty)


class Reports(msgspec.Struct, frozen=True, kw_only=True):
    """Reports in the broker's own numbering, from 1 and without a gap."""

    reports: tuple[Report, ...]
    last_number: Annotated[int, msgspec.Meta(ge=0)]
    """The number of the last report here: `after` of the next question."""


class QuoteResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The market right now."""

    symbol: Id
    bid: Decimal
    ask: Decimal
    at: datetime

    def __post_init__(self) -> None:
        _check_amounts(self.bid, self.ask)


class StatementLine(msgspec.Struct, frozen=True, kw_only=True):
    """One fill, as the broker booked it."""

    exec_id: Id
    client_order_id: Id
    broker_order_id: Id
    symbol: Id
    intent: Side
    qty: Decimal
    price: Decimal
    at: datetime

    def __post_init__(self) -> None:
        _check_amounts(self.qty, self.price)


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """Every fill once, whatever the reports repeated, swapped or held back."""

    fills: tuple[StatementLine, ...]
    last_number: int


encode = msgspec.json.Encoder(decimal_format="number").encode


def _check_amounts(*amounts: Decimal | None) -> None:
    for amount in amounts:
        if amount:  # neither absent nor zero
            try:
                positive_amount(amount, "amount")
            except InvalidField as error:
                # Of this type, the decoder takes it for a violation of the schema.
                raise ValueError(error.message) from error
