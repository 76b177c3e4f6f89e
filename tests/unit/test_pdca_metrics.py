"""The metrics of a strategy: by hand, against empyrical, and with random fills."""

from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

import empyrical
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchyard.domain.strategies.metrics import Fill, Window, equity
from switchyard.domain.strategies.registry import METRICS, Capital
from tests.support.strategies import FIGURES, FILLS, ORDERS, START, WINDOW, fill, measured, order


def test_a_strategy_worked_out_by_hand_has_these_figures_to_the_last_digit() -> None:
    track, found = measured(FILLS, ORDERS)
    assert [str(amount) for amount in track.daily.values()] == ["48", "-2", "-21", "0", "9"]
    assert {name: str(figure.value) for name, figure in found.metrics.items()} == FIGURES
    assert tuple(found.metrics) == METRICS
    assert (found.net_pnl, found.currency) == (Decimal(34), "USD")
    assert (found.fills, found.orders, found.round_trips) == (5, 7, 2)
    assert found.slowest_fills.value == 250
    # With 252 days a year only the two annualised ratios differ.
    _, by_252 = measured(FILLS, ORDERS, days_per_year=252)
    assert str(by_252.metrics["sharpe"].value) == "4.23499352"
    changed = {name for name in METRICS if by_252.metrics[name] != found.metrics[name]}
    assert changed == {"sharpe", "sortino"}


def test_what_is_undefined_has_a_reason_and_no_value() -> None:
    _, idle = measured((), ())
    reasons = {name: figure.reason for name, figure in idle.metrics.items() if figure.value is None}
    assert reasons == {
        "sharpe": "ZERO_DEVIATION",
        "sortino": "ZERO_DEVIATION",
        "win_rate": "NO_ROUND_TRIPS",
        "profit_factor": "NO_ROUND_TRIPS",
        "slippage": "NO_FILLS",
        "reject_rate": "NO_ORDERS",
        "unknown_rate": "NO_ORDERS",
        "fill_latency": "NO_FILLS",
    }
    _, poor = measured(FILLS, ORDERS, capital=None)
    assert {name for name in METRICS if poor.metrics[name].reason == "NO_CAPITAL"} == {
        "max_drawdown",
        "turnover",
        "exposure",
    }
    assert poor.metrics["sharpe"].value == Decimal(FIGURES["sharpe"])
    _, winner = measured(FILLS[:2])
    assert (winner.metrics["profit_factor"].reason, winner.metrics["sortino"].reason) == ("NO_LOSSES", "NO_LOSING_DAY")
    _, one_day = measured(FILLS[:2], window=Window(START, START + timedelta(days=1)))
    assert one_day.metrics["sharpe"].reason == one_day.metrics["sortino"].reason == "TOO_FEW_DAYS"
    _, empty = measured(FILLS, window=Window(START, START))
    assert empty.metrics["exposure"].reason == empty.metrics["max_drawdown"].reason == "EMPTY_WINDOW"


@pytest.mark.parametrize(
    "odd",
    [
        fill(4, 0, "BUY", "1", "1", currency="JPY"),
        fill(4, 0, "BUY", "1", "1", "0.1", fee_currency="BNB"),
    ],
)
def test_money_in_two_currencies_has_no_sum_and_counts_still_have_a_value(odd: Fill) -> None:
    _, found = measured((*FILLS[:4], odd), ORDERS)
    mixed = {name for name in METRICS if found.metrics[name].reason == "SEVERAL_CURRENCIES"}
    assert mixed == set(METRICS) - {"reject_rate", "unknown_rate", "fill_latency"}
    assert (found.net_pnl, found.currency) == (None, None)
    # A capital in another currency than the results is the same problem.
    _, other = measured(FILLS, ORDERS, capital=Capital(amount=Decimal(10), currency="EUR"))
    assert other.metrics["sharpe"].reason == "SEVERAL_CURRENCIES"


def test_a_position_opened_before_the_window_has_its_cost_and_not_its_fee_in_it() -> None:
    before = fill(-3, 0, "BUY", "10", "100", "5", currency="USD")
    track, found = measured((before, fill(2, 0, "SELL", "10", "130", "1")))
    assert [str(amount) for amount in track.daily.values()] == ["0", "299", "0", "0", "0"]
    assert track.trips[0].result == 294  # the whole trip, with the fee that opened it
    assert (found.fills, str(found.metrics["fees"].value)) == (1, "1")
    assert str(found.metrics["exposure"].value) == "0.02"  # 1000 for one of five days
    assert measured((fill(1, 0, "BUY", "1", "1"), fill(6, 0, "SELL", "1", "2")))[1].fills == 1  # after the window


