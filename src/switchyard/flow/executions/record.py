"""Take in what venues report: each execution counts once, whatever order it comes in."""

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
from switchyard.ports.venue import Venue
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

PAGE = 256
# Beyond this, orders that are behind wait for the next sweep.
BEHIND_MAX = 1_000


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
        self.behind: dict[VenueClientOrderId, Decimal] = {}
        """Orders of which the venue reported a higher filled total than we have, with that total."""
        self.fell_behind = Wake()

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
        await self.apply(page.reports)
        await self._commit(Change(cursors=(Cursor(name=self._cursor_name, epoch=0, seq=page.last_number, hash=""),)))
        self._position = page.last_number
        return len(page.reports)

    async def apply(self, reports: Sequence[ExecutionReport]) -> int:
        """Apply the venue's reports, each once, wherever they come from; returns how many were news of an order."""
        states = await self._states(reports)
        by_position: dict[PositionKey, list[ExecutionReport]] = {}
        named = [self._with_unique_id(report, states) for report in reports]
        strays = [report for report in named if report.venue_client_order_id not in states]
        for report in named:
            if report.venue_client_order_id in states:
                order = states[report.venue_client_order_id].order
                by_position.setdefault((order.account_id, order.symbol), []).append(report)
        positions = await self._journal.load_positions(list(by_position))
        applied = await asyncio.gather(
            *(self._apply(together, states, key, positions.get(key)) for key, together in by_position.items()),
            *(self._note_unmatched(report) for report in strays),
        )
        return sum(applied)

    async def missed(self, reports: Sequence[ExecutionReport]) -> list[ExecutionReport]:
        """Of the venue's reports those that were never applied."""
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
        """Apply the reports that may move one position, as many as possible in one change.

        The position is a row that all of them write: a change for each would wait for the commit of the one before.
        """
        waiting = self._news(reports, states)
        at_once_max, rejections, applied_count = len(waiting), 0, 0
        while waiting:
            batch = _together(waiting[:at_once_max])
            changes = self._decide(batch, states, position)
            change = merged(changes)
            if isinstance(await self._commit(change), Committed):
                for report, applied in zip(batch, changes, strict=True):
                    states[report.venue_client_order_id] = after(states[report.venue_client_order_id], applied)
                    self._note_applied(applied, report)
                position = change.positions[-1] if change.positions else position
                applied_count += len(batch)
                waiting, rejections = self._news(waiting[len(batch) :], states), 0
                continue
            rejections += 1
            if rejections == DECISIONS_MAX:
                raise Contention(f"report {batch[0].exec_id} could not be written in {DECISIONS_MAX} tries")
            if rejections > 1:
                # Any one of the rows may have moved on; the fewer there are, the less likely it is to happen again.
                at_once_max = max(len(batch) // 2, 1)
            waiting, states, positions = await asyncio.gather(
                self._not_yet_applied(waiting), self._states(waiting), self._journal.load_positions([key])
            )
            position = positions.get(key)
            waiting = self._news(waiting, states)
        return applied_count

    def _news(
        self, reports: Sequence[ExecutionReport], states: Mapping[VenueClientOrderId, OrderState]
    ) -> list[ExecutionReport]:
        """The reports without those of an end that is known already: a lookup may have told of it first."""
        news = [report for report in reports if not _is_known_end(report, states[report.venue_client_order_id].order)]
        self._metrics.reports.labels("duplicate").inc(len(reports) - len(news))
        return news

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

    async def _note_unmatched(self, report: ExecutionReport) -> int:
        if isinstance(await self._commit(decisions.unmatched_report(report)), Committed):
            self._metrics.reports.labels("unmatched").inc()
            log.error("a venue reports on an order that nobody knows", venue=report.venue, exec_id=report.exec_id)
        return 0

    def _note_applied(self, change: Change, report: ExecutionReport) -> None:
        order = change.orders[0]
        self._metrics.reports.labels("applied").inc()
        waited = self._clock.now() - order.accepted_at
        self._metrics.accept_to_report.observe(waited.total_seconds() * 1000)
        self._compare_totals(order, report)
        if order.filled_qty > order.qty:
            self._metrics.overfills.inc()
            log.error("order overfilled", order_id=order.order_id, exec_id=report.exec_id, filled=str(order.filled_qty))

    def _compare_totals(self, order: Order, report: ExecutionReport) -> None:
        """Note an order that is filled further than we have heard; a report that was overtaken ends that again."""
        client_id = order.venue_client_order_id
        told_qty = max(report.filled_qty_total, self.behind.get(client_id, ZERO))
        if order.filled_qty >= told_qty:
            self.behind.pop(client_id, None)
        elif client_id in self.behind or len(self.behind) < BEHIND_MAX:
            self.behind[client_id] = told_qty
            self.fell_behind.notify()


def _is_known_end(report: ExecutionReport, order: Order) -> bool:
    return not report.last_qty and is_final(order.status) and order.status == report.status


def _together(reports: Sequence[ExecutionReport]) -> Sequence[ExecutionReport]:
    """The first of the reports, as many as fit in one change: it writes an order and an execution once."""
    seen: set[str] = set()
    for number, report in enumerate(reports):
        if seen & {report.venue_client_order_id, report.exec_id}:
            return reports[:number]
        seen |= {report.venue_client_order_id, report.exec_id}
    return reports
