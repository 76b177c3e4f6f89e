"""The message types of a broker's HTTP protocol, used by the adapter and by the simulator.

| request | response |
|---|---|
| `POST /orders`, header `Idempotency-Key` | `OrderResponse`; 400, 401, 403 or 422 rejected, 409 processed before |
| `GET /orders/{client_order_id}` | `OrderResponse`; 404 `UNKNOWN_ORDER` |
| `POST /orders/{client_order_id}/cancel` | `OrderResponse`; 404 `UNKNOWN_ORDER`, 409 `ORDER_FINAL` |
| `POST /orders/cancel-all` | `CanceledAll`; cancels every open order under the credentials |
| `PATCH /orders/{orig_client_order_id}` | `OrderResponse`; 404 and 409 as above; 400 `QTY_FILLED`, 409 `STALE_AMEND` |
| `GET /orders?open=true&after=CURSOR` | `OpenOrders`, one page per request |
| `GET /reports?after=N&limit=M` | `Reports`; the broker holds the request briefly if there are none |
| `GET /quotes?symbols=A,B` | `QuotesResponse`; symbols without a market are left out |
| `GET /quotes/{symbol}` | `QuoteResponse`, for people; the adapter does not use it |
| `GET /statement?after=N&limit=M` | `Statement` |

`QTY_FILLED` means that the new quantity does not exceed the filled quantity. An amend has a client order id of its own
and names in its path the last one of the order; with an older one it is `STALE_AMEND`, and one that was carried out
before is answered with the order again. A broker amends in place (`amended_by`), or it ends the order (a report with
`canceled`; `replaced_by`) and puts one with the amend's id in its place, which has the fills so far. A cancel of an
order that was replaced is 409 `ORDER_FINAL` with that order. Every other response is an `ErrorResponse`; a rejection
without one is not final. A broker answers each request with exactly one response, and with `Connection: close` in the
request it ends the connection then: only that makes an error count, unless the broker never executes a client order id
twice and the request is no amend. An error may name the order (`client_order_id`); one that names another order never
counts, nor one with a body that is not JSON, nor one that shows the order as taken or the amend as carried out. Every
response has the header `X-Venue-Time`. Amounts are JSON numbers, decoded as exact decimals and never as floats.

A fill, a report and a statement line may carry `fee` (at most 8 decimals, negative for a rebate) and `fee_currency`;
without the latter the fee is in the instrument's settlement currency. A report or statement line with `exec_type`
`CORRECT` or `CANCEL` revises the execution `ref_exec_id` and is not a fill.
"""

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Final, Literal

import msgspec

from switchyard.domain.errors import InvalidField
from switchyard.domain.orders.order import OrderType, Side, TimeInForce
from switchyard.domain.orders.reports import ExecType, ReportStatus
from switchyard.domain.values import ZERO, positive_amount, signed_amount

IDEMPOTENCY_HEADER: Final = "Idempotency-Key"
# The error names that the adapter interprets; all others are only reported.
UNKNOWN_ORDER: Final = "UNKNOWN_ORDER"
ORDER_FINAL: Final = "ORDER_FINAL"
STALE_AMEND: Final = "STALE_AMEND"
REQUEST_EXPIRED: Final = "REQUEST_EXPIRED"

# On every response: the broker's own time in RFC 3339, from which the skew of `expires_at` is measured.
TIME_HEADER: Final = "X-Venue-Time"

# Longer than the ids of known venues, short enough for a log line and a database column. Control characters are
# rejected: no id has them, and PostgreSQL stores no NUL.
Id = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$")]
Text = Annotated[str, msgspec.Meta(max_length=512)]
# Three letters, or the longer symbol of a token.
Currency = Annotated[str, msgspec.Meta(max_length=16, pattern=r"^[A-Za-z0-9]+\Z")]
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
    """The body of `POST /orders`. Unknown fields are rejected: a misspelt price must not make a market order."""

    idempotency_key: Id
    client_order_id: Id
    symbol: Id
    intent: Side
    qty: Decimal
    """In units, not in lots."""
    type: OrderType
    time_in_force: TimeInForce
    limit_price: Decimal | None = None
    stop_price: Decimal | None = None
    trace_id: Text | None = None
    meta: dict[str, str] = {}
    expires_at: datetime | msgspec.UnsetType = msgspec.UNSET
    """The broker rejects a later arrival with 400 `REQUEST_EXPIRED`; sent only if it supports request expiry."""
    account: Id | msgspec.UnsetType = msgspec.UNSET
    """The account at the broker; sent only if accounts are mapped (`VENUE_ACCOUNTS_`)."""
    reduce_only: bool | msgspec.UnsetType = msgspec.UNSET
    """The order may only reduce the position at the broker; sent with `true`, and only if the broker supports it."""
    post_only: bool | msgspec.UnsetType = msgspec.UNSET
    """The broker rejects or cancels the order if it would trade at once; sent as `reduce_only` is."""
    display_qty: Decimal | msgspec.UnsetType = msgspec.UNSET
    """The part of the quantity that the broker shows to the market; sent only if the broker supports it."""
    good_till: datetime | msgspec.UnsetType = msgspec.UNSET
    """With `time_in_force` `GTD`, and then always: when the broker ends the order, which is then `expired`."""


class AmendOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `PATCH /orders/{orig_client_order_id}`; an omitted field stays unchanged."""

    client_order_id: Id | None = None
    """The amend's own id."""
    qty: Decimal | None = None
    """The new total quantity, including the quantity already filled."""
    limit_price: Decimal | None = None
    stop_price: Decimal | None = None
    expires_at: datetime | msgspec.UnsetType = msgspec.UNSET
    """As in `PlaceOrder`."""

    def __post_init__(self) -> None:
        _check_amounts(self.qty, self.limit_price, self.stop_price)
        if not self.qty and not self.limit_price and not self.stop_price:
            raise ValueError("qty, limit_price or stop_price is required and must be greater than 0")


