"""The recorder: applies a venue's execution reports, each once, in whatever order they arrive.

Reads reports from the venue and states from the journal; writes orders, positions, executions and its own cursor. A
report that cannot be stored, or that corrects an earlier execution, is set aside, and the others are applied.
"""

import asyncio
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import chain

import structlog
from msgspec.structs import replace

from switchyard.domain import decisions
from switchyard.domain.changes import Change, Committed, Cursor, merged
from switchyard.domain.errors import GroupRejected
from switchyard.domain.ids import AccountId, VenueClientOrderId, VenueName
from switchyard.domain.money import ZERO
from switchyard.domain.orders import Order
from switchyard.domain.outbox import OrderState
from switchyard.domain.positions import ACCOUNT_TOTAL, Position, PositionKey, account_total
from switchyard.domain.reasons import bounded_detail
from switchyard.domain.reports import ExecutionReport, is_qualified, is_storable, revises_execution, with_unique_id
from switchyard.flow.decide import TRIES_MAX as DECISIONS_MAX
from switchyard.flow.decide import Commit, Contention, after
from switchyard.flow.executions.batch import is_known_end, one_change, position_keys
from switchyard.flow.executions.gate import VenueGate
from switchyard.flow.executions.identify import new_reports, unstorable_field
from switchyard.flow.executions.strays import IsOurs, Strays, is_never_ours, note_reused_id
from switchyard.flow.wake import Wake
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.queries import Queries
from switchyard.ports.venue import ReportPage, Venue, VenueUnavailable
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

PAGE = 256
# Orders beyond this number wait for the next sweep.
BEHIND_MAX = 1_000
# The pause after a failed read of reports doubles from the first value to the second: reading resumes soon after
# a short failure, and a venue that keeps failing gets few requests.
RETRY_SECONDS = 0.5
RETRY_SECONDS_MAX = 8.0


