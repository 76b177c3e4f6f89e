"""The times of an in-memory database."""

from datetime import timedelta

from switchyard.adapters.memory.journal import MemoryJournal
from switchyard.ports.clock import Clock
from switchyard.ports.database_time import SharedOffset, TimeReading


class MemoryTime:
    """ports.clock.DatabaseTime in memory; `clock` is the database's wall clock."""

    def __init__(self, journal: MemoryJournal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self.shared: SharedOffset | None = None

    async def read(self) -> TimeReading:
        """Return the clock's time and the newest event's."""
        newest = max((events[-1].at for events in self._journal.events.values() if events), default=None)
        return TimeReading(self._clock.now(), newest, self.shared)

    async def share(self, ahead: timedelta) -> None:
        """Keep the offset."""
        self.shared = SharedOffset(ahead, self._clock.now())
