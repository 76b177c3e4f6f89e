"""Sessions of venues that admit one: one process holds each, and the append refuses the attempts of all others."""

from collections.abc import AsyncIterator

import pytest

from switchyard.adapters.postgres.database import PostgresDatabase
from switchyard.domain import decisions
from switchyard.domain.ids import WorkerId
from switchyard.domain.journal.changes import Change, Committed, Conflict
from tests.support.build import VENUE, an_accept, state_after
from tests.support.memory.clock import START
from tests.support.polling import until

ONE, TWO = WorkerId("one"), WorkerId("two")


@pytest.fixture
async def databases(postgres_url: str) -> AsyncIterator[list[PostgresDatabase]]:
    """The database as two processes have it open."""
    opened = [await PostgresDatabase.open(postgres_url) for _ in range(2)]
    yield opened
    for database in opened:
        await database.close()


async def committed(database: PostgresDatabase, change: Change) -> bool:
    name = f"group-{change.orders[0].order_id}-{change.orders[0].version}-{change.outbox[0].worker}"
    [outcome] = await database.journal.append(0, name, [change], START)
    assert isinstance(outcome, Committed | Conflict)
    return isinstance(outcome, Committed)


async def may_attempt(database: PostgresDatabase, worker: WorkerId) -> bool:
    """Whether the worker's attempt at a new order is committed."""
    accepted = an_accept()
    assert await committed(database, accepted)
    attempt = decisions.begin_attempt(state_after(accepted), accepted.outbox[0], worker, START)
    return await committed(database, attempt)


async def test_one_process_holds_a_session_until_it_releases_it(databases: list[PostgresDatabase]) -> None:
    one, two = (database.sessions for database in databases)
    assert await one.take(VENUE, ONE) and await one.take(VENUE, ONE)
    assert not await two.take(VENUE, TWO)
    await one.release(VENUE)

    async def is_taken() -> bool:
        return await two.take(VENUE, TWO)

    await until(is_taken)
    assert not await one.take(VENUE, ONE)


async def test_only_the_holder_of_a_session_can_commit_an_attempt(databases: list[PostgresDatabase]) -> None:
    one, two = databases
    assert await may_attempt(one, ONE) and await may_attempt(two, TWO)
    await one.sessions.take(VENUE, ONE)
    assert await may_attempt(one, ONE)
    assert not await may_attempt(two, TWO)


async def test_a_holder_that_was_replaced_cannot_commit_an_attempt_although_it_has_not_noticed(
    databases: list[PostgresDatabase],
) -> None:
    one, two = databases
    await one.sessions.take(VENUE, ONE)
    await one.sessions.release(VENUE)  # as after a cut of its connection

    async def is_taken() -> bool:
        return await two.sessions.take(VENUE, TWO)

    await until(is_taken)
    assert not await may_attempt(one, ONE)
    assert await may_attempt(two, TWO)


async def test_a_venue_that_is_shared_again_takes_the_attempts_of_every_worker(
    databases: list[PostgresDatabase],
) -> None:
    one, two = databases
    await one.sessions.take(VENUE, ONE)
    await one.sessions.release(VENUE)
    await two.sessions.share(VENUE)
    assert await may_attempt(one, ONE) and await may_attempt(two, TWO)


async def test_the_loss_of_a_session_is_noticed(databases: list[PostgresDatabase]) -> None:
    [one, _] = databases
    await one.sessions.take(VENUE, ONE)
    one.sessions._held[VENUE].terminate()
    await one.sessions.lost(VENUE)
