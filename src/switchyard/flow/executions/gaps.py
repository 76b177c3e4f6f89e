"""Raises an alarm for filled totals that our fills do not reach, at a venue that cannot be asked about them.

Reads the recorder's list of orders that are behind; writes nothing.
"""

import asyncio
from decimal import Decimal

import structlog

from switchyard.domain.ids import VenueClientOrderId, VenueName
from switchyard.flow.executions.record import Recorder
from switchyard.ports.clock import Clock
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

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
