"""A first attempt in the commit that accepts its order: every engine rejects it where the order must wait."""

import pytest

from switchyard.domain.decisions import begin_attempt, record_sent, record_unsent, unmatched_report
from switchyard.domain.journal.changes import Change, Committed, Conflict, merged
from switchyard.domain.orders.outbox import LANES, lane_of
from switchyard.ports.journal import Journal
from tests.support.build import ACCOUNT, WORKER, a_report, an_accept, state_after
from tests.support.databases import Database
from tests.support.memory.clock import START

OTHER_SYMBOL = next(
    symbol
    for symbol in map("SYM{}".format, range(10 * LANES))
    if lane_of(ACCOUNT, symbol) != lane_of(ACCOUNT, "USDJPY")
)


def with_attempt(accepted: Change) -> Change:
    """The acceptance, with the first attempt in the same commit."""
    state = state_after(accepted)
    return merged([accepted, begin_attempt(state, state.outbox[0], WORKER, START)])


async def append(journal: Journal, name: str, *changes: Change) -> list[Committed | Conflict]:
    return list(await journal.append(0, name, changes, START))


async def test_an_order_whose_attempt_began_at_once_is_stored_as_any_other(database: Database) -> None:
    change = with_attempt(an_accept(key="k"))
    assert await append(database.journal, "one", change) == [Committed(1)]
    [stored] = (await database.journal.load([change.orders[0].order_id])).values()
    assert (stored.order.status, stored.order.version) == ("SENDING", 2)
    [row] = stored.outbox
    assert (row.status, row.attempt, row.worker, row.version, row.seq) == ("sending", 1, WORKER, 2, 1)
    assert [event.type for event in await database.journal.read(0, 0, 10)] == ["OrderAccepted", "OrderSending"]
    assert [due.row for due in await database.queries.unsettled("sending", 10)] == [row]
    sent = record_sent(stored, row, "venue-1", START)
    assert isinstance((await append(database.journal, "two", sent))[0], Committed)


async def test_an_attempt_does_not_pass_an_order_of_its_lane_that_waits(database: Database) -> None:
    await append(database.journal, "queued", an_accept())
    behind, elsewhere = with_attempt(an_accept(key="behind")), with_attempt(an_accept(symbol=OTHER_SYMBOL))
    assert await append(database.journal, "begun", behind, elsewhere) == [Conflict(), Committed(2)]
    assert await database.keys.entry(ACCOUNT, behind.keys[0].operation, "behind") is None


async def test_an_attempt_does_not_pass_one_that_is_to_be_sent_again(database: Database) -> None:
    first = with_attempt(an_accept())
    await append(database.journal, "first", first)
    state = (await database.journal.load([first.orders[0].order_id]))[first.orders[0].order_id]
    stale = record_unsent(state, state.outbox[0], "ATTEMPT_STALE", START, START)
    second = with_attempt(an_accept())
    await append(database.journal, "stale", stale)
    assert await append(database.journal, "second", second) == [Conflict()]


async def test_a_lane_whose_orders_have_left_is_free(database: Database) -> None:
    first, second = with_attempt(an_accept()), with_attempt(an_accept())
    assert await append(database.journal, "first", first) == [Committed(1)]
    assert await append(database.journal, "second", second) == [Committed(3)]


async def test_an_order_that_a_venue_reported_on_before_is_not_sent(database: Database) -> None:
    accepted = an_accept(key="lost")
    await append(database.journal, "report", unmatched_report(a_report(state_after(accepted), exec_id="stray")))
    assert await append(database.journal, "begun", with_attempt(accepted)) == [Conflict()]
    assert isinstance((await append(database.journal, "queued", accepted))[0], Committed)


async def test_a_later_generation_of_the_key_counts_as_reported_too(database: Database) -> None:
    accepted, later = an_accept(key="lost"), an_accept(key="lost", generation=3)
    await append(database.journal, "report", unmatched_report(a_report(state_after(later), exec_id="stray")))
    assert await append(database.journal, "begun", with_attempt(accepted)) == [Conflict()]


@pytest.mark.parametrize("begins", [False, True])
async def test_an_order_that_exists_is_not_overwritten(database: Database, begins: bool) -> None:
    first = an_accept(key="k")
    await append(database.journal, "first", with_attempt(first))
    twin = an_accept(key="other", client_id=first.orders[0].venue_client_order_id)
    repeated = with_attempt(twin) if begins else twin
    assert await append(database.journal, "twin", repeated) == [Conflict()]
    again = with_attempt(first) if begins else first
    [outcome] = await append(database.journal, "again", again)
    assert isinstance(outcome, Conflict)
    assert outcome.key is not None and outcome.key.order_id == first.orders[0].order_id
    assert len(await database.journal.read(0, 0, 10)) == 2
