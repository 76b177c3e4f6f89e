"""Compares open orders with the venue: before the first send to it, and in passes afterwards.

Reads the venue's open orders and waiting reports; applies what is missing through the recorder, files orders that
are not in this database as strays, and repeats cancels that were not carried out. The venue is opened for sending
after a complete pass.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, TypeVar, assert_never

import structlog
from msgspec.structs import replace

from switchyard.domain import decisions
from switchyard.domain.ids import OrderId, VenueClientOrderId, VenueName
from switchyard.domain.journal.changes import Change
from switchyard.domain.journal.events import SYSTEM_ACCOUNT
from switchyard.domain.journal.facts import ReportFact
from switchyard.domain.journal.lines import data_of, decode_report_fact
from switchyard.domain.orders.amends import current_id
from switchyard.domain.orders.lifecycle import is_final
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OrderState, is_first_attempt
from switchyard.domain.orders.reasons import EndReason
from switchyard.domain.orders.reports import ExecutionReport, is_storable
from switchyard.domain.values import EXACT, ZERO, canonical
from switchyard.flow.commit.sequencer import Commit, decide
from switchyard.flow.executions.record import Recorder
from switchyard.flow.executions.strays import VenueGate
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.queries import Queries
from switchyard.ports.venue import Venue, VenueOrder, VenueUnavailable, to_find
from switchyard.telemetry.metrics import Metrics

PAGE = 500
# A venue's list of open orders may lag behind its reports by this time.
LAG = timedelta(seconds=10)


async def ended_orders(
    journal: Journal, venue: VenueName, shown: Sequence[VenueClientOrderId], asked_at: datetime
) -> list[OrderId]:
    """Those of the orders that a venue showed open at `asked_at` that had ended here well before."""
    ended = []
    for first in range(0, len(shown), PAGE):
        ids = [client_id for client_id in shown[first : first + PAGE] if is_storable(client_id)]
        for state in (await journal.load_by_client_order_id(ids)).values():
            order = state.order
            if order.venue == venue and is_final(order.status) and order.updated_at <= asked_at - LAG:
                ended.append(order.order_id)
    return ended


log = structlog.get_logger()

RETRY_SECONDS = 1.0
# `reason` of the report that files an open order.
FOUND_OPEN = "FOUND_OPEN_AT_VENUE"


class VenueSync:
    """Synchronises the journal with one venue at start."""

    def __init__(
        self, venue: Venue, recorder: Recorder, *, journal: Journal, clock: Clock, metrics: Metrics, gate: VenueGate
    ) -> None:
        self._venue = venue
        self._recorder = recorder
        self._journal = journal
        self._clock = clock
        self._metrics = metrics
        self._gate = gate

    async def run(self) -> None:
        """Retry until the venue has answered; nothing is sent to it before."""
        while True:
            if await self.run_once():
                return
            await asyncio.sleep(RETRY_SECONDS)

    async def run_once(self) -> bool:
        """Apply the waiting reports, file unknown open orders and open the gate; false while the venue does not answer.

        The open orders are read first: one that ends in between shows up in the reports. Without a lookup, the venue's
        reports are all there is to read.
        """
        open_orders: list[VenueOrder] = []
        asked_at = self._clock.now()
        try:
            if self._venue.capabilities.lookup != "none":
                async for orders in self._venue.open_orders():
                    open_orders += orders
            while await self._recorder.run_once():
                pass
        except VenueUnavailable as error:
            self._gate.note_not_synced(str(error))
            return False
        shown = [order.venue_client_order_id for order in open_orders]
        self._gate.note_ended(await ended_orders(self._journal, self._venue.name, shown, asked_at))
        for first in range(0, len(open_orders), PAGE):
            await self._compare(open_orders[first : first + PAGE])
        log.info("venue_synced", venue=self._venue.name, open_orders=len(open_orders))
        self._gate.open()
        return True

    async def _compare(self, page: Sequence[VenueOrder]) -> None:
        """Take an open order that was not sent from here as sent, and file one that is not in this database.

        The key of a filed order, if it is repeated, is then in doubt instead of sent.
        """
        ids = [order.venue_client_order_id for order in page if is_storable(order.venue_client_order_id)]
        known = await self._journal.load_by_client_order_id(ids)
        for order in page:
            state = known.get(order.venue_client_order_id)
            row = None if state is None else state.find("new", 1)
            if state is not None and (row is None or is_first_attempt(row)):
                # Never sent from here: a lost history sent it, and the key was repeated since then.
                await self._recorder.apply([self._as_report(order)])
        unknown = [order for order in page if order.venue_client_order_id not in known]
        for order in unknown:
            # Placed by another system, or from a database that was lost: an operator has to look at it.
            self._metrics.strays.inc()
            log.error(
                "venue_order_unknown",
                venue=self._venue.name,
                venue_order_id=order.venue_order_id,
                client_order_id=order.venue_client_order_id,
            )
            await self._recorder.file_stray(self._as_report(order))
        await self._recorder.strays.lock_if_ours(order.venue_client_order_id for order in unknown)

    def _as_report(self, order: VenueOrder) -> ExecutionReport:
        return ExecutionReport(
            exec_id=open_order_id(order.venue_client_order_id),
            venue=self._venue.name,
            venue_client_order_id=order.venue_client_order_id,
            venue_order_id=order.venue_order_id,
            status=order.status,
            filled_qty_total=order.filled_qty,
            reason=FOUND_OPEN,
            at=self._clock.now(),
        )


def open_order_id(client_id: VenueClientOrderId) -> str:
    """The execution id under which an unknown open order is filed: one for each order."""
    return f"{client_id}:open"


# Longer than a venue takes to carry out a cancel that it acknowledged, and to report it.
CANCEL_SECONDS = 5.0
# The account's own cancels count too; after so many an operator has to look.
CANCELS_MAX = 5


class CancelWatch:
    """The acknowledged cancels of one venue's orders that are still open there; several watches may run at once."""

    def __init__(self, *, journal: Journal, commit: Commit, clock: Clock, metrics: Metrics) -> None:
        self._journal = journal
        self._commit = commit
        self._clock = clock
        self._metrics = metrics
        self._seen: dict[OrderId, tuple[int, float]] = {}
        self._alarmed: dict[OrderId, int] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether some order should be looked at again soon."""
        return bool(self._seen)

    async def look(self, open_orders: Iterable[OrderId]) -> int:
        """Look at the orders that wait for a cancel and that the venue shows open; returns how many were repeated."""
        states = await self._journal.load(list(open_orders))
        now = self._clock.monotonic()
        seen, repeated = self._seen, 0
        self._seen = {}
        self._alarmed = {order_id: number for order_id, number in self._alarmed.items() if order_id in states}
        for order_id, state in states.items():
            number = _acknowledged_cancel(state)
            if number is None or self._alarmed.get(order_id) == number:
                continue
            first_number, first_at = seen.get(order_id, (0, now))
            if first_number != number:
                self._seen[order_id] = (number, now)
            elif now - first_at < CANCEL_SECONDS:
                self._seen[order_id] = (number, first_at)
            elif number >= CANCELS_MAX:
                self._alarm(state, number)
            else:
                repeated += await self._repeat(state, number)
        return repeated

    async def _repeat(self, state: OrderState, number: int) -> int:
        def decision(newest: OrderState) -> Change | None:
            return decisions.repeat_cancel(newest, number, self._clock.now())

        if await decide(self._journal, self._commit, state.order.order_id, decision, state) is None:
            return 0
        self._metrics.cancels_repeated.inc()
        log.warning("cancel_repeated", venue=state.order.venue, order_id=state.order.order_id, number=number + 1)
        return 1

    def _alarm(self, state: OrderState, number: int) -> None:
        self._alarmed[state.order.order_id] = number
        self._metrics.cancels_ignored.inc()
        log.error("cancel_not_carried_out", venue=state.order.venue, order_id=state.order.order_id, cancels=number)


def _acknowledged_cancel(state: OrderState) -> int | None:
    """The number of the order's last cancel, if the venue acknowledged it and the order still waits for it."""
    cancels = [row for row in state.outbox if row.kind == "cancel"]
    if state.order.status != "CANCEL_REQUESTED" or not cancels:
        return None
    last = max(cancels, key=lambda row: row.number)
    return last.number if last.status == "sent" else None