def test_a_fill_that_turns_a_position_around_ends_a_round_trip_and_begins_another() -> None:
    track, found = measured(
        (
            fill(1, 0, "BUY", "10", "10", "1"),
            fill(2, 0, "SELL", "15", "11", "2"),
            fill(3, 0, "BUY", "5", "12", "1"),
        )
    )
    assert [str(trip.result) for trip in track.trips] == ["7", "-6"]
    assert found.round_trips == 2


def test_fills_must_come_in_the_order_of_their_times() -> None:
    with pytest.raises(ValueError, match="older"):
        measured((fill(2, 0, "BUY", "1", "1"), fill(1, 0, "SELL", "1", "1")))


def test_fills_of_one_time_are_taken_as_given() -> None:
    bought, sold = fill(1, 0, "BUY", "2", "10"), fill(1, 0, "SELL", "2", "12")
    more = fill(1, 0, "BUY", "2", "14")
    assert [trip.result for trip in measured((bought, sold, more))[0].trips] == [4]
    assert [trip.result for trip in measured((bought, more, sold))[0].trips] == []
    assert [trip.result for trip in measured((sold, more, bought))[0].trips] == [-4]


def test_the_largest_amounts_give_figures_or_reasons() -> None:
    largest = {"qty": "999999999999999.99999999", "price": "999999999999999.99999999"}
    fills = (fill(1, 0, "BUY", **largest), fill(5, 0, "SELL", **{**largest, "price": "0.00000001"}))
    _, found = measured(fills, [order("o", fills[0], 1, ("0.00000001", "999999999999999.99999999"))])
    assert {figure.reason for figure in found.metrics.values()} >= {"OUT_OF_RANGE"}
    assert all(figure.value is None or figure.value.is_finite() for figure in found.metrics.values())


amounts = st.decimals(min_value=Decimal("0.00000001"), max_value=Decimal(10) ** 9, places=8)


@st.composite
def courses(draw: st.DrawFn) -> list[Fill]:
    hours = sorted(draw(st.lists(st.integers(-48, 24 * 5 + 3), max_size=12)))
    return [
        fill(
            1,
            hour,
            draw(st.sampled_from(["BUY", "SELL"])),
            str(draw(amounts)),
            str(draw(amounts)),
            str(draw(st.sampled_from(["0", "-0.5", "1.25", "1000"]))),
            order=f"o{number}",
            symbol=draw(st.sampled_from(["ABC", "XYZ"])),
        )
        for number, hour in enumerate(hours)
    ]


@settings(max_examples=150, deadline=None)
@given(courses(), st.sampled_from([252, 365]))
def test_random_fills_give_finite_figures_that_agree_with_empyrical(fills: list[Fill], days: int) -> None:
    capital = Decimal(10) ** 20  # large enough that no loss exceeds it: empyrical compounds, and must not cross zero
    orders = [order(each.order_id, each, 5) for each in fills if WINDOW.covers(each.at)]
    track, found = measured(fills, orders, capital=Capital(amount=capital, currency="USD"), days_per_year=days)
    for figure in found.metrics.values():
        assert (figure.value is None) != (figure.reason is None)
        assert figure.value is None or figure.value.is_finite()
    daily = list(track.daily.values())
    assert found.net_pnl is not None  # exact: a sum of decimals in Python's own context is not
    assert sum(map(Fraction, daily)) == Fraction(found.net_pnl)
    returns = numpy.array([float(amount / capital) for amount in daily])
    _agrees(found.metrics["sharpe"].value, empyrical.sharpe_ratio(returns, annualization=days))
    _agrees(found.metrics["sortino"].value, empyrical.sortino_ratio(returns, annualization=days))
    path = [float(amount / capital) for amount in equity(daily, capital)]
    steps = numpy.array([after / before - 1 for before, after in pairwise(path)])
    drawdown = found.metrics["max_drawdown"].value
    assert drawdown is not None
    assert float(drawdown) == pytest.approx(-empyrical.max_drawdown(steps), abs=1e-8)


def _agrees(ours: Decimal | None, theirs: Any) -> None:
    """Binary floats lose digits where results nearly cancel out, and show 'not defined' as NaN or infinity."""
    if ours is not None and abs(ours) < 1_000 and numpy.isfinite(theirs):
        assert float(ours) == pytest.approx(theirs, rel=1e-6, abs=1e-6)
