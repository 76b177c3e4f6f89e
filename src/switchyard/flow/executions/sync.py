"""Synchronises with a venue before the first send to it: reads its open orders and its waiting reports.

Applies reports through the recorder, and raises an alarm for open orders that are not in this database.
"""

import asyncio

import structlog

from switchyard.flow.executions.record import Recorder
from switchyard.ports.journal import Journal
from switchyard.ports.venue import Venue, VenueOrder, VenueUnavailable
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

RETRY_SECONDS = 1.0
PAGE = 500


class VenueSync:
    """Synchronises the journal with one venue at start."""

    def __init__(self, venue: Venue, recorder: Recorder, *, journal: Journal, metrics: Metrics) -> None:
        self._venue = venue
        self._recorder = recorder
        self._journal = journal
        self._metrics = metrics

    async def run(self) -> None:
        """Retry until the venue has answered; nothing is sent to it before."""
        while True:
            if await self.run_once():
                return
            await asyncio.sleep(RETRY_SECONDS)

    async def run_once(self) -> bool:
        """Apply the waiting reports and check every open order; false while the venue does not answer.

        Without a lookup, the venue's reports are all there is to read.
        """
        open_orders: list[VenueOrder] = []
        try:
            if self._venue.capabilities.lookup != "none":
                async for orders in self._venue.open_orders():
                    open_orders += orders
            while await self._recorder.run_once():
                pass
        except VenueUnavailable as error:
            log.warning("venue_not_synced", venue=self._venue.name, error=str(error))
            return False
        for first in range(0, len(open_orders), PAGE):
            page = open_orders[first : first + PAGE]
            known = await self._journal.load_by_client_order_id([order.venue_client_order_id for order in page])
            for order in page:
                if order.venue_client_order_id not in known:
                    # Placed by another system, or from a database that was lost: an operator has to look at it.
                    self._metrics.strays.inc()
                    log.error(
                        "venue_order_unknown",
                        venue=self._venue.name,
                        venue_order_id=order.venue_order_id,
                        client_order_id=order.venue_client_order_id,
                    )
        log.info("venue_synced", venue=self._venue.name, open_orders=len(open_orders))
        return True
