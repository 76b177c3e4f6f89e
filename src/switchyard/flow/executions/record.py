"""The recorder: applies a venue's execution reports, each once, in whatever order they arrive, page by page.

Reads reports from the venue and the states of their orders; proposes to the sequencer what they change, and writes
its own cursor. Reports that came with an answer are settled with it; gaps in a venue's numbers are noticed.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal

import structlog
from msgspec.structs import replace

from switchyard.domain import decisions
from switchyard.domain.accounts.positions import ACCOUNT_TOTAL, account_total
from switchyard.domain.errors import GroupRejected
from switchyard.domain.ids import VenueClientOrderId, VenueName
from switchyard.domain.journal.changes import Change, Conflict, Cursor
from switchyard.domain.orders.lifecycle import is_final
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OrderState, OutboxRow
from switchyard.domain.orders.reasons import bounded_detail
from switchyard.domain.orders.reports import (
    ExecutionReport,
    is_qualified,
    is_storable,
    revises_execution,
    with_unique_id,
)
from switchyard.domain.risk.claims import TradingDay
from switchyard.domain.values import ZERO
from switchyard.flow.clock import Wake
from switchyard.flow.commit.groups import Decided, Decision, Failed, Positions
from switchyard.flow.commit.sequencer import TRIES_MAX as DECISIONS_MAX
from switchyard.flow.commit.sequencer import Contention, Sequencer
from switchyard.flow.executions.revisions import ConfirmedEnds, Revisions
from switchyard.flow.executions.strays import (
    IsOurs,
    LeftOrders,
    States,
    Strays,
    VenueGate,
    is_known_end,
    is_never_ours,
    new_reports,
    note_reused_id,
    of_order,
    unstorable_field,
)
from switchyard.flow.health.copies import CopyWatch
from switchyard.flow.lost_history import LostAmends
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.queries import Queries
from switchyard.ports.venue import ReportPage, Venue, VenueUnavailable
from switchyard.telemetry.metrics import Metrics
from switchyard.telemetry.traces import call_for

# The recorder reads a report soon after it came with an answer; one that it reads later is recognised by its recorded
# execution, which takes a query.
APPLIED_MAX = 4_096

Key = tuple[VenueClientOrderId, str]


class InlineReports:
    """The reports of one venue that came with its answers."""

    def __init__(
        self,
        decision: Callable[[ExecutionReport, Order, datetime], Decision | None],
        note_applied: Callable[[OrderState, Change, ExecutionReport], None],
    ) -> None:
        """`decision` applies a report; None if only the recorder can."""
        self._decision = decision
        self._note_applied = note_applied
        self._under_way: set[Key] = set()
        self._ended = asyncio.Event()
        self._applied: dict[Key, None] = {}

    def begin(self, order: Order, reports: Sequence[ExecutionReport], now: datetime) -> list[Decision]:
        """Return the decisions that apply the reports on the order, or none; otherwise `end` must follow."""
        decisions: list[Decision] = []
        for report in reports:
            decision = self._decision(report, order, now)
            if decision is None:
                return []  # in the order of the stream, or not at all
            decisions.append(decision)
        for report in reports:
            self._under_way.add((report.venue_client_order_id, report.exec_id))
        return decisions

    def end(self, reports: Sequence[ExecutionReport], applied: Sequence[Decided]) -> None:
        """Take note that the first of these reports were applied; the others are left to the recorder."""
        for report, (before, change) in zip(reports, applied, strict=False):
            self._applied[report.venue_client_order_id, report.exec_id] = None
            self._note_applied(before, change, report)
        for report in reports:
            self._under_way.discard((report.venue_client_order_id, report.exec_id))
        while len(self._applied) > APPLIED_MAX:
            del self._applied[next(iter(self._applied))]
        self._ended.set()

    async def others(self, reports: Sequence[ExecutionReport]) -> list[ExecutionReport]:
        """The reports that are still to be applied; waits for those that are being committed with their answers."""
        keys = [(report.venue_client_order_id, report.exec_id) for report in reports]
        await asyncio.sleep(0)  # an answer that has arrived before its report is recorded first, and the report with it
        while not self._under_way.isdisjoint(keys):
            self._ended.clear()
            await self._ended.wait()
        return [report for report, key in zip(reports, keys, strict=True) if key not in self._applied]


log = structlog.get_logger()

PAGE = 256
# Orders beyond this number wait for the next sweep.
BEHIND_MAX = 1_000
# How often the cursor is committed: it only saves reading reports again after a start, and a commit of its own for each
# report would be as dear as the report.
# From one read that finds nothing to the next one.
EMPTY_SECONDS = 0.25
CURSOR_SECONDS = 1.0
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
        sequencer: Sequencer,
        clock: Clock,
        metrics: Metrics,
        gate: VenueGate | None = None,
        is_ours: IsOurs = is_never_ours,
        trading_day: TradingDay | None = None,
        copies: CopyWatch | None = None,
        amends: LostAmends | None = None,
    ) -> None:
        self._trading_day = trading_day
        self._day: tuple[datetime | None, date | None] = None, None
        self._copies = copies
        self._venue = venue
        self._journal = journal
        self._queries = queries
        self._sequencer = sequencer
        self._clock = clock
        self._metrics = metrics
        self.gate = gate or VenueGate(venue.name, clock=clock, metrics=metrics)
        self.strays = Strays(
            venue.name,
            journal=journal,
            queries=queries,
            commit=sequencer.commit,
            metrics=metrics,
            gate=self.gate,
            is_ours=is_ours,
        )
        self.revisions = Revisions(
            venue.name,
            journal=journal,
            queries=queries,
            sequencer=sequencer,
            clock=clock,
            metrics=metrics,
            strays=self.strays,
            trading_day=trading_day,
        )
        self.amends = amends or LostAmends(
            restored_seq=None, is_ours=is_ours, journal=journal, commit=sequencer.commit, clock=clock
        )
        self._ends = ConfirmedEnds(venue, self.amends, self.gate, journal, self._located, clock)
        self.inline = InlineReports(self._inline_decision, self._note_applied)
        self._applied = metrics.reports.labels("applied")
        self._duplicates = metrics.reports.labels("duplicate")
        self._after: str | None = None
        """The venue's cursor."""
        self._knows_cursor = False
        self._holds_cursor = False
        self._is_cursor_behind = False
        self._cursor_at = float("-inf")
        """When the cursor is committed again."""
        self._expects_new = False
        """Whether the last reports were all new: the next ones are then compared with the recorded ones by their commit
        alone."""
        self._left = LeftOrders(venue.name, queries)
        self._other_venues: set[VenueName] = set()
        self.behind: dict[VenueClientOrderId, Decimal] = {}
        """Orders whose reported filled total is higher than the sum of the fills that we have, with that total."""
        self.fell_behind = Wake()

    async def run(self) -> None:
        """Record for as long as the process lives; while the venue does not answer, ask it again under backoff."""
        failures = 0
        while True:
            try:
                asked_at = self._clock.monotonic()
                if not await self.run_once():  # most venues wait themselves until there is a report
                    await asyncio.sleep(max(0.0, EMPTY_SECONDS - (self._clock.monotonic() - asked_at)))
                failures = 0
            except VenueUnavailable:
                await asyncio.sleep(min(RETRY_SECONDS * 2**failures, RETRY_SECONDS_MAX))
                failures = min(failures + 1, 8)

    async def run_once(self) -> int:
        """Apply one page of reports; returns how many reports it had; raises VenueUnavailable.

        After a crash the reports since the last commit of the cursor are read again, and recognised by their execution
        ids.
        """
        if not self._knows_cursor:
            cursor = await self._journal.cursor(self._cursor_name)
            if cursor is not None:
                # Earlier versions stored the number of the last report.
                self._after = cursor.hash or (str(cursor.seq) if cursor.seq else None)
            self._knows_cursor = True
            await self.revisions.read_mark()
        if self._ends.is_waiting:
            await self._apply_page(self._ends.take_waiting())
        try:
            page = await self._venue.reports(self._after, PAGE)
        except VenueUnavailable as error:
            self.gate.note_unheard(str(error))
            raise
        self.gate.note_heard()
        count = len(page.reports) + len(page.unreadable)
        restarted = self._is_restarted(page, self._after)
        if not count and not restarted:
            if self._is_cursor_behind and self._clock.monotonic() >= self._cursor_at:
                await self._commit_cursor()
            return 0
        await self._apply_page(page.reports)
        for unreadable in page.unreadable:
            await self.strays.set_aside_text(f"report: {unreadable.text}", unreadable.error)
        self._after = None if restarted else page.cursor
        self._is_cursor_behind = True
        if page.unreadable or restarted or self._clock.monotonic() >= self._cursor_at:
            await self._commit_cursor()
        return max(count, 1)

    async def _commit_cursor(self) -> None:
        if self._holds_cursor or self._ends.is_waiting:
            return
        self._cursor_at = self._clock.monotonic() + CURSOR_SECONDS
        self._is_cursor_behind = False
        cursor = Cursor(name=self._cursor_name, epoch=0, seq=0, hash=self._after or "")
        await self._sequencer.commit(Change(cursors=(cursor,)))

    async def apply(self, reports: Sequence[ExecutionReport], *, confirmed: bool = False) -> int:
        """Apply reports that were read elsewhere than in the report stream; returns how many changed an order.

        `confirmed`: they come from a lookup, whose amends were recorded.
        """
        await self.revisions.read_mark()
        return await self._apply_page(reports, confirmed=confirmed)

    async def _apply_page(self, reports: Sequence[ExecutionReport], *, confirmed: bool = False) -> int:
        """Apply reports, each once; returns how many changed an order."""
        everything = reports
        reports = await self.inline.others(reports)
        if not reports and not self.amends.is_restored and not self.revisions.may_wait:
            return 0  # all of them came with answers
        reports, states = await (self._located(reports) if confirmed else self._ends.of(reports))
        if any(state.order.venue != self._venue.name for state in states.values()):
            states = await self._reread(states)
            reports = await self._of_this_venue(reports, states)
        named = [self._with_unique_id(report, states) for report in await self._storable(reports, states)]
        strays = [report for report in named if report.venue_client_order_id not in states]
        if await self.strays.lock_if_ours(report.venue_client_order_id for report in strays):
            # The next process must see these reports again, so that it does not open the venue either.
            self._holds_cursor = True
        known = [report for report in named if report.venue_client_order_id in states]
        applied = await self._apply([report for report in known if not revises_execution(report)], states)
        await self.revisions.file([report for report in known if revises_execution(report)], states)
        if self.revisions.may_wait:
            await self.revisions.settle(*await self._named(everything))
        # After the others: an execution of an order may replace a stray's with the same id, but not the reverse.
        for report in strays:
            await self.strays.file(report)
        return applied

    async def file_stray(self, report: ExecutionReport) -> None:
        """File a report on an order that is not in this database, or set it aside."""
        for storable in await self._storable([report], {}):
            await self.strays.file(storable)

    async def missed(self, reports: Sequence[ExecutionReport]) -> list[ExecutionReport]:
        """The reports that were never applied."""
        if not reports:
            return []
        reports, states = await self._states(reports)
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

    async def _states(
        self, reports: Sequence[ExecutionReport]
    ) -> tuple[Sequence[ExecutionReport], dict[VenueClientOrderId, OrderState]]:
        """The reports, each under its order's own id, and the orders by these ids."""
        ids = {report.venue_client_order_id for report in reports if is_storable(report.venue_client_order_id)}
        found = await self._sequencer.states.load_by_client_order_id(ids)
        states = {state.order.venue_client_order_id: state for state in found.values()}
        if states.keys() == found.keys():
            return reports, states
        return [of_order(report, found.get(report.venue_client_order_id)) for report in reports], states

    async def _located(
        self, reports: Sequence[ExecutionReport]
    ) -> tuple[Sequence[ExecutionReport], dict[VenueClientOrderId, OrderState]]:
        """As `_states`, once the orders that the lost history has sent here are here."""
        while True:
            named, states = await self._states(reports)
            if not self.amends.is_restored or not await self._adopt_orders(states):
                return named, states

    async def _adopt_orders(self, states: States) -> bool:
        """Take the orders of other venues, which were not sent from here, to where the lost history has sent them.

        Returns whether there were any.
        """
        is_adopted = False
        foreign = {client_id: state for client_id, state in states.items() if state.order.venue != self._venue.name}
        for client_id, state in (await self._reread(foreign)).items() if foreign else ():
            if await self.amends.adopt_order(state, self._venue.name, client_id):
                self._sequencer.states.forget_order(state.order.order_id)
                is_adopted = True
        return is_adopted

    async def _reread(self, states: States) -> States:
        """The states, those of orders of another venue read again: another worker may have moved them here since."""
        foreign = [client_id for client_id, state in states.items() if state.order.venue != self._venue.name]
        for client_id in foreign:
            self._sequencer.states.forget_order(states[client_id].order.order_id)
        return {**states, **await self._sequencer.states.load_by_client_order_id(foreign)}

    async def _of_this_venue(
        self, reports: Sequence[ExecutionReport], states: Mapping[VenueClientOrderId, OrderState]
    ) -> list[ExecutionReport]:
        """The reports without those on orders of another venue.

        Two venue names may lead to one broker: the recorder of the order's own venue reads the same report and applies
        it. Under a second name its execution id would be new, and the fill would count twice. A report on an order that
        left this venue before it was sent is set aside: it may have been executed here after all. So is one on an order
        that a lost history may have sent here, if it was sent to the other venue since, or has ended.
        """
        own = []
        for report in reports:
            state = states.get(report.venue_client_order_id)
            if state is None or state.order.venue == self._venue.name:
                own.append(report)
                continue
            is_lost = self.amends.may_have_sent_to(self._venue.name, state.order)
            if is_lost or await self._left.has(state.order.order_id):
                self._metrics.contradictions.labels(self._venue.name).inc()
                log.critical("report_after_move", venue=self._venue.name, order_id=state.order.order_id)
                error = f"order {state.order.order_id} went to {state.order.venue} because it was never sent here"
                await self.strays.set_aside(report, error, is_stray=False)
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

    async def _named(
        self, reports: Sequence[ExecutionReport]
    ) -> tuple[list[ExecutionReport], dict[VenueClientOrderId, OrderState]]:
        """The storable reports under the ids that they are recorded with, and the states of their orders."""
        reports, states = await self._states(reports)
        storable = [report for report in reports if unstorable_field(report) is None]
        return [self._with_unique_id(report, states) for report in storable], states

    async def _storable(
        self, reports: Sequence[ExecutionReport], states: Mapping[VenueClientOrderId, OrderState]
    ) -> list[ExecutionReport]:
        """The reports that can be applied; the others are set aside, and an unprintable reason is made printable."""
        storable = []
        for report in reports:
            is_stray = report.venue_client_order_id not in states
            if (field := unstorable_field(report)) is not None:
                await self.strays.set_aside(report, f"its {field} cannot be stored", is_stray=is_stray)
            elif is_stray and revises_execution(report):
                # Applied as a fill it would count the execution twice; an operator compares with the venue's statement.
                error = f"{report.exec_type} of the execution {report.ref_exec_id} of an order that is not known"
                await self.strays.set_aside(report, error, is_stray=True)
            elif report.reason is not None and not is_storable(report.reason):
                storable.append(replace(report, reason=bounded_detail(report.reason)))
            else:
                storable.append(report)
        return storable

    async def _new(
        self, reports: Sequence[ExecutionReport], states: Mapping[VenueClientOrderId, OrderState]
    ) -> list[ExecutionReport]:
        """The reports that were not applied before, each under the id to record it with."""
        new = await new_reports(self._queries, self._venue.name, reports, states)
        self._duplicates.inc(len(reports) - len(new))
        self._expects_new = len(new) == len(reports)
        return list(new.values())

    def _is_restarted(self, page: ReportPage, after: str | None) -> bool:
        """Whether the venue numbers its reports from the start again: they are then read from there."""
        if after is None or not page.restarted:
            return False
        self._metrics.report_restarts.labels(self._venue.name).inc()
        log.error("venue_report_numbers_restarted", venue=self._venue.name, cursor=after)
        return True

    def _with_unique_id(
        self, report: ExecutionReport, states: Mapping[VenueClientOrderId, OrderState]
    ) -> ExecutionReport:
        state = states.get(report.venue_client_order_id)
        scope = self._venue.capabilities.execution_ids
        return with_unique_id(report, scope, None if state is None else state.order.symbol)

    async def _apply(self, reports: Sequence[ExecutionReport], states: Mapping[VenueClientOrderId, OrderState]) -> int:
        """Apply reports on known orders; returns how many changed an order."""
        applied = 0
        waiting = reports if self._expects_new else await self._new(reports, states)
        for _ in range(DECISIONS_MAX):
            if not waiting:
                return applied
            now = self._clock.now()
            answers = await self._sequencer.propose(
                [self._decision(report, states[report.venue_client_order_id].order, now) for report in waiting]
            )
            conflicts = []
            for report, answer in zip(waiting, answers, strict=True):
                match answer:
                    case Decided(before, change):
                        self._note_applied(before, change, report)
                        applied += 1
                    case Conflict():
                        conflicts.append(report)
                    case Failed(GroupRejected() | ArithmeticError() as error):
                        await self.strays.set_aside(report, repr(error), is_stray=False)
                    case Failed(error):
                        raise error
                    case None:
                        self._duplicates.inc()
            # An order has changed meanwhile, or the execution was recorded before.
            waiting = await self._new(conflicts, states) if conflicts else []
        raise Contention(f"report {waiting[0].exec_id} could not be written in {DECISIONS_MAX} tries")

    def _decision(self, report: ExecutionReport, order: Order, now: datetime) -> Decision:
        position, total = (order.account_id, order.symbol), (order.account_id, ACCOUNT_TOTAL)
        if now is not self._day[0] and self._trading_day is not None:
            self._day = now, self._trading_day.of(now)  # once for the reports of a page
        day = self._day[1]

        def decision(state: OrderState, held: Positions) -> Change | None:
            if is_known_end(report, state.order):
                return None  # a lookup found it first
            if not report.last_qty:
                return decisions.apply_report(state, None, report, now)
            results = held[total] or account_total(order.account_id, now)
            return decisions.apply_report(state, held[position], report, now, total=results, day=day)

        return Decision(order.order_id, decision, (position, total) if report.last_qty else ())

    def _inline_decision(self, report: ExecutionReport, order: Order, now: datetime) -> Decision | None:
        if report.venue_client_order_id != order.venue_client_order_id or unstorable_field(report) is not None:
            return None
        if revises_execution(report) or (report.reason is not None and not is_storable(report.reason)):
            return None
        named = with_unique_id(report, self._venue.capabilities.execution_ids, order.symbol)
        return self._decision(named, order, now)

    def _note_applied(self, before: OrderState, change: Change, report: ExecutionReport) -> None:
        row = before.find("new", 1)  # an order that risk rejected has none
        call_for(None if row is None else row.traceparent, self._note_report, before, row, change, report)

    def _note_report(self, before: OrderState, row: OutboxRow | None, change: Change, report: ExecutionReport) -> None:
        order = change.orders[0]
        self._applied.inc()
        if row is not None and row.status == "uncertain":
            self._metrics.resolved.labels("reported").inc()
            log.info("order_resolved", order_id=order.order_id, trace_id=order.trace_id, kind="new", verdict="reported")
        if is_qualified(report):
            note_reused_id(self._metrics, report)
        is_open_again = is_final(before.order.status) and not is_final(order.status)
        if is_open_again or (order.filled_qty and "REJECTED" in (before.order.status, report.status)):
            self._metrics.contradictions.labels(report.venue).inc()
            log.error("venue_contradiction", venue=report.venue, order_id=order.order_id, filled=str(order.filled_qty))
        waited = order.updated_at - order.accepted_at
        self._metrics.accept_to_report.observe(waited.total_seconds() * 1000)
        self._compare_totals(order, report)
        if self._copies is not None:
            self._copies.note_report(before, row, order, report)
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


