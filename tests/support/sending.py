"""A dispatcher and a recorder over the in-memory database, with a venue that takes several orders in one call."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, cast

from switchyard.adapters.system_clock import SystemRandomness
from switchyard.domain.ids import OrderId, VenueName, WorkerId
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OrderState, OutboxStatus
from switchyard.flow.active_kills import ActiveKills
from switchyard.flow.clock import Wake
from switchyard.flow.executions.record import InlineReports, Recorder
from switchyard.flow.health.venues import HealthBoard
from switchyard.flow.sending.dispatch import Dispatcher
from switchyard.flow.sending.lanes import HeldLanes, WaitingLanes
from switchyard.flow.sending.pre_send_checks import Guard
from switchyard.ports.journal import Journal
from switchyard.ports.venue import Capabilities, Dedupe, Lookup, OnDeparture, SendOutcome, Venue, ignore_departure
from switchyard.telemetry.metrics import Metrics
from tests.support.build import VENUE, an_accept
from tests.support.memory.clock import ManualClock
from tests.support.memory.database import MemoryDatabase
from tests.support.sequencing import running_sequencer
from tests.support.wrapped import Forwarding

OWN = WorkerId("own")
Answers = Callable[[Sequence[Order]], Sequence[SendOutcome]]
SLOTS = 64


class BatchVenue:
    """Answers each call with the next of its scripted answers, once `open` is set."""

    def __init__(self, dedupe: Dedupe, *answers: Answers, lookup: Lookup = "all", batch_max: int = 64) -> None:
        self.name: VenueName = VENUE
        self.capabilities = Capabilities(
            dedupe=dedupe, lookup=lookup, acceptance_window=timedelta(seconds=1), batch_max=batch_max
        )
        self.open = asyncio.Event()
        self.open.set()
        self.sent: list[OrderId] = []
        self._answers = list(answers)

    async def submit_many(
        self, orders: Sequence[Order], on_departure: OnDeparture = ignore_departure
    ) -> list[SendOutcome]:
        on_departure()
        self.sent += [order.order_id for order in orders]
        await self.open.wait()
        return list(self._answers.pop(0)(orders))


class Sending:
    """One worker; `journal` wraps the journal that its sequencer writes to."""

    def __init__(
        self,
        venue: BatchVenue,
        journal: Callable[[Journal], Forwarding] = Forwarding,
        retry_max: int = 8,
        guard: Guard | None = None,
        wait_max: timedelta | None = None,
        health: HealthBoard | None = None,
    ) -> None:
        self.clock, self.metrics = ManualClock(), Metrics()
        self.database = MemoryDatabase(self.clock)
        wrapped = cast(Journal, journal(self.database.journal))
        waiting = WaitingLanes(Wake())
        self.sequencer = running_sequencer(wrapped, self.clock, self.metrics, note=waiting.note)
        self.lanes = HeldLanes(self.database.lanes, OWN, self.clock)
        self.kills = ActiveKills(self.database.kills, self.metrics)
        inline_reports: dict[VenueName, InlineReports] = {}
        self.dispatcher = Dispatcher(
            worker=OWN,
            sequencer=self.sequencer,
            queries=self.database.queries,
            liveness=self.database.liveness,
            lanes=self.lanes,
            venues={VENUE: cast(Venue, venue)},
            clock=self.clock,
            randomness=SystemRandomness(),
            metrics=self.metrics,
            batch_size=SLOTS,
            parallelism=1,
            retry_max=retry_max,
            idle_seconds=0.01,
            stuck_after=timedelta(minutes=10),
            wait_max=wait_max,
            kills=self.kills,
            waiting=waiting,
            guard=guard,
            inline_reports=inline_reports,
            health=health,
        )
        self.recorder = Recorder(
            cast(Venue, venue),
            journal=wrapped,
            queries=self.database.queries,
            sequencer=self.sequencer,
            clock=self.clock,
            metrics=self.metrics,
        )
        inline_reports[VENUE] = self.recorder.inline
        self.dispatcher.open_venue(VENUE)

    async def accept(self, count: int = 1, **terms: Any) -> list[OrderId]:
        changes = [an_accept(now=self.clock.now(), **terms) for _ in range(count)]
        for change in changes:
            await self.sequencer.commit(change)
        await self.lanes.renew()
        return [change.orders[0].order_id for change in changes]

    def state(self, order_id: OrderId) -> OrderState:
        return self.database.journal.state(order_id)

    def row_statuses(self) -> list[OutboxStatus]:
        return [row.status for row in self.database.journal.outbox.values()]

    @property
    def in_flight(self) -> float:
        return self.metrics.registry.get_sample_value("outbox_inflight") or 0
