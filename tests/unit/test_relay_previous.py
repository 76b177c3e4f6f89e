"""Each event names the one before it of its account, also after the database failed in the middle of a page."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from switchyard.domain.errors import JournalUnavailable
from switchyard.domain.ids import WorkerId
from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.journal.lines import BusEvent
from switchyard.flow.bus.relay import HeldLease, PreviousEvents, Relay, RelaySource
from switchyard.telemetry.metrics import Metrics
from tests.support.memory.clock import ManualClock
from tests.support.memory.database import MemoryDatabase
from tests.support.relay import place_orders


class Shelf:
    """A publisher that keeps what it gets; every delivery is done at once."""

    def __init__(self) -> None:
        self.events: list[BusEvent] = []

    async def open(self, former_id: str) -> str:
        return "topic"

    async def topic_id(self, former_id: str) -> str:
        return "topic"

    async def send(self, events: Sequence[BusEvent]) -> "asyncio.Future[None]":
        self.events += events
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def close(self) -> None:
        pass


class FailingQueries:
    """Queries whose second lookup fails."""

    def __init__(self, queries: Any) -> None:
        self._queries = queries
        self.lookups = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queries, name)

    async def last_events(self, **wanted: Any) -> list[JournalEvent]:
        self.lookups += 1
        if self.lookups == 2:
            raise JournalUnavailable("the database restarts")
        found: list[JournalEvent] = await self._queries.last_events(**wanted)
        return found


async def test_a_page_that_failed_half_way_is_linked_anew() -> None:
    clock = ManualClock()
    database, shelf = MemoryDatabase(clock), Shelf()
    queries: Any = FailingQueries(database.queries)
    relay = Relay(
        shelf,
        source=RelaySource(database.journal),
        previous=PreviousEvents(queries),
        lease=HeldLease(
            "events", WorkerId("rly_1"), leases=database.relay_leases, liveness=database.liveness, clock=clock
        ),
        capacity=100,
        clock=clock,
        metrics=Metrics().bus,
    )
    await place_orders(database, 9)
    with pytest.raises(JournalUnavailable):
        await relay.run_once()
    assert await relay.run_once() == 9
    assert [event.event.seq for event in shelf.events] == list(range(1, 10))
    assert [event.previous_seq for event in shelf.events] == [0, 0, 0, 1, 2, 3, 4, 5, 6]
