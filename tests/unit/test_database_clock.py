"""`DatabaseClock` follows the database's time, independent of the process's own wall clock."""

from datetime import datetime, timedelta

from switchyard.adapters.memory.clock import START, ManualClock
from switchyard.adapters.memory.journal import MemoryJournal
from switchyard.adapters.memory.keys import MemoryKeyStore
from switchyard.flow.clock import DatabaseClock


class AheadKeyStore(MemoryKeyStore):
    """A key store whose clock is an hour ahead of the process; `takes` is the time that a query takes."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(MemoryJournal(), clock)
        self._process_clock = clock
        self.asked = 0
        self.ahead = timedelta(hours=1)
        self.takes = timedelta(0)

    async def now(self) -> datetime:
        self.asked += 1
        now = await super().now() + self.ahead
        self._process_clock.advance(self.takes)
        return now


async def test_the_database_is_asked_once_and_the_monotonic_clock_adds_the_rest() -> None:
    clock = ManualClock()
    keys = AheadKeyStore(clock)
    database_clock = DatabaseClock(keys, clock)
    assert database_clock.now() == START
    assert await database_clock.look() == START + timedelta(hours=1)
    clock.advance(timedelta(seconds=7))
    assert database_clock.now() == START + timedelta(hours=1, seconds=7)
    assert keys.asked == 1


async def test_a_slow_answer_makes_the_clock_late_and_never_early() -> None:
    clock = ManualClock()
    keys = AheadKeyStore(clock)
    keys.takes = timedelta(seconds=0.5)
    assert await DatabaseClock(keys, clock).look() == START + timedelta(hours=1)


async def test_a_very_slow_answer_does_not_replace_a_better_one() -> None:
    clock = ManualClock()
    keys = AheadKeyStore(clock)
    database_clock = DatabaseClock(keys, clock)
    await database_clock.look()
    keys.takes = timedelta(seconds=20)
    assert await database_clock.look() == START + timedelta(hours=1, seconds=20)


async def test_a_step_of_the_databases_own_clock_is_followed() -> None:
    clock = ManualClock()
    keys = AheadKeyStore(clock)
    database_clock = DatabaseClock(keys, clock)
    await database_clock.look()
    keys.ahead = timedelta(0)
    assert await database_clock.look() == START