# Lookups at the same time: a sweep is not urgent and must not load the venue.
LOOKUPS_MAX = 8
# Most reports arrive within this time: an earlier lookup would ask for fills whose reports are on their way.
GRACE = timedelta(seconds=2)
# An absent order may just have ended, with its report on the way; at the next sweep that report has arrived.
ABSENCES_MIN = 2
# A quantity that differs in so many sweeps in a row is not one that was being amended.
DIFFERENCES_MIN = 2
# Alarms are raised once per order; beyond this number of orders the oldest entry is dropped, and may alarm again.
ALARMS_MAX = 10_000

_FOUND_ENDED: EndReason = "FOUND_ENDED_AT_VENUE"
_T = TypeVar("_T")


class Sweeper:
    """Looks up the orders that differ at one venue and applies the fills and ends that are missing here.

    A difference that the venue's own fills do not explain is never guessed: it is counted, logged as an error and left
    as it is. Several sweepers may run at once.
    """

    def __init__(
        self,
        venue: Venue,
        recorder: Recorder,
        *,
        journal: Journal,
        queries: Queries,
        commit: Commit,
        clock: Clock,
        metrics: Metrics,
        interval: timedelta,
    ) -> None:
        self._venue = venue
        self._recorder = recorder
        self._journal = journal
        self._queries = queries
        self._clock = clock
        self._metrics = metrics
        self._interval_seconds = interval.total_seconds()
        self._cancels = CancelWatch(journal=journal, commit=commit, clock=clock, metrics=metrics)
        self._lookups = asyncio.Semaphore(LOOKUPS_MAX)
        self._asked: dict[VenueClientOrderId, Decimal] = {}
        self._is_skipping = False
        self._absences: dict[VenueClientOrderId, int] = {}
        self._gaps: dict[VenueClientOrderId, tuple[Decimal, Decimal]] = {}
        self._amounts: dict[VenueClientOrderId, tuple[Decimal | None, int]] = {}

    async def run(self) -> None:
        """Sweep for as long as the process lives; look up at once an order that falls behind its reported total."""
        swept_at = float("-inf")
        while True:
            if self._clock.monotonic() - swept_at >= self._interval_seconds:
                await self.run_once()
                swept_at = self._clock.monotonic()
            await self.ask_behind_once()
            if self._cancels.is_waiting:
                swept_at = min(swept_at, self._clock.monotonic() + CANCEL_SECONDS - self._interval_seconds)
            rest_seconds = swept_at + self._interval_seconds - self._clock.monotonic()
            await self._recorder.fell_behind.wait(max(rest_seconds, 0.0))

    async def run_once(self) -> int:
        """Compare every open order with the venue's; returns how many missing reports were applied."""
        self._asked = {}
        page = await self._queries.open_orders(self._venue.name, limit=PAGE)
        asked_at = self._clock.now()
        try:
            shown = {
                order.venue_client_order_id: order async for orders in self._venue.open_orders() for order in orders
            }
        except VenueUnavailable as error:
            if not self._is_skipping:
                log.warning("sweep_skipped", venue=self._venue.name, error=str(error))
            self._is_skipping = True
            return 0
        self._is_skipping = False
        untouched_since = self._clock.now() - GRACE
        missing = 0
        not_canceled: list[OrderId] = []
        others = dict.fromkeys(shown)
        while page:
            for order in page:
                others.pop(current_id(order), None)
            await self._adopt_shown([order for order in page if order.updated_at < asked_at], shown)
            not_canceled += [
                order.order_id for order in page if order.status == "CANCEL_REQUESTED" and current_id(order) in shown
            ]
            missing += await self._ask_all(
                order.venue_client_order_id
                for order in page
                if order.updated_at <= untouched_since and _differs(order, shown.get(current_id(order)))
            )
            for order in page:
                if order.updated_at <= untouched_since:
                    self._compare_qty(order, shown.get(current_id(order)))
            page = await self._queries.open_orders(self._venue.name, after=page[-1].order_id, limit=PAGE)
        await self._cancels.look(not_canceled)
        self._recorder.gate.note_ended(await ended_orders(self._journal, self._venue.name, list(others), asked_at))
        return missing

    async def _adopt_shown(self, page: Sequence[Order], shown: Mapping[VenueClientOrderId, VenueOrder]) -> None:
        """After a restore, record the amends in place that the venue shows and that this database has lost."""
        if not self._recorder.amends.is_restored:
            return
        amended = {order.order_id: one for order in page if (one := shown.get(current_id(order))) and one.amends}
        versions = {order.order_id: order.version for order in page}
        for order_id, state in (await self._journal.load(list(amended))).items():
            if state.order.version == versions[order_id]:  # unchanged since the venue was asked
                await self._recorder.amends.adopt(state, amended[order_id])

    async def ask_behind_once(self) -> int:
        """Look up each order that is behind its reported total; returns how many missing reports were applied.

        An order that the lookup does not explain is looked up again after the next sweep.
        """
        behind = dict(self._recorder.behind)
        new = [client_id for client_id, total in behind.items() if self._asked.get(client_id) != total]
        self._asked = behind
        return await self._ask_all(new)

    async def _ask_all(self, client_ids: Iterable[VenueClientOrderId]) -> int:
        return sum(await asyncio.gather(*(self._ask(client_id) for client_id in client_ids)))

    async def _ask(self, client_id: VenueClientOrderId) -> int:
        async with self._lookups:
            # Ours first: a venue's total never decreases, so a lower total at the venue is a real difference.
            state = await self._state(client_id)
            try:
                found = await self._venue.find(to_find(state.order))
            except VenueUnavailable:
                return 0  # the next sweep asks again
            if found is None:
                self._note_absent(state)
                return 0
            self._absences.pop(client_id, None)
            if self._recorder.amends.is_restored:
                if not await self._recorder.amends.adopt(state, found):
                    return 0  # the next sweep asks again
                state = await self._state(client_id)
            return await self._catch_up(state, found)

    async def _catch_up(self, state: OrderState, found: VenueOrder) -> int:
        """Apply the venue's fills that are missing here, then its end, as far as the quantities add up."""
        ours, leg = state.order, _leg_of(state, found)
        fills = await self._recorder.missed(_fill_reports(ours, leg, found))
        explained_qty = ours.filled_qty
        for fill in fills:
            explained_qty = EXACT.add(explained_qty, fill.last_qty)
        if explained_qty > found.filled_qty:
            self._note_gap(ours, found)
            return 0
        applied = await self._apply(ours, fills)
        newest = (await self._state(ours.venue_client_order_id)).order
        reported_qty = self._recorder.behind.get(ours.venue_client_order_id, ZERO)
        if newest.filled_qty >= reported_qty:
            self._recorder.behind.pop(ours.venue_client_order_id, None)
        if newest.filled_qty < max(found.filled_qty, reported_qty):
            self._note_gap(newest, found)
        elif not is_final(newest.status):
            match found.status:
                case "CANCELED" | "REJECTED" | "EXPIRED":
                    applied += await self._apply(newest, [_end_report(newest, leg, found, self._clock.now())])
                case "FILLED" if newest.amend_qty is not None:
                    pass  # the outcome of its amend tells which quantity is filled
                case "FILLED":
                    self._note_gap(newest, found)  # the status is FILLED, and the fills are less than the quantity
                case "WORKING" | "PARTIALLY_FILLED":
                    pass
                case unreachable:
                    assert_never(unreachable)
        return applied

    async def _state(self, client_id: VenueClientOrderId) -> OrderState:
        return (await self._journal.load_by_client_order_id([client_id]))[client_id]

    async def _apply(self, order: Order, reports: list[ExecutionReport]) -> int:
        applied = await self._recorder.apply(reports, confirmed=True) if reports else 0
        if applied:
            self._metrics.missed_reports.inc(applied)
            log.warning("reports_missing", venue=self._venue.name, order_id=order.order_id, reports=applied)
        return applied

    def _note_absent(self, state: OrderState) -> None:
        order = state.order
        if order.venue_order_id is None and state.row("new", 1).status != "sent":
            return  # CANCEL_REQUESTED while the order itself is not sent yet
        times = self._absences.get(order.venue_client_order_id, 0) + 1
        _put_bounded(self._absences, order.venue_client_order_id, times)
        if times == ABSENCES_MIN:
            self._recorder.behind.pop(order.venue_client_order_id, None)
            self._metrics.orders_missing.inc()
            log.error("order_missing_at_venue", venue=order.venue, order_id=order.order_id)

    def _compare_qty(self, order: Order, shown: VenueOrder | None) -> None:
        """Raise an alarm, once, for an order that has another quantity at the venue, as after a lost amend.

        At the second sweep: an amend may have been carried out between the two reads of the first one.
        """
        if shown is None or shown.qty in (None, order.qty, order.amend_qty):
            self._amounts.pop(order.venue_client_order_id, None)
            return
        known, times = self._amounts.get(order.venue_client_order_id, (shown.qty, 0))
        times = times + 1 if known == shown.qty else 1
        _put_bounded(self._amounts, order.venue_client_order_id, (shown.qty, times))
        if times == DIFFERENCES_MIN:
            self._metrics.quantity_gaps.inc()
            log.error(
                "order_quantity_differs",
                venue=order.venue,
                order_id=order.order_id,
                qty_here=str(order.qty),
                qty_there=str(shown.qty),
            )

    def _note_gap(self, order: Order, found: VenueOrder) -> None:
        totals = (order.filled_qty, found.filled_qty)
        if self._gaps.get(order.venue_client_order_id) == totals:
            return
        _put_bounded(self._gaps, order.venue_client_order_id, totals)
        self._metrics.quantity_gaps.inc()
        log.error(
            "quantity_gap",
            venue=order.venue,
            order_id=order.order_id,
            filled_here=str(order.filled_qty),
            filled_there=str(found.filled_qty),
            status_there=found.status,
        )


