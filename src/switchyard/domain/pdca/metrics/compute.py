"""All metrics of a strategy over a window, from its course and its orders.

Pure. The definitions are in `docs/reference/pdca-metrics.md`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction

import msgspec

from switchyard.domain.ids import OrderId
from switchyard.domain.money import EXACT, ROUNDED, ZERO, canonical
from switchyard.domain.pdca.metric_names import MetricName
from switchyard.domain.pdca.metrics.figures import Figure, Undefined, defined, undefined
from switchyard.domain.pdca.metrics.inputs import Fill, StrategyOrder, Window
from switchyard.domain.pdca.metrics.series import max_drawdown, sharpe, sortino
from switchyard.domain.pdca.metrics.track import Track
from switchyard.domain.pdca.strategies import Capital

BASIS_POINTS = 10_000
_MICROSECOND = timedelta(microseconds=1)


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
