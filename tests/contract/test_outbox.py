"""Which outbox rows are handed out for sending, on both engines."""

import json
from datetime import timedelta

import msgspec

from switchyard.adapters.memory.clock import START
from switchyard.adapters.postgres.database import PostgresDatabase
from switchyard.domain.changes import Change
from switchyard.domain.decisions import (
    begin_attempt,
    record_doubt,
    record_sent,
    record_unsent,
    request_cancel,
    unmatched_report,
)
from switchyard.domain.ids import OrderId, VenueName
from switchyard.domain.outbox import LANES
from switchyard.ports.queries import Due, Queries
from tests.support.build import WORKER, a_report, an_accept, state_after
from tests.support.databases import Database
from tests.support.journal_checks import commit

SECOND = timedelta(seconds=1)


def sending(accepted: Change) -> Change:
    return begin_attempt(state_after(accepted), accepted.outbox[0], WORKER, START)


def order_ids(found: list[Due]) -> list[OrderId]:
    return [due.row.order_id for due in found]


def id_of(change: Change) -> OrderId:
    return change.orders[0].order_id


async def test_rows_are_due_in_the_order_of_acceptance(database: Database, queries: Queries) -> None:
    late, early, tied = an_accept(now=START + SECOND), an_accept(now=START), an_accept(now=START)
    await commit(database.journal, late, tied, early)

    found = await queries.due(START + SECOND, 10)

    assert order_ids(found) == [id_of(early), id_of(tied), id_of(late)]
    assert found[0] == Due(early.outbox[0], state_after(early))
    assert order_ids(await queries.due(START + SECOND, 2)) == [id_of(early), id_of(tied)]


async def test_a_failed_row_waits_for_its_time_and_keeps_its_place(database: Database, queries: Queries) -> None:
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


async def test_a_row_that_is_not_yet_due_is_not_handed_out(database: Database, queries: Queries) -> None:
    await commit(database.journal, an_accept(now=START + SECOND))

    assert await queries.due(START, 10) == []


async def test_rows_in_other_hands_or_at_their_end_are_not_due(database: Database, queries: Queries) -> None:
    taken, done, doubtful = an_accept(), an_accept(), an_accept()
    await commit(database.journal, taken, done, doubtful)
    await commit(database.journal, sending(taken), sending(done), sending(doubtful))
    doubt = record_doubt(state_after(sending(doubtful)), sending(doubtful).outbox[0], "NETWORK_TIMEOUT", None, START)
    sent = record_sent(state_after(sending(done)), sending(done).outbox[0], "venue-1", START)
    await commit(database.journal, sent, doubt)

    assert await queries.due(START, 10) == []
    assert await queries.unsettled("uncertain", 10) == [
        Due(doubt.outbox[0], state_after(doubtful, sending(doubtful), doubt))
    ]
    assert await queries.unsettled("sending", 10) == [Due(sending(taken).outbox[0], state_after(sending(taken)))]


async def test_a_cancel_is_held_back_until_its_order_is_sent(database: Database, queries: Queries) -> None:
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

    state = state_after(accepted, attempt, cancel, sent)
    assert await queries.due(START, 10) == [Due(state.row("cancel", 1), state)]


async def test_only_rows_of_the_wanted_venues_are_due(database: Database, queries: Queries) -> None:
    accepted = an_accept(now=START)
    await commit(database.journal, accepted)

    assert order_ids(await queries.due(START, 10, [accepted.outbox[0].venue])) == [id_of(accepted)]
    assert await queries.due(START, 10, [VenueName("elsewhere")]) == []
    assert await queries.due(START, 10, []) == []


async def test_a_worker_may_ask_for_its_own_lanes_only(database: Database) -> None:
    accepted = an_accept()
    await commit(database.journal, accepted)
    lane = accepted.outbox[0].lane
    assert order_ids(await database.queries.due(START, 10, lanes=[lane])) == [id_of(accepted)]
    assert await database.queries.due(START, 10, lanes=[(lane + 1) % LANES]) == []
    assert await database.queries.due(START, 10, lanes=[]) == []


async def test_the_outbox_can_be_read_under_the_names_of_its_specification(database: Database) -> None:
    accepted = an_accept(time_in_force="GTC")
    await commit(database.journal, accepted)
    await commit(database.journal, sending(accepted))
    order = accepted.orders[0]
    columns = (
        "id, idempotency_key, request_json, status, retry_count, next_attempt_at, last_error, created_at, updated_at"
    )
    sql = f"SELECT {columns} FROM outbox"
    if isinstance(database, PostgresDatabase):
        [row] = map(tuple, await database._reader.rows(sql))
    else:
        [row] = await database._connections.read(lambda connection: connection.execute(sql).fetchall())
    request = json.loads(row[2])
    assert row[:2] == (f"{order.order_id}:new:1", order.venue_client_order_id)
    assert (request["symbol"], request["intent"], request["qty"]) == (order.symbol, order.side, int(order.qty))
    assert row[3:5] == ("sending", 0)


async def test_an_order_that_its_venue_has_reported_on_before_is_marked(database: Database) -> None:
    accepted, other = an_accept(), an_accept()
    report = msgspec.structs.replace(a_report(state_after(accepted)), exec_id="early")
    await commit(database.journal, unmatched_report(report))
    for change in (accepted, other):
        await commit(database.journal, change)
    due = await database.queries.due(START, 10)
    assert {one.row.order_id: one.reported_before for one in due} == {id_of(accepted): True, id_of(other): False}
