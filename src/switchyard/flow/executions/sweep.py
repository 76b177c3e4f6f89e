"""The sweeper: compares open orders with the venue's, because a report stream that looks healthy can still lose a fill.

Reads open orders from the database and the venue; applies missing executions through the recorder.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TypeVar, assert_never

import structlog

from switchyard.domain.ids import OrderId, VenueClientOrderId
from switchyard.domain.orders.amends import current_id
from switchyard.domain.orders.lifecycle import is_final
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OrderState
from switchyard.domain.orders.reasons import EndReason
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.domain.values import EXACT, ZERO, canonical
from switchyard.flow.commit.sequencer import Commit
from switchyard.flow.executions.cancels import CANCEL_SECONDS, CancelWatch
from switchyard.flow.executions.ended import ended_orders
from switchyard.flow.executions.record import Recorder
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.queries import Queries
from switchyard.ports.venue import Venue, VenueOrder, VenueUnavailable
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

PAGE = 500
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
                found = await self._venue.find_by_client_order_id(current_id(state.order))
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
