"""The contract of `DatabaseTime`, and the steady clock over it, on every engine."""

from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest

from switchyard.adapters.postgres.database import PostgresDatabase
from switchyard.adapters.sqlite.database import SqliteDatabase
from switchyard.adapters.system_clock import SystemClock
from switchyard.domain.decisions import begin_attempt, is_past_deadline, record_unsent
from switchyard.flow.clock import REFRESH_AFTER, DatabaseClock
from switchyard.ports.journal import DatabaseTime, StoredTime, TimeReading
from switchyard.telemetry.metrics import Metrics
from tests.support.build import WORKER, an_accept, state_after
from tests.support.databases import Database
from tests.support.journal_checks import commit
from tests.support.memory.clock import ManualClock
from tests.support.memory.database import MemoryDatabase
from tests.support.polling import until
from tests.support.stepped import step_server_clock
from tests.support.wrapped import Forwarding

HOUR = timedelta(hours=1)
SOON = timedelta(seconds=30)


async def step(database: Database, ahead: timedelta) -> None:
    """Step the database's wall clock."""
    match database:
        case MemoryDatabase():
            clock = database.time._clock
            assert isinstance(clock, ManualClock)
            clock.step(ahead)
        case SqliteDatabase():
            database.time._clock = ManualClock(SystemClock().now() + ahead)
        case PostgresDatabase():
            await step_server_clock(database._url, ahead)


def clock_of(database: Database) -> DatabaseClock:
    if not isinstance(database, MemoryDatabase):
        return DatabaseClock(database.time, SystemClock(), Metrics())
    manual = database.time._clock
    assert isinstance(manual, ManualClock)

    async def sleep(seconds: float) -> None:
        manual.advance(timedelta(seconds=seconds))

    return DatabaseClock(database.time, manual, Metrics(), sleep=sleep)


async def test_the_wall_clock_is_in_utc_and_does_not_decrease(database: Database) -> None:
    first, second = await database.time.read(), await database.time.read()
    assert first.wall.tzinfo is not None
    assert timedelta(0) <= second.wall - first.wall < HOUR


async def test_the_newest_event_is_known(database: Database) -> None:
    clock = clock_of(database)
    now = await clock.start()
    before = (await database.time.read()).newest_event_at
    assert before is None or before < now - 24 * HOUR
    outcome = await database.journal.append(0, "group", [an_accept(now=now)], now)
    assert outcome
    newest = (await database.time.read()).newest_event_at
    assert newest is not None
    assert abs(newest - now) < timedelta(milliseconds=1)


async def test_the_time_is_stored_only_over_the_time_that_was_read(database: Database) -> None:
    reading = await database.time.read()
    assert reading.stored is None
    first = StoredTime(ahead=HOUR, written_at=reading.wall, boot_id=None, boot_seconds=1.5, jumped_at=None)
    second = StoredTime(
        ahead=-HOUR, written_at=reading.wall + SOON, boot_id="b", boot_seconds=31.5, jumped_at=reading.wall
    )
    assert await database.time.store(first, read=None)
    assert (await database.time.read()).stored == first
    assert await database.time.store(second, read=first)
    assert not await database.time.store(first, read=None)
    assert not await database.time.store(first, read=first)
    assert (await database.time.read()).stored == second


async def test_the_stored_time_outlives_a_restart_of_an_embedded_database(tmp_path: Path) -> None:
    path = tmp_path / "switchyard.db"
    await SqliteDatabase.upgrade(path)
    database = await SqliteDatabase.open(path)
    wall = (await database.time.read()).wall
    stored = StoredTime(ahead=HOUR, written_at=wall, boot_id="b", boot_seconds=31.5, jumped_at=wall)
    await database.time.store(stored, read=None)
    await database.close()
    database = await SqliteDatabase.open(path)
    assert (await database.time.read()).stored == stored
    await database.close()


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
async def test_after_a_step_orders_are_neither_held_nor_expired(database: Database, ahead: timedelta) -> None:
    clock = clock_of(database)
    now = await clock.start()
    started_at = clock.monotonic()
    failing, ioc = an_accept(now=now), an_accept(now=now, type="MARKET", price=None, time_in_force="IOC")
    attempt = begin_attempt(state_after(failing), failing.outbox[0], WORKER, now)
    failed = record_unsent(state_after(attempt), attempt.outbox[0], "BROKER_DOWN", now, now)
    for change in (failing, ioc, attempt, failed):
        await commit(database.journal, change)
    await step(database, ahead)

    after = await clock.look()

    assert abs(after - now) < SOON
    due = await database.queries.due(after, 10)
    assert [item.row.order_id for item in due] == [failing.orders[0].order_id, ioc.orders[0].order_id]
    elapsed_seconds = clock.monotonic() - started_at
    assert not is_past_deadline(ioc.orders[0], after) or elapsed_seconds > 2.4, "it expired early"


async def test_after_a_step_back_and_a_restart_an_order_that_cannot_wait_has_expired(database: Database) -> None:
    now = await clock_of(database).start()
    ioc = an_accept(now=now, type="MARKET", price=None, time_in_force="IOC")
    outcomes = await database.journal.append(0, "group", [ioc], now)
    assert outcomes
    await step(database, -HOUR)

    restarted = await clock_of(database).start()

    assert timedelta(0) < restarted - now < SOON
    assert is_past_deadline(ioc.orders[0], restarted)


class SteppedAfterReading(Forwarding):
    """Database times whose wall clock is stepped once, between a reading and what follows it."""

    def __init__(self, database: PostgresDatabase) -> None:
        super().__init__(database.time)
        self._database = database
        self.ahead: timedelta | None = None

    async def read(self) -> TimeReading:
        reading: TimeReading = await self.port.read()
        if self.ahead is not None:
            await step(self._database, self.ahead)
            self.ahead = None
        return reading


async def test_a_step_between_reading_and_storing_moves_no_process(postgres_url: str) -> None:
    first, second = [await PostgresDatabase.open(postgres_url) for _ in range(2)]
    try:
        stepped = SteppedAfterReading(first)
        storing, looking = DatabaseClock(cast(DatabaseTime, stepped), SystemClock(), Metrics()), clock_of(second)
        await storing.start()
        now = await looking.start()
        stored = (await first.time.read()).stored

        async def is_due() -> bool:
            reading = await first.time.read()
            return stored is not None and reading.wall - stored.written_at > REFRESH_AFTER

        await until(is_due)
        stepped.ahead = 25 * HOUR
        await storing.look()
        assert (await first.time.read()).stored != stored, "it was stored after the step"
        assert await looking.look() - now < SOON
        assert await storing.look() - now < SOON
    finally:
        await first.close()
        await second.close()


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
async def test_a_process_that_starts_after_a_step_agrees_with_one_that_runs(
    postgres_url: str, ahead: timedelta
) -> None:
    first, second = [await PostgresDatabase.open(postgres_url) for _ in range(2)]
    try:
        running = clock_of(first)
        await running.start()
        await step(first, ahead)
        await running.look()
        later = clock_of(second)
        await later.start()
        assert abs(later.now() - running.now()) < timedelta(seconds=0.5)
    finally:
        await first.close()
        await second.close()
