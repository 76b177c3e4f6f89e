"""The contract of `OutboxQueries` and `OutboxListing`, on every engine."""

import json
from datetime import timedelta
from pathlib import Path

import msgspec

from switchyard.adapters.postgres.database import PostgresDatabase
from switchyard.adapters.postgres.queries import PostgresOutboxListing
from switchyard.adapters.sqlite.database import SqliteDatabase
from switchyard.adapters.sqlite.queries import SqliteOutboxListing
from switchyard.adapters.system_clock import SystemClock
from switchyard.domain.decisions import (
    begin_attempt,
    record_doubt,
    record_sent,
    record_unsent,
    request_cancel,
    unmatched_report,
)
from switchyard.domain.ids import AccountId, OrderId, VenueName
from switchyard.domain.journal.changes import Change, Committed, Cursor, merged
from switchyard.domain.orders.outbox import LANES, OutboxRow
from switchyard.ports.outbox import Due, OutboxListing, OutboxQueries, QueueHead
from tests.support.build import VENUE, WORKER, a_report, an_accept, numbered, state_after
from tests.support.databases import Database, SqlDatabase
from tests.support.journal_checks import commit
from tests.support.memory.clock import START
from tests.support.memory.database import MemoryDatabase

SECOND = timedelta(seconds=1)


def sending(accepted: Change) -> Change:
    return begin_attempt(state_after(accepted), accepted.outbox[0], WORKER, START)


def order_ids(due: list[Due]) -> list[OrderId]:
    return [item.row.order_id for item in due]


def due_after(*changes: Change, seq: int) -> Due:
    """What a query returns for an order whose only row has this journal number."""
    state = numbered(state_after(*changes), seq)
    return Due(state.outbox[0], state)


def row_after(change: Change, *, seq: int) -> OutboxRow:
    return due_after(change, seq=seq).row


def id_of(change: Change) -> OrderId:
    return change.orders[0].order_id


async def test_rows_are_due_in_journal_order_whatever_the_dates_that_gateways_gave_them(
    database: Database, queries: OutboxQueries
) -> None:
    # The gateway of the second order has a slower clock than that of the first.
    first, second, third = an_accept(now=START + SECOND), an_accept(now=START), an_accept(now=START + SECOND)
    await commit(database.journal, first, second)
    await commit(database.journal, third)

    due = await queries.due(START + SECOND, 10)

    assert order_ids(due) == [id_of(first), id_of(second), id_of(third)]
    assert [item.row.seq for item in due] == [1, 2, 3]
    assert due[0] == due_after(first, seq=1)
    assert order_ids(await queries.due(START + SECOND, 2)) == [id_of(first), id_of(second)]
    assert order_ids(await queries.due(START + SECOND, 2, after=due[0].row.seq)) == [id_of(second), id_of(third)]


async def test_a_rejected_change_takes_no_number_from_the_rows_after_it(
    database: Database, queries: OutboxQueries
) -> None:
    stale = an_accept(key="taken")
    await commit(database.journal, an_accept(key="taken"))
    second, third = an_accept(), an_accept()
    outcomes = await database.journal.append(0, "with a conflict", [second, stale, third], START)
    assert outcomes == [Committed(2), outcomes[1], Committed(3)]
    assert [item.row.seq for item in await queries.due(START, 10)] == [1, 2, 3]


async def test_a_row_has_the_number_of_the_event_that_describes_it(database: Database) -> None:
    """A change may begin with events that carry no row of the order, or are about another order."""
    first, second = an_accept(), an_accept()
    stray = unmatched_report(a_report(state_after(first), exec_id="stray"))
    await commit(database.journal, merged([stray, second, first]))
    due = await database.queries.due(START, 10)
    assert [(item.row.order_id, item.row.seq) for item in due] == [(id_of(second), 2), (id_of(first), 3)]
    await commit(database.journal, begin_attempt(due[0].state, due[0].row, WORKER, START))
    [attempted] = await database.queries.unsettled("sending", 10)
    assert attempted.row.seq == 2, "a later version keeps the number"


async def test_a_failed_row_is_due_after_its_backoff_at_its_old_place(
    database: Database, queries: OutboxQueries
) -> None:
    failing, waiting = an_accept(now=START), an_accept(now=START + SECOND)
    failed = record_unsent(
        state_after(failing, sending(failing)), sending(failing).outbox[0], "BROKER_DOWN", START + 4 * SECOND, START
    )
    await commit(database.journal, failing, waiting)
    await commit(database.journal, sending(failing))
    await commit(database.journal, failed)

    assert order_ids(await queries.due(START + 3 * SECOND, 10)) == [id_of(waiting)]
    assert order_ids(await queries.due(START + 4 * SECOND, 10)) == [id_of(failing), id_of(waiting)]
    assert order_ids(await queries.due(START + 4 * SECOND, 1)) == [id_of(failing)]


