"""All metrics of a strategy over a window, from its fills and its orders, and its health by them. Pure.

The definitions are in `docs/reference/pdca-metrics.md`.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Final, Literal

import msgspec

from switchyard.domain.accounts.positions import Position, apply_fill
from switchyard.domain.books.entries import LedgerEntry
from switchyard.domain.ids import AccountId, OrderId, VenueName, order_id
from switchyard.domain.journal.events import EventType
from switchyard.domain.journal.facts import Quote
from switchyard.domain.orders.order import Side
from switchyard.domain.orders.reasons import split_reason
from switchyard.domain.strategies.registry import HIGHER_IS_BETTER, Capital, Health, MetricName, MetricValue, Threshold
from switchyard.domain.values import EXACT, ONE, ROUNDED, ZERO, canonical, plain

Undefined = Literal[
    "NO_CAPITAL",  # the strategy has no capital configured
    "SEVERAL_CURRENCIES",  # capital, fills and fees are not all in one currency: no sum without exchange rates
    "TOO_FEW_DAYS",  # a sample deviation needs two days
    "ZERO_DEVIATION",  # every day has the same result
    "NO_LOSING_DAY",  # no day below zero: there is no downside deviation
    "NO_ROUND_TRIPS",  # nothing was closed in the window
    "NO_LOSSES",  # no closed round trip has a loss
    "NO_RESULT",  # the round trips closed with neither a gain nor a loss
    "NO_ORDERS",
    "NO_FILLS",
    "NO_ARRIVAL_QUOTE",  # no fill's order has a quote from when it arrived
    "EMPTY_WINDOW",
    "OUT_OF_RANGE",  # at least 10^15
]

ABOVE_ANY_BOUND: Final[frozenset[Undefined]] = frozenset({"NO_LOSSES", "NO_LOSING_DAY"})
"""Reasons that mean 'nothing to divide by, and gains': a lower bound holds, whatever it is."""

DECIMALS = 8
_SMALLEST = Decimal(1).scaleb(-DECIMALS)
# Larger than any figure of a real strategy; below it every value has its decimals within the context's digits.
LIMIT = Decimal(10) ** 15


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """One metric."""

    value: Decimal | None
    """Rounded half to even to 8 decimals."""
    reason: Undefined | None = None
    """Why there is no value."""
    sample: int = 0
    """How many days, round trips, fills or orders it was computed from."""


def defined(value: Decimal | Fraction, sample: int) -> Figure:
    """A figure with this value, rounded once."""
    exact = ratio(value.numerator, value.denominator) if isinstance(value, Fraction) else value
    if exact.copy_abs() >= LIMIT:
        return undefined("OUT_OF_RANGE", sample)
    return Figure(canonical(ROUNDED.quantize(exact, _SMALLEST)), None, sample)


def undefined(reason: Undefined, sample: int = 0) -> Figure:
    """A figure without a value."""
    return Figure(None, reason, sample)


def ratio(numerator: int, denominator: int) -> Decimal:
    """The quotient of two whole numbers, to 60 digits."""
    return ROUNDED.divide(Decimal(numerator), Decimal(denominator))


def root(square: Fraction) -> Decimal:
    """The square root of an exact ratio, to 60 digits."""
    return ROUNDED.sqrt(ratio(square.numerator, square.denominator))


_DAY = timedelta(days=1)


class Window(msgspec.Struct, frozen=True):
    """The time from `start` to just before `end`."""

    start: datetime
    end: datetime

    def covers(self, at: datetime) -> bool:
        """Whether the time is in the window."""
        return self.start <= at < self.end

    @property
    def days(self) -> tuple[date, ...]:
        """Every UTC day that the window touches, days without a fill included."""
        if self.end <= self.start:
            return ()
        first = self.start.astimezone(UTC).date()
        last = (self.end - timedelta(microseconds=1)).astimezone(UTC).date()
        return tuple(first + number * _DAY for number in range((last - first).days + 1))


class Fill(msgspec.Struct, frozen=True, kw_only=True):
    """One execution or fee of the strategy, as the ledger has it."""

    at: datetime
    """The time of the journal's event."""
    account_id: AccountId
    order_id: OrderId
    exec_id: str
    venue: VenueName
    symbol: str
    side: Side
    qty: Decimal
    price: Decimal
    currency: str
    """The settlement currency."""
    multiplier: Decimal = ONE
    fee: Decimal = ZERO
    """Below zero for a rebate."""
    fee_currency: str | None = None
    is_trade: bool = True
    """False for a position that a person entered: it has a cost, and was not traded by the strategy."""

    @property
    def notional(self) -> Decimal:
        """The money that changed hands, above zero."""
        return EXACT.multiply(EXACT.multiply(self.qty, self.price), self.multiplier)

    @property
    def currencies(self) -> frozenset[str]:
        """The currencies of the result and of the fee."""
        fee = {self.fee_currency or self.currency} if self.fee else set()
        return frozenset(({self.currency} if self.qty else set()) | fee)


class StrategyOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An order of the strategy, as the journal has it."""

    order_id: OrderId
    accepted_at: datetime
    rejected: bool = False
    """By a pre-trade check or by the venue."""
    blocked: bool = False
    """Rejected because a kill covered it: what the operator or a recheck decided says nothing about the strategy."""
    doubted: bool = False
    """Whether it was in doubt at any time."""
    quote: Quote | None = None
    """The market when it arrived."""


def fill_of(entry: LedgerEntry) -> Fill:
    """The fill of a ledger entry that moves units or money; its fee is what the books have, whoever entered it."""
    fee = next((leg for leg in entry.legs if leg.account == "fees"), None)
    return Fill(
        at=entry.at,
        account_id=entry.account_id,
        order_id=entry.order_id,
        exec_id=entry.exec_id or entry.entry_id,
        venue=entry.venue,
        symbol=entry.symbol,
        side=entry.side or "BUY",  # a fee alone has neither side nor quantity
        qty=entry.qty or ZERO,
        price=entry.price or ZERO,
        currency=entry.currency,
        multiplier=entry.multiplier,
        fee=ZERO if fee is None else fee.amount,
        fee_currency=None if fee is None else fee.unit,
        is_trade=entry.type == "Fill",
    )


READ_EVENTS: Final[tuple[EventType, ...]] = ("OrderAccepted", "OrderUncertain")
"""The events that a recheck reads of an order."""
BLOCK_REASONS: Final = frozenset({"KILL_SWITCH", "REDUCE_ONLY"})
# An order's id is made when its request comes in, its acceptance is dated when it is decided.
_ACCEPTANCE_TAKES: Final = timedelta(hours=1)


class OrderRow(msgspec.Struct, frozen=True):
    """The part of an order's row that a recheck looks at."""

    order_id: OrderId
    accepted_at: datetime
    status: str
    reason: str | None


class _Data(msgspec.Struct):
    quote: Quote | None = None


_data = msgspec.json.Decoder(_Data)


def id_range(window: Window) -> tuple[OrderId, OrderId]:
    """Two ids between which all orders are that were accepted in the window, and some others."""
    first = max(window.start.timestamp() - _ACCEPTANCE_TAKES.total_seconds(), 0.0)
    return order_id(int(first * 1000), 0), order_id(int(window.end.timestamp() * 1000) + 1, 0)


def strategy_orders(rows: Iterable[OrderRow], events: Iterable[tuple[OrderId, EventType, str]]) -> list[StrategyOrder]:
    """The orders with what their events say; `events` are order id, type and data."""
    quotes: dict[OrderId, Quote | None] = {}
    doubted: set[OrderId] = set()
    for of_order, kind, data in events:
        if kind == "OrderUncertain":
            doubted.add(of_order)
        else:
            quotes[of_order] = _data.decode(data).quote
    return [
        StrategyOrder(
            order_id=row.order_id,
            accepted_at=row.accepted_at,
            rejected=row.status == "REJECTED",
            blocked=row.status == "REJECTED" and split_reason(row.reason or "")[0] in BLOCK_REASONS,
            doubted=row.order_id in doubted or row.status == "UNKNOWN",
            quote=quotes.get(row.order_id),
        )
        for row in rows
    ]


