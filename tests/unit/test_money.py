"""Amounts: exact, bounded, one form each."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.domain.errors import InvalidField
from switchyard.domain.values import average, canonical, is_multiple, plain, positive_amount, signed_amount

amounts = st.decimals(min_value=Decimal("0.00000001"), max_value=Decimal("999999999999999"), allow_nan=False, places=8)


@given(amounts)
def test_the_canonical_form_is_the_same_number(amount: Decimal) -> None:
    form = canonical(amount)
    assert form == amount
    assert "E" not in str(form) or amount < Decimal("0.000001")
    assert Decimal(plain(amount)) == amount


@given(amounts)
def test_an_amount_within_bounds_is_unchanged(amount: Decimal) -> None:
    assert positive_amount(amount, "qty") == amount


@pytest.mark.parametrize(
    "text",
    ["0", "-1", "0.000000001", "1.123456789", "1e999", "1e15", "NaN", "Infinity", "-Infinity", "1e-999999", "1e999999"],
)
def test_an_amount_out_of_bounds_is_rejected_with_its_field(text: str) -> None:
    with pytest.raises(InvalidField) as caught:
        positive_amount(Decimal(text), "price")
    assert caught.value.field == "price"


def test_more_digits_than_any_amount_has_are_rejected_not_rounded() -> None:
    with pytest.raises(InvalidField):
        positive_amount(Decimal("1." + "0" * 70 + "1"), "qty")


@pytest.mark.parametrize(("text", "amount"), [("1.50", "1.5"), ("-0.25", "-0.25"), ("-0.0", "0"), ("-100", "-100")])
def test_a_signed_amount_may_be_negative_or_zero(text: str, amount: str) -> None:
    assert str(signed_amount(Decimal(text), "fee")) == amount


@pytest.mark.parametrize("text", ["0.000000001", "-1.123456789", "1e15", "-1e15", "NaN", "-Infinity"])
def test_a_signed_amount_out_of_bounds_is_rejected_with_its_field(text: str) -> None:
    with pytest.raises(InvalidField) as caught:
        signed_amount(Decimal(text), "fee")
    assert caught.value.field == "fee"


def test_trailing_zeros_do_not_count_as_decimals() -> None:
    assert positive_amount(Decimal("1.50000000000000"), "qty") == Decimal("1.5")


def test_steps_are_exact() -> None:
    assert is_multiple(Decimal("145.001"), Decimal("0.001"))
    assert not is_multiple(Decimal("145.0015"), Decimal("0.001"))
    assert is_multiple(Decimal("999999999999999"), Decimal("0.00000001"))


def test_the_average_is_rounded_to_eight_decimals() -> None:
    assert average(Decimal(10), Decimal(3)) == Decimal("3.33333333")
    assert average(Decimal("290.002"), Decimal(2)) == Decimal("145.001")
