"""The recorder: applies a venue's execution reports, each once, in whatever order they arrive.

Reads reports from the venue and states from the journal; writes orders, positions, executions and its own cursor.
"""

import asyncio
from collections.abc import Mapping, Sequence
from decimal import Decimal

import structlog

from switchyard.domain import decisions
from switchyard.domain.changes import Change, Committed, Cursor, merged
from switchyard.domain.ids import VenueClientOrderId
from switchyard.domain.lifecycle import is_final
from switchyard.domain.money import ZERO
from switchyard.domain.orders import Order
from switchyard.domain.outbox import OrderState
from switchyard.domain.positions import Position, PositionKey
from switchyard.domain.reports import ExecutionReport, with_unique_id
from switchyard.flow.decide import TRIES_MAX as DECISIONS_MAX
from switchyard.flow.decide import Commit, Contention, after
from switchyard.flow.wake import Wake
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.queries import Queries
from switchyard.ports.venue import Venue, VenueUnavailable
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

PAGE = 256
# The pause after a failed read of reports.
RETRY_SECONDS = 1.0
# Orders beyond this number wait for the next sweep.
BEHIND_MAX = 1_000


class Recorder:
    """Applies one venue's reports, starting after its cursor."""

    def __init__(
        self, venue: Venue, *, journal: Journal, queries: Queries, commit: Commit, clock: Clock, metrics: Metrics
    ) -> None:
        self._venue = venue
        self._journal = journal
        self._queries = queries
        self._commit = commit
        self._clock = clock
        self._metrics = metrics
        self._last_number: int | None = None
        self.behind: dict[VenueClientOrderId, Decimal] = {}
        """Orders whose reported filled total is higher than the sum of the fills that we have, with that total."""
        self.fell_behind = Wake()

    async def run(self) -> None:
        """Record for as long as the process lives."""
        while True:
            try:
                await self.run_once()  # no pause: `Venue.reports` itself waits when there are none
            except VenueUnavailable as error:
                log.warning("venue_reports_failed", venue=self._venue.name, error=str(error))
                await asyncio.sleep(RETRY_SECONDS)

    async def run_once(self) -> int:
        """Apply one page of reports, then commit the cursor; returns how many reports it had; raises VenueUnavailable.

        After a crash between the two the page is read again, and its reports are recognised by their execution ids.
        """
        if self._last_number is None:
            cursor = await self._journal.cursor(self._cursor_name)
            self._last_number = 0 if cursor is None else cursor.seq
        page = await self._venue.reports(self._last_number, PAGE)
        if page.last_number == self._last_number and not page.reports:
            return 0
        if page.restarted:
            log.error("venue_reports_restarted", venue=self._venue.name, number=page.last_number)
        for unreadable in page.unreadable:
            log.error(
                "report_unreadable",
                venue=self._venue.name,
                number=unreadable.number,
                error=unreadable.error,
                text=unreadable.text,
            )
        await self.apply(page.reports)
        await self._commit(Change(cursors=(Cursor(name=self._cursor_name, epoch=0, seq=page.last_number, hash=""),)))
        self._last_number = page.last_number
        return len(page.reports) + len(page.unreadable)

    async def apply(self, reports: Sequence[ExecutionReport]) -> int:
        """Apply reports, each once, from the report stream or from a lookup; returns how many changed an order."""
        states = await self._states(reports)
        by_position: dict[PositionKey, list[ExecutionReport]] = {}
        unique = [self._with_unique_id(report, states) for report in reports]
        strays = [report for report in unique if report.venue_client_order_id not in states]
        for report in unique:
            if report.venue_client_order_id in states:
                order = states[report.venue_client_order_id].order
                by_position.setdefault((order.account_id, order.symbol), []).append(report)
        positions = await self._journal.load_positions(list(by_position))
        applied = await asyncio.gather(
            *(self._apply(of_position, states, key, positions.get(key)) for key, of_position in by_position.items()),
            *(self._record_unmatched(report) for report in strays),
        )
        return sum(applied)

    async def missed(self, reports: Sequence[ExecutionReport]) -> list[ExecutionReport]:
        """The reports that were never applied."""
        if not reports:
            return []
        states = await self._states(reports)
        ids = [self._with_unique_id(report, states).exec_id for report in reports]
        applied = await self._queries.executions(self._venue.name, ids)
        return [report for report, exec_id in zip(reports, ids, strict=True) if exec_id not in applied]

    @property
    def _cursor_name(self) -> str:
        return f"venue:{self._venue.name}"

    async def _states(self, reports: Sequence[ExecutionReport]) -> dict[VenueClientOrderId, OrderState]:
        return dict(
            await self._journal.load_by_client_order_id(list({report.venue_client_order_id for report in reports}))
        )

    def _with_unique_id(
        self, report: ExecutionReport, states: Mapping[VenueClientOrderId, OrderState]
    ) -> ExecutionReport:
        state = states.get(report.venue_client_order_id)
        scope = self._venue.capabilities.execution_ids
        return with_unique_id(report, scope, None if state is None else state.order.symbol)

    async def _apply(
        self,
        reports: Sequence[ExecutionReport],
        states: dict[VenueClientOrderId, OrderState],
        key: PositionKey,
        position: Position | None,
    ) -> int:
        """Apply the reports of one position, as many as possible in one change.

        All of them write the position's row: separate changes would each wait for the commit of the one before.
        """
        waiting = self._without_known_ends(reports, states)
        batch_max, conflicts, applied_count = len(waiting), 0, 0
        while waiting:
            batch = _one_change(waiting[:batch_max])
            changes = self._decide(batch, states, position)
            change = merged(changes)
            if isinstance(await self._commit(change), Committed):
                for report, applied in zip(batch, changes, strict=True):
                    states[report.venue_client_order_id] = after(states[report.venue_client_order_id], applied)
                    self._note_applied(applied, report)
                position = change.positions[-1] if change.positions else position
                applied_count += len(batch)
                waiting, conflicts = self._without_known_ends(waiting[len(batch) :], states), 0
                continue
            conflicts += 1
            if conflicts == DECISIONS_MAX:
                raise Contention(f"report {batch[0].exec_id} could not be written in {DECISIONS_MAX} tries")
            if conflicts > 1:
                # Each row of the batch may have a newer version: a smaller batch makes the next conflict less likely.
                batch_max = max(len(batch) // 2, 1)
            waiting, states, positions = await asyncio.gather(
                self._not_yet_applied(waiting), self._states(waiting), self._journal.load_positions([key])
            )
            position = positions.get(key)
            waiting = self._without_known_ends(waiting, states)
        return applied_count

    def _without_known_ends(
        self, reports: Sequence[ExecutionReport], states: Mapping[VenueClientOrderId, OrderState]
    ) -> list[ExecutionReport]:
        """The reports without those of an end that is recorded already, which a lookup may have found first."""
        new = [report for report in reports if not _is_known_end(report, states[report.venue_client_order_id].order)]
        self._metrics.reports.labels("duplicate").inc(len(reports) - len(new))
        return new

    def _decide(
        self,
        reports: Sequence[ExecutionReport],
        states: Mapping[VenueClientOrderId, OrderState],
        position: Position | None,
    ) -> list[Change]:
        changes = []
        for report in reports:
            change = decisions.apply_report(states[report.venue_client_order_id], position, report, self._clock.now())
            position = change.positions[0] if change.positions else position
            changes.append(change)
        return changes

    async def _not_yet_applied(self, reports: Sequence[ExecutionReport]) -> list[ExecutionReport]:
        applied = await self._queries.executions(self._venue.name, [report.exec_id for report in reports])
        new = [report for report in reports if report.exec_id not in applied]
        self._metrics.reports.labels("duplicate").inc(len(reports) - len(new))
        return new

    async def _record_unmatched(self, report: ExecutionReport) -> int:
        if isinstance(await self._commit(decisions.unmatched_report(report)), Committed):
            self._metrics.reports.labels("unmatched").inc()
            log.error(
                "report_unmatched",
                venue=report.venue,
                exec_id=report.exec_id,
                client_order_id=report.venue_client_order_id,
            )
        return 0

    def _note_applied(self, change: Change, report: ExecutionReport) -> None:
        order = change.orders[0]
        self._metrics.reports.labels("applied").inc()
        waited = self._clock.now() - order.accepted_at
        self._metrics.accept_to_report.observe(waited.total_seconds() * 1000)
        self._compare_totals(order, report)
        if order.filled_qty > order.qty:
            self._metrics.overfills.inc()
            log.error("order_overfilled", order_id=order.order_id, exec_id=report.exec_id, filled=str(order.filled_qty))

    def _compare_totals(self, order: Order, report: ExecutionReport) -> None:
        """Note an order whose reported total exceeds our fills; a report that comes out of order may close the gap."""
        client_id = order.venue_client_order_id
        reported_qty = max(report.filled_qty_total, self.behind.get(client_id, ZERO))
        if order.filled_qty >= reported_qty:
            self.behind.pop(client_id, None)
        elif client_id in self.behind or len(self.behind) < BEHIND_MAX:
            self.behind[client_id] = reported_qty
            self.fell_behind.notify()


def _is_known_end(report: ExecutionReport, order: Order) -> bool:
    return not report.last_qty and is_final(order.status) and order.status == report.status


def _one_change(reports: Sequence[ExecutionReport]) -> Sequence[ExecutionReport]:
    """The first reports that fit into one change, which may write each order and each execution once."""
    seen: set[str] = set()
    for number, report in enumerate(reports):
        if seen & {report.venue_client_order_id, report.exec_id}:
            return reports[:number]
        seen |= {report.venue_client_order_id, report.exec_id}
    return reports
