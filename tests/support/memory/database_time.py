"""The times of an in-memory database."""

from switchyard.ports.clock import Clock
from switchyard.ports.journal import StoredTime, TimeReading
from tests.support.memory.journal import MemoryJournal


class MemoryTime:
    """ports.journal.DatabaseTime in memory; `clock` is the database's wall clock."""

    def __init__(self, journal: MemoryJournal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self.is_shared = True
        self.stored: StoredTime | None = None

    async def read(self) -> TimeReading:
        """Return the clock's time and the newest event's."""
        newest = max((events[-1].at for events in self._journal.events.values() if events), default=None)
        return TimeReading(self._clock.now(), newest, self.stored)

    async def store(self, time: StoredTime, *, read: StoredTime | None) -> bool:
        """Replace the time that was read."""
        if self.stored != read:
            return False
        self.stored = time
        return True
