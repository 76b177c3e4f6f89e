"""A recorder over a database, with a venue whose reports are scripted."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from decimal import Decimal
from itertools import count
from typing import cast

from msgspec.structs import replace

from switchyard.adapters.memory.clock import START, ManualClock
from switchyard.adapters.memory.venue import NullVenue
from switchyard.adapters.venues.paper.book import cursor_text, number_of
from switchyard.domain.accounts.positions import Position
from switchyard.domain.errors import JournalUnavailable
from switchyard.domain.ids import VenueClientOrderId, VenueName
from switchyard.domain.journal.changes import Change, Committed, Outcome
from switchyard.domain.orders.outbox import OrderState
from switchyard.domain.orders.reports import ExecutionIdScope, ExecutionReport, ReportStatus
from switchyard.flow.executions.record import Recorder
from switchyard.flow.executions.strays import VenueGate
from switchyard.ports.journal import Journal
from switchyard.ports.venue import Capabilities, ReportPage, UnreadableReport, VenueOrder, VenueUnavailable
from switchyard.telemetry.metrics import Metrics
from tests.support.build import ACCOUNT, VENUE, a_report, state_after
from tests.support.databases import Database
from tests.support.sequencing import running_sequencer
from tests.support.wrapped import Forwarding

KEY = (ACCOUNT, "USDJPY")
OUR_TAG = "ours"


class ScriptedVenue(NullVenue):
    """Sends the reports of `script`, and shows the orders of `shown`; raises while `is_down`."""

    def __init__(self, name: VenueName = VENUE) -> None:
        super().__init__(name, clock=ManualClock())
        self.script: list[ExecutionReport] = []
        self.unreadable: list[UnreadableReport] = []
        self.shown: list[VenueOrder] = []
        self.reports_down = self.orders_down = self.restarted = False
        self.execution_ids: ExecutionIdScope = "venue"

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, execution_ids=self.execution_ids)

    async def reports(self, after: str | None, limit: int) -> ReportPage:
        await asyncio.sleep(0)  # a recorder that runs must not keep the test from running
        if self.reports_down:
            raise VenueUnavailable("sim: HTTP 503")
        if self.restarted:
            self.restarted = False
            return ReportPage((), after, restarted=True)
        first = number_of(after)
        page, unreadable = tuple(self.script[first : first + limit]), tuple(self.unreadable)
        self.unreadable = []
        return ReportPage(page, cursor_text(first + len(page) + len(unreadable)), unreadable)

    async def open_orders(self) -> AsyncIterator[Sequence[VenueOrder]]:
        if self.orders_down:
            raise VenueUnavailable("sim: HTTP 503")
        yield self.shown


class _Watched(Forwarding):
    """The journal as the recorder's sequencer sees it: notes the commits, and makes the harness's faults."""

    def __init__(self, journal: Journal, harness: "RecorderHarness") -> None:
        super().__init__(journal)
        self._harness = harness

    async def append(self, shard: int, group_id: str, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        harness = self._harness
        if harness.crashes_before_cursor and any(change.cursors for change in changes):
            raise JournalUnavailable("the process ends here")
        if harness.concurrent is not None:
            concurrent, harness.concurrent = harness.concurrent, None
            assert isinstance(await harness.commit(concurrent), Committed)
        outcomes: list[Outcome] = await self.port.append(shard, group_id, changes, now)
        harness.commits += [
            change for change, outcome in zip(changes, outcomes, strict=True) if isinstance(outcome, Committed)
        ]
        return outcomes


class RecorderHarness:
    """A recorder with its database and venue; `concurrent` is committed just before the recorder's next change."""

    def __init__(self, database: Database) -> None:
        self.journal, self.queries = database.journal, database.queries
        self._watched = cast(Journal, _Watched(database.journal, self))
        self.venue = ScriptedVenue()
        self.commits: list[Change] = []
        self.crashes_before_cursor = False
        self.concurrent: Change | None = None
        self.metrics = Metrics()
        self.clock = ManualClock()
        self.start()

    def start(self) -> None:
        """Start a new recorder, as a new process would."""
        self.gate = VenueGate(VENUE, clock=self.clock, metrics=self.metrics)
        self.recorder = Recorder(
            self.venue,
            journal=self.journal,
            queries=self.queries,
            sequencer=running_sequencer(self._watched, self.clock, self.metrics),
            clock=self.clock,
            metrics=self.metrics,
            gate=self.gate,
            is_ours=_is_ours,
        )

    async def commit(self, change: Change) -> Outcome:
        """Commit as another process would."""
        [outcome] = await self.journal.append(0, f"group-{next(_groups)}", [change], START)
        return outcome

    async def orders(self, *accepted: Change) -> list[OrderState]:
        for change in accepted:
            await self.commit(change)
        self.commits.clear()
        return [state_after(change) for change in accepted]

    async def position(self) -> Position:
        return (await self.journal.load_positions([KEY]))[KEY]

    async def state(self, state: OrderState) -> OrderState:
        return (await self.journal.load([state.order.order_id]))[state.order.order_id]

    def report_count(self, result: str) -> float:
        return self.counted("venue_reports_total", result=result)

    def counted(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0


_groups = count(1)


def _is_ours(client_id: VenueClientOrderId) -> bool:
    return client_id.startswith(OUR_TAG)


def fills(states: Sequence[OrderState], qty: str, status: ReportStatus = "PARTIALLY_FILLED") -> list[ExecutionReport]:
    return [
        a_report(state, status, exec_id=f"{state.order.order_id}-{next(_groups)}", qty=Decimal(qty)) for state in states
    ]
