"""What an account holds and what it has made of it: the arithmetic of fills at average cost.

Nothing is lost to rounding: over any fills, the cash that they moved is exactly `realised_pnl - cost_basis`.
Amounts are quantity times price in the price's own currency. An instrument's multiplier is not applied here, since
an order does not know it; it scales every amount alike, so whoever shows money applies it once, at the end.
"""

from datetime import datetime
from decimal import Decimal

import msgspec

from switchyard.domain.ids import AccountId
from switchyard.domain.money import EXACT, ZERO, average, canonical, share
from switchyard.domain.orders import Order, Side

PositionKey = tuple[AccountId, str]


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """What one account holds of one symbol, and the results that it has realised in it."""

    account_id: AccountId
    symbol: str
    qty: Decimal
    """Above zero when long, below when short."""
    cost_basis: Decimal
    """What the open quantity has cost, with the sign of the quantity; the average price follows from it."""
    realised_pnl: Decimal
    """The sum of all results so far."""
    trade_result: Decimal
    """What has been realised since the position was last flat."""
    consecutive_losses: int
    """Trades that ended with a loss since the last one that did not.

    A trade lasts from flat to flat, so that a venue that fills an order in many parts does not count as many losses.
    """
    high_water_mark: Decimal
    """The highest that `realised_pnl` has been, at least zero."""
    updated_at: datetime
    version: int
    """Counts the fills; a write of version n needs n-1 in the database, or before it in the same change."""

    @property
    def key(self) -> PositionKey:
        """There is one position of an account in a symbol."""
        return self.account_id, self.symbol

    @property
    def average_price(self) -> Decimal | None:
        """What a unit of the open quantity has cost; none when flat."""
        return average(self.cost_basis, self.qty) if self.qty else None

    @property
    def drawdown(self) -> Decimal:
        """How far the realised results are below their best."""
        return canonical(EXACT.subtract(self.high_water_mark, self.realised_pnl))


def apply_report(
    position: Position | None, order: Order, qty: Decimal, price: Decimal | None, now: datetime
) -> Position | None:
    """The position after a report on an order of it; as it was where nothing was filled.

    A fill without a price breaks the venue port's contract, but the quantity is held: it counts at the order's price.
    """
    if not qty:
        return position
    at = order.price if price is None else price
    return apply_fill(
        position,
        account=order.account_id,
        symbol=order.symbol,
        side=order.side,
        qty=qty,
        price=ZERO if at is None else at,
        now=now,
    )


def apply_fill(
    position: Position | None,
    *,
    account: AccountId,
    symbol: str,
    side: Side,
    qty: Decimal,
    price: Decimal,
    now: datetime,
) -> Position:
    """Close what the fill closes, open what is left of it, and count it."""
    before = _flat(account, symbol, now) if position is None else position
    assert before.key == (account, symbol), "a fill of another position"
    signed = qty if side == "BUY" else EXACT.minus(qty)
    closing = _closing(before.qty, signed)
    after = _closed(before, closing, price) if closing else before
    opening = EXACT.subtract(signed, closing)
    return msgspec.structs.replace(
        after,
        qty=canonical(EXACT.add(after.qty, opening)),
        cost_basis=canonical(EXACT.add(after.cost_basis, EXACT.multiply(opening, price))),
        updated_at=max(now, before.updated_at),
        version=before.version + 1,
    )


def _flat(account: AccountId, symbol: str, now: datetime) -> Position:
    return Position(
        account_id=account,
        symbol=symbol,
        qty=ZERO,
        cost_basis=ZERO,
        realised_pnl=ZERO,
        trade_result=ZERO,
        consecutive_losses=0,
        high_water_mark=ZERO,
        updated_at=now,
        version=0,
    )


def _closing(held: Decimal, signed: Decimal) -> Decimal:
    """The part of a fill that takes back what is held, with the fill's sign."""
    if not held or (held > 0) == (signed > 0):
        return ZERO
    everything = EXACT.minus(held)
    return max(signed, everything) if held > 0 else min(signed, everything)


def _closed(before: Position, closing: Decimal, price: Decimal) -> Position:
    """The position with `closing` of it taken back at the price."""
    taken = EXACT.minus(closing)
    # Rounded once, here: what a part has cost leaves the open notional, the rest of which stays exactly what remains.
    released = share(before.cost_basis, taken, before.qty)
    result = EXACT.subtract(EXACT.multiply(taken, price), released)
    qty = canonical(EXACT.add(before.qty, closing))
    realised = canonical(EXACT.add(before.realised_pnl, result))
    trade_result = canonical(EXACT.add(before.trade_result, result))
    losses = before.consecutive_losses
    if not qty:
        losses = losses + 1 if trade_result < 0 else 0
    return msgspec.structs.replace(
        before,
        qty=qty,
        cost_basis=canonical(EXACT.subtract(before.cost_basis, released)),
        realised_pnl=realised,
        trade_result=trade_result if qty else ZERO,
        consecutive_losses=losses,
        high_water_mark=max(before.high_water_mark, realised),
    )
