"""The journal as the relay reads it: pages of events after a place, each checked, and how much is after a place.

Reads the journal only.
"""

from datetime import datetime

import msgspec

from switchyard.domain.errors import HistoryMismatch
from switchyard.domain.journal.lines import BusEvent, Place, bus_event, check_follows
from switchyard.flow.traced import EventTraces
from switchyard.ports.journal import Journal


class Lag(msgspec.Struct, frozen=True):
    """What is in the journal after a place."""

    events: int = 0
    oldest_at: datetime | None = None
    """The time of the first of them."""


class RelaySource:
    """One shard of the journal."""

    def __init__(self, journal: Journal, shard: int = 0, traces: EventTraces | None = None) -> None:
        """`traces`: where traces are on."""
        self._journal = journal
        self._traces = traces
        self._shard = shard

    async def check(self, place: Place) -> None:
        """Raise HistoryMismatch unless the journal has the event at this place."""
        if place.seq == 0:
            return
        found = await self._journal.last_event(self._shard, place.seq)
        if (found.seq, found.hash) != (place.seq, place.hash):
            raise HistoryMismatch(
                f"the relay has published up to event {place.seq} of epoch {place.epoch} with hash {place.hash}; the "
                f"last event of the journal up to that number is {found.seq} of epoch {found.epoch} with hash "
                f"{found.hash}"
            )

    async def page(self, after: Place, limit: int) -> list[BusEvent]:
        """The next events; HistoryMismatch at a gap or at another history."""
        events = [bus_event(event) for event in await self._journal.read(self._shard, after.seq, limit)]
        place = after
        for event in events:
            check_follows(place, event)
            place = event.place
        return events if self._traces is None else await self._traces.attached(events)

    async def lag(self, place: Place) -> Lag:
        """What is after the place; without the numbers that a new epoch leaves out."""
        oldest = await self._journal.read(self._shard, place.seq, 1)
        if not oldest:
            return Lag()
        head = await self._journal.head(self._shard)
        skipped = sum(
            epoch.first_seq - max(epoch.after_seq, place.seq) - 1
            for epoch in await self._journal.epochs(self._shard)
            if place.seq < epoch.first_seq <= head.seq
        )
        return Lag(max(head.seq - place.seq - skipped, 0), oldest[0].at)