# Reports may come out of order: the missing ones follow within this time.
GAP_SECONDS = 10.0
PAUSE_SECONDS = 1.0


class GapWatch:
    """Watches one venue without a lookup, or whose sweep is switched off."""

    def __init__(self, venue: VenueName, recorder: Recorder, *, clock: Clock, metrics: Metrics) -> None:
        self._venue = venue
        self._recorder = recorder
        self._clock = clock
        self._metrics = metrics
        self._since: dict[VenueClientOrderId, tuple[Decimal, float]] = {}
        self._alarmed: dict[VenueClientOrderId, Decimal] = {}

    async def run(self) -> None:
        """Watch for as long as the process lives."""
        while True:
            self.run_once()
            await asyncio.sleep(PAUSE_SECONDS)

    def run_once(self) -> int:
        """Raise an alarm, once, for each total that has been ahead of our fills for too long; returns how many."""
        now = self._clock.monotonic()
        behind = self._recorder.behind
        self._since = {
            client_id: known if (known := self._since.get(client_id)) and known[0] == total else (total, now)
            for client_id, total in behind.items()
        }
        self._alarmed = {client_id: total for client_id, total in self._alarmed.items() if client_id in behind}
        late = [
            (client_id, total)
            for client_id, (total, since) in self._since.items()
            if now - since >= GAP_SECONDS and self._alarmed.get(client_id) != total
        ]
        for client_id, total in late:
            self._alarmed[client_id] = total
            self._metrics.quantity_gaps.inc()
            log.error("quantity_gap", venue=self._venue, client_order_id=client_id, filled_there=str(total))
        return len(late)
