"""Take in what venues report: each execution counts once, whatever order it comes in."""

import asyncio
from collections.abc import Sequence

import structlog

from switchyard.domain import decisions
from switchyard.domain.changes import Change, Committed, Cursor
from switchyard.domain.outbox import OrderState
from switchyard.domain.reports import ExecutionReport
from switchyard.flow.decide import TRIES_MAX as DECISIONS_MAX
from switchyard.flow.decide import Commit, Contention, after
from switchyard.flow.metrics import Metrics
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.queries import Queries
from switchyard.ports.venue import Venue

log = structlog.get_logger()

PAGE = 256


class Recorder:
    """Reads one venue's reports from where it left off."""

    def __init__(
        self, venue: Venue, *, journal: Journal, queries: Queries, commit: Commit, clock: Clock, metrics: Metrics
    ) -> None:
        self._venue = venue
        self._journal = journal
        self._queries = queries
        self._commit = commit
        self._clock = clock
        self._metrics = metrics
        self._position: int | None = None

    async def run(self) -> None:
        """Record for as long as the process lives."""
        while True:
            await self.run_once()  # an empty page has waited at the venue already

    async def run_once(self) -> int:
        """Apply one page of reports, then remember the place.

        A crash between the two repeats the page, and every report of it is recognised by its execution id.
        """
        if self._position is None:
            cursor = await self._journal.cursor(self._cursor_name)
            self._position = 0 if cursor is None else cursor.seq
        page = await self._venue.reports(self._position, PAGE)
        if not page.reports:
            return 0
        by_order: dict[str, list[ExecutionReport]] = {}
        for report in page.reports:
            by_order.setdefault(report.venue_client_id, []).append(report)
        states = await self._journal.load_by_client_id([reports[0].venue_client_id for reports in by_order.values()])
        await asyncio.gather(
            *(self._apply(states.get(reports[0].venue_client_id), reports) for reports in by_order.values())
        )
        await self._commit(Change(cursors=(Cursor(name=self._cursor_name, epoch=0, seq=page.last_number, hash=""),)))
        self._position = page.last_number
        return len(page.reports)

    @property
    def _cursor_name(self) -> str:
        return f"venue:{self._venue.name}"

    async def _apply(self, state: OrderState | None, reports: Sequence[ExecutionReport]) -> None:
        for report in reports:
            if state is None:
                await self._note_unmatched(report)
            else:
                state = await self._apply_one(state, report)

    async def _apply_one(self, state: OrderState, report: ExecutionReport) -> OrderState:
        for _ in range(DECISIONS_MAX):
            change = decisions.apply_report(state, report, self._clock.now())
            if isinstance(await self._commit(change), Committed):
                self._note_applied(change, report)
                return after(state, change)
            if await self._queries.has_execution(report.venue, report.exec_id):
                self._metrics.reports.labels("duplicate").inc()
                return state
            state = (await self._journal.load([state.order.order_id]))[state.order.order_id]
        raise Contention(f"report {report.exec_id} could not be written in {DECISIONS_MAX} tries")

    async def _note_unmatched(self, report: ExecutionReport) -> None:
        if isinstance(await self._commit(decisions.unmatched_report(report)), Committed):
            self._metrics.reports.labels("unmatched").inc()
            log.error("a venue reports on an order that nobody knows", venue=report.venue, exec_id=report.exec_id)

    def _note_applied(self, change: Change, report: ExecutionReport) -> None:
        order = change.orders[0]
        self._metrics.reports.labels("applied").inc()
        waited = self._clock.now() - order.accepted_at
        self._metrics.accept_to_report.observe(waited.total_seconds() * 1000)
        if order.filled_qty > order.qty:
            self._metrics.overfills.inc()
            log.error("order overfilled", order_id=order.order_id, exec_id=report.exec_id, filled=str(order.filled_qty))
