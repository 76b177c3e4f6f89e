"""Holdings: quantity, cost basis and realised result of a position in the books, and their revisions. Pure."""

from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Final

import msgspec

from switchyard.domain.accounts.positions import Position, apply_fill
from switchyard.domain.books.entries import LedgerEntry
from switchyard.domain.ids import AccountId
from switchyard.domain.orders.order import Side
from switchyard.domain.values import EXACT, ONE, ZERO, average, canonical

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


# Notes on revisions, each followed by what a person needs to look at it: on memos
UNKNOWN_EXECUTION = "UNKNOWN_EXECUTION"
ALREADY_REVERSED = "ALREADY_REVERSED"
# On the reversal by a revision that came before its execution, or on the memo of one that cannot be carried out.
CAME_BEFORE = "CAME_BEFORE_ITS_EXECUTION"
NOT_APPLIED = "NOT_APPLIED"


class Target(msgspec.Struct, frozen=True):
    """The entry that a reversal takes back, as the store finds it."""

    entry: LedgerEntry | None = None
    """None where there is no such entry. The newest fill of an execution that was corrected before."""
    is_reversed: bool = False
    without: Mapping[HoldingKey, Holding] = {}
    """The positions that its account's other entries give, without it; missing where there are none."""


class Reversed(msgspec.Struct, frozen=True):
    """A row that says what became of an entry."""

    entry_id: str
    reversal_id: str
    replacement_id: str | None = None
    """The fill that a correction booked instead."""


def waits_for(memo: LedgerEntry, fill: LedgerEntry) -> bool:
    """Whether the memo is of a revision of this fill that came before it; accounts and ids are compared already."""
    return (memo.venue, memo.order_id) == (fill.venue, fill.order_id)


ResultKey = tuple[AccountId, date, str, str, str]
"""Account, day, symbol (empty for none), currency, strategy (empty for none)."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Realised P&L and fees in one currency."""

    realised: Decimal = ZERO
    """Of the account's positions at average cost."""
    strategy_realised: Decimal = ZERO
    """Of the strategy's own positions at average cost."""
    fees: Decimal = ZERO
    fills: int = 0
    """Fills without those that were reversed."""

    def __add__(self, other: "Result") -> "Result":
        return Result(
            realised=_sum(self.realised, other.realised),
            strategy_realised=_sum(self.strategy_realised, other.strategy_realised),
            fees=_sum(self.fees, other.fees),
            fills=self.fills + other.fills,
        )

    def __bool__(self) -> bool:
        return bool(self.realised or self.strategy_realised or self.fees or self.fills)


def _sum(amount: Decimal, other: Decimal) -> Decimal:
    return canonical(EXACT.add(amount, other)) if other else amount


def day_of(reached_at: datetime) -> date:
    """The day that an entry belongs to."""
    return reached_at.astimezone(UTC).date()


def results_of(entry: LedgerEntry, day: date) -> Iterator[tuple[ResultKey, Result]]:
    """What the entry adds to the results."""
    strategy = entry.strategy or ""
    fills = 0
    if entry.qty and entry.exec_id is not None and entry.type in ("Fill", "Reversal"):
        fills = 1 if entry.type == "Fill" else -1
    made = Result(realised=entry.realised_pnl, strategy_realised=entry.strategy_pnl, fills=fills)
    if made:
        yield (entry.account_id, day, entry.symbol, entry.currency, strategy), made
    for leg in entry.legs:
        if leg.account == "fees":
            yield (entry.account_id, day, entry.symbol, leg.unit, strategy), Result(fees=leg.amount)
