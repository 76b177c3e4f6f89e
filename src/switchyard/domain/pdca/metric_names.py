"""The names of the metrics of a strategy, and which direction is better."""

from typing import Final, Literal, get_args

MetricName = Literal[
    "sharpe",
    "sortino",
    "max_drawdown",  # a positive ratio of the capital: 0.1 is a loss of ten per cent from the highest point
    "win_rate",
    "profit_factor",
    "turnover",
    "exposure",
    "fees",
    "slippage",
    "reject_rate",
    "unknown_rate",
    "fill_latency",
]

METRICS: Final[tuple[MetricName, ...]] = get_args(MetricName)
HIGHER_IS_BETTER: Final[frozenset[MetricName]] = frozenset({"sharpe", "sortino", "win_rate", "profit_factor"})
"""A threshold on one of these is crossed from above, on any other from below."""