async def test_a_first_attempt_is_due_though_it_is_dated_ahead_of_the_workers_clock(
    database: Database, queries: OutboxQueries
) -> None:
    ahead, behind = an_accept(now=START + SECOND), an_accept(now=START)
    await commit(database.journal, ahead, behind)

    assert order_ids(await queries.due(START, 10)) == [id_of(ahead), id_of(behind)], "the second would overtake"


async def test_rows_that_are_sending_uncertain_or_sent_are_not_due(database: Database, queries: OutboxQueries) -> None:
    claimed, done, doubtful = an_accept(), an_accept(), an_accept()
    await commit(database.journal, claimed, done, doubtful)
    await commit(database.journal, sending(claimed), sending(done), sending(doubtful))
    doubt = record_doubt(state_after(sending(doubtful)), sending(doubtful).outbox[0], "NETWORK_TIMEOUT", None, START)
    sent = record_sent(state_after(sending(done)), sending(done).outbox[0], "venue-1", START)
    await commit(database.journal, sent, doubt)

    assert await queries.due(START, 10) == []
    assert await queries.unsettled("uncertain", 10) == [due_after(doubtful, sending(doubtful), doubt, seq=3)]
    assert await queries.unsettled("sending", 10) == [due_after(sending(claimed), seq=1)]


async def test_rows_in_doubt_are_read_page_by_page_and_by_venue(database: Database, queries: OutboxQueries) -> None:
    accepts = [an_accept(now=START - number * SECOND) for number in range(3)]
    await commit(database.journal, *accepts)
    doubts = [record_doubt(state_after(change), change.outbox[0], "RESTORED", None, START) for change in accepts]
    await commit(database.journal, *doubts)
    cancel = request_cancel(state_after(accepts[0], doubts[0]), START)
    assert cancel is not None
    await commit(database.journal, cancel)
    canceling = state_after(accepts[0], doubts[0], cancel)
    doubted = record_doubt(canceling, canceling.row("cancel", 1), "RESTORED", None, START)
    await commit(database.journal, doubted)

    pages, after = [], None
    while page := await queries.unsettled("uncertain", 1, venue=accepts[0].outbox[0].venue, after=after):
        [due] = page
        pages.append(due.row.key)
        after = due.row.key
    assert pages == sorted([*(change.outbox[0].key for change in accepts), doubted.outbox[0].key])
    assert [due.row.key for due in await queries.unsettled("uncertain", 10)] == pages
    assert await queries.unsettled("uncertain", 10, venue=VenueName("elsewhere")) == []


async def test_a_cancel_is_due_after_its_order_was_sent(database: Database, queries: OutboxQueries) -> None:
    accepted = an_accept()
    attempt = sending(accepted)
    state = state_after(accepted, attempt)
    cancel = request_cancel(state, START)
    assert cancel is not None
    await commit(database.journal, accepted)
    await commit(database.journal, attempt)
    await commit(database.journal, cancel)
    assert await queries.due(START, 10) == []

    state = state_after(accepted, attempt, cancel)
    sent = record_sent(state, state.row("new", 1), "venue-1", START)
    await commit(database.journal, sent)

    state = numbered(state_after(accepted, attempt, cancel, sent), 1, 3)
    assert await queries.due(START, 10) == [Due(state.row("cancel", 1), state)]


async def test_rows_are_filtered_by_venue(database: Database, queries: OutboxQueries) -> None:
    accepted = an_accept(now=START)
    await commit(database.journal, accepted)

    assert order_ids(await queries.due(START, 10, [accepted.outbox[0].venue])) == [id_of(accepted)]
    assert await queries.due(START, 10, [VenueName("elsewhere")]) == []
    assert await queries.due(START, 10, []) == []


async def test_rows_are_filtered_by_lane(database: Database) -> None:
    accepted = an_accept()
    await commit(database.journal, accepted)
    lane = accepted.outbox[0].lane
    assert order_ids(await database.queries.due(START, 10, lanes=[lane])) == [id_of(accepted)]
    assert await database.queries.due(START, 10, lanes=[(lane + 1) % LANES]) == []
    assert await database.queries.due(START, 10, lanes=[]) == []


async def test_the_sql_view_has_the_column_names_of_the_specification(sql_database: SqlDatabase) -> None:
    accepted = an_accept(time_in_force="GTC")
    await commit(sql_database.journal, accepted)
    await commit(sql_database.journal, sending(accepted))
    order = accepted.orders[0]
    columns = (
        "id, idempotency_key, request_json, status, retry_count, next_attempt_at, last_error, created_at, updated_at"
    )
    sql = f"SELECT {columns} FROM outbox"
    if isinstance(sql_database, PostgresDatabase):
        [row] = map(tuple, await sql_database._reader.rows(sql))
    else:
        [row] = await sql_database._connections.read(lambda connection: connection.execute(sql).fetchall())
    request = json.loads(row[2])
    assert row[:2] == (f"{order.order_id}:new:1", order.venue_client_order_id)
    assert (request["symbol"], request["intent"], request["qty"]) == (order.symbol, order.side, int(order.qty))
    assert row[3:5] == ("sending", 0)


