"""The artifacts of a recheck: the metrics as JSON, the fills as CSV, equity and drawdown as SVG. Pure."""

from datetime import datetime
from decimal import Decimal
from typing import Final

import msgspec

from switchyard.domain.events import encode
from switchyard.domain.ids import AccountId
from switchyard.domain.pdca.metric_names import METRICS, MetricName
from switchyard.domain.pdca.metrics.chart import equity_chart
from switchyard.domain.pdca.metrics.compute import Measured
from switchyard.domain.pdca.metrics.figures import Undefined
from switchyard.domain.pdca.metrics.health import Judgement, shown
from switchyard.domain.pdca.metrics.tables import FillsTable
from switchyard.domain.pdca.metrics.track import Track
from switchyard.domain.pdca.requests import RecheckRequest
from switchyard.domain.pdca.strategies import Capital, Health, Strategy

METRICS_FILE: Final = "metrics.json"
FILLS_FILE: Final = "fills.csv"
CHART_FILE: Final = "equity.svg"


class File(msgspec.Struct, frozen=True):
    """An artifact."""

    name: str
    media_type: str
    content: bytes


class FullFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A metric with the size of its sample."""

    value: Decimal | None
    unit: str | None
    reason: Undefined | None
    sample: int


class Day(msgspec.Struct, frozen=True):
    """A day of the series."""

    date: str
    net_pnl: Decimal


class MetricsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `metrics.json`."""

    request_id: str
    account_id: AccountId | None
    """None for a strategy of a client, in which no orders count."""
    strategy_id: str
    window_from: datetime
    window_to: datetime
    """Inclusive; not later than the acceptance of the request."""
    books_seq: int
    """The journal number up to which the books had been read, at least."""
    days_per_year: int
    capital: Capital | None
    currency: str | None
    fills: int
    fills_listed: int
    """Those of them in `fills.csv`; the oldest are left out where they do not fit."""
    orders: int
    round_trips: int
    net_pnl: Decimal | None
    metrics: dict[MetricName, FullFigure]
    fill_latency_p95: FullFigure
    health: Health
    health_reasons: tuple[str, ...]
    daily: list[Day]
    """Empty where results are in several currencies."""


def files(
    request: RecheckRequest,
    strategy: Strategy,
    track: Track,
    measured: Measured,
    judgement: Judgement,
    table: FillsTable,
    *,
    window_to: datetime,
    books_seq: int,
    days_per_year: int,
) -> list[File]:
    """The artifacts; the chart needs one currency, a capital and a day."""
    days, daily = list(track.daily), list(track.daily.values())
    is_mixed = measured.net_pnl is None
    report = MetricsReport(
        request_id=request.request_id,
        account_id=strategy.account_id,
        strategy_id=strategy.strategy_id,
        window_from=track.window.start,
        window_to=window_to,
        books_seq=books_seq,
        days_per_year=days_per_year,
        capital=strategy.capital,
        currency=measured.currency,
        fills=measured.fills,
        fills_listed=table.listed,
        orders=measured.orders,
        round_trips=measured.round_trips,
        net_pnl=measured.net_pnl,
        metrics={name: _full(name, measured) for name in selected(request, strategy)},
        fill_latency_p95=FullFigure(
            value=measured.slowest_fills.value,
            unit="ms",
            reason=measured.slowest_fills.reason,
            sample=measured.slowest_fills.sample,
        ),
        health=judgement.health,
        health_reasons=judgement.reasons,
        daily=[] if is_mixed else [Day(day.isoformat(), amount) for day, amount in zip(days, daily, strict=True)],
    )
    found = [
        File(METRICS_FILE, "application/json", encode(report)),
        File(FILLS_FILE, "text/csv; charset=utf-8", table.content()),
    ]
    if strategy.capital is not None and days and not is_mixed:
        capital = strategy.capital
        chart = equity_chart(strategy.strategy_id, days, daily, capital.amount, capital.currency)
        found.append(File(CHART_FILE, "image/svg+xml", chart))
    return found


def selected(request: RecheckRequest, strategy: Strategy) -> list[MetricName]:
    """The metrics that the request asks for and those that the health is judged by; all, if it asks for none."""
    wanted = {*request.metrics, *strategy.thresholds} if request.metrics else set(METRICS)
    return [name for name in METRICS if name in wanted]


def _full(name: MetricName, measured: Measured) -> FullFigure:
    figure = measured.metrics[name]
    unit = shown(name, figure, measured.currency).unit
    return FullFigure(value=figure.value, unit=unit, reason=figure.reason, sample=figure.sample)
