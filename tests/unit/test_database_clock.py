"""`DatabaseClock`: one steady time for all processes, whatever happens to wall clocks."""

from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from structlog.testing import capture_logs

from switchyard.flow.clock import FIRST_READINGS, PAUSE_MIN, SLEW_MAX, DatabaseClock
from switchyard.ports.journal import StoredTime, TimeReading
from switchyard.telemetry.metrics import Metrics
from tests.support.build import an_accept
from tests.support.journal_checks import commit
from tests.support.memory.clock import START, ManualClock
from tests.support.memory.database_time import MemoryTime
from tests.support.memory.journal import MemoryJournal

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
# What slewing may add or remove within the seconds of a test.
SLEWED = timedelta(seconds=0.1)


class SlowTime(MemoryTime):
    """Database times whose readings take `takes` to answer, with an event on the way."""

    def __init__(self, clock: ManualClock) -> None:
        self.journal = MemoryJournal()
        super().__init__(self.journal, clock)
        self._wall = clock
        self.asked = 0
        self.takes: list[timedelta] = []
        self.after_read: Callable[[], None] = lambda: None

    async def read(self) -> TimeReading:
        self.asked += 1
        reading = await super().read()
        self.after_read()
        if self.takes:
            self._wall.advance(self.takes.pop(0))
        return reading


