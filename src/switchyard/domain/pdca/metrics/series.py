"""Figures of the daily series: Sharpe, Sortino and maximum drawdown.

Pure. The series is the daily net P&L over the capital. The capital cancels out of both ratios, so they are computed
from the exact P&L: sums and squares as fractions, one division and one square root at the end.
"""

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

from switchyard.domain.money import EXACT, ROUNDED, ZERO
from switchyard.domain.pdca.metrics.figures import Figure, defined, root, undefined


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
