"""The arithmetic of fills: quantity, cost basis, realised P&L."""

from datetime import timedelta
from decimal import Decimal
from itertools import pairwise
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.domain.accounts.positions import Position, apply_fill
from switchyard.domain.ids import AccountId
from switchyard.domain.orders.order import Side
from switchyard.domain.values import EXACT, ZERO
from tests.support.memory.clock import START

ACCOUNT = AccountId("acct-1")
Fill = tuple[Side, Decimal, Decimal]

sides: st.SearchStrategy[Side] = st.sampled_from(["BUY", "SELL"])
quantities = st.integers(1, 5).map(Decimal) | st.decimals("0.00000001", "999999999999999", places=8)
prices = st.integers(1, 5).map(Decimal) | st.decimals("0.00000001", "999999999999999", places=8)
fills = st.lists(st.tuples(sides, quantities, prices), min_size=1, max_size=30)


def fill(position: Position | None, side: Side, qty: Decimal | str, price: Decimal | str) -> Position:
    return apply_fill(
        position, account=ACCOUNT, symbol="USDJPY", side=side, qty=Decimal(qty), price=Decimal(price), now=START
    )


def positions(path: list[Fill]) -> list[Position]:
    """The position after each of the fills."""
    reached: list[Position] = []
    for step in path:
        reached.append(fill(reached[-1] if reached else None, *step))
    return reached


def after(*path: tuple[Side, str, str]) -> Position:
    return positions([(side, Decimal(qty), Decimal(price)) for side, qty, price in path])[-1]


def money(position: Position) -> list[Decimal]:
    return [position.qty, position.cost_basis, position.realised_pnl]


@pytest.mark.parametrize("sign", [1, -1], ids=["long", "short"])
def test_a_position_is_opened_added_to_reduced_and_closed_at_average_cost(sign: int) -> None:
    opens, closes = ("BUY", "SELL") if sign > 0 else ("SELL", "BUY")
    path: list[Fill] = [
        (opens, Decimal(10), Decimal(100)),  # type: ignore[list-item]
        (opens, Decimal(10), Decimal(110)),  # type: ignore[list-item]
        (closes, Decimal(5), Decimal(120)),  # type: ignore[list-item]
        (closes, Decimal(15), Decimal(100)),  # type: ignore[list-item]
    ]
    opened, added, reduced, closed = positions(path)

    assert money(opened) == [10 * sign, 1000 * sign, 0]
    assert [added.qty, added.average_price] == [20 * sign, 105]
    assert money(reduced) == [15 * sign, 1575 * sign, 75 * sign]
    assert money(closed) == [0, 0, 0]
    assert closed.average_price is None
    assert [position.version for position in (opened, added, reduced, closed)] == [1, 2, 3, 4]


def test_one_fill_closes_a_long_position_and_opens_a_short_one() -> None:
    flipped = after(("BUY", "10", "100"), ("SELL", "15", "110"))
    assert money(flipped) == [-5, -550, 100]
    assert flipped.average_price == 110


def test_the_cost_of_a_closed_part_is_rounded_and_the_rest_is_exact() -> None:
    position = after(("BUY", "3", "0.00000001"), ("BUY", "0.00000001", "0.00000001"), ("SELL", "1", "1"))
    assert position.realised_pnl == Decimal("0.99999999")
    assert position.cost_basis == Decimal("0.0000000200000001")


@given(fills)
def test_no_cash_is_made_or_lost(path: list[Fill]) -> None:
    cash = ZERO
    for (side, qty, price), position in zip(path, positions(path), strict=True):
        paid = EXACT.multiply(qty, price)
        cash = EXACT.subtract(cash, paid) if side == "BUY" else EXACT.add(cash, paid)
        assert EXACT.subtract(position.realised_pnl, position.cost_basis) == cash


@given(fills)
def test_the_open_quantity_and_its_cost_have_one_sign_and_end_together(path: list[Fill]) -> None:
    for position in positions(path):
        assert (position.qty == 0) <= (position.cost_basis == 0)
        # The cost of a remainder may be off by less than a rounding step.
        assert position.qty * position.cost_basis >= -(abs(position.qty) * Decimal("0.00000001"))


@given(fills, st.randoms())
def test_the_order_of_fills_does_not_change_what_is_held(path: list[Fill], random: Random) -> None:
    shuffled = path[:]
    random.shuffle(shuffled)
    assert positions(shuffled)[-1].qty == positions(path)[-1].qty


@given(st.lists(st.tuples(quantities, prices), min_size=1, max_size=10), st.randoms())
def test_the_order_of_one_orders_fills_changes_nothing_while_it_opens(
    parts: list[tuple[Decimal, Decimal]], random: Random
) -> None:
    path: list[Fill] = [("SELL", *part) for part in parts]
    shuffled = path[:]
    random.shuffle(shuffled)
    assert positions(shuffled)[-1] == positions(path)[-1]


@given(fills, quantities, prices)
def test_a_flip_equals_a_close_and_an_open(path: list[Fill], more: Decimal, price: Decimal) -> None:
    before = positions(path)[-1]
    if not before.qty:
        return
    side: Side = "SELL" if before.qty > 0 else "BUY"
    held = abs(before.qty)

    at_once = fill(before, side, EXACT.add(held, more), price)
    in_two = fill(fill(before, side, held, price), side, more, price)

    assert msgspec.structs.replace(in_two, version=at_once.version) == at_once


@given(fills)
def test_the_high_water_mark_is_the_highest_pnl_and_the_drawdown_the_distance_to_it(path: list[Fill]) -> None:
    for before, position in pairwise(positions(path)):
        assert position.high_water_mark == max(before.high_water_mark, position.realised_pnl)
        assert position.drawdown == EXACT.subtract(position.high_water_mark, position.realised_pnl) >= 0


def test_consecutive_losses_count_trades_from_flat_to_flat() -> None:
    loss: list[tuple[Side, str, str]] = [("BUY", "3", "10"), ("SELL", "1", "9"), ("SELL", "2", "9")]
    win: list[tuple[Side, str, str]] = [("SELL", "1", "9"), ("BUY", "1", "8")]

    assert after(*loss[:2]).consecutive_losses == 0  # the trade is still open
    assert after(*loss).consecutive_losses == 1
    assert after(*loss, *loss).consecutive_losses == 2
    assert after(*loss, *loss, *win).consecutive_losses == 0


def test_a_trade_with_a_positive_sum_is_no_loss() -> None:
    position = after(("BUY", "2", "10"), ("SELL", "1", "15"), ("SELL", "1", "9"))
    assert [position.realised_pnl, position.trade_result, position.consecutive_losses] == [4, 0, 0]
    assert [position.high_water_mark, position.drawdown] == [5, 1]


def test_a_flip_ends_a_trade() -> None:
    flipped = after(("BUY", "1", "10"), ("SELL", "2", "9"))
    assert [flipped.consecutive_losses, flipped.trade_result] == [1, 0]


def test_updated_at_never_decreases() -> None:
    position = fill(None, "BUY", "1", "10")
    earlier = apply_fill(
        position,
        account=ACCOUNT,
        symbol="USDJPY",
        side="BUY",
        qty=Decimal(1),
        price=Decimal(10),
        now=START - timedelta(seconds=1),
    )
    assert earlier.updated_at == START