def sharpe(daily: Sequence[Decimal], days_per_year: int) -> Figure:
    """Mean over sample deviation, times the root of the days of a year; without a risk-free rate."""
    count = len(daily)
    if count < 2:
        return undefined("TOO_FEW_DAYS", count)
    amounts = [Fraction(amount) for amount in daily]
    total, squares = sum(amounts, Fraction()), sum((amount**2 for amount in amounts), Fraction())
    spread = count * squares - total**2
    if not spread:
        return undefined("ZERO_DEVIATION", count)
    # mean = total / n and variance = spread / (n (n - 1)).
    square = days_per_year * total**2 * (count - 1) / (count * spread)
    return defined(_signed(root(square), total), count)


def sortino(daily: Sequence[Decimal], days_per_year: int) -> Figure:
    """Mean over the downside deviation from 0, over all days, times the root of the days of a year."""
    count = len(daily)
    if count < 2:
        return undefined("TOO_FEW_DAYS", count)
    amounts = [Fraction(amount) for amount in daily]
    total = sum(amounts, Fraction())
    downside = sum((amount**2 for amount in amounts if amount < 0), Fraction())
    if not downside:
        return undefined("NO_LOSING_DAY" if total else "ZERO_DEVIATION", count)
    # mean = total / n and downside variance = downside / n.
    return defined(_signed(root(days_per_year * total**2 / (count * downside)), total), count)


def equity(daily: Sequence[Decimal], capital: Decimal) -> list[Decimal]:
    """The capital and what it was at the end of each day."""
    path = [capital]
    for amount in daily:
        path.append(EXACT.add(path[-1], amount))
    return path


def drawdowns(path: Sequence[Decimal]) -> list[Decimal]:
    """How far each point is below the highest one so far, as a share of that; above 1 where more than all is lost."""
    peak, found = path[0], []
    for amount in path:
        peak = max(peak, amount)
        found.append(ROUNDED.divide(EXACT.subtract(peak, amount), peak) if amount < peak else ZERO)
    return found


def max_drawdown(daily: Sequence[Decimal], capital: Decimal) -> Figure:
    """The largest fall from a peak, which is at least the initial capital."""
    return defined(max(drawdowns(equity(daily, capital))), len(daily))


def _signed(size: Decimal, total: Fraction) -> Decimal:
    return size.copy_negate() if total < 0 else size


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


BASIS_POINTS = 10_000


class Slippage:
    """Prices paid against the middle of the market on arrival: the sums over the fills of the window."""

    def __init__(self) -> None:
        self.fills = 0
        self.cost = ZERO
        self.arrival = ZERO

    def take(self, fill: Fill, order: StrategyOrder | None) -> None:
        """Add a fill whose order has an arrival quote; others are left out."""
        if order is None or order.quote is None or not fill.qty:
            return
        mid = ROUNDED.divide(ROUNDED.add(order.quote.bid, order.quote.ask), Decimal(2))
        units = ROUNDED.multiply(fill.qty, fill.multiplier)
        paid = ROUNDED.multiply(ROUNDED.subtract(fill.price, mid), units)
        self.cost = ROUNDED.add(self.cost, paid if fill.side == "BUY" else ROUNDED.minus(paid))
        self.arrival = ROUNDED.add(self.arrival, ROUNDED.multiply(mid, units))
        self.fills += 1


