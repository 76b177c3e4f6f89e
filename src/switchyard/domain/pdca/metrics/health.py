"""From figures to health: which thresholds are crossed, and which cannot be judged.

Pure. A crossed threshold is evidence. A threshold that cannot be judged is not: without a crossed one the health is
then `unknown`.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Final

import msgspec

from switchyard.domain.money import plain
from switchyard.domain.pdca.metric_names import HIGHER_IS_BETTER, MetricName
from switchyard.domain.pdca.metrics.compute import Measured
from switchyard.domain.pdca.metrics.figures import ABOVE_ANY_BOUND, Figure
from switchyard.domain.pdca.strategies import Health, MetricValue, Threshold

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
