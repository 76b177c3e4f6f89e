"""P&L by day, symbol, currency and strategy: what entries add to it.

Pure. An entry belongs to the UTC day on which it was posted, and never to an earlier day than the entry before it: a
closed day does not change.
"""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal

import msgspec

from switchyard.domain.ids import AccountId
from switchyard.domain.ledger.entries import LedgerEntry
from switchyard.domain.money import EXACT, ZERO, canonical

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
            realised=canonical(EXACT.add(self.realised, other.realised)),
            strategy_realised=canonical(EXACT.add(self.strategy_realised, other.strategy_realised)),
            fees=canonical(EXACT.add(self.fees, other.fees)),
            fills=self.fills + other.fills,
        )

    def __bool__(self) -> bool:
        return bool(self.realised or self.strategy_realised or self.fees or self.fills)


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
