"""Before a venue's first send: hear what it has, so that nothing is decided on an old belief."""

import asyncio
from collections.abc import Sequence

import structlog

from switchyard.flow.executions.record import Recorder
from switchyard.ports.journal import Journal
from switchyard.ports.venue import Venue, VenueOrder, VenueUnavailable
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

RETRY_SECONDS = 1.0
PAGE = 500


class VenueSync:
    """Brings one venue and the journal together at start."""

    def __init__(self, venue: Venue, recorder: Recorder, *, journal: Journal, metrics: Metrics) -> None:
        self._venue = venue
        self._recorder = recorder
        self._journal = journal
        self._metrics = metrics

    async def run(self) -> None:
        """Try until the venue has told what it has; a venue that cannot be asked is not sent to."""
        while True:
            if await self.run_once():
                return
            await asyncio.sleep(RETRY_SECONDS)

    async def run_once(self) -> bool:
        """Take in the reports that are waiting, and look at every open order; false while the venue does not answer.

        A venue that cannot be asked at all is heard through its reports alone.
        """
        open_orders: Sequence[VenueOrder] = ()
        try:
            if self._venue.capabilities.lookup != "none":
                open_orders = await self._venue.open_orders()
        except VenueUnavailable as error:
            log.warning("a venue cannot be asked yet; nothing is sent to it", venue=self._venue.name, error=str(error))
            return False
        while await self._recorder.run_once():
            pass
        for first in range(0, len(open_orders), PAGE):
            page = open_orders[first : first + PAGE]
            known = await self._journal.load_by_client_order_id([order.venue_client_order_id for order in page])
            for order in page:
                if order.venue_client_order_id not in known:
                    # Somebody else's, or one that a lost database knew of: a person has to look.
                    self._metrics.strays.inc()
                    log.error(
                        "a venue has an open order that nobody here knows",
                        venue=self._venue.name,
                        venue_order_id=order.venue_order_id,
                        client_order_id=order.venue_client_order_id,
                    )
        log.info("reconciled", venue=self._venue.name, open_orders=len(open_orders))
        return True