class Recorder:
    """Applies one venue's reports, starting after its cursor."""

    def __init__(
        self,
        venue: Venue,
        *,
        journal: Journal,
        queries: Queries,
        commit: Commit,
        clock: Clock,
        metrics: Metrics,
        gate: VenueGate | None = None,
        is_ours: IsOurs = is_never_ours,
    ) -> None:
        self._venue = venue
        self._journal = journal
        self._queries = queries
        self._commit = commit
        self._clock = clock
        self._metrics = metrics
        self.gate = gate or VenueGate(venue.name, clock=clock, metrics=metrics)
        self.strays = Strays(
            venue.name,
            journal=journal,
            queries=queries,
            commit=commit,
            metrics=metrics,
            gate=self.gate,
            is_ours=is_ours,
        )
        self._last_number: int | None = None
        self._holds_cursor = False
        self._other_venues: set[VenueName] = set()
        self.behind: dict[VenueClientOrderId, Decimal] = {}
        """Orders whose reported filled total is higher than the sum of the fills that we have, with that total."""
        self.fell_behind = Wake()

    async def run(self) -> None:
        """Record for as long as the process lives; while the venue does not answer, ask it again under backoff."""
        failures = 0
        while True:
            try:
                await self.run_once()  # no pause: `Venue.reports` itself waits when there are none
                failures = 0
            except VenueUnavailable:
                await asyncio.sleep(min(RETRY_SECONDS * 2**failures, RETRY_SECONDS_MAX))
                failures = min(failures + 1, 8)

    async def run_once(self) -> int:
        """Apply one page of reports, then commit the cursor; returns how many reports it had; raises VenueUnavailable.

        After a crash between the two the page is read again, and its reports are recognised by their execution ids.
        """
        if self._last_number is None:
            cursor = await self._journal.cursor(self._cursor_name)
            self._last_number = 0 if cursor is None else cursor.seq
        try:
            page = await self._venue.reports(self._last_number, PAGE)
        except VenueUnavailable as error:
            self.gate.note_unheard(str(error))
            raise
        self.gate.note_heard()
        count = len(page.reports) + len(page.unreadable)
        restarted = self._is_restarted(page, self._last_number)
        if not count and not restarted:
            return 0
        await self.apply(page.reports)
        for unreadable in page.unreadable:
            await self.strays.set_aside_text(f"report {unreadable.number}: {unreadable.text}", unreadable.error)
        self._last_number = 0 if restarted else page.last_number
        if not self._holds_cursor:
            cursor = Cursor(name=self._cursor_name, epoch=0, seq=self._last_number, hash="")
            await self._commit(Change(cursors=(cursor,)))
        return max(count, 1)

    async def apply(self, reports: Sequence[ExecutionReport]) -> int:
        """Apply reports, each once, from the report stream or from a lookup; returns how many changed an order."""
        states = await self._states(reports)
        reports = self._of_this_venue(reports, states)
        named = [self._with_unique_id(report, states) for report in await self._storable(reports, states)]
        by_account: dict[AccountId, list[ExecutionReport]] = {}
        strays = [report for report in named if report.venue_client_order_id not in states]
        if await self.strays.lock_if_ours(report.venue_client_order_id for report in strays):
            # The next process must see these reports again, so that it does not open the venue either.
            self._holds_cursor = True
        for report in await self._new(named, states):
            if report.venue_client_order_id in states:
                by_account.setdefault(states[report.venue_client_order_id].order.account_id, []).append(report)
        positions = await self._journal.load_positions(position_keys(chain(*by_account.values()), states))
        applied = await asyncio.gather(
            *(self._apply(of_account, states, positions) for of_account in by_account.values())
        )
        # After the others: an execution of an order may replace a stray's with the same id, but not the reverse.
        for report in strays:
            await self.strays.file(report)
        return sum(applied)

    async def file_stray(self, report: ExecutionReport) -> None:
        """File a report on an order that is not in this database, or set it aside."""
        for storable in await self._storable([report], {}):
            await self.strays.file(storable)

    async def missed(self, reports: Sequence[ExecutionReport]) -> list[ExecutionReport]:
        """The reports that were never applied."""
        if not reports:
            return []
        states = await self._states(reports)
        storable = [report for report in reports if unstorable_field(report) is None]
        named = [self._with_unique_id(report, states) for report in storable]
        new = await new_reports(self._queries, self._venue.name, named, states)
        return [
            *(storable[number] for number in new),
            *(report for report in reports if unstorable_field(report) is not None),
        ]

    @property
    def _cursor_name(self) -> str:
        return f"venue:{self._venue.name}"

    async def _states(self, reports: Sequence[ExecutionReport]) -> dict[VenueClientOrderId, OrderState]:
        ids = {report.venue_client_order_id for report in reports if is_storable(report.venue_client_order_id)}
        return dict(await self._journal.load_by_client_order_id(list(ids)))

    def _of_this_venue(
        self, reports: Sequence[ExecutionReport], states: Mapping[VenueClientOrderId, OrderState]
    ) -> list[ExecutionReport]:
        """The reports without those on orders of another venue.

        Two venue names may lead to one broker: the recorder of the order's own venue reads the same report and applies
        it. Under a second name its execution id would be new, and the fill would count twice.
        """
        own = []
        for report in reports:
            state = states.get(report.venue_client_order_id)
            if state is None or state.order.venue == self._venue.name:
                own.append(report)
                continue
            self._metrics.reports.labels("other_venue").inc()
            if state.order.venue not in self._other_venues:
                self._other_venues.add(state.order.venue)
                log.error(
                    "report_of_another_venue",
                    venue=self._venue.name,
                    order_venue=state.order.venue,
                    order_id=state.order.order_id,
                    exec_id=report.exec_id,
                )
        return own

    async def _storable(
        self, reports: Sequence[ExecutionReport], states: Mapping[VenueClientOrderId, OrderState]
    ) -> list[ExecutionReport]:
        """The reports that can be applied; the others are set aside, and an unprintable reason is made printable."""
        storable = []
        for report in reports:
            is_stray = report.venue_client_order_id not in states
            if (field := unstorable_field(report)) is not None:
                await self.strays.set_aside(report, f"its {field} cannot be stored", is_stray=is_stray)
            elif revises_execution(report):
                # Applied as a fill it would count the execution twice; an operator compares with the venue's statement.
                error = f"{report.exec_type} of the execution {report.ref_exec_id}: corrections are not applied"
                await self.strays.set_aside(report, error, is_stray=is_stray)
            elif report.reason is not None and not is_storable(report.reason):
                storable.append(replace(report, reason=bounded_detail(report.reason)))
            else:
                storable.append(report)
        return storable

    async def _new(
        self, reports: Sequence[ExecutionReport], states: Mapping[VenueClientOrderId, OrderState]
    ) -> list[ExecutionReport]:
        """The reports on known orders that were not applied before, each under the id to record it with."""
        known = [report for report in reports if report.venue_client_order_id in states]
        new = await new_reports(self._queries, self._venue.name, known, states)
        self._metrics.reports.labels("duplicate").inc(len(known) - len(new))
        return list(new.values())

    def _is_restarted(self, page: ReportPage, after: int) -> bool:
        """Whether the venue numbers its reports from the start again: they are then read from there."""
        if not after or not (page.restarted or (page.reports and page.last_number < after)):
            return False
        self._metrics.report_restarts.labels(self._venue.name).inc()
        log.error("venue_report_numbers_restarted", venue=self._venue.name, last_number=after)
        return True

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
        positions: Mapping[PositionKey, Position],
    ) -> int:
        """Apply the reports of one account, as many as possible in one change.

        All fills that close something write the row of the account's results, and those of a symbol the position's row:
        separate changes would each wait for the commit of the one before.
        """
        waiting = self._without_known_ends(reports, states)
        batch_max, conflicts, applied_count = len(waiting), 0, 0
        while waiting:
            batch = one_change(waiting[:batch_max])
            try:
                changes = self._decide(batch, states, positions)
                change = merged(changes)
                outcome = await self._commit(change)
            except (GroupRejected, ArithmeticError) as error:
                if len(batch) == 1:
                    await self.strays.set_aside(batch[0], repr(error), is_stray=False)
                    waiting = waiting[1:]
                batch_max = max(len(batch) // 2, 1)
                continue
            if isinstance(outcome, Committed):
                for report, applied in zip(batch, changes, strict=True):
                    before = states[report.venue_client_order_id]
                    states[report.venue_client_order_id] = after(before, applied)
                    self._note_applied(before, applied, report)
                positions = {**positions, **{position.key: position for position in change.positions}}
                applied_count += len(batch)
                waiting, conflicts = self._without_known_ends(waiting[len(batch) :], states), 0
                continue
            conflicts += 1
            if conflicts == DECISIONS_MAX:
                raise Contention(f"report {batch[0].exec_id} could not be written in {DECISIONS_MAX} tries")
            if conflicts > 1:
                # Each row of the batch may have a newer version: a smaller batch makes the next conflict less likely.
                batch_max = max(len(batch) // 2, 1)
            states, positions = await asyncio.gather(
                self._states(waiting), self._journal.load_positions(position_keys(waiting, states))
            )
            waiting = self._without_known_ends(await self._new(waiting, states), states)
        return applied_count

    def _without_known_ends(
        self, reports: Sequence[ExecutionReport], states: Mapping[VenueClientOrderId, OrderState]
    ) -> list[ExecutionReport]:
        """The reports without those of an end that is recorded already, which a lookup may have found first."""
        new = [report for report in reports if not is_known_end(report, states[report.venue_client_order_id].order)]
        self._metrics.reports.labels("duplicate").inc(len(reports) - len(new))
        return new

    def _decide(
        self,
        reports: Sequence[ExecutionReport],
        states: Mapping[VenueClientOrderId, OrderState],
        positions: Mapping[PositionKey, Position],
    ) -> list[Change]:
        changes = []
        held = dict(positions)
        for report in reports:
            state, now = states[report.venue_client_order_id], self._clock.now()
            account, symbol = state.order.account_id, state.order.symbol
            total = held.get((account, ACCOUNT_TOTAL)) or account_total(account, now)
            change = decisions.apply_report(state, held.get((account, symbol)), report, now, total=total)
            held.update((position.key, position) for position in change.positions)
            changes.append(change)
        return changes

    def _note_applied(self, before: OrderState, change: Change, report: ExecutionReport) -> None:
        order = change.orders[0]
        self._metrics.reports.labels("applied").inc()
        if before.row("new", 1).status == "uncertain":
            self._metrics.resolved.labels("reported").inc()
            log.info("order_resolved", order_id=order.order_id, trace_id=order.trace_id, kind="new", verdict="reported")
        if is_qualified(report):
            note_reused_id(self._metrics, report)
        if order.filled_qty and "REJECTED" in (before.order.status, report.status):
            self._metrics.contradictions.labels(report.venue).inc()
            log.error("venue_contradiction", venue=report.venue, order_id=order.order_id, filled=str(order.filled_qty))
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
