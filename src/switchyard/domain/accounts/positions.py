"""Positions: what a fill, a correction or a bust changes, and the account's realised results. Pure."""

from datetime import UTC, date, datetime
from decimal import Decimal

import msgspec

from switchyard.domain.ids import AccountId
from switchyard.domain.journal.facts import Figures
from switchyard.domain.orders.order import Order, Side
from switchyard.domain.values import EXACT, ONE, ZERO, average, canonical, share

PositionKey = tuple[AccountId, str]

# The symbol of the row that holds an account's results over all symbols; no instrument can have it.
ACCOUNT_TOTAL = "*"


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """The position of one account in one symbol."""

    account_id: AccountId
    symbol: str
    qty: Decimal
    """Above zero when long, below when short."""
    cost_basis: Decimal
    """The cost of the open quantity, with the sign of the quantity; the average price is derived from it."""
    realised_pnl: Decimal
    """The sum of all realised results."""
    trade_result: Decimal
    """The result realised since the position was last flat."""
    consecutive_losses: int
    """Trades in a row that ended with a loss.

    A trade lasts from flat to flat, so that an order filled in many parts counts once.
    """
    high_water_mark: Decimal
    """The highest `realised_pnl` so far, at least zero."""
    updated_at: datetime
    version: int
    """Counts the fills; a write of version n needs version n-1 in the database, or before it in the same change."""
    currency: str | None = None
    """The settlement currency of the last fill's order."""
    multiplier: Decimal = ONE
    """Of the last fill's order: amounts here times the multiplier are money."""
    day: date | None = None
    """The trading day of the last fill."""
    day_pnl: Decimal = ZERO
    """The result realised on that trading day."""

    @property
    def key(self) -> PositionKey:
        """The primary key: one position per account and symbol."""
        return self.account_id, self.symbol

    @property
    def average_price(self) -> Decimal | None:
        """Cost per unit of the open quantity; none when flat."""
        return average(self.cost_basis, self.qty) if self.qty else None

    @property
    def drawdown(self) -> Decimal:
        """How far `realised_pnl` is below its high-water mark."""
        return canonical(EXACT.subtract(self.high_water_mark, self.realised_pnl))


def apply_report(
    position: Position | None,
    order: Order,
    qty: Decimal,
    price: Decimal | None,
    now: datetime,
    day: date | None = None,
) -> Position | None:
    """The position after a report; unchanged where nothing was filled. Without a trading day, the UTC date counts.

    A fill without a price breaks the venue port's contract, but the quantity is real: it counts at the order's price.
    """
    if not qty:
        return position
    fill_price = order.price if price is None else price
    return apply_fill(
        position,
        account=order.account_id,
        symbol=order.symbol,
        side=order.side,
        qty=qty,
        price=ZERO if fill_price is None else fill_price,
        now=now,
        currency=order.currency,
        multiplier=order.multiplier,
        day=day,
    )


def account_total(account: AccountId, now: datetime) -> Position:
    """The results of an account that has not closed anything yet."""
    return _flat(account, ACCOUNT_TOTAL, now)


