"""The contract of `Queries` and of the outbox counts, on every engine."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from switchyard.bootstrap.databases import DatabaseQueries
from switchyard.domain.decisions import apply_report, begin_attempt, record_sent, request_cancel
from switchyard.domain.ids import AccountId, OrderId, VenueName
from switchyard.domain.journal.changes import Change
from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.orders.outbox import OrderState
from switchyard.ports.journal import PAGE_MAX
from switchyard.ports.queries import OrderFilter
from tests.support.build import ACCOUNT, VENUE, WORKER, a_report, an_accept, state_after
from tests.support.databases import Database
from tests.support.journal_checks import commit
from tests.support.memory.clock import START


async def test_an_order_is_found_by_its_id(database: Database, queries: DatabaseQueries) -> None:
    accepted = an_accept()
    await commit(database.journal, accepted)

    assert await queries.order(accepted.orders[0].order_id) == accepted.orders[0]
    assert await queries.order(OrderId("ord_missing")) is None


async def test_text_that_cannot_be_stored_is_not_found(queries: DatabaseQueries) -> None:
    assert await queries.order(OrderId("ord_\0")) is None
    assert await queries.orders(OrderFilter(account_id=ACCOUNT, symbol="US\0")) == []


async def test_orders_are_listed_newest_first_in_pages(database: Database, queries: DatabaseQueries) -> None:
    accepted = [an_accept() for _ in range(5)]
    await commit(database.journal, *accepted, an_accept(account="acc-2"))
    newest_first = [change.orders[0] for change in reversed(accepted)]

    first = await queries.orders(OrderFilter(account_id=ACCOUNT, limit=2))
    second = await queries.orders(OrderFilter(account_id=ACCOUNT, limit=2, before=first[-1].order_id))
    third = await queries.orders(OrderFilter(account_id=ACCOUNT, limit=2, before=second[-1].order_id))

    assert [*first, *second, *third] == newest_first


@pytest.mark.parametrize(
    ("fields", "expected"),
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
async def test_orders_are_filtered_by_every_given_field(
    database: Database, queries: DatabaseQueries, fields: dict[str, Any], expected: set[str]
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

    orders = await queries.orders(OrderFilter(account_id=ACCOUNT, **fields))

    assert {order.client_order_id for order in orders} == expected


async def test_events_are_found_by_account_or_order_from_either_end(
    database: Database, queries: DatabaseQueries
) -> None:
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


async def test_last_events_lie_between_two_numbers(database: Database, queries: DatabaseQueries) -> None:
    await commit(database.journal, *(an_accept() for _ in range(5)))

    assert numbers(await queries.last_events(account_id=ACCOUNT, before=4, limit=2)) == [2, 3]
    assert numbers(await queries.last_events(account_id=ACCOUNT, after=3, limit=10)) == [4, 5]
    assert numbers(await queries.last_events(account_id=ACCOUNT, after=1, before=5, limit=10)) == [2, 3, 4]
    assert numbers(await queries.last_events(account_id=ACCOUNT, before=1, limit=10)) == []


async def test_the_first_number_at_a_time_is_found_across_epochs(database: Database, queries: DatabaseQueries) -> None:
    assert await queries.first_seq_at(START) == 1
    times = [START + timedelta(seconds=second) for second in range(6)]
    for number, at in enumerate(times):
        if number == 3:
            await database.journal.open_epoch(1, 0, at)
        await database.journal.append(0, f"group-{number}", [an_accept(), an_accept()], at)
    events = await database.journal.read(0, 0, 100)

    for at in (*times, START - timedelta(days=1), times[2] + timedelta(microseconds=1), times[-1] + timedelta(days=1)):
        first = await queries.first_seq_at(at)
        assert [event.seq for event in events if event.seq >= first] == [
            event.seq for event in events if event.at >= at
        ]


async def test_a_page_has_at_most_page_max_items(database: Database, queries: DatabaseQueries) -> None:
    await commit(database.journal, *(an_accept() for _ in range(PAGE_MAX + 1)))

    many = PAGE_MAX * 10
    assert len(await database.journal.read(0, 0, many)) == PAGE_MAX
    assert len(await queries.last_events(account_id=ACCOUNT, limit=many)) == PAGE_MAX
    assert len(await queries.events_after(0, account_id=ACCOUNT, limit=many)) == PAGE_MAX
    assert len(await queries.orders(OrderFilter(account_id=ACCOUNT, limit=many))) == PAGE_MAX
    assert len(await queries.due(START, many)) == PAGE_MAX


async def test_an_applied_execution_is_found(database: Database, queries: DatabaseQueries) -> None:
    accepted = an_accept()
    await commit(database.journal, accepted)
    await commit(database.journal, apply_report(state_after(accepted), None, a_report(state_after(accepted)), START))

    recorded = await queries.executions(VENUE, ["exec-1", "exec-2"])
    assert [recorded.keys(), recorded["exec-1"].order_id] == [{"exec-1"}, accepted.orders[0].order_id]
    assert await queries.executions(VenueName("elsewhere"), ["exec-1"]) == {}


async def test_open_orders_of_a_venue_are_listed_by_id_in_pages(database: Database, queries: DatabaseQueries) -> None:
    queued, claimed, working, part_filled, cancel_requested, ended = (an_accept() for _ in range(6))
    await commit(database.journal, ended, cancel_requested, part_filled, working, claimed, queued)
    await commit(
        database.journal, *(attempt(change) for change in (claimed, working, part_filled, cancel_requested, ended))
    )
    await commit(
        database.journal, *(sent(attempt(change)) for change in (working, part_filled, cancel_requested, ended))
    )
    cancel = request_cancel(sent_state(cancel_requested), START)
    assert cancel is not None
    fill = a_report(state_after(part_filled), "PARTIALLY_FILLED", exec_id="part", qty=Decimal(1))
    end = a_report(state_after(ended), "CANCELED", exec_id="end", qty=Decimal(0))
    reported = [
        apply_report(sent_state(change), None, report, START) for change, report in ((part_filled, fill), (ended, end))
    ]
    await commit(database.journal, cancel, *reported)
    expected = [sent(attempt(working)).orders[0], reported[0].orders[0], cancel.orders[0]]

    assert await queries.open_orders(VENUE, limit=10) == expected
    first = await queries.open_orders(VENUE, limit=2)
    assert [*first, *await queries.open_orders(VENUE, after=first[-1].order_id, limit=2)] == expected
    assert await queries.open_orders(VenueName("elsewhere"), limit=10) == []


async def test_unfinished_outbox_rows_are_counted_with_the_oldest(database: Database, queries: DatabaseQueries) -> None:
    assert list(await queries.outbox_counts()) == []
    old, new, claimed, done = (an_accept(now=START + timedelta(seconds=number)) for number in range(4))
    await commit(database.journal, old, new, claimed, done)
    await commit(database.journal, attempt(claimed), attempt(done))
    await commit(database.journal, sent(attempt(done)))

    counts = {count.status: (count.rows, count.oldest_created_at) for count in await queries.outbox_counts()}

    assert counts == {"queued": (2, START), "sending": (1, START + timedelta(seconds=2))}


async def test_unsettled_rows_are_counted_by_the_time_since_which_they_are(
    database: Database, queries: DatabaseQueries
) -> None:
    old, new, other = (an_accept(now=START) for _ in range(3))
    await commit(database.journal, old, new, other)
    later = START + timedelta(seconds=10)
    await commit(
        database.journal,
        begin_attempt(state_after(old), old.outbox[0], WORKER, START),
        begin_attempt(state_after(new), new.outbox[0], WORKER, later),
    )
    times = [START - timedelta(seconds=1), START, START + timedelta(seconds=9), later]

    assert await queries.unsettled_since("sending", times) == [0, 1, 1, 2]
    assert await queries.unsettled_since("uncertain", times) == [0, 0, 0, 0]
    assert await queries.unsettled_since("sending", []) == []


def numbers(events: list[JournalEvent]) -> list[int]:
    return [event.seq for event in events]


def attempt(accepted: Change) -> Change:
    return begin_attempt(state_after(accepted), accepted.outbox[0], WORKER, START)


def sent(sending: Change) -> Change:
    return record_sent(state_after(sending), sending.outbox[0], "venue-1", START)


def sent_state(accepted: Change) -> OrderState:
    return state_after(accepted, attempt(accepted), sent(attempt(accepted)))
