"""A request to close a position: which order it asks for, given the position and the open orders. Pure.

The order is decided on a read and checked again by the commit that accepts it (`Claim.whole`, ADR 27).
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Literal

import msgspec

from switchyard.domain.canonical import digest, struct_digest
from switchyard.domain.derived_keys import keyed_digest
from switchyard.domain.errors import NotFound, PositionClosing
from switchyard.domain.fields import converted, require_numbers
from switchyard.domain.ids import AccountId
from switchyard.domain.instruments import Catalogue
from switchyard.domain.money import ZERO, canonical, plain
from switchyard.domain.orders import OrderRequest, TimeInForce, checked
from switchyard.domain.risk.exposure import SymbolExposure
from switchyard.domain.risk.reservations import SUMS

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