class Basis(msgspec.Struct, frozen=True):
    """What the figures of a strategy are relative to."""

    capital: Capital | None
    days_per_year: int


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one strategy, and the sums behind them."""

    window: Window
    currency: str | None
    """Of the capital and of all results; none where they differ, or where neither is known."""
    fills: int
    orders: int
    round_trips: int
    net_pnl: Decimal | None
    slowest_fills: Figure
    """The 95th percentile of the latency whose median is a metric."""
    metrics: Mapping[MetricName, Figure]


def measure(track: Track, orders: Sequence[StrategyOrder], slippage: Slippage, basis: Basis) -> Measured:
    """Every metric; `track` is finished, `orders` are those accepted in its window."""
    currencies = track.currencies | ({basis.capital.currency} if basis.capital is not None else set())
    is_mixed = len(currencies) > 1
    capital = None if basis.capital is None else basis.capital.amount
    daily = list(track.daily.values())
    figures: dict[MetricName, Figure] = {
        "sharpe": sharpe(daily, basis.days_per_year),
        "sortino": sortino(daily, basis.days_per_year),
        "max_drawdown": _max_drawdown(daily, capital),
        "win_rate": _win_rate(track),
        "profit_factor": _profit_factor(track),
        "turnover": _over_capital(track.traded, capital, track.fills),
        "exposure": _over_capital(track.average_open, capital, track.fills),
        "fees": defined(track.fees, track.fills),
        "slippage": _slippage(slippage, track.fills),
    }
    if is_mixed:
        figures = {name: undefined("SEVERAL_CURRENCIES", figure.sample) for name, figure in figures.items()}
    judged = [order for order in orders if not order.blocked]
    figures["reject_rate"] = _share([order.rejected for order in judged], "NO_ORDERS")
    figures["unknown_rate"] = _share([order.doubted for order in judged], "NO_ORDERS")
    latencies = _latencies(orders, track.first_fill_at)
    figures["fill_latency"] = _percentile(latencies, 50)
    return Measured(
        window=track.window,
        currency=None if is_mixed else next(iter(currencies), None),
        fills=track.fills,
        orders=len(orders),
        round_trips=len(track.trips),
        net_pnl=None if is_mixed else canonical(_sum(daily)),
        slowest_fills=_percentile(latencies, 95),
        metrics=figures,
    )


def _max_drawdown(daily: Sequence[Decimal], capital: Decimal | None) -> Figure:
    if capital is None:
        return undefined("NO_CAPITAL", len(daily))
    return max_drawdown(daily, capital) if daily else undefined("EMPTY_WINDOW")


def _over_capital(amount: Decimal | None, capital: Decimal | None, sample: int) -> Figure:
    if capital is None:
        return undefined("NO_CAPITAL", sample)
    return undefined("EMPTY_WINDOW") if amount is None else defined(ROUNDED.divide(amount, capital), sample)


def _win_rate(track: Track) -> Figure:
    return _share([trip.result > 0 for trip in track.trips], "NO_ROUND_TRIPS")


def _profit_factor(track: Track) -> Figure:
    count = len(track.trips)
    if not count:
        return undefined("NO_ROUND_TRIPS")
    gains = _sum([trip.result for trip in track.trips if trip.result > 0])
    losses = _sum([trip.result for trip in track.trips if trip.result < 0])
    if not losses:
        return undefined("NO_LOSSES" if gains else "NO_RESULT", count)
    return defined(ROUNDED.divide(gains, losses.copy_abs()), count)


def _slippage(slippage: Slippage, fills: int) -> Figure:
    if not slippage.arrival:
        return undefined("NO_ARRIVAL_QUOTE" if fills else "NO_FILLS")
    return defined(ROUNDED.divide(ROUNDED.multiply(slippage.cost, BASIS_POINTS), slippage.arrival), slippage.fills)


def _share(marks: Sequence[bool], none: Undefined) -> Figure:
    return defined(Fraction(sum(marks), len(marks)), len(marks)) if marks else undefined(none)


def _latencies(orders: Sequence[StrategyOrder], first_fill_at: Mapping[OrderId, datetime]) -> list[Fraction]:
    """Milliseconds from acceptance to the first fill, the shortest first, both by the journal's clock."""
    found = [
        Fraction((filled_at - order.accepted_at) // _MICROSECOND, 1_000)
        for order in orders
        if (filled_at := first_fill_at.get(order.order_id)) is not None
    ]
    return sorted(found)


def _percentile(ordered: Sequence[Fraction], percent: int) -> Figure:
    """The nearest rank: a value that was measured."""
    if not ordered:
        return undefined("NO_FILLS")
    rank = -(-percent * len(ordered) // 100)
    return defined(ordered[rank - 1], len(ordered))


def _sum(amounts: Sequence[Decimal]) -> Decimal:
    total = ZERO
    for amount in amounts:
        total = EXACT.add(total, amount)
    return total


SERIES: Final[frozenset[MetricName]] = frozenset({"sharpe", "sortino", "max_drawdown"})
"""Metrics of the daily series: their sample is the number of days."""
_OF_ORDERS: Final[frozenset[MetricName]] = frozenset({"reject_rate", "unknown_rate"})
_UNITS: Final[Mapping[MetricName, str]] = {
    "max_drawdown": "ratio",
    "win_rate": "ratio",
    "turnover": "ratio",
    "exposure": "ratio",
    "slippage": "bps",
    "reject_rate": "ratio",
    "unknown_rate": "ratio",
    "fill_latency": "ms",
}


class Minimum(msgspec.Struct, frozen=True):
    """The smallest sample that a metric is judged on."""

    days: int
    """Of the daily series."""
    count: int
    """Of fills, round trips or orders, each for the metrics that are computed from them."""


class Judgement(msgspec.Struct, frozen=True):
    """The health, and why."""

    health: Health
    reasons: tuple[str, ...]


def judge(measured: Measured, thresholds: Mapping[MetricName, Threshold], minimum: Minimum) -> Judgement:
    """The health of a strategy by its own thresholds."""
    if not thresholds:
        return Judgement("unknown", ("no thresholds are set",))
    crossed: list[tuple[Health, str]] = []
    open_questions: list[str] = []
    for name, threshold in sorted(thresholds.items()):
        figure = measured.metrics[name]
        if (missing := _missing(name, figure, measured.fills, minimum)) is not None:
            open_questions.append(f"{name} is not judged: {missing}")
        elif figure.value is not None and (found := _crossed(name, figure.value, threshold)) is not None:
            crossed.append(found)
    reasons = tuple([text for _, text in crossed] + open_questions)
    if crossed:
        return Judgement("unhealthy" if any(health == "unhealthy" for health, _ in crossed) else "degraded", reasons)
    return Judgement("unknown" if open_questions else "healthy", reasons)


def shown(name: MetricName, figure: Figure, currency: str | None) -> MetricValue:
    """The figure as the API shows it."""
    unit = currency if name == "fees" else _UNITS.get(name)
    return MetricValue(value=figure.value, unit=unit, reason=figure.reason)


def _missing(name: MetricName, figure: Figure, fills: int, minimum: Minimum) -> str | None:
    """What keeps the metric from being judged."""
    if name in SERIES and figure.sample < minimum.days:
        return f"the window has {figure.sample} days, at least {minimum.days} are needed"
    counted = fills if name in SERIES else figure.sample
    if counted < minimum.count:
        what = "orders" if name in _OF_ORDERS else "round trips" if name in ("win_rate", "profit_factor") else "fills"
        return f"{counted} {what}, at least {minimum.count} are needed"
    if figure.value is None and not (name in HIGHER_IS_BETTER and figure.reason in ABOVE_ANY_BOUND):
        return f"{figure.reason}"
    return None


def _crossed(name: MetricName, value: Decimal, threshold: Threshold) -> tuple[Health, str] | None:
    """The worse threshold that the value is beyond; the threshold itself is still good."""
    is_low_bad = name in HIGHER_IS_BETTER
    levels: tuple[tuple[Health, Decimal | None], ...] = (
        ("unhealthy", threshold.unhealthy),
        ("degraded", threshold.degraded),
    )
    for health, bound in levels:
        if bound is not None and (value < bound if is_low_bad else value > bound):
            side = "below" if is_low_bad else "above"
            return health, f"{name} {plain(value)} is {side} {plain(bound)} ({health})"
    return None