def _differs(order: Order, shown: VenueOrder | None) -> bool:
    return shown is None or shown.filled_qty != order.filled_qty


def _leg_of(state: OrderState, found: VenueOrder) -> VenueClientOrderId:
    """The id under which the venue shows the order, or the one that we know, if its amend is not in this database."""
    known = {row.venue_client_order_id for row in state.outbox}
    return found.venue_client_order_id if found.venue_client_order_id in known else current_id(state.order)


def _fill_reports(order: Order, leg: VenueClientOrderId, found: VenueOrder) -> list[ExecutionReport]:
    """The reports of the order's fills, as the venue should have sent them."""
    reports = []
    total = ZERO
    for fill in found.fills:
        total = canonical(EXACT.add(total, fill.qty))
        reports.append(
            ExecutionReport(
                exec_id=fill.exec_id,
                venue=order.venue,
                venue_client_order_id=leg,
                venue_order_id=found.venue_order_id,
                status="FILLED" if total >= order.qty else "PARTIALLY_FILLED",
                last_qty=fill.qty,
                last_price=fill.price,
                filled_qty_total=total,
                at=fill.at,
                fee=fill.fee,
                fee_currency=fill.fee_currency,
                exec_type=fill.exec_type,
                ref_exec_id=fill.ref_exec_id,
            )
        )
    return reports


