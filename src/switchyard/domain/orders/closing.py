"""Requests about what an account has open: close a position, cancel all open orders. Pure.

The closing order is decided on a read and checked again by the commit that accepts it (`Claim.whole`, ADR 27).
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Literal

import msgspec

from switchyard.domain.errors import InvalidField, NotFound, PositionClosing
from switchyard.domain.ids import AccountId, OrderId, VenueName
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.orders.keys import keyed_digest
from switchyard.domain.orders.lifecycle import Status, is_final
from switchyard.domain.orders.order import Order, OrderRequest, TimeInForce, checked
from switchyard.domain.risk.claims import SUMS
from switchyard.domain.risk.exposure import SymbolExposure
from switchyard.domain.values import (
    SYMBOL,
    ZERO,
    canonical,
    check_strategy,
    converted,
    digest,
    plain,
    require_numbers,
    struct_digest,
)

_AMOUNTS = ("qty", "price")


class CloseBody(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """The body of `POST /positions/{symbol}/close`; side and, without `qty`, quantity follow from the position."""

    account_id: str | None = None
    qty: Decimal | None = None
    type: Literal["LIMIT", "MARKET"] = "MARKET"
    price: Decimal | None = None
    time_in_force: TimeInForce | None = None
    client_order_id: str | None = None
    strategy: str | None = None
    tags: tuple[str, ...] = ()


class CloseRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A checked request: equal requests have equal digests."""

    order: OrderRequest
    """The order, with a side and a quantity that only stand for those that are decided later."""
    qty: Decimal | None = None
    """None: everything that open orders do not close already."""

    @property
    def digest(self) -> str:
        """The digest of what the caller sent, after defaults."""
        stated = msgspec.structs.replace(self.order, side="SELL", qty=self.qty or ZERO)
        return struct_digest(stated)

    def derived_key(self, account: AccountId, secret: str | bytes | None) -> str:
        """The key of a close that is recognised by its content; no order's key has this form."""
        return keyed_digest(digest({"account": account, "close": self.digest}).encode(), secret)


def close_request(account: AccountId, symbol: str, body: Mapping[str, Any], catalogue: Catalogue) -> CloseRequest:
    """Check a body; raises InvalidField for the first wrong field and NotFound for another account."""
    require_numbers(body, _AMOUNTS)
    stated = converted(body, CloseBody)
    if stated.account_id is not None and stated.account_id != account:
        raise NotFound
    order = OrderRequest(
        symbol=symbol,
        side="SELL",
        type=stated.type,
        qty=catalogue.tradable(symbol, "symbol").step if stated.qty is None else stated.qty,
        price=stated.price,
        time_in_force=stated.time_in_force,
        client_order_id=stated.client_order_id,
        strategy=stated.strategy,
        tags=stated.tags,
    )
    order = checked(order, catalogue)
    return CloseRequest(order=order, qty=None if stated.qty is None else order.qty)


def closing_order(request: CloseRequest, here: SymbolExposure) -> OrderRequest:
    """The order that closes the position, or the wanted part of it.

    What open orders of the side may still close is left to them. Raises NotFound without a position and PositionClosing
    where less can be closed than is wanted.
    """
    if not here.position:
        raise NotFound
    side, open_qty = ("SELL", here.sell_qty) if here.position > 0 else ("BUY", here.buy_qty)
    rest = canonical(SUMS.subtract(abs(here.position), open_qty))
    qty = rest if request.qty is None else request.qty
    if rest <= 0 or qty > rest:
        raise PositionClosing(request.order.symbol, plain(here.position), side, plain(open_qty), plain(max(rest, ZERO)))
    return msgspec.structs.replace(request.order, side=side, qty=qty)


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
