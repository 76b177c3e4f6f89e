"""The journal as a bus: pages of events after a place, each checked against the one before it. Reads only."""

from switchyard.domain.bus import BusEvent, Place, bus_event, check_follows
from switchyard.domain.errors import HistoryMismatch
from switchyard.ports.journal import PAGE_MAX, Journal


class JournalBus:
    """ports.bus.Bus on one shard of the journal."""

    def __init__(self, journal: Journal, shard: int = 0) -> None:
        self._journal = journal
        self._shard = shard

    async def check(self, place: Place) -> None:
        """Raise HistoryMismatch unless the journal has the event at this place."""
        if place.seq == 0:
            return
        found = await self._journal.last_event(self._shard, place.seq)
        if (found.seq, found.hash) != (place.seq, place.hash):
            raise HistoryMismatch(
                f"the journal does not have event {place.seq} of epoch {place.epoch} with hash {place.hash}; "
                f"the last one up to that number is {found.seq} of epoch {found.epoch} with hash {found.hash}"
            )

    async def page(self, after: Place, limit: int) -> list[BusEvent]:
        """The next events; HistoryMismatch at a gap or at another history."""
        events = [bus_event(event) for event in await self._journal.read(self._shard, after.seq, min(limit, PAGE_MAX))]
        if not events and after.seq:
            await self.check(after)  # a journal that was replaced by an older one has no next event either
        place = after
        for event in events:
            check_follows(place, event)
            place = event.place
        return events

    async def lag(self, place: Place) -> int:
        """How many events are after the place; without the numbers that a new epoch leaves out."""
        head = await self._journal.head(self._shard)
        skipped = sum(
            epoch.first_seq - max(epoch.after_seq, place.seq) - 1
            for epoch in await self._journal.epochs(self._shard)
            if place.seq < epoch.first_seq <= head.seq
        )
        return max(head.seq - place.seq - skipped, 0)
