"""Positions of the books: quantity, cost basis and realised P&L in money of the settlement currency.

Pure. The arithmetic is that of `domain/positions.py`, with price times multiplier as the price: a multiplier that is
changed later does not touch what is booked.
"""

from datetime import UTC, datetime
from decimal import Decimal

import msgspec

from switchyard.domain.ids import AccountId
from switchyard.domain.ledger.entries import LedgerEntry
from switchyard.domain.money import EXACT, ONE, ZERO, average
from switchyard.domain.positions import Position, apply_fill


class Holding(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The position of one account in one symbol and settlement currency."""

    account_id: AccountId
    symbol: str
    currency: str
    qty: Decimal
    """Above zero when long, below when short."""
    cost_basis: Decimal
    """The money that the open quantity cost, with the sign of the quantity."""
    realised_pnl: Decimal
    """Without fees."""
    multiplier: Decimal
    """Of the last fill."""
    fills: int
    updated_at: datetime
    """The time of the last fill's event."""

    @property
    def average_price(self) -> Decimal | None:
        """The price per unit of the open quantity, without the multiplier; none when flat."""
        return average(self.cost_basis, EXACT.multiply(self.qty, self.multiplier)) if self.qty else None


def after_fill(holding: Holding | None, entry: LedgerEntry) -> Holding:
    """The position after a fill."""
    before = None if holding is None else _position(holding)
    price = EXACT.multiply(entry.price or ZERO, entry.multiplier)
    after = apply_fill(
        before,
        account=entry.account_id,
        symbol=entry.symbol,
        side=entry.side,
        qty=entry.qty,
        price=price,
        now=entry.at,
    )
    return Holding(
        account_id=entry.account_id,
        symbol=entry.symbol,
        currency=entry.currency,
        qty=after.qty,
        cost_basis=after.cost_basis,
        realised_pnl=after.realised_pnl,
        multiplier=entry.multiplier,
        fills=after.version,
        updated_at=after.updated_at.astimezone(UTC),
    )


def _position(holding: Holding) -> Position:
    """The position without what the books do not keep: trades in a row, high-water mark, trading day."""
    return Position(
        account_id=holding.account_id,
        symbol=holding.symbol,
        qty=holding.qty,
        cost_basis=holding.cost_basis,
        realised_pnl=holding.realised_pnl,
        trade_result=ZERO,
        consecutive_losses=0,
        high_water_mark=ZERO,
        updated_at=holding.updated_at,
        version=holding.fills,
        multiplier=ONE,
    )
