"""What the books keep of an order: its terms, which a report does not repeat, and the quantity booked so far."""

from decimal import Decimal

import msgspec

from switchyard.domain.facts import AcceptedOrder
from switchyard.domain.ids import AccountId, OrderId, VenueName
from switchyard.domain.ledger.entries import NO_CURRENCY, LedgerEntry
from switchyard.domain.money import ONE, ZERO
from switchyard.domain.orders import Side


class BookedOrder(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An order that a later fill may name, rejected orders included: a venue may fill what we did not send."""

    order_id: OrderId
    account_id: AccountId
    venue: VenueName
    symbol: str
    side: Side
    price: Decimal | None = None
    currency: str
    multiplier: Decimal = ONE
    strategy: str | None = None
    booked_qty: Decimal = ZERO
    """The sum of its booked fills, without the reversed ones."""
    seq: int
    """The event that made it."""


def order_of_memo(entry: LedgerEntry) -> BookedOrder:
    """The order whose memo an entry is, as it was accepted."""
    assert entry.side is not None, "an order has a side"
    return BookedOrder(
        order_id=entry.order_id,
        account_id=entry.account_id,
        venue=entry.venue,
        symbol=entry.symbol,
        side=entry.side,
        price=entry.price,
        currency=entry.currency,
        multiplier=entry.multiplier,
        strategy=entry.strategy,
        seq=entry.seq,
    )


def booked_order(order_id: OrderId, account_id: AccountId, order: AcceptedOrder, seq: int) -> BookedOrder:
    """The terms of a new order."""
    return BookedOrder(
        order_id=order_id,
        account_id=account_id,
        venue=order.venue,
        symbol=order.symbol,
        side=order.side,
        price=order.price,
        currency=order.currency or NO_CURRENCY,
        multiplier=order.multiplier,
        strategy=order.strategy,
        seq=seq,
    )
