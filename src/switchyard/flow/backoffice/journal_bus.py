"""The journal as a bus with one source: pages of events, each checked against the one before it. Reads only."""

from collections.abc import Sequence

from switchyard.domain.errors import HistoryMismatch
from switchyard.domain.journal.lines import Place, SourcePosition, bus_event, check_follows
from switchyard.flow.traced import EventTraces
from switchyard.ports.books import SourceState
from switchyard.ports.bus import Page, Source
from switchyard.ports.journal import PAGE_MAX, Epoch, Journal, Turn

JOURNAL = "journal"
"""The name of the source."""


class JournalSource:
    """ports.bus.Source on one shard of the journal."""

    name = JOURNAL
    start: SourcePosition = Place()

    def __init__(self, journal: Journal, shard: int = 0, traces: EventTraces | None = None) -> None:
        """`traces`: where traces are on."""
        self._journal = journal
        self._traces = traces
        self._shard = shard

    async def check(self, position: SourcePosition) -> None:
        """Raise HistoryMismatch unless the journal has the event at this place."""
        place = _place(position)
        if place.seq == 0:
            return
        found = await self._journal.last_event(self._shard, place.seq)
        if (found.seq, found.hash) != (place.seq, place.hash):
            raise HistoryMismatch(
                f"the journal does not have event {place.seq} of epoch {place.epoch} with hash {place.hash}; "
                f"the last one up to that number is {found.seq} of epoch {found.epoch} with hash {found.hash}"
            )

    async def page(self, after: SourcePosition, limit: int) -> Page:
        """The next events; HistoryMismatch at a gap or at another history."""
        place = _place(after)
        lines = await self._journal.read(self._shard, place.seq, min(limit, PAGE_MAX))
        events = tuple(bus_event(event) for event in lines)
        if not events and place.seq:
            await self.check(place)  # a journal that was replaced by an older one has no next event either
        for event in events:
            check_follows(place, event)
            place = event.place
        if self._traces is not None:
            events = tuple(await self._traces.attached(events))
        return Page(events, place)

    async def epochs(self) -> Sequence[Epoch]:
        """All epochs, the oldest first."""
        return await self._journal.epochs(self._shard)

    async def place_of(self, seq: int) -> Place:
        """The place of a reader that has taken the events up to this one."""
        if not seq:
            return Place()
        found = await self._journal.last_event(self._shard, seq)
        return Place(found.epoch, found.seq, found.hash)

    async def lag(self, position: SourcePosition) -> int:
        """How many events are after the place; without the numbers that a new epoch leaves out."""
        place = _place(position)
        head = await self._journal.head(self._shard)
        skipped = sum(
            epoch.first_seq - max(epoch.after_seq, place.seq) - 1
            for epoch in await self._journal.epochs(self._shard)
            if place.seq < epoch.first_seq <= head.seq
        )
        return max(head.seq - place.seq - skipped, 0)


class JournalBus:
    """ports.bus.Bus of the journal alone."""

    def __init__(self, journal: Journal, turn: Turn | None = None, traces: EventTraces | None = None) -> None:
        """`turn`: decides between several processes; none where the books serve one. `traces`: where they are on."""
        self.source = JournalSource(journal, traces=traces)
        self._turn = turn

    async def sources(self) -> Sequence[Source]:
        """The one source, while it is this process's turn."""
        return [self.source] if self._turn is None or await self._turn.is_ours() else []

    async def left_to_others(self, states: Sequence[SourceState]) -> int:
        """How many events the process whose turn it is has still to read."""
        position = next((state.position for state in states if state.source == JOURNAL), self.source.start)
        return await self.source.lag(position)

    async def release(self, source: Source) -> None:
        """Let another process have the turn."""
        if self._turn is not None:
            await self._turn.give_up()


def _place(position: SourcePosition) -> Place:
    assert isinstance(position, Place), f"{position} is no place in the journal"
    return position
