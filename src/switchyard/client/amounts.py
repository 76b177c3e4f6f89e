"""Amounts that callers pass: exact numbers, never binary floats."""

from decimal import Decimal

from switchyard.domain.errors import InvalidField
from switchyard.domain.orders.keys import decimal_of

ExactAmount = Decimal | int | str


def exact_amount(value: ExactAmount, name: str) -> Decimal:
    """The amount as a decimal; raises InvalidField for a float and for a text that is not a number."""
    if isinstance(value, float):
        text = float.__repr__(value)
        raise InvalidField(
            name,
            f"must be an int, a str or a Decimal, not the float {text}: binary floats cannot represent most decimal "
            f"numbers exactly; pass '{text}' or Decimal('{text}')",
        )
    number = decimal_of(value)
    if number is None or not number.is_finite():
        raise InvalidField(name, f"must be an int, a str or a Decimal with a finite number, not {value!r}")
    return number