async def test_a_row_says_whether_the_venue_reported_before_the_order_existed(database: Database) -> None:
    accepted, other = an_accept(), an_accept()
    report = msgspec.structs.replace(a_report(state_after(accepted)), exec_id="early")
    await commit(database.journal, unmatched_report(report))
    for change in (accepted, other):
        await commit(database.journal, change)
    due = await database.queries.due(START, 10)
    assert {item.row.order_id: item.reported_before for item in due} == {id_of(accepted): True, id_of(other): False}


async def test_a_later_generation_of_the_key_counts_as_reported_before(database: Database) -> None:
    second = an_accept(key="k", generation=1)
    report = msgspec.structs.replace(a_report(state_after(second)), exec_id="early")
    await commit(database.journal, unmatched_report(report))
    first, third, other = an_accept(key="k", generation=0), an_accept(key="k", generation=2), an_accept(key="l")
    for change in (first, third, other):
        await commit(database.journal, msgspec.structs.replace(change, keys=()))
    due = await database.queries.due(START, 10)
    reported = {item.row.order_id: item.reported_before for item in due}
    assert reported == {id_of(first): True, id_of(third): False, id_of(other): False}


async def test_the_oldest_order_without_an_attempt_is_found_by_venue(
    database: Database, queries: OutboxQueries
) -> None:
    assert await queries.oldest_unsent([VENUE]) == {}
    claimed, oldest, newest = (an_accept(now=START + number * SECOND) for number in range(3))
    await commit(database.journal, claimed, oldest, newest)
    await commit(database.journal, sending(claimed))

    assert await queries.oldest_unsent([VENUE, VenueName("elsewhere")]) == {VENUE: QueueHead(2, START + SECOND)}
    assert await queries.oldest_unsent([VenueName("elsewhere")]) == {}
    assert await queries.oldest_unsent([]) == {}


def listing_of(database: Database, folder: Path) -> OutboxListing:
    match database:
        case MemoryDatabase():
            return database.queries
        case SqliteDatabase():
            return SqliteOutboxListing(folder / "switchyard.db")
        case PostgresDatabase():
            return PostgresOutboxListing(database._url)


async def test_rows_of_one_status_are_listed_oldest_first(database: Database, tmp_path: Path) -> None:
    oldest, newest, claimed = (an_accept(now=START + number * SECOND) for number in (2, 0, 1))
    await commit(database.journal, oldest, newest, claimed)
    await commit(database.journal, sending(claimed))
    listing = listing_of(database, tmp_path)

    assert await listing.rows("queued", 10) == [row_after(oldest, seq=1), row_after(newest, seq=2)]
    assert await listing.rows("queued", 1) == [row_after(oldest, seq=1)]
    assert await listing.rows("sending", 10) == [row_after(sending(claimed), seq=3)]
    assert await listing.rows("dead", 10) == []


async def test_the_texts_of_cursors_are_listed_by_name_with_the_time(database: Database, tmp_path: Path) -> None:
    marks = [Cursor(name=f"declared:{venue}", epoch=0, seq=1, hash=f"text of {venue}") for venue in ("a", "b")]
    await commit(database.journal, Change(cursors=tuple(marks)))

    found, now = await listing_of(database, tmp_path).cursors(["declared:b", "declared:c"])

    assert found == {"declared:b": "text of b"}
    assert abs(now - SystemClock().now()) < timedelta(minutes=1)


async def test_the_history_of_an_order_is_its_row_and_its_first_events(database: Database, tmp_path: Path) -> None:
    first, other = an_accept(), an_accept()
    await commit(database.journal, first, other)
    await commit(database.journal, sending(first))
    listing, order_id = listing_of(database, tmp_path), first.orders[0].order_id

    found = await listing.history_of(order_id, 10)

    assert found is not None
    order, events = found
    assert order == sending(first).orders[0]
    assert [(event.seq, event.type, event.order_id) for event in events] == [
        (1, "OrderAccepted", order_id),
        (3, "OrderSending", order_id),
    ]
    assert await listing.history_of(order_id, 1) == (order, events[:1])
    assert await listing.history_of(OrderId("ord_none"), 10) is None


async def test_the_orders_of_accounts_that_are_left_out_are_in_no_page_and_at_no_head(database: Database) -> None:
    queries = database.queries
    hanging, other = an_accept(account="hanging"), an_accept(account="other", now=START + SECOND)
    await commit(database.journal, hanging, other)
    without = [AccountId("hanging"), AccountId("none")]
    assert order_ids(await queries.due(START + SECOND, 1, without=without)) == [id_of(other)]
    assert order_ids(await queries.due(START + SECOND, 10, [VENUE], kind="new", without=without)) == [id_of(other)]
    assert await queries.oldest_unsent([VENUE], without) == {VENUE: QueueHead(2, START + SECOND)}
    assert await queries.oldest_unsent([VENUE], [*without, AccountId("other")]) == {}
