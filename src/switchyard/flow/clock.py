"""One steady time for all processes of a database: deadlines, ages and dates do not follow a step of a wall clock.

`DatabaseClock` reads the database's wall clock once at the start, together with the journal's newest date and the
offset that running processes share. From then on a monotonic clock carries the time on. Later looks correct it by a
small rate, report a step of the wall clock and refresh the shared offset; they never step the time.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import structlog

from switchyard.domain.decisions import SEND_DEADLINES
from switchyard.ports.clock import Clock
from switchyard.ports.database_time import DatabaseTime, SharedOffset, TimeReading
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

LOOK_SECONDS = 1.0
# The offset is refreshed by the first process that finds it this old, so its writes do not grow with the processes.
REFRESH_AFTER = timedelta(seconds=0.9)
# Three refreshes: an offset of this age, by the wall clock, was written by a running process.
FRESH = timedelta(seconds=3)
# How long a start waits for the refresh of an offset that is not fresh: the wall clock may have been stepped just now.
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
# than `FRESH`: a fresh offset that differs by this much cannot be explained by a step of the wall clock.
PAUSE_MIN = timedelta(seconds=5)
ZERO = timedelta()


class DatabaseClock:
    """Implements `Clock`. `ticks` are seconds that include the time in which the machine is suspended."""

    def __init__(
        self,
        time: DatabaseTime,
        clock: Clock,
        metrics: Metrics,
        *,
        ticks: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._time = time
        self._clock = clock
        self._metrics = metrics
        self._ticks = ticks or clock.monotonic
        self._sleep = sleep
        self._anchor: tuple[datetime, float] | None = None
        """This clock's time, and the ticks at which it was right."""
        self._rate = 1.0
        self._difference = ZERO
        """The database's wall clock minus this clock, at the last look."""

    async def start(self) -> datetime:
        """Set the time, before any stage uses it: as the running processes have it, or as the database has it."""
        readings = [await self._read() for _ in range(FIRST_READINGS)]
        reading, answered_at, _ = min(readings, key=lambda timed: timed[2])
        if reading.shared is not None and not _is_fresh(reading):
            reading, answered_at = await self._watch(reading.shared, reading, answered_at)
        at = reading.wall
        if _is_fresh(reading):
            assert reading.shared is not None, "only an offset can be fresh"
            at += reading.shared.ahead
        else:
            newest = _newest(reading)
            if newest is not None and newest > reading.wall:
                # The wall clock was stepped back while no process ran, and nothing tells for how long: an order with
                # a send deadline expires rather than leaves late.
                at = newest + max(SEND_DEADLINES.values())
        if reading.newest_event_at is not None:
            at = max(at, reading.newest_event_at)
        # Set at the answer, not at the question: late by the round trip at most, and never ahead.
        self._anchor = (at, answered_at)
        self._difference = reading.wall - at
        if abs(self._difference) > STEP_MIN:
            self._report_step(self._difference)
        self._metrics.clock_step.set(self._difference.total_seconds())
        await self._share(reading)
        return self.now()

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
        if reading.shared is not None and _is_fresh(reading):
            pause = reading.wall + reading.shared.ahead - at
            if pause > PAUSE_MIN:
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
        await self._share(reading)
        return self.now()

    def now(self) -> datetime:
        """The time of all processes; this process's own time before `start`, which precedes every stage."""
        return self._clock.now() if self._anchor is None else self._at(self._ticks())

    def monotonic(self) -> float:
        """Seconds that never decrease."""
        return self._clock.monotonic()

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

    async def _watch(self, before: SharedOffset, reading: TimeReading, answered_at: float) -> tuple[TimeReading, float]:
        """Wait for a running process to refresh the offset; returns the last reading."""
        ends_at = self._ticks() + WATCH_SECONDS
        while reading.shared == before and self._ticks() < ends_at:
            await self._sleep(WATCH_PAUSE_SECONDS)
            reading, answered_at, _ = await self._read()
        return reading, answered_at

    async def _share(self, reading: TimeReading) -> None:
        age = None if reading.shared is None else reading.wall - reading.shared.written_at
        if age is None or not ZERO <= age < REFRESH_AFTER:
            await self._time.share(-self._difference)

    def _report_step(self, step: timedelta) -> None:
        log.error(
            "clock_stepped",
            step_seconds=round(step.total_seconds(), 3),
            difference_seconds=round(self._difference.total_seconds(), 3),
        )


def _is_fresh(reading: TimeReading) -> bool:
    """Whether a running process wrote the shared offset, and the wall clock was not stepped since."""
    return reading.shared is not None and ZERO <= reading.wall - reading.shared.written_at <= FRESH


def _newest(reading: TimeReading) -> datetime | None:
    """The latest time that a process of this database is known to have reached."""
    shared = None if reading.shared is None else reading.shared.written_at + reading.shared.ahead
    known = [at for at in (reading.newest_event_at, shared) if at is not None]
    return max(known, default=None)


def _difference(least: timedelta, round_trip: timedelta) -> timedelta:
    """The smallest difference that the reading allows: the answer was on its way for up to the round trip."""
    if least > ZERO:
        return least
    return min(least + round_trip, ZERO)
