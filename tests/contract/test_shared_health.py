"""The health of venues across processes, on every engine: a gateway knows what a worker knows, and not for longer."""

from datetime import timedelta

from switchyard.domain.ids import AccountId
from switchyard.domain.journal.changes import Change, Outcome
from switchyard.flow.health.venues import REPEAT_SECONDS, STALE, HealthBoard, HealthReader, HealthWriter, VenueBreaker
from switchyard.telemetry.metrics import Metrics
from tests.support.build import VENUE
from tests.support.databases import Database
from tests.support.memory.clock import ManualClock

SECOND = timedelta(seconds=1)


async def test_a_gateway_knows_what_a_worker_reported_until_it_is_stale(database: Database) -> None:
    clock, worker, gateway = ManualClock(), HealthBoard(), HealthBoard()
    breaker = VenueBreaker(VENUE, faults_max=1, pause=SECOND, clock=clock, metrics=Metrics())
    worker.watch([breaker])
    commits = 0

    async def commit(change: Change) -> Outcome:
        nonlocal commits
        commits += 1
        [outcome] = await database.journal.append(0, f"health-{commits}", [change], clock.now())
        return outcome

    writer = HealthWriter(worker, [VENUE], commit, clock)
    reader = HealthReader(gateway, [VENUE], database.journal, clock)
    await reader.run_once()
    assert gateway.record(VENUE) is None
    await writer.run_once()
    await reader.run_once()
    assert gateway.record(VENUE) == worker.record(VENUE)
    assert await writer.run_once() == 0, "nothing has changed"

    worker.held_here = lambda _: [AccountId("second"), AccountId("first")]
    assert await writer.run_once() == 1
    await reader.run_once()
    assert gateway.held(VENUE) == ("first", "second")
    worker.held_here = lambda _: []

    breaker.note_hanging(2)
    await writer.run_once()
    await reader.run_once()
    assert not gateway.held(VENUE)
    assert gateway.reason(VENUE) == breaker.reason == "no answer to a probe for 2 s"
    clock.advance(timedelta(seconds=REPEAT_SECONDS))
    assert await writer.run_once() == 1, "still alive"

    clock.advance(STALE + SECOND)
    await reader.run_once()
    assert gateway.record(VENUE) is None
    mark = await database.journal.cursor(f"health:{VENUE}")
    assert mark is not None and mark.epoch == 0, "a restore would take it for a place in the journal"
