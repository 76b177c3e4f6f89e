"""Decimal amounts: prices, quantities, cash. No binary floats."""

from decimal import ROUND_HALF_EVEN, Context, Decimal, DivisionByZero, Inexact, InvalidOperation, Overflow

from switchyard.domain.errors import InvalidField

# Eight decimals are the finest step of the supported markets (one satoshi); more is an error of the caller.
DECIMALS_MAX = 8
# Larger than any real order; the bound keeps products within the digits of the contexts below.
AMOUNT_LIMIT = Decimal(10) ** 15
# A product of two amounts needs at most 46 digits, a sum of a million of them 52.
EXACT = Context(prec=60, traps=[Inexact, InvalidOperation, DivisionByZero, Overflow])
ROUNDED = Context(prec=60, rounding=ROUND_HALF_EVEN, traps=[InvalidOperation, DivisionByZero, Overflow])

ZERO = Decimal(0)
ONE = Decimal(1)
_SMALLEST = Decimal(1).scaleb(-DECIMALS_MAX)


def canonical(value: Decimal) -> Decimal:
    """The number in canonical form: no trailing zeros, no exponent above zero, no minus zero."""
    if not value:
        return ZERO
    if value.same_quantum(ONE):
        return value  # most amounts are whole numbers without an exponent
    whole = value.to_integral_value()
    return EXACT.quantize(whole, ONE) if value == whole else EXACT.normalize(value)


def plain(value: Decimal) -> str:
    """The number as text without an exponent; equal numbers have equal texts."""
    return format(canonical(value), "f")


def fixed(value: Decimal) -> str:
    """The number as text with eight decimals, rounded half to even."""
    return format(ROUNDED.quantize(value, _SMALLEST), "f")


def positive_amount(value: Decimal, field: str) -> Decimal:
    """The amount in canonical form; raises InvalidField where it is not a positive amount within the bounds."""
    if not value.is_finite():
        raise InvalidField(field, "must be a finite number")
    if value <= 0:
        raise InvalidField(field, "must be greater than 0")
    if value >= AMOUNT_LIMIT:
        raise InvalidField(field, f"must be less than {AMOUNT_LIMIT:f}")
    try:
        EXACT.quantize(value, _SMALLEST)
    except Inexact:
        raise InvalidField(field, f"at most {DECIMALS_MAX} decimals") from None
    return canonical(value)


def signed_amount(value: Decimal, field: str) -> Decimal:
    """An amount that may be zero or negative, such as a fee, in canonical form; raises InvalidField out of bounds."""
    return canonical(value) if value.is_zero() else positive_amount(value.copy_abs(), field).copy_sign(value)


def is_multiple(value: Decimal, step: Decimal) -> bool:
    """Whether the value is a whole number of steps."""
    return not EXACT.remainder(value, step)


def share(total: Decimal, part: Decimal, whole: Decimal) -> Decimal:
    """`part / whole` of a total, rounded to eight decimals; exactly the total where the part is the whole."""
    if part == whole:
        return total
    return canonical(ROUNDED.quantize(ROUNDED.divide(ROUNDED.multiply(total, part), whole), _SMALLEST))


def average(notional: Decimal, qty: Decimal) -> Decimal:
    """Notional per unit, rounded to eight decimals."""
    return canonical(ROUNDED.quantize(ROUNDED.divide(notional, qty), _SMALLEST))
