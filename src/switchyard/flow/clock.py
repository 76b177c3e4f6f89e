"""One steady time for all processes of a database, and the signal that wakes a stage.

`DatabaseClock` reads the database's wall clock at the start, with the journal's newest date, and then follows the
monotonic clock: deadlines, ages and dates do not follow a step of a wall clock. `Wake` wakes whoever waits for
work.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import structlog

from switchyard.domain.decisions import SEND_DEADLINES
from switchyard.ports.clock import Clock
from switchyard.ports.journal import DatabaseTime, StoredTime, TimeReading
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

LOOK_SECONDS = 1.0
# The stored time is refreshed by the first process that finds it this old: its writes do not grow with the processes.
REFRESH_AFTER = timedelta(seconds=0.9)
# In a database of one process it serves only the next start: often enough that drift since then stays below `STEP_MIN`.
REFRESH_AFTER_ALONE = timedelta(minutes=1)
# Three refreshes: a time of this age, by the wall clock, was stored by a running process.
FRESH = timedelta(seconds=3)
# How long a start waits for the refresh of a time that is not fresh: the wall clock may have been stepped just now.
WATCH_SECONDS = 2.5
WATCH_PAUSE_SECONDS = 0.1
# The best of a few readings at the start, so that one slow answer does not make this clock late.
FIRST_READINGS = 3
# The rate at which the time approaches the wall clock: above the drift of a good oscillator, and too small to matter
# for any deadline.
SLEW_MAX = 0.0005
# Beyond this the wall clock was stepped; drift and slow answers stay far below.
STEP_MIN = timedelta(seconds=1)
# A process whose time stood still for longer than this (a paused virtual machine) follows the other processes. More
# than `FRESH`: a fresh time that differs by this much cannot be explained by a step of the wall clock.
PAUSE_MIN = timedelta(seconds=5)
ZERO = timedelta()


class DatabaseClock:
    """Implements `Clock`.

    `ticks` are seconds that include the time in which the machine is suspended. Those of two processes with the same
    `boot_id` can be compared.
    """

    def __init__(
        self,
        time: DatabaseTime,
        clock: Clock,
        metrics: Metrics,
        *,
        ticks: Callable[[], float] | None = None,
        boot_id: str | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._time = time
        self._clock = clock
        self._metrics = metrics
        self.monotonic = clock.monotonic
        """Seconds that never decrease."""
        self._ticks = ticks or clock.monotonic
        self._boot_id = boot_id
        self._sleep = sleep
        self._anchor: tuple[datetime, float] | None = None
        """This clock's time, and the ticks at which it was right."""
        self._rate = 1.0
        self._difference = ZERO
        """The database's wall clock minus this clock, at the last look."""
        self._jumped_at: datetime | None = None
        self._stepped_ahead = ZERO

    async def start(self) -> datetime:
        """Set the time, before any stage uses it: as the running processes have it, or as the database has it."""
        while not await self._start_once():
            pass  # another process has stored its time meanwhile, so the next reading is fresh
        return self.now()

    async def _start_once(self) -> bool:
        readings = [await self._read() for _ in range(FIRST_READINGS)]
        reading, answered_at, _ = min(readings, key=lambda timed: timed[2])
        if reading.stored is not None and self._time.is_shared and not _is_fresh(reading):
            reading, answered_at = await self._watch(reading.stored, reading, answered_at)
        at, stored = reading.wall, reading.stored
        jumped_at = None if stored is None else stored.jumped_at
        self._stepped_ahead = ZERO if stored is None else stored.stepped_ahead
        if stored is not None and self._time.is_shared and _is_fresh(reading):
            at += stored.ahead
        else:
            newest = _newest(reading)
            if newest is not None and newest > reading.wall:
                # The wall clock was stepped back while no process ran, and nothing tells for how long: an order with
                # a send deadline expires rather than leaves late.
                at = newest + max(SEND_DEADLINES.values())
            if not self._has_measured(stored, at, answered_at):
                jumped_at = at
                self._stepped_ahead = self._not_passed(stored, at, answered_at)
        if reading.newest_event_at is not None:
            at = max(at, reading.newest_event_at)
        # Set at the answer, not at the question: late by the round trip at most, and never ahead.
        self._anchor = (at, answered_at)
        self._difference = reading.wall - at
        self._jumped_at = jumped_at
        if not await self._store(reading, answered_at):
            return False
        if stored is not None and jumped_at != stored.jumped_at:
            since = at - stored.written_at - stored.ahead
            log.warning("clock_jumped", seconds=round(since.total_seconds(), 3), jumped_at=at.isoformat())
        if abs(self._difference) > STEP_MIN:
            self._report_step(self._difference)
        self._metrics.clock_step.set(self._difference.total_seconds())
        return True

    async def run(self) -> None:
        """Look periodically for as long as the process lives."""
        while True:
            await self.look()
            await self._sleep(LOOK_SECONDS)

    async def look(self) -> datetime:
        """Compare the time with the database's wall clock; returns this clock's time, which goes on steadily."""
        reading, answered_at, round_trip = await self._read()
        if self._anchor is None:
            return await self.start()
        at = self._at(answered_at)
        if reading.stored is not None:
            newest = _later(self._jumped_at, reading.stored.jumped_at)
            if newest != self._jumped_at:
                self._jumped_at, self._stepped_ahead = newest, reading.stored.stepped_ahead
            pause = reading.wall + reading.stored.ahead - at
            if self._time.is_shared and _is_fresh(reading) and pause > PAUSE_MIN:
                log.warning("clock_paused", seconds=pause.total_seconds())
                at += pause
        difference = _difference(reading.wall - at, round_trip)
        step, self._difference = difference - self._difference, difference
        if abs(step) > STEP_MIN:
            self._report_step(step)
        self._metrics.clock_step.set(difference.total_seconds())
        slew = difference.total_seconds() / LOOK_SECONDS
        self._anchor = (at, answered_at)
        self._rate = 1 + max(-SLEW_MAX, min(SLEW_MAX, slew))
        await self._store(reading, answered_at)
        return self.now()

    @property
    def jumped_at(self) -> datetime | None:
        """The time right after it last went forward by more than any process had measured."""
        return self._jumped_at

    @property
    def stepped_ahead(self) -> timedelta:
        """How much of that jump has certainly not passed, if this process's start found it."""
        return self._stepped_ahead

    @property
    def database_offset(self) -> timedelta:
        """This machine's wall clock minus the database's, as of the last look."""
        return self._clock.now() - self.now() - self._difference

    def now(self) -> datetime:
        """The time of all processes; this process's own time before `start`, which precedes every stage."""
        if self._anchor is None:
            return self._clock.now()
        at, since = self._anchor
        return at + timedelta(seconds=(self._ticks() - since) * self._rate)

    def _at(self, ticks: float) -> datetime:
        assert self._anchor is not None, "the clock was started"
        at, since = self._anchor
        return at + timedelta(seconds=(ticks - since) * self._rate)

    async def _read(self) -> tuple[TimeReading, float, timedelta]:
        """A reading, the ticks at its answer, and its round trip."""
        asked_at = self._ticks()
        reading = await self._time.read()
        answered_at = self._ticks()
        return reading, answered_at, timedelta(seconds=answered_at - asked_at)

    def _has_measured(self, stored: StoredTime | None, at: datetime, ticks: float) -> bool:
        """Whether this machine's clock shows that the time since the stored one has really passed."""
        if stored is None or self._boot_id is None or stored.boot_id != self._boot_id:
            return False
        passed_seconds = ticks - stored.boot_seconds
        measured = timedelta(seconds=passed_seconds * (1 + SLEW_MAX)) + STEP_MIN
        return passed_seconds >= 0 and at - (stored.written_at + stored.ahead) <= measured

    def _not_passed(self, stored: StoredTime | None, at: datetime, ticks: float) -> timedelta:
        """How much of the time since the stored one has not passed on this machine; none of it after a reboot."""
        if stored is None or self._boot_id is None or stored.boot_id != self._boot_id:
            return ZERO
        passed = timedelta(seconds=max(ticks - stored.boot_seconds, 0.0))
        return max(at - (stored.written_at + stored.ahead) - passed, ZERO)

    async def _watch(self, before: StoredTime, reading: TimeReading, answered_at: float) -> tuple[TimeReading, float]:
        """Wait for a running process to refresh the stored time; returns the last reading."""
        ends_at = self._ticks() + WATCH_SECONDS
        while reading.stored == before and self._ticks() < ends_at:
            await self._sleep(WATCH_PAUSE_SECONDS)
            reading, answered_at, _ = await self._read()
        return reading, answered_at

    async def _store(self, reading: TimeReading, answered_at: float) -> bool:
        """Store the time if the stored one is old or has no such jump; returns False if another process was faster."""
        stored = reading.stored
        refresh_after = REFRESH_AFTER if self._time.is_shared else REFRESH_AFTER_ALONE
        if (
            stored is not None
            and ZERO <= reading.wall - stored.written_at < refresh_after
            and stored.jumped_at == self._jumped_at
        ):
            return True
        time = StoredTime(
            ahead=-self._difference,
            written_at=reading.wall,
            boot_id=self._boot_id,
            boot_seconds=answered_at,
            jumped_at=self._jumped_at,
            stepped_ahead=self._stepped_ahead,
        )
        return await self._time.store(time, read=stored)

    def _report_step(self, step: timedelta) -> None:
        log.error(
            "clock_stepped",
            step_seconds=round(step.total_seconds(), 3),
            difference_seconds=round(self._difference.total_seconds(), 3),
        )


def _is_fresh(reading: TimeReading) -> bool:
    """Whether a running process stored the time, and the wall clock was not stepped since."""
    return reading.stored is not None and ZERO <= reading.wall - reading.stored.written_at <= FRESH


def _newest(reading: TimeReading) -> datetime | None:
    """The latest time that a process of this database is known to have reached."""
    stored = None if reading.stored is None else reading.stored.written_at + reading.stored.ahead
    return _later(reading.newest_event_at, stored)


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    return max((at for at in (one, other) if at is not None), default=None)


def _difference(least: timedelta, round_trip: timedelta) -> timedelta:
    """The smallest difference that the reading allows: the answer was on its way for up to the round trip."""
    if least > ZERO:
        return least
    return min(least + round_trip, ZERO)


class Wake:
    """An event with a time-out: several notifications before a wait count as one."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.is_notified = False
        """Whether the next wait, or the present one, returns at once."""

    def notify(self) -> None:
        """Wake the waiting stage, or let its next wait return at once."""
        if not self.is_notified:
            self.is_notified = True
            self._event.set()

    async def wait(self, seconds: float) -> None:
        """Return at the next notification, or after so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        self.is_notified = False
        self._event.clear()