def _end_report(order: Order, leg: VenueClientOrderId, found: VenueOrder, now: datetime) -> ExecutionReport:
    """A report of the order's end; its id is derived, so that several sweepers record it once."""
    return ExecutionReport(
        exec_id=f"{leg}:{found.status}",
        venue=order.venue,
        venue_client_order_id=leg,
        venue_order_id=found.venue_order_id,
        status=found.status,
        filled_qty_total=found.filled_qty,
        reason=_FOUND_ENDED,
        at=now,
    )


def _put_bounded(known: dict[VenueClientOrderId, _T], client_id: VenueClientOrderId, value: _T) -> None:
    if client_id not in known and len(known) >= ALARMS_MAX:
        del known[next(iter(known))]
    known[client_id] = value


# An order of a filed report is not sent, so nothing is urgent; an operator who decides sees the fill soon afterwards.
PAUSE_SECONDS = 2.0
# Strays that stay strays, such as reports that were set aside. Beyond this they are tried again, which changes nothing.
TRIED_MAX = 10_000


class StrayRecall:
    """Watches one venue's strays; several may run at once."""

    def __init__(self, venue: Venue, recorder: Recorder, *, queries: Queries) -> None:
        self._venue = venue
        self._recorder = recorder
        self._queries = queries
        self._tried: set[str] = set()

    async def run(self) -> None:
        """Watch for as long as the process lives."""
        while True:
            await self.run_once()
            await asyncio.sleep(PAUSE_SECONDS)

    async def run_once(self) -> int:
        """Apply the filed reports whose order exists now; returns how many changed an order."""
        wanted: dict[str, VenueClientOrderId] = {}
        page = await self._queries.matched_strays(self._venue.name, limit=PAGE)
        while page:
            for stray in page:
                if stray.exec_id not in self._tried and stray.stray_client_order_id is not None:
                    wanted[stray.exec_id] = stray.stray_client_order_id
            page = await self._queries.matched_strays(self._venue.name, after=page[-1].exec_id, limit=PAGE)
        # Of the others an order has an earlier id of the same key, and was sent from here or has ended.
        known = await self._recorder.amends.adopt_reported(self._venue.name, set(wanted.values())) if wanted else set()
        wanted = {exec_id: client_id for exec_id, client_id in wanted.items() if client_id in known}
        if not wanted:
            return 0
        applied = await self._recorder.apply(await self._filed(wanted))
        # A report that changes nothing, such as a known end, and a report that was set aside stay strays.
        if len(self._tried) > TRIED_MAX:
            self._tried.clear()
        self._tried.update(wanted)
        log.warning("stray_reports_applied", venue=self._venue.name, reports=applied, strays=len(wanted))
        return applied

    async def _filed(self, wanted: Mapping[str, VenueClientOrderId]) -> list[ExecutionReport]:
        """The reports with these ids, from the events that filed them, each under the id that the venue gave it."""
        reports, seq = [], 0
        while events := await self._queries.events_after(seq, account_id=SYSTEM_ACCOUNT, limit=PAGE):
            seq = events[-1].seq
            facts = [decode_report_fact(data_of(event)) for event in events if event.type == "ReportUnmatched"]
            reports += [
                self._as_reported(fact)
                for fact in facts
                if fact.venue == self._venue.name and wanted.get(fact.exec_id) == fact.venue_client_order_id
            ]
        return reports

    def _as_reported(self, fact: ReportFact) -> ExecutionReport:
        fields: dict[str, Any] = {name: getattr(fact, name) for name in ExecutionReport.__struct_fields__}
        report = ExecutionReport(**fields)
        if self._venue.capabilities.execution_ids == "venue" or fact.reason == FOUND_OPEN:
            return report
        # Filed under its client order id; the recorder qualifies it again, now that the symbol is known.
        prefix = f"{report.venue_client_order_id}:"
        referred = None if report.ref_exec_id is None else report.ref_exec_id.removeprefix(prefix)
        return replace(report, exec_id=report.exec_id.removeprefix(prefix), ref_exec_id=referred)
