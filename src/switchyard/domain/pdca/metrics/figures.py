"""One figure: a value, or the reason why there is none.

Pure. A figure is never NaN, infinite or a 0 that stands for 'not known'.
"""

from decimal import Decimal
from fractions import Fraction
from typing import Final, Literal

import msgspec

from switchyard.domain.money import ROUNDED, canonical

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
