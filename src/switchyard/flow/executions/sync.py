"""Synchronises with a venue before the first send to it: reads its open orders and its waiting reports.

Applies reports through the recorder, and files open orders that are not in this database as strays. The venue is opened
for sending only after a pass in which it answered everything.
"""

import asyncio
from collections.abc import Sequence

import structlog

from switchyard.domain.ids import VenueClientOrderId
from switchyard.domain.orders.outbox import is_first_attempt
from switchyard.domain.orders.reports import ExecutionReport, is_storable
from switchyard.flow.executions.ended import ended_orders
from switchyard.flow.executions.gate import VenueGate
from switchyard.flow.executions.record import Recorder
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.venue import Venue, VenueOrder, VenueUnavailable
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

RETRY_SECONDS = 1.0
PAGE = 500
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
