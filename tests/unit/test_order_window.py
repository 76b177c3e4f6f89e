"""The limit on orders per window, for the engines with one writer: no window of its length has more orders."""

from datetime import timedelta

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from switchyard.domain.ids import AccountId, OrderId, order_id, ulid_milliseconds
from switchyard.domain.journal.changes import Change
from switchyard.domain.risk.claims import WINDOW_ORDERS_MAX, Claim, Limits, OrderWindow
from switchyard.domain.risk.exposure import Book
from tests.support.build import ACCOUNT, an_accept
from tests.support.memory.clock import START

WINDOW_MS = 20  # so short that many orders lie at its edges
# How much later each order comes; below zero where another process, whose clock is behind, has made it.
STEPS_MS = st.integers(-6, 12)
# What becomes of the group of an order: written, not written, or written by a process that has just started, or by one
# that has no limits.
FATES = st.sampled_from(["written", "written", "written", "failed", "restarted", "unlimited"])


def an_order_at(milliseconds: int, orders_max: int) -> Change:
    """The acceptance of an order at this time, which must keep the limit of the window that ends then."""
    now = START + timedelta(milliseconds=milliseconds)
    change = an_accept(now=now)
    since = order_id(int(now.timestamp() * 1000) - WINDOW_MS + 1, 0)
    claim = Claim(order_id=change.orders[0].order_id, limits=Limits(window_orders=orders_max), since=since)
    return msgspec.structs.replace(change, claims=(claim,))


class Rows:
    """The accepted orders, as a database has them."""

    def __init__(self) -> None:
        self.ids: list[OrderId] = []

    def recent(self, account: AccountId, since: OrderId) -> list[OrderId]:
        return [known for known in self.ids if known >= since]

    def book(self) -> Book:
        return Book([], [], self.recent)

    def most_in_a_window(self) -> int:
        times = sorted(ulid_milliseconds(known.removeprefix("ord_")) for known in self.ids)
        return max((sum(start <= time < start + WINDOW_MS for time in times) for start in times), default=0)


@given(st.integers(1, 5), st.lists(st.tuples(STEPS_MS, FATES), max_size=60))
def test_no_window_has_more_orders_than_allowed(orders_max: int, steps: list[tuple[int, str]]) -> None:
    rows = Rows()
    book = rows.book()
    now = 0
    for step, fate in steps:
        now += step
        change = an_order_at(now, orders_max)
        [claim] = change.claims
        assert claim.since is not None
        expected = len(rows.recent(ACCOUNT, claim.since)) + 1 > orders_max
        if fate == "restarted":
            book = rows.book()
        if fate == "unlimited":  # of a process without the limit: it counts for the next one
            if not expected:
                change = msgspec.structs.replace(change, claims=())
                book.note([change])
                rows.ids.append(change.orders[0].order_id)
            continue
        breach = book.reserve(change)
        assert (breach is not None) == expected
        if breach is not None:
            assert breach.reason == "LIMIT_ORDERS_PER_WINDOW" and breach.allowed == orders_max
        elif fate == "failed":
            book.take_back([change])
        else:
            rows.ids.append(change.orders[0].order_id)
            book.note([change])
    assert rows.most_in_a_window() <= orders_max


def test_a_window_keeps_a_bounded_number_of_orders() -> None:
    def id_at(number: int) -> OrderId:
        return order_id(number // 7, number)

    window = OrderWindow(lambda since: [], id_at(0))
    for number in range(3 * WINDOW_ORDERS_MAX):
        window.add(id_at(number))
        counted = window.count(id_at(0))
    assert counted == WINDOW_ORDERS_MAX
    assert len(window._ids) <= WINDOW_ORDERS_MAX + 1

    assert window.count(id_at(3 * WINDOW_ORDERS_MAX - 100)) == 100
    assert len(window._ids) == 100


def test_a_window_that_begins_earlier_than_the_one_before_has_its_orders() -> None:
    ids = [order_id(number, 0) for number in range(40)]
    window = OrderWindow(lambda since: [known for known in ids[:-1] if known >= since], ids[0])
    window.add(ids[-1])  # reserved, and not written yet

    assert window.count(ids[30]) == 10
    assert window.count(ids[25]) == 15
