"""Lane ownership: each lane has one owner, and live workers share the lanes evenly."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from switchyard.adapters.postgres.database import PostgresDatabase
from switchyard.adapters.postgres.liveness import PostgresLanes
from switchyard.domain.errors import DifferentDeclarations
from switchyard.domain.ids import VenueName, WorkerId
from switchyard.domain.orders.outbox import LANES
from tests.support.databases import Database
from tests.support.memory.clock import ManualClock
from tests.support.memory.database import MemoryDatabase
from tests.support.stepped import step_server_clock

ONE, TWO, THREE = WorkerId("one"), WorkerId("two"), WorkerId("three")
ALL = frozenset(range(LANES))


@pytest.fixture
async def databases(postgres_url: str) -> AsyncIterator[list[PostgresDatabase]]:
    """The database as three processes have it open, each with its own worker."""
    opened = [await PostgresDatabase.open(postgres_url) for _ in range(3)]
    for database, worker in zip(opened, (ONE, TWO, THREE), strict=True):
        await database.liveness.hold(worker)
    yield opened
    for database in opened:
        await database.close()


async def test_a_worker_alone_has_every_lane(database: Database) -> None:
    await database.liveness.hold(ONE)
    held = await database.lanes.hold(ONE, [])
    assert (held.lanes, held.share) == (ALL, LANES)


async def test_a_second_worker_gets_what_the_first_gives_up(databases: list[PostgresDatabase]) -> None:
    one, two, _ = databases
    await one.lanes.hold(ONE, [])
    assert (await two.lanes.hold(TWO, [])).lanes == frozenset()
    held = await one.lanes.hold(ONE, [])
    assert (held.lanes, held.share) == (ALL, LANES // 2)

    kept = (await one.lanes.hold(ONE, list(range(LANES // 2, LANES)))).lanes
    gained = (await two.lanes.hold(TWO, [])).lanes

    assert kept == frozenset(range(LANES // 2))
    assert gained == ALL - kept
    assert (await one.lanes.hold(ONE, [0, 1])).lanes == kept, "nobody else took them, so they come back"


async def test_three_workers_never_share_a_lane(databases: list[PostgresDatabase]) -> None:
    held: dict[WorkerId, list[int]] = {}
    for _ in range(4):
        for database, worker in zip(databases, (ONE, TWO, THREE), strict=True):
            share = await database.lanes.hold(worker, held.get(worker, []))
            held[worker] = sorted(share.lanes)[share.share :]
    owned = [(await database.lanes.hold(worker, [])).lanes for database, worker in zip(databases, held, strict=True)]
    assert sum(len(lanes) for lanes in owned) == LANES
    assert frozenset().union(*owned) == ALL
    assert max(len(lanes) for lanes in owned) - min(len(lanes) for lanes in owned) <= 2


async def test_the_lanes_of_a_dead_worker_are_taken_at_once(databases: list[PostgresDatabase]) -> None:
    one, two, _ = databases
    await one.lanes.hold(ONE, [])
    assert (await two.lanes.hold(TWO, [])).lanes == frozenset()
    await one.close()
    assert (await two.lanes.hold(TWO, [])).lanes == ALL


async def test_the_lanes_of_a_silent_worker_are_taken_though_it_lives(
    databases: list[PostgresDatabase], postgres_url: str
) -> None:
    one, two, _ = databases
    await one.lanes.hold(ONE, [])
    clock = ManualClock()
    lanes = PostgresLanes(two._reader, clock, silence_max=timedelta(seconds=10))
    assert (await lanes.hold(TWO, [])).lanes == frozenset()
    clock.advance(timedelta(seconds=9))
    await one.lanes.hold(ONE, [])
    assert (await lanes.hold(TWO, [])).lanes == frozenset()
    clock.advance(timedelta(seconds=9))
    assert (await lanes.hold(TWO, [])).lanes == frozenset(), "it called 9 s ago"
    clock.advance(timedelta(seconds=2))
    assert (await lanes.hold(TWO, [])).lanes == ALL
    assert (await one.lanes.hold(ONE, [])).lanes == frozenset(), "the silent worker learns that it lost them"


async def test_a_worker_that_calls_at_the_last_moment_keeps_its_lanes(databases: list[PostgresDatabase]) -> None:
    one, two, _ = databases
    clock = ManualClock()
    await one.lanes.hold(ONE, [])
    lanes = PostgresLanes(two._reader, clock)
    await lanes.hold(TWO, [])
    clock.advance(timedelta(minutes=1))
    await one.lanes.hold(ONE, [])
    assert (await lanes.hold(TWO, [])).lanes == frozenset()


async def test_a_step_of_the_servers_clock_makes_no_worker_silent(
    databases: list[PostgresDatabase], postgres_url: str
) -> None:
    one, two, _ = databases
    await one.lanes.hold(ONE, [])
    for hours in (1, -1):
        await step_server_clock(postgres_url, timedelta(hours=hours))
        assert (await two.lanes.hold(TWO, [])).lanes == frozenset()
        assert (await one.lanes.hold(ONE, [])).lanes == ALL


A, B = VenueName("a"), VenueName("b")


@pytest.mark.parametrize("engine", ["memory", "postgres"])
async def test_workers_that_declare_a_venue_differently_do_not_run_at_the_same_time(
    engine: str, databases: list[PostgresDatabase]
) -> None:
    memory = MemoryDatabase(ManualClock())
    one, two, three = [memory] * 3 if engine == "memory" else databases
    for worker in (ONE, TWO, THREE):
        await memory.liveness.hold(worker)
    strong, weak = {A: "dedupe=permanent", B: "same"}, {A: "dedupe=none", B: "same"}
    await one.lanes.hold(ONE, [], strong)
    for _ in range(2):
        with pytest.raises(DifferentDeclarations, match=r"venue a: worker one, .*permanent; .*dedupe=none.*VENUE_.*_A"):
            await two.lanes.hold(TWO, [], weak)
    # It was not registered: the first one keeps every lane, and one that agrees, or has other venues, joins.
    assert (await one.lanes.hold(ONE, [], strong)).share == LANES
    assert (await two.lanes.hold(TWO, [], {B: "same", VenueName("c"): "other"})).lanes == frozenset()
    await three.lanes.hold(THREE, [], strong)
    with pytest.raises(DifferentDeclarations):
        await two.lanes.hold(TWO, [], weak)


@pytest.mark.parametrize("gone", ["ended", "silent"])
async def test_other_declarations_are_possible_once_the_worker_is_gone(
    databases: list[PostgresDatabase], gone: str
) -> None:
    one, two, _ = databases
    clock = ManualClock()
    lanes = PostgresLanes(two._reader, clock)
    await one.lanes.hold(ONE, [], {A: "strong"})
    with pytest.raises(DifferentDeclarations):
        await lanes.hold(TWO, [], {A: "weak"})
    if gone == "ended":
        await one.liveness.close()
    else:
        clock.advance(timedelta(seconds=11))
    assert (await lanes.hold(TWO, [], {A: "weak"})).lanes == ALL
    with pytest.raises(DifferentDeclarations, match="worker two"):  # it was only paused, and ends now
        await one.lanes.hold(ONE, [], {A: "strong"})
