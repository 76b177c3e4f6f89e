"""The fold over a strategy's fills: daily results, closed round trips, traded and open money.

Pure. All fills from the strategy's first on are folded, because a result depends on the cost of what was opened
before the window; only what happens in the window is counted. Arithmetic is that of `domain/positions.py`.
"""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import msgspec

from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.money import EXACT, ROUNDED, ZERO, canonical
from switchyard.domain.pdca.metrics.inputs import Fill, Window
from switchyard.domain.positions import Position, apply_fill

_MICROSECOND = timedelta(microseconds=1)
_Key = tuple[AccountId, str, str]
"""Account, symbol, settlement currency."""


class RoundTrip(msgspec.Struct, frozen=True):
    """A position from flat to flat, or to the other side."""

    closed_at: datetime
    symbol: str
    result: Decimal
    """Net of the fees of its fills."""


class Track:
    """The course of a strategy up to the last fill taken; fills are taken in the order of their times."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.daily: dict[date, Decimal] = dict.fromkeys(window.days, ZERO)
        """Net P&L by UTC day, idle days included."""
        self.trips: list[RoundTrip] = []
        self.fills = 0
        self.fees = ZERO
        self.traded = ZERO
        self.currencies: set[str] = set()
        """Of all fills and fees that the window's results depend on."""
        self.first_fill_at: dict[OrderId, datetime] = {}
        """Of orders that were filled in the window."""
        self._positions: dict[_Key, Position] = {}
        self._trip_fees: dict[_Key, Decimal] = {}
        self._trip_currencies: dict[_Key, frozenset[str]] = {}
        self._open = ZERO
        """The cost of all open positions, long and short."""
        self._open_since = window.start
        self._open_time = ZERO
        """Cost times microseconds within the window."""
        self._last_at: datetime | None = None

    def take(self, fill: Fill) -> None:
        """Fold a fill in; raises ValueError for one that is older than the last, ignores those after the window."""
        if self._last_at is not None and fill.at < self._last_at:
            raise ValueError(f"the fill {fill.exec_id} is older than the one before it")
        self._last_at = fill.at
        if fill.at >= self.window.end:
            return
        self._pass_time(fill.at)
        key = fill.account_id, fill.symbol, fill.currency
        self._trip_fees[key] = EXACT.add(self._trip_fees.get(key, ZERO), fill.fee)
        self._trip_currencies[key] = self._trip_currencies.get(key, frozenset()) | fill.currencies
        result = self._move(key, fill) if fill.qty else ZERO
        if fill.at >= self.window.start:
            self._count(fill, result)

    def finish(self) -> None:
        """Count the time up to the window's end."""
        self._pass_time(self.window.end)
        self.currencies |= {key[2] for key, position in self._positions.items() if position.qty}

    @property
    def average_open(self) -> Decimal | None:
        """The open cost, averaged over the window's time; none for an empty window."""
        length = self._microseconds(self.window.start, self.window.end)
        return ROUNDED.divide(self._open_time, length) if length else None

    def _count(self, fill: Fill, result: Decimal) -> None:
        """Count a fill or fee of the window."""
        self.currencies |= fill.currencies
        self.fees = canonical(EXACT.add(self.fees, fill.fee))
        day = fill.at.astimezone(UTC).date()
        self.daily[day] = canonical(EXACT.add(self.daily[day], EXACT.subtract(result, fill.fee)))
        if fill.qty and fill.is_trade:
            self.fills += 1
            self.traded = canonical(EXACT.add(self.traded, fill.notional))
            self.first_fill_at.setdefault(fill.order_id, fill.at)

    def _move(self, key: _Key, fill: Fill) -> Decimal:
        """Move the position, note a round trip that ended; return the realised result."""
        before = self._positions.get(key)
        after = self._positions[key] = apply_fill(
            before,
            account=fill.account_id,
            symbol=fill.symbol,
            side=fill.side,
            qty=fill.qty,
            price=EXACT.multiply(fill.price, fill.multiplier),
            now=fill.at,
        )
        if before is None:
            self._open = EXACT.add(self._open, after.cost_basis.copy_abs())
            return after.realised_pnl
        change = EXACT.subtract(after.cost_basis.copy_abs(), before.cost_basis.copy_abs())
        self._open = EXACT.add(self._open, change)
        result = EXACT.subtract(after.realised_pnl, before.realised_pnl)
        if before.qty and (not after.qty or (after.qty > 0) != (before.qty > 0)):
            self._end_trip(key, fill, EXACT.add(before.trade_result, result))
        return result

    def _end_trip(self, key: _Key, fill: Fill, result: Decimal) -> None:
        """Note a round trip; the whole fee of a fill that turns the position around belongs to the trip it ends."""
        fees, currencies = self._trip_fees.pop(key), self._trip_currencies.pop(key)
        if self.window.covers(fill.at):
            self.currencies |= currencies
            self.trips.append(RoundTrip(fill.at, fill.symbol, canonical(EXACT.subtract(result, fees))))

    def _pass_time(self, now: datetime) -> None:
        if now > self._open_since:
            length = self._microseconds(self._open_since, now)
            # An average is rounded in any case, and the product may need more digits than are exact.
            self._open_time = ROUNDED.add(self._open_time, ROUNDED.multiply(self._open, length))
            self._open_since = now

    @staticmethod
    def _microseconds(start: datetime, end: datetime) -> Decimal:
        return Decimal((end - start) // _MICROSECOND) if end > start else ZERO