class Bench:
    """A database's wall clock, which is also that of its processes, and any number of processes."""

    def __init__(self) -> None:
        self.wall = ManualClock()
        self.time = SlowTime(self.wall)
        self.metrics = Metrics()
        self.during_sleep: Callable[[], None] = lambda: None

    def process(self, boot_id: str | None = None) -> DatabaseClock:
        return DatabaseClock(self.time, self.wall, self.metrics, boot_id=boot_id, sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.wall.advance(timedelta(seconds=seconds))
        self.during_sleep()

    async def pass_seconds(self, seconds: int, *processes: DatabaseClock) -> None:
        """Time passes, and each process looks every second."""
        for _ in range(seconds):
            self.wall.advance(SECOND)
            for process in processes:
                await process.look()

    @property
    def gauge(self) -> float:
        value = self.metrics.registry.get_sample_value("clock_step_seconds")
        assert value is not None
        return value


async def test_the_database_is_asked_at_the_start_and_the_monotonic_clock_adds_the_rest() -> None:
    bench = Bench()
    clock = bench.process()
    assert clock.now() == START
    assert await clock.start() == START
    bench.wall.advance(7 * SECOND)
    assert clock.now() == START + 7 * SECOND
    assert bench.time.asked == FIRST_READINGS


async def test_the_quickest_of_the_first_answers_counts() -> None:
    bench = Bench()
    bench.time.takes = [SECOND / 2, SECOND / 100, SECOND / 3]
    started = await bench.process().start()
    assert bench.wall.now() - started == SECOND / 100, "late by the round trip of the best answer, and not ahead"


async def test_a_slow_answer_neither_moves_the_clock_nor_looks_like_a_step() -> None:
    bench = Bench()
    clock = bench.process()
    await clock.start()
    bench.time.takes = [20 * SECOND]
    with capture_logs() as logs:
        assert await clock.look() == START + 20 * SECOND
    assert logs == []


@pytest.mark.parametrize("step", [HOUR, -HOUR])
async def test_a_step_of_the_wall_clock_is_reported_once_and_not_followed(step: timedelta) -> None:
    bench = Bench()
    clock = bench.process()
    await clock.start()
    bench.wall.step(step)
    with capture_logs() as logs:
        await bench.pass_seconds(30, clock)
    assert abs(clock.now() - (START + 30 * SECOND)) < SLEWED
    assert [(entry["event"], round(entry["step_seconds"])) for entry in logs] == [
        ("clock_stepped", round(step.total_seconds()))
    ]
    assert bench.gauge == pytest.approx(step.total_seconds(), abs=1)


async def test_a_step_back_to_the_right_time_is_a_step_too_and_clears_the_figure() -> None:
    bench = Bench()
    clock = bench.process()
    await clock.start()
    with capture_logs() as logs:
        for step in (HOUR, -HOUR):
            bench.wall.step(step)
            await bench.pass_seconds(3, clock)
    assert [entry["step_seconds"] for entry in logs] == pytest.approx([3600, -3600], abs=0.1)
    assert bench.gauge == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize("drift", [SECOND / 2, -SECOND / 2])
async def test_a_small_difference_is_slewed_away_and_time_never_goes_back(drift: timedelta) -> None:
    bench = Bench()
    clock = bench.process()
    await clock.start()
    bench.wall.step(drift)
    seen = [clock.now()]
    for _ in range(int(0.5 / SLEW_MAX) + 10):
        await bench.pass_seconds(1, clock)
        seen.append(clock.now())
    assert all(SECOND * 0.999 < later - earlier < SECOND * 1.001 for earlier, later in pairwise(seen))
    assert abs(clock.now() - bench.wall.now()) < timedelta(milliseconds=1)


@pytest.mark.parametrize("step", [HOUR, -HOUR])
async def test_a_process_that_starts_after_a_step_agrees_with_those_that_run(step: timedelta) -> None:
    bench = Bench()
    running = bench.process()
    await running.start()
    bench.wall.step(step)
    await bench.pass_seconds(3, running)
    later = bench.process()
    await later.start()
    assert abs(later.now() - running.now()) < SLEWED


@pytest.mark.parametrize("step", [HOUR, -HOUR])
async def test_a_process_that_starts_before_the_others_noticed_the_step_waits_for_them(step: timedelta) -> None:
    bench = Bench()
    running = bench.process()
    await running.start()
    await bench.pass_seconds(2, running)
    bench.wall.step(step)

    def refresh() -> None:
        # The running process looks while the new one waits.
        bench.time.stored = StoredTime(
            ahead=running.now() - bench.wall.now(),
            written_at=bench.wall.now(),
            boot_id=None,
            boot_seconds=0,
            jumped_at=None,
        )

    bench.during_sleep = refresh
    later = bench.process()
    await later.start()
    assert abs(later.now() - running.now()) < SLEWED


async def test_a_restart_after_a_step_back_goes_on_after_the_journals_newest_event() -> None:
    bench = Bench()
    await commit(bench.time.journal, an_accept(now=START))
    bench.wall.step(-HOUR)
    with capture_logs() as logs:
        started = await bench.process().start()
    assert started >= START + 5 * SECOND, "an order with a send deadline has missed it: nobody knows for how long"
    assert started < START + 10 * SECOND
    assert [entry["event"] for entry in logs] == ["clock_stepped"]


async def test_a_restart_after_a_step_back_goes_on_after_the_time_that_was_shared_last() -> None:
    bench = Bench()
    first = bench.process()
    await first.start()
    await bench.pass_seconds(60, first)
    bench.wall.step(-HOUR)
    started = await bench.process().start()
    assert started >= START + 60 * SECOND


async def test_a_restart_after_downtime_takes_the_wall_clock() -> None:
    bench = Bench()
    first = bench.process()
    await first.start()
    bench.wall.advance(HOUR)
    later = bench.process()
    await later.start()
    assert later.now() == bench.wall.now()


async def test_a_process_that_was_paused_follows_the_others() -> None:
    """Its own monotonic clock stood still, as in a paused virtual machine; the others went on."""
    bench = Bench()
    paused_ticks = 0.0
    paused = DatabaseClock(bench.time, bench.wall, bench.metrics, ticks=lambda: paused_ticks)
    other = bench.process()
    await paused.start()
    await other.start()
    await bench.pass_seconds(60, other)
    with capture_logs() as logs:
        await paused.look()
    assert abs(paused.now() - other.now()) < SLEWED
    assert [entry["event"] for entry in logs] == ["clock_paused"]
    assert 60 * SECOND > PAUSE_MIN


async def test_a_step_between_reading_and_storing_moves_no_process() -> None:
    bench = Bench()
    one, other = bench.process(), bench.process()
    await one.start()
    await other.start()
    bench.wall.advance(SECOND)

    def step_once() -> None:
        bench.wall.step(25 * HOUR)
        bench.time.after_read = lambda: None

    bench.time.after_read = step_once
    await one.look()
    await other.look()
    await bench.pass_seconds(3, one, other)
    assert abs(one.now() - (START + 4 * SECOND)) < SLEWED
    assert abs(other.now() - one.now()) < SLEWED
    late = bench.process()
    await late.start()
    assert abs(late.now() - one.now()) < SLEWED


async def test_a_process_that_reads_before_and_stores_after_another_changes_nothing() -> None:
    bench = Bench()
    paused, started = bench.process(), bench.process()
    await paused.start()
    bench.wall.advance(HOUR)
    reading = await bench.time.read()
    await started.start()
    stored = bench.time.stored
    assert not await paused._store(reading, 0)
    assert bench.time.stored == stored


@pytest.mark.parametrize("boot_id", ["same", None])
@pytest.mark.parametrize("is_shared", [True, False])
async def test_a_start_after_a_step_forward_says_from_when_ages_count(boot_id: str | None, is_shared: bool) -> None:
    bench = Bench()
    bench.time.is_shared = is_shared
    first = bench.process(boot_id)
    await first.start()
    await bench.pass_seconds(60, first)
    bench.wall.step(25 * HOUR)
    with capture_logs() as logs:
        restarted = bench.process(boot_id)
        now = await restarted.start()
    assert abs(now - bench.wall.now()) < SLEWED
    assert restarted.jumped_at is not None
    assert now - SLEWED <= restarted.jumped_at <= now
    assert [entry["event"] for entry in logs] == ["clock_jumped"]
    await bench.pass_seconds(3, restarted)
    again = bench.process(boot_id)
    await again.start()
    assert again.jumped_at is not None
    assert again.jumped_at >= restarted.jumped_at, "a jump is remembered over the next restart"


@pytest.mark.parametrize("is_shared", [True, False])
async def test_downtime_that_the_machine_measured_is_no_jump(is_shared: bool) -> None:
    bench = Bench()
    bench.time.is_shared = is_shared
    first = bench.process("same")
    await first.start()
    await bench.pass_seconds(200, first)
    bench.wall.advance(30 * HOUR)
    restarted = bench.process("same")
    await restarted.start()
    assert restarted.now() == bench.wall.now()
    assert restarted.jumped_at == first.jumped_at


async def test_downtime_across_a_reboot_is_a_jump() -> None:
    bench = Bench()
    first = bench.process("one boot")
    await first.start()
    bench.wall.advance(HOUR)
    restarted = bench.process("another boot")
    started = await restarted.start()
    assert restarted.jumped_at == started


async def test_a_process_that_follows_a_jump_knows_that_it_was_one() -> None:
    """It was paused; meanwhile the wall clock was stepped, and another process started and took the new time."""
    bench = Bench()
    paused = bench.process()
    await paused.start()
    bench.wall.advance(10 * SECOND)
    bench.wall.step(25 * HOUR)
    other = bench.process()
    await other.start()
    await paused.look()
    assert abs(paused.now() - other.now()) < SLEWED
    assert paused.jumped_at == other.jumped_at
    assert other.jumped_at is not None
    assert other.jumped_at > START + 25 * HOUR


def test_before_the_start_it_is_the_process_own_time() -> None:
    now: datetime = Bench().process().now()
    assert now == START


async def test_the_offset_of_this_machine_against_the_database_is_shown() -> None:
    bench, machine = Bench(), ManualClock(START + 3 * SECOND)
    clock = DatabaseClock(bench.time, machine, bench.metrics)
    await clock.start()
    assert clock.database_offset == 3 * SECOND
    for each in (bench.wall, machine):
        each.advance(SECOND)
    machine.step(-5 * SECOND)
    await clock.look()
    assert abs(clock.database_offset + 2 * SECOND) < SLEWED
    bench.wall.step(-HOUR)
    await clock.look()
    assert abs(clock.database_offset - HOUR + 2 * SECOND) < SLEWED
