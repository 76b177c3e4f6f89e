"""A request to cancel all open orders of an account, and its answer. Pure."""

import re
from typing import Literal

import msgspec

from switchyard.domain.errors import InvalidField
from switchyard.domain.ids import AccountId, OrderId, VenueName
from switchyard.domain.labels import SYMBOL, check_strategy
from switchyard.domain.lifecycle import Status, is_final
from switchyard.domain.orders import Order

# Orders of one request: its answer stays below 100 KB, and a repeat can list the same orders.
ORDERS_MAX = 500
# An order id. Any other text would sort before or after all orders, and cancel all of them or none.
_CURSOR = re.compile(r"ord_[0-9A-Z]{26}")

CancelResult = Literal[
    "CANCEL_REQUESTED",  # a cancel is on its way to the venue, from this request or an earlier one
    "CANCELED",  # it has ended without further fills, or was never sent
    "FINAL",  # it had ended otherwise before it could be cancelled
]


class CancelAllRequest(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """The body of `POST /orders/cancel-all`; without filters all orders of the account."""

    account_id: str | None = None
    symbol: str | None = None
    strategy: str | None = None
    venue: str | None = None
    cursor: str | None = None
    """`nextCursor` of the answer before: go on with the orders after it."""


class CancelledOrder(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What became of one order."""

    order_id: OrderId
    symbol: str
    venue: VenueName
    status: Status
    result: CancelResult


class CancelAllResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The body of the answer: the orders that were open when the request came, oldest first."""

    account_id: AccountId
    orders: tuple[CancelledOrder, ...]
    requested: int
    """How many wait for their venue's answer."""
    ended: int
    """How many have ended."""
    next_cursor: OrderId | None
    """Set where more orders are open: repeat the request with it, under another key."""


class CancelPlan(msgspec.Struct, frozen=True):
    """What a request with a key has to cancel; stored with the key before the first cancel.

    A repeat cancels these orders and no others, also after a crash in between.
    """

    orders: tuple[OrderId, ...]
    next_cursor: OrderId | None


def checked_cancel_all(request: CancelAllRequest) -> CancelAllRequest:
    """Raise InvalidField for the first filter that no order can have."""
    if request.symbol is not None and not SYMBOL.fullmatch(request.symbol):
        raise InvalidField("symbol", f"must match {SYMBOL.pattern}")
    if request.strategy is not None:
        check_strategy(request.strategy)
    if request.cursor is not None and not _CURSOR.fullmatch(request.cursor):
        raise InvalidField("cursor", "must be the nextCursor of the previous answer")
    return request


def cancelled(order: Order) -> CancelledOrder:
    """One order as the answer shows it."""
    result: CancelResult = "CANCEL_REQUESTED"
    if is_final(order.status):
        result = "CANCELED" if order.status == "CANCELED" else "FINAL"
    return CancelledOrder(
        order_id=order.order_id, symbol=order.symbol, venue=order.venue, status=order.status, result=result
    )
