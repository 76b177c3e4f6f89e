"""What people and stages look up, on both engines."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from switchyard.adapters.memory.clock import START
from switchyard.domain.changes import Change
from switchyard.domain.decisions import apply_report, begin_attempt, record_sent, request_cancel
from switchyard.domain.events import JournalEvent
from switchyard.domain.ids import AccountId, OrderId, VenueName
from switchyard.ports.journal import PAGE_MAX
from switchyard.ports.queries import OrderFilter, Queries
from tests.support.build import ACCOUNT, VENUE, WORKER, a_report, an_accept, state_after
from tests.support.databases import Database
from tests.support.journal_checks import commit


async def test_one_order_is_found_by_its_id(database: Database, queries: Queries) -> None:
    accepted = an_accept()
    await commit(database.journal, accepted)

    assert await queries.order(accepted.orders[0].order_id) == accepted.orders[0]
    assert await queries.order(OrderId("ord_missing")) is None


async def test_what_could_never_be_written_is_not_found(queries: Queries) -> None:
    assert await queries.order(OrderId("ord_\0")) is None
    assert await queries.orders(OrderFilter(account_id=ACCOUNT, symbol="US\0")) == []


async def test_orders_come_newest_first_a_page_at_a_time(database: Database, queries: Queries) -> None:
    accepted = [an_accept() for _ in range(5)]
    await commit(database.journal, *accepted, an_accept(account="acc-2"))
    newest_first = [change.orders[0] for change in reversed(accepted)]

    first = await queries.orders(OrderFilter(account_id=ACCOUNT, limit=2))
    second = await queries.orders(OrderFilter(account_id=ACCOUNT, limit=2, before=first[-1].order_id))
    third = await queries.orders(OrderFilter(account_id=ACCOUNT, limit=2, before=second[-1].order_id))

    assert [*first, *second, *third] == newest_first


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, {"eur", "usd", "market", "filled"}),
        ({"symbol": "EURUSD"}, {"eur"}),
        ({"side": "SELL"}, {"usd"}),
        ({"strategy": "trend"}, {"market"}),
        ({"client_order_id": "eur"}, {"eur"}),
        ({"statuses": ("FILLED",)}, {"filled"}),
        ({"statuses": ("ACCEPTED", "FILLED"), "symbol": "USDJPY"}, {"usd", "market", "filled"}),
        ({"statuses": ("UNKNOWN",)}, set()),
        ({"side": "SELL", "symbol": "EURUSD"}, set()),
    ],
)
async def test_orders_are_filtered_by_all_that_is_asked(
    database: Database, queries: Queries, wanted: dict[str, Any], found: set[str]
) -> None:
    last = an_accept(client_order_id="filled")
    await commit(
        database.journal,
        an_accept(client_order_id="eur", symbol="EURUSD"),
        an_accept(client_order_id="usd", side="SELL"),
        an_accept(client_order_id="market", strategy="trend"),
        last,
    )
    await commit(database.journal, apply_report(state_after(last), None, a_report(state_after(last)), START))

    orders = await queries.orders(OrderFilter(account_id=ACCOUNT, **wanted))

    assert {order.client_order_id for order in orders} == found


async def test_events_of_an_account_or_an_order_are_found_from_either_end(database: Database, queries: Queries) -> None:
    mine, other = an_accept(), an_accept(account="acc-2")
    sending = begin_attempt(state_after(mine), mine.outbox[0], WORKER, START)
    await commit(database.journal, mine, other, an_accept())
    await commit(database.journal, sending)
    order_id = mine.orders[0].order_id

    assert numbers(await queries.last_events(account_id=ACCOUNT, limit=10)) == [1, 3, 4]
    assert numbers(await queries.last_events(account_id=ACCOUNT, limit=2)) == [3, 4]
    assert numbers(await queries.last_events(order_id=order_id, limit=10)) == [1, 4]
    assert numbers(await queries.events_after(1, account_id=ACCOUNT, limit=10)) == [3, 4]
    assert numbers(await queries.events_after(1, account_id=ACCOUNT, limit=1)) == [3]
    assert numbers(await queries.events_after(0, order_id=order_id, limit=10)) == [1, 4]
    assert numbers(await queries.events_after(0, account_id=AccountId("acc-3"), limit=10)) == []
    assert await queries.events_after(0, order_id=order_id, limit=10) == [
        event for event in await database.journal.read(0, 0, 10) if event.order_id == order_id
    ]


async def test_no_page_is_longer_than_the_bound(database: Database, queries: Queries) -> None:
    await commit(database.journal, *(an_accept() for _ in range(PAGE_MAX + 1)))

    many = PAGE_MAX * 10
    assert len(await database.journal.read(0, 0, many)) == PAGE_MAX
    assert len(await queries.last_events(account_id=ACCOUNT, limit=many)) == PAGE_MAX
    assert len(await queries.events_after(0, account_id=ACCOUNT, limit=many)) == PAGE_MAX
    assert len(await queries.orders(OrderFilter(account_id=ACCOUNT, limit=many))) == PAGE_MAX
    assert len(await queries.due(START, many)) == PAGE_MAX


async def test_a_seen_execution_is_known(database: Database, queries: Queries) -> None:
    accepted = an_accept()
    await commit(database.journal, accepted)
    await commit(database.journal, apply_report(state_after(accepted), None, a_report(state_after(accepted)), START))

    assert await queries.executions(VENUE, ["exec-1", "exec-2"]) == {"exec-1"}
    assert await queries.executions(VenueName("elsewhere"), ["exec-1"]) == frozenset()


async def test_open_orders_of_a_venue_come_by_their_ids_a_page_at_a_time(database: Database, queries: Queries) -> None:
    waiting, taken, working, part, asked, ended = (an_accept() for _ in range(6))
    await commit(database.journal, ended, asked, part, working, taken, waiting)
    await commit(database.journal, *(attempt(one) for one in (taken, working, part, asked, ended)))
    await commit(database.journal, *(sent(attempt(one)) for one in (working, part, asked, ended)))
    cancel = request_cancel(state_after(asked, attempt(asked), sent(attempt(asked))), START)
    assert cancel is not None
    fill = a_report(state_after(part), "PARTIALLY_FILLED", exec_id="part", qty=Decimal(1))
    end = a_report(state_after(ended), "CANCELED", exec_id="end", qty=Decimal(0))
    reported = [
        apply_report(state_after(one, attempt(one), sent(attempt(one))), None, report, START)
        for one, report in ((part, fill), (ended, end))
    ]
    await commit(database.journal, cancel, *reported)
    expected = [sent(attempt(working)).orders[0], reported[0].orders[0], cancel.orders[0]]

    assert await queries.open_orders(VENUE, limit=10) == expected
    first = await queries.open_orders(VENUE, limit=2)
    assert [*first, *await queries.open_orders(VENUE, after=first[-1].order_id, limit=2)] == expected
    assert await queries.open_orders(VenueName("elsewhere"), limit=10) == []


async def test_unfinished_outbox_rows_are_counted_with_the_oldest(database: Database, queries: Queries) -> None:
    assert list(await queries.outbox_counts()) == []
    old, new, taken, done = (an_accept(now=START + timedelta(seconds=number)) for number in range(4))
    await commit(database.journal, old, new, taken, done)
    await commit(database.journal, attempt(taken), attempt(done))
    await commit(database.journal, sent(attempt(done)))

    counts = {count.status: (count.rows, count.oldest_created_at) for count in await queries.outbox_counts()}

    assert counts == {"queued": (2, START), "sending": (1, START + timedelta(seconds=2))}


def numbers(events: list[JournalEvent]) -> list[int]:
    return [event.seq for event in events]


def attempt(accepted: Change) -> Change:
    return begin_attempt(state_after(accepted), accepted.outbox[0], WORKER, START)


def sent(sending: Change) -> Change:
    return record_sent(state_after(sending), sending.outbox[0], "venue-1", START)
