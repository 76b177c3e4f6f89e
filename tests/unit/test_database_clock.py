"""`DatabaseClock` follows the database's time, independent of the process's own wall clock."""

from datetime import datetime, timedelta

from switchyard.adapters.memory.clock import START, ManualClock
from switchyard.domain.idempotency import KeyEntry
from switchyard.domain.ids import AccountId
from switchyard.flow.clock import DatabaseClock
from switchyard.ports.keys import KeyId, KeyStore, Reaped


class AheadKeyStore:
    """A key store whose clock is an hour ahead of the process; `takes` is the time that a query takes."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.asked = 0
        self.ahead = timedelta(hours=1)
        self.takes = timedelta(0)

    async def now(self) -> datetime:
        self.asked += 1
        now = self._clock.now() + self.ahead
        self._clock.advance(self.takes)
        return now

    async def entry(self, account: AccountId, operation: str, key: str) -> KeyEntry | None:
        raise NotImplementedError

    async def entries(
        self, account: AccountId, operation: str, first: str, last: str, since: datetime, limit: int
    ) -> list[KeyEntry]:
        raise NotImplementedError

    async def reap(self, now: datetime, after: KeyId | None, limit: int) -> Reaped:
        raise NotImplementedError


async def test_the_database_is_asked_once_and_the_monotonic_clock_adds_the_rest() -> None:
    clock = ManualClock()
    keys = AheadKeyStore(clock)
    checked: KeyStore = keys
    database_clock = DatabaseClock(checked, clock)
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
