"""The life of a break: suspected, confirmed by a later pass, explained, opened again, closed, and back."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from switchyard.domain.errors import InvalidField
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.reconcile.breaks import (
    Break,
    BreakChanged,
    Difference,
    Findings,
    break_id,
    explained,
    settled,
)
from switchyard.domain.reconcile.matching import compare_positions, unexplained

START = datetime(2026, 1, 5, 9, tzinfo=UTC)
QUIET = timedelta(seconds=5)
SCOPE = "gateway:demo"


def difference(**changes: Any) -> Difference:
    fields: dict[str, Any] = {
        "kind": "order",
        "class_": "missing_here",
        "scope": SCOPE,
        "subject": ("ord_1",),
        "amount": Decimal(5),
        "unit": "USDJPY",
        "here": "0",
        "there": "5",
        "account_id": AccountId("demo"),
        **changes,
    }
    return Difference(**fields)


class Passes:
    """Breaks over several passes, a minute apart."""

    def __init__(self) -> None:
        self.now = START
        self.breaks: dict[str, Break] = {}

    def make(self, *found: Difference, compared: bool = True, left: bool = False) -> list[Break]:
        findings = Findings(
            differences={one.break_id: one for one in found},
            compared=frozenset({SCOPE} if compared else ()),
            left=frozenset({difference().break_id} if left else ()),
        )
        current = [one for one in self.breaks.values() if one.state != "closed"]
        former = [one for one in self.breaks.values() if one.state == "closed"]
        after = settled(current, former, findings, self.now, QUIET)
        self.breaks |= {one.break_id: one for one in after}
        self.now += timedelta(minutes=1)
        return after


def test_a_second_pass_confirms_a_difference_which_keeps_its_id_and_age_whatever_its_amount() -> None:
    passes = Passes()
    [first] = passes.make(difference())
    [second] = passes.make(difference(amount=Decimal(7)))
    [third] = passes.make(difference(amount=Decimal(7)))
    assert (first.state, second.state, third.state) == ("suspected", "open", "open")
    assert {first.break_id, second.break_id, third.break_id} == {break_id("order", ("ord_1",))}
    assert first.first_seen_at == third.first_seen_at == START
    assert (second.amount, third.last_seen_at) == (Decimal(7), START + timedelta(minutes=2))
    assert third.version == 2


def test_passes_in_quick_succession_do_not_confirm_each_other() -> None:
    passes = Passes()
    passes.make(difference())
    passes.now = START + timedelta(seconds=4)
    assert passes.make(difference())[0].state == "suspected"


def test_a_break_closes_only_where_its_scope_was_compared_and_it_was_not_active() -> None:
    passes = Passes()
    passes.make(difference())
    passes.make(difference())
    assert passes.make(compared=False) == []
    assert passes.make(left=True) == []
    [closed] = passes.make()
    assert closed.state == "closed"
    [again] = passes.make(difference())
    assert (again.state, again.version, again.first_seen_at) == ("suspected", 4, passes.now - timedelta(minutes=1))


def test_an_explained_break_stays_explained_until_its_amount_changes() -> None:
    passes = Passes()
    passes.make(difference())
    [one] = passes.make(difference())
    passes.breaks[one.break_id] = explained(one, "night desk", "a test trade", passes.now)
    [same] = passes.make(difference())
    assert (same.state, same.by, same.reason) == ("explained", "night desk", "a test trade")
    [other] = passes.make(difference(amount=Decimal(6)))
    assert (other.state, other.by, other.reason) == ("open", None, None)
    passes.breaks[one.break_id] = explained(other, "night desk", "another", passes.now)
    assert passes.make()[0].state == "closed"


def test_only_an_open_break_can_be_explained_with_a_name_and_a_reason() -> None:
    passes = Passes()
    [suspected] = passes.make(difference())
    with pytest.raises(BreakChanged, match="suspected"):
        explained(suspected, "night desk", "why", START)
    [one] = passes.make(difference())
    for by, reason, field in (("", "why", "by"), ("night desk", " ", "reason"), ("night desk", "x" * 501, "reason")):
        with pytest.raises(InvalidField, match=field):
            explained(one, by, reason, START)
    with pytest.raises(BreakChanged, match="gone"):
        explained(replace(one, state="closed"), "night desk", "why", START)


def test_a_fill_explains_the_difference_of_its_order_and_an_order_that_of_its_position() -> None:
    fill = difference(kind="fill", amount=Decimal(5), scope="fills:sim")
    order = difference(amount=Decimal(5), order_id=OrderId("ord_1"))
    assert unexplained(order, [(fill, True)]) is None
    # The gateway does not have this fill either, so something else is missing in the books.
    assert unexplained(order, [(fill, False)]) == order
    rest = unexplained(replace(order, amount=Decimal(8)), [(fill, True)])
    assert rest is not None
    assert rest.amount == 3
    gateway, books = {"USDJPY": Decimal(15)}, {"USDJPY": Decimal(10)}
    assert list(compare_positions(AccountId("demo"), gateway, books, [order])) == []
    [position] = compare_positions(AccountId("demo"), gateway, books, [])
    assert (position.amount, position.class_) == (Decimal(5), "amount")
    # An order with a wrong quantity and a right position is one difference.
    assert list(compare_positions(AccountId("demo"), books, books, [order])) == []


@pytest.mark.parametrize(
    ("later", "state"),
    [(timedelta(seconds=1), "suspected"), (QUIET, "open"), (timedelta(hours=-1), "open")],
)
def test_a_suspicion_is_confirmed_by_a_later_pass_also_after_the_clock_was_set_back(
    later: timedelta, state: str
) -> None:
    found = difference()
    findings = Findings(differences={found.break_id: found}, compared=frozenset({SCOPE}))
    [again] = settled(settled([], [], findings, START, QUIET), [], findings, START + later, QUIET)
    assert again.state == state
