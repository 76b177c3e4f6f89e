"""A count beside the outbox: no more client order ids leave a worker than orders were accepted.

The outbox keeps this by itself. The count looks at what is handed to the venues, and sets a kill of everything if it
does not hold: a defect that makes up ids would send orders that were never placed. Reads the journal and the outbox.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

from switchyard.domain.errors import Unavailable
from switchyard.domain.ids import VenueClientOrderId
from switchyard.ports.journal import Journal
from switchyard.ports.outbox import OutboxQueries
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

# Short enough that the ids of one period need little memory, long enough that the queries cost nothing.
CHECK_SECONDS = 5.0
# More than a worker can send within a period; beyond it the count is one too many, whatever was accepted.
IDS_MAX = 1_000_000

Trip = Callable[[str], Awaitable[None]]
"""Sets a kill of everything, for this reason."""


class SentIds:
    """Counts the distinct client order ids that leave this worker, period by period."""

    def __init__(self, *, journal: Journal, queries: OutboxQueries, metrics: Metrics, trip: Trip) -> None:
        self._journal = journal
        self._queries = queries
        self._metrics = metrics
        self._trip = trip
        self._ids: set[VenueClientOrderId] = set()
        self._allowed = 0
        self._seq = 0

    def note(self, ids: Iterable[VenueClientOrderId]) -> None:
        """These ids are about to leave."""
        if len(self._ids) < IDS_MAX:
            self._ids.update(ids)

    async def start(self) -> None:
        """Begin the first period; must come before the first send."""
        await self._begin()

    async def run(self) -> None:
        """Check for as long as the process lives."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                await self.check_once()
            except Unavailable as error:
                log.warning("sent_ids_not_checked", error=str(error))

    async def check_once(self) -> None:
        """End the period: trip where more ids have left in it than were waiting at its start or accepted since."""
        allowed = self._allowed + await self._queries.accepted_since(self._seq)
        # Before the new counts: what leaves from now on was waiting then, or is accepted later.
        sent = len(self._ids)
        if sent > allowed:
            # Counted again: ids may have left since the accepted orders were counted.
            allowed = self._allowed + await self._queries.accepted_since(self._seq)
        if sent > allowed:
            self._metrics.kills.ids_exceeded.inc()
            log.critical("more_ids_sent_than_orders_accepted", sent=sent, accepted=allowed)
            await self._trip(
                f"{sent} client order ids left within {CHECK_SECONDS:g} s, and only {allowed} orders were waiting or "
                "accepted: a worker sends orders that were never placed"
            )
        await self._begin()

    async def _begin(self) -> None:
        seq = (await self._journal.head(0)).seq
        waiting = sum(count.rows for count in await self._queries.outbox_counts())
        # An order that leaves after this line was waiting then, or was accepted after `seq`, perhaps both.
        self._allowed, self._seq, self._ids = waiting, seq, set()