class Fill(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One execution of an order."""

    exec_id: Id
    qty: Decimal
    price: Decimal
    at: datetime
    fee: Decimal | None = None
    fee_currency: Currency | None = None
    exec_type: ExecType | None = None
    ref_exec_id: Id | None = None

    def __post_init__(self) -> None:
        _check_amounts(self.qty, self.price)
        _check_fee(self.fee)


class OrderResponse(msgspec.Struct, frozen=True, kw_only=True):
    """An order as the broker has it; fields with a default are optional."""

    broker_order_id: Id
    accepted_at: datetime
    status: BrokerStatus
    idempotency_key: Id
    client_order_id: Id | None = None
    """None means that it equals the idempotency key."""
    symbol: Id | None = None
    intent: Side | None = None
    qty: Decimal | None = None
    limit_price: Decimal | None = None
    stop_price: Decimal | None = None
    filled_qty: Decimal = ZERO
    fills: tuple[Fill, ...] = ()
    amended_by: Id | None = None
    """The client order id of the last amend that was carried out on this order."""
    replaced_by: Id | None = None
    """The client order id of the order that an amend has put in the place of this one."""

    def __post_init__(self) -> None:
        _check_amounts(self.qty, self.limit_price, self.stop_price, self.filled_qty)


class CanceledAll(msgspec.Struct, frozen=True):
    """How many open orders were canceled."""

    canceled: int


class ErrorResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The reason for which the broker did not carry out the request."""

    error: Id
    message: Text = ""
    order: OrderResponse | None = None
    """With 409: the order processed earlier, or the one that has ended, if the broker includes it."""
    client_order_id: Id | None = None
    """The id of the order, or of the amend, that the request named; it shows which request this answers."""


class OpenOrders(msgspec.Struct, frozen=True, kw_only=True):
    """One page of the orders that may still be filled, in order of acceptance."""

    orders: tuple[OrderResponse, ...]
    next: Id | None = None
    """The cursor of the next page; None on the last page."""


class Report(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An execution, cancel or expiry of an order; `exec_id` is unique at this broker."""

    exec_id: Id
    client_order_id: Id
    broker_order_id: Id
    status: BrokerStatus
    at: datetime
    last_qty: Decimal = ZERO
    last_price: Decimal | None = None
    filled_qty: Decimal = ZERO
    """The total filled quantity, including this report."""
    reason: Text | None = None
    fee: Decimal | None = None
    fee_currency: Currency | None = None
    exec_type: ExecType | None = None
    ref_exec_id: Id | None = None

    def __post_init__(self) -> None:
        _check_amounts(self.last_qty, self.last_price, self.filled_qty)
        _check_fee(self.fee)


class Reports(msgspec.Struct, frozen=True, kw_only=True):
    """Reports in the broker's numbering, from 1 without gaps; each is decoded on its own, as a `Report`."""

    reports: tuple[msgspec.Raw, ...]
    last_number: Annotated[int, msgspec.Meta(ge=0)]
    """The number of the last report in this page: `after` of the next request.

    A number below `after` means that the numbering has started again.
    """


class QuoteResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The market of one symbol; usable if 0 < `bid` <= `ask`."""

    symbol: Id
    bid: Decimal
    ask: Decimal
    at: datetime
    """When the market was like this, by the clock of `X-Venue-Time`: their difference is the quote's age."""
    bid_size: Decimal | None = None
    ask_size: Decimal | None = None
    """The quantities displayed at bid and ask, in units, if the broker shows them."""

    def __post_init__(self) -> None:
        _check_amounts(self.bid, self.ask, self.bid_size, self.ask_size)


class QuotesResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The markets of the symbols that were asked for; each is decoded on its own, as a `QuoteResponse`."""

    quotes: tuple[msgspec.Raw, ...]


class StatementLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fill in the broker's books, or with `exec_type` `CORRECT` or `CANCEL` a revision of one."""

    exec_id: Id
    client_order_id: Id
    broker_order_id: Id
    symbol: Id
    intent: Side
    qty: Decimal
    price: Decimal
    at: datetime
    fee: Decimal | None = None
    fee_currency: Currency | None = None
    account: Id | None = None
    """The account at the broker, where the order named one."""
    exec_type: ExecType | None = None
    ref_exec_id: Id | None = None

    def __post_init__(self) -> None:
        _check_amounts(self.qty, self.price)
        _check_fee(self.fee)


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """Every fill exactly once, independent of repeated, reordered or dropped reports."""

    fills: tuple[StatementLine, ...]
    last_number: Annotated[int, msgspec.Meta(ge=0)]
    """The number of the last line of this page: `after` of the next request."""


encode = msgspec.json.Encoder(decimal_format="number").encode


def _check_amounts(*amounts: Decimal | None) -> None:
    for amount in amounts:
        if amount:  # None and zero are allowed
            _check(positive_amount, amount, "amount")


def _check_fee(fee: Decimal | None) -> None:
    if fee is not None:
        _check(signed_amount, fee, "fee")


def _check(amount: Callable[[Decimal, str], Decimal], value: Decimal, field: str) -> None:
    try:
        amount(value, field)
    except InvalidField as error:
        # msgspec turns a ValueError from `__post_init__` into a ValidationError.
        raise ValueError(error.message) from error
