"""The gateway's position after a venue has corrected or voided an execution.

Pure. The quantity and the cash are exact: over all fills and revisions, the cash that they moved is `realised_pnl -
cost_basis`. What is left open takes over the difference as its cost, so that a bust realises no result that no trade
made; the books, which fold the account's other fills again, may divide it otherwise.
"""

from datetime import UTC, date, datetime
from decimal import Decimal

import msgspec

from switchyard.domain.facts import Figures
from switchyard.domain.money import EXACT, ZERO, canonical, share
from switchyard.domain.orders import Side
from switchyard.domain.positions import Position


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
