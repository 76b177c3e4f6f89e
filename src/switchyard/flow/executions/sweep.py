"""Compare our open orders with what the venue has: a stream of reports that looks healthy can still lose a fill."""

import asyncio
from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TypeVar

import structlog

from switchyard.domain.ids import VenueClientOrderId
from switchyard.domain.lifecycle import is_final
from switchyard.domain.money import EXACT, ZERO, canonical
from switchyard.domain.orders import Order
from switchyard.domain.outbox import OrderState
from switchyard.domain.reports import ExecutionReport
from switchyard.flow.executions.record import Recorder
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.queries import Queries
from switchyard.ports.venue import Venue, VenueOrder, VenueUnavailable
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

PAGE = 500
# A venue has its own work to do; a sweep is in no hurry.
QUESTIONS_MAX = 8
# A report is usually on its way for less than this: asking sooner would mostly ask for what comes anyway.
GRACE = timedelta(seconds=2)
# An order that is absent may have ended a moment ago, with its report on the way; one sweep later it has not.
ABSENCES_MIN = 2
# What was said once is not said again; when this many are remembered the oldest is forgotten, and repeated.
REMEMBERED_MAX = 10_000

_T = TypeVar("_T")


class Sweeper:
    """Asks one venue about orders that differ, and applies what it has beyond us; two of them at once are harmless.

    What the venue's own fills cannot explain is never guessed at: it is counted, logged as an error and left alone.
    """

    def __init__(
        self,
        venue: Venue,
        recorder: Recorder,
        *,
        journal: Journal,
        queries: Queries,
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
        self._questions = asyncio.Semaphore(QUESTIONS_MAX)
        self._asked: dict[VenueClientOrderId, Decimal] = {}
        self._absences: dict[VenueClientOrderId, int] = {}
        self._gaps: dict[VenueClientOrderId, tuple[Decimal, Decimal]] = {}

    async def run(self) -> None:
        """Sweep for as long as the process lives; an order that a report shows to be behind is asked for at once."""
        swept_at = float("-inf")
        while True:
            if self._clock.monotonic() - swept_at >= self._interval_seconds:
                await self.run_once()
                swept_at = self._clock.monotonic()
            await self.ask_behind_once()
            rest_seconds = swept_at + self._interval_seconds - self._clock.monotonic()
            await self._recorder.fell_behind.wait(max(rest_seconds, 0.0))

    async def run_once(self) -> int:
        """Compare every open order with the venue's; returns how many reports had been missing."""
        self._asked = {}
        page = await self._queries.open_orders(self._venue.name, limit=PAGE)
        if not page:
            return 0
        try:
            shown = {order.venue_client_order_id: order for order in await self._venue.open_orders()}
        except VenueUnavailable as error:
            log.warning("a venue cannot be swept", venue=self._venue.name, error=str(error))
            return 0
        untouched_since = self._clock.now() - GRACE
        missing = 0
        while page:
            missing += await self._ask_all(
                order.venue_client_order_id
                for order in page
                if order.updated_at <= untouched_since and _differs(order, shown.get(order.venue_client_order_id))
            )
            page = await self._queries.open_orders(self._venue.name, after=page[-1].order_id, limit=PAGE)
        return missing

    async def ask_behind_once(self) -> int:
        """Ask about each order of which a report told more than we have; returns how many reports had been missing.

        One about which the venue could not tell more is asked for again after the next sweep.
        """
        behind = dict(self._recorder.behind)
        news = [client_id for client_id, told_qty in behind.items() if self._asked.get(client_id) != told_qty]
        self._asked = behind
        return await self._ask_all(news)

    async def _ask_all(self, client_ids: Iterable[VenueClientOrderId]) -> int:
        return sum(await asyncio.gather(*(self._ask(client_id) for client_id in client_ids)))

    async def _ask(self, client_id: VenueClientOrderId) -> int:
        async with self._questions:
            # Ours first: a venue's total never falls, so one that is then below ours is no matter of timing.
            state = await self._state(client_id)
            try:
                found = await self._venue.find_by_client_order_id(client_id)
            except VenueUnavailable:
                return 0  # the next sweep asks again
            if found is None:
                self._note_absent(state)
                return 0
            self._absences.pop(client_id, None)
            return await self._catch_up(state.order, found)

    async def _catch_up(self, ours: Order, found: VenueOrder) -> int:
        """Apply the venue's fills that we have not heard of and then its end, as far as they add up."""
        fills = await self._recorder.missed(_fill_reports(ours, found))
        explained_qty = ours.filled_qty
        for fill in fills:
            explained_qty = EXACT.add(explained_qty, fill.last_qty)
        if explained_qty > found.filled_qty:
            self._note_gap(ours, found)
            return 0
        applied = await self._apply(ours, fills)
        newest = (await self._state(ours.venue_client_order_id)).order
        told_qty = self._recorder.behind.get(ours.venue_client_order_id, ZERO)
        if newest.filled_qty >= told_qty:
            self._recorder.behind.pop(ours.venue_client_order_id, None)
        if newest.filled_qty < max(found.filled_qty, told_qty):
            self._note_gap(newest, found)
        elif not is_final(newest.status):
            match found.status:
                case "CANCELED" | "REJECTED" | "EXPIRED":
                    applied += await self._apply(newest, [_end_report(newest, found, self._clock.now())])
                case "FILLED":
                    self._note_gap(newest, found)  # it says that nothing is left, and shows less than all
                case "WORKING" | "PARTIALLY_FILLED":
                    pass
        return applied

    async def _state(self, client_id: VenueClientOrderId) -> OrderState:
        return (await self._journal.load_by_client_order_id([client_id]))[client_id]

    async def _apply(self, order: Order, reports: list[ExecutionReport]) -> int:
        applied = await self._recorder.apply(reports) if reports else 0
        if applied:
            self._metrics.missed_reports.inc(applied)
            log.warning("reports were missing", venue=self._venue.name, order_id=order.order_id, reports=applied)
        return applied

    def _note_absent(self, state: OrderState) -> None:
        order = state.order
        if order.venue_order_id is None and state.row("new", 1).status != "sent":
            return  # a cancel was asked for while the order itself is still on its way
        times = self._absences.get(order.venue_client_order_id, 0) + 1
        _remember(self._absences, order.venue_client_order_id, times)
        if times == ABSENCES_MIN:
            self._recorder.behind.pop(order.venue_client_order_id, None)
            self._metrics.orders_missing.inc()
            log.error("a venue does not know an order any more", venue=order.venue, order_id=order.order_id)

    def _note_gap(self, order: Order, found: VenueOrder) -> None:
        totals = (order.filled_qty, found.filled_qty)
        if self._gaps.get(order.venue_client_order_id) == totals:
            return
        _remember(self._gaps, order.venue_client_order_id, totals)
        self._metrics.quantity_gaps.inc()
        log.error(
            "a venue's quantity cannot be explained by its fills",
            venue=order.venue,
            order_id=order.order_id,
            filled_here=str(order.filled_qty),
            filled_there=str(found.filled_qty),
            status_there=found.status,
        )


def _differs(order: Order, shown: VenueOrder | None) -> bool:
    return shown is None or shown.filled_qty != order.filled_qty


def _fill_reports(order: Order, found: VenueOrder) -> list[ExecutionReport]:
    """The reports that the venue must have sent, or meant to, about an order's fills."""
    reports = []
    total = ZERO
    for fill in found.fills:
        total = canonical(EXACT.add(total, fill.qty))
        reports.append(
            ExecutionReport(
                exec_id=fill.exec_id,
                venue=order.venue,
                venue_client_order_id=order.venue_client_order_id,
                venue_order_id=found.venue_order_id,
                status="FILLED" if total >= order.qty else "PARTIALLY_FILLED",
                last_qty=fill.qty,
                last_price=fill.price,
                filled_qty_total=total,
                at=fill.at,
            )
        )
    return reports


def _end_report(order: Order, found: VenueOrder, now: datetime) -> ExecutionReport:
    """A report of the order's end; whoever makes one gives it the same id."""
    return ExecutionReport(
        exec_id=f"{order.venue_client_order_id}:{found.status}",
        venue=order.venue,
        venue_client_order_id=order.venue_client_order_id,
        venue_order_id=found.venue_order_id,
        status=found.status,
        filled_qty_total=found.filled_qty,
        reason="FOUND_ENDED_AT_VENUE",
        at=now,
    )


def _remember(known: dict[VenueClientOrderId, _T], client_id: VenueClientOrderId, value: _T) -> None:
    if client_id not in known and len(known) >= REMEMBERED_MAX:
        del known[next(iter(known))]
    known[client_id] = value