def add_result(total: Position, before: Position | None, after: Position) -> Position:
    """The account's results after a fill moved one of its positions; unchanged where the fill closed nothing.

    Amounts of symbols with different price currencies are added as they are (ADR 13).
    """
    if before is None or not before.qty or (after.qty - before.qty > 0) == (before.qty > 0):
        return total
    result = EXACT.subtract(after.realised_pnl, before.realised_pnl)
    realised = canonical(EXACT.add(total.realised_pnl, result))
    losses = total.consecutive_losses
    if not after.qty or (after.qty > 0) != (before.qty > 0):  # the trade has ended
        losses = losses + 1 if EXACT.add(before.trade_result, result) < 0 else 0
    return msgspec.structs.replace(
        total,
        realised_pnl=realised,
        consecutive_losses=losses,
        high_water_mark=max(total.high_water_mark, realised),
        updated_at=max(after.updated_at, total.updated_at),
        version=total.version + 1,
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
    currency: str | None = None,
    multiplier: Decimal = ONE,
    day: date | None = None,
) -> Position:
    """The position after a fill: first closes the opposite quantity, then opens the rest."""
    before = _flat(account, symbol, now) if position is None else position
    assert before.account_id == account and before.symbol == symbol, "a fill of another position"
    opening = signed = qty if side == "BUY" else EXACT.minus(qty)
    after, result = before, ZERO
    if closing := _closing(before.qty, signed):
        after = _closed(before, closing, price)
        opening = EXACT.subtract(signed, closing)
        result = EXACT.subtract(after.realised_pnl, before.realised_pnl)
    updated_at = now if now > before.updated_at else before.updated_at
    trading_day = updated_at.astimezone(UTC).date() if day is None else day
    if before.day is not None and before.day > trading_day:
        trading_day = before.day  # a changed setting does not bring a day back
    day_pnl = before.day_pnl if before.day == trading_day else ZERO
    return msgspec.structs.replace(
        after,
        qty=canonical(EXACT.add(after.qty, opening)),
        cost_basis=canonical(EXACT.add(after.cost_basis, EXACT.multiply(opening, price))),
        updated_at=updated_at,
        version=before.version + 1,
        currency=currency,
        multiplier=multiplier,
        day=trading_day,
        day_pnl=canonical(EXACT.add(day_pnl, result)) if result else day_pnl,
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
    """The part of a fill that closes the held quantity, with the fill's sign."""
    if not held or (held > 0) == (signed > 0):
        return ZERO
    everything = EXACT.minus(held)
    return max(signed, everything) if held > 0 else min(signed, everything)


def _closed(before: Position, closing: Decimal, price: Decimal) -> Position:
    """The position after `closing` of it was closed at the price."""
    closed = EXACT.minus(closing)
    # The only rounding: the closed part's cost is rounded and subtracted, so that the remaining basis is exact.
    released = share(before.cost_basis, closed, before.qty)
    result = EXACT.subtract(EXACT.multiply(closed, price), released)
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


def revised_position(
    before: Position, side: Side, taken_back: Figures, instead: Figures | None, now: datetime, day: date | None = None
) -> Position:
    """The position without an execution and, after a correction, with another one `instead`."""
    removed, added = _signed(side, taken_back), ZERO if instead is None else _signed(side, instead)
    qty = canonical(EXACT.add(EXACT.subtract(before.qty, removed), added))
    cost = EXACT.subtract(before.cost_basis, EXACT.multiply(removed, taken_back.price))
    if instead is not None:
        cost = EXACT.add(cost, EXACT.multiply(added, instead.price))
    kept = _cost_of(before, qty, cost, taken_back if instead is None else instead)
    result = EXACT.subtract(kept, cost)
    updated_at = max(now, before.updated_at)
    trading_day = updated_at.astimezone(UTC).date() if day is None else day
    if before.day is not None and before.day > trading_day:
        trading_day = before.day
    realised = canonical(EXACT.add(before.realised_pnl, result))
    return msgspec.structs.replace(
        before,
        qty=qty,
        cost_basis=canonical(kept),
        realised_pnl=realised,
        trade_result=canonical(EXACT.add(before.trade_result, result)) if qty else ZERO,
        high_water_mark=max(before.high_water_mark, realised),
        updated_at=updated_at,
        version=before.version + 1,
        day=trading_day,
        day_pnl=canonical(EXACT.add(before.day_pnl, result) if before.day == trading_day else result),
    )


def revised_total(total: Position, before: Position, after: Position) -> Position:
    """The account's results after a revision moved one of its positions; unchanged where it realised nothing."""
    result = EXACT.subtract(after.realised_pnl, before.realised_pnl)
    if not result:
        return total
    realised = canonical(EXACT.add(total.realised_pnl, result))
    return msgspec.structs.replace(
        total,
        realised_pnl=realised,
        high_water_mark=max(total.high_water_mark, realised),
        updated_at=max(after.updated_at, total.updated_at),
        version=total.version + 1,
    )


def _signed(side: Side, figures: Figures) -> Decimal:
    return figures.qty if side == "BUY" else EXACT.minus(figures.qty)


def _cost_of(before: Position, qty: Decimal, cost: Decimal, last: Figures) -> Decimal:
    """The cost of what is open: `cost`, unless it would give the open quantity a price below zero."""
    if not qty:
        return ZERO
    if cost and (cost > 0) == (qty > 0):
        return cost
    if before.qty and (before.qty > 0) == (qty > 0):
        return share(before.cost_basis, qty, before.qty)
    return EXACT.multiply(qty, last.price)
