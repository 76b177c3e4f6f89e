"""Positions of the books: quantity, cost basis and realised P&L in money of the settlement currency.

Pure. The arithmetic is that of `domain/positions.py`, with price times multiplier as the price: a multiplier that is
changed later does not touch what is booked.
"""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

import msgspec

from switchyard.domain.ids import AccountId
from switchyard.domain.ledger.entries import LedgerEntry
from switchyard.domain.money import EXACT, ONE, ZERO, average, canonical
from switchyard.domain.orders import Side
from switchyard.domain.positions import Position, apply_fill

WHOLE_ACCOUNT: Final = "*"
"""Stands for the position of the account as a whole where a strategy is named; no strategy can have it."""


class Holding(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A position in one symbol and settlement currency: of an account, or of one strategy in it."""

    account_id: AccountId
    strategy: str = WHOLE_ACCOUNT
    """Empty for the fills without a strategy."""
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
    """Counts the entries that moved it."""
    updated_at: datetime
    """The time of the last fill's event."""

    @property
    def average_price(self) -> Decimal | None:
        """The price per unit of the open quantity, without the multiplier; none when flat."""
        return average(self.cost_basis, EXACT.multiply(self.qty, self.multiplier)) if self.qty else None


HoldingKey = tuple[AccountId, str, str, str]
"""Account, strategy or WHOLE_ACCOUNT, symbol, settlement currency."""


def keys_of(entry: LedgerEntry) -> tuple[HoldingKey, HoldingKey]:
    """The positions that the entry moves: that of the whole account, and that of its strategy."""
    account, symbol, currency = entry.account_id, entry.symbol, entry.currency
    return (account, WHOLE_ACCOUNT, symbol, currency), (account, entry.strategy or "", symbol, currency)


def key_of(holding: Holding) -> HoldingKey:
    """The key of a position."""
    return holding.account_id, holding.strategy, holding.symbol, holding.currency


def after_reversal(
    key: HoldingKey, holding: Holding | None, entry: LedgerEntry, cost_change: Decimal, realised: Decimal
) -> Holding:
    """The position after a reversal, whose changes are known."""
    signed = signed_qty(entry.side, entry.qty or ZERO)
    account_id, strategy, symbol, currency = key
    before = holding or Holding(
        account_id=account_id,
        strategy=strategy,
        symbol=symbol,
        currency=currency,
        qty=ZERO,
        cost_basis=ZERO,
        realised_pnl=ZERO,
        multiplier=entry.multiplier,
        fills=0,
        updated_at=entry.at,
    )
    return msgspec.structs.replace(
        before,
        qty=canonical(EXACT.subtract(before.qty, signed)),
        cost_basis=canonical(EXACT.add(before.cost_basis, cost_change)),
        realised_pnl=canonical(EXACT.add(before.realised_pnl, realised)),
        fills=before.fills + 1,
        updated_at=max(before.updated_at, entry.at.astimezone(UTC)),
    )


def signed_qty(side: Side | None, qty: Decimal) -> Decimal:
    """The units that a fill adds to the position; below zero for a sale."""
    return EXACT.minus(qty) if side == "SELL" else qty


def after_fill(key: HoldingKey, holding: Holding | None, entry: LedgerEntry) -> Holding:
    """The position after a fill."""
    before = None if holding is None else _position(holding)
    assert entry.side is not None, "a fill has a side"
    price = EXACT.multiply(entry.price or ZERO, entry.multiplier)
    after = apply_fill(
        before,
        account=entry.account_id,
        symbol=entry.symbol,
        side=entry.side,
        qty=entry.qty or ZERO,
        price=price,
        now=entry.at,
    )
    return Holding(
        account_id=entry.account_id,
        strategy=key[1],
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
