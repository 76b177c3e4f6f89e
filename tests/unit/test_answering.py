"""The watch over a venue: for how long it has been answering, by one probe a second on the monotonic clock."""

from datetime import timedelta

import pytest

from switchyard.flow.sending.resolve import VenueWatch
from switchyard.ports.venue import ProbeResult, VenueUnavailable
from switchyard.telemetry.metrics import Metrics
from tests.support.build import VENUE
from tests.support.memory.clock import ManualClock

SECOND = timedelta(seconds=1)


class ProbedVenue:
    """A venue that answers probes as scripted."""

    def __init__(self, clock: ManualClock) -> None:
        self.name = VENUE
        self.result: ProbeResult | Exception = "answered"
        self.takes = timedelta()
        self._clock = clock

    async def probe(self) -> ProbeResult:
        self._clock.advance(self.takes)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


class Setup:
    """One watched venue."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.metrics = Metrics()
        self.venue = ProbedVenue(self.clock)
        self.watch = VenueWatch(self.venue, clock=self.clock, metrics=self.metrics)  # type: ignore[arg-type]

    async def probes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.advance(SECOND)
            await self.watch.probe_once()

    def seconds(self) -> float | None:
        return self.metrics.registry.get_sample_value("venue_answering_seconds", {"venue": VENUE})


async def test_the_time_of_answering_is_counted_from_the_first_answer() -> None:
    setup = Setup()
    mark = setup.watch.mark()
    assert not setup.watch.can_be_asked
    await setup.probes(1)
    assert (setup.watch.can_be_asked, setup.watch.answered_since(mark)) == (True, 0)
    await setup.probes(10)
    assert (setup.watch.answered_since(mark), setup.seconds()) == (10, 10)


async def test_a_mark_counts_from_its_own_moment() -> None:
    setup = Setup()
    await setup.probes(5)
    setup.clock.advance(SECOND / 2)
    mark = setup.watch.mark()
    await setup.probes(3)
    assert setup.watch.answered_since(mark) == 3, "the half second before the mark does not count"


@pytest.mark.parametrize("failure", [VenueUnavailable("no answer"), RuntimeError("a defect")])
async def test_a_failed_probe_starts_the_time_anew(failure: Exception) -> None:
    setup = Setup()
    await setup.probes(5)
    mark = setup.watch.mark()
    await setup.probes(5)
    setup.venue.result = failure
    await setup.probes(1)
    assert (setup.watch.can_be_asked, setup.watch.answered_since(mark), setup.seconds()) == (False, 0, 0)
    setup.venue.result = "answered"
    await setup.probes(4)
    assert setup.watch.answered_since(mark) == 3, "from the first answer after the failure"


async def test_a_slow_answer_starts_the_time_anew_but_the_venue_can_be_asked() -> None:
    setup = Setup()
    await setup.probes(5)
    mark = setup.watch.mark()
    await setup.probes(3)
    setup.venue.takes = timedelta(seconds=1.01)
    await setup.probes(1)
    assert (setup.watch.can_be_asked, setup.watch.answered_since(mark)) == (True, 0)


async def test_a_busy_venue_pauses_the_time() -> None:
    setup = Setup()
    await setup.probes(5)
    mark = setup.watch.mark()
    await setup.probes(3)
    setup.venue.result = "busy"
    await setup.probes(7)
    assert not setup.watch.can_be_asked
    setup.venue.result = "answered"
    await setup.probes(3)
    assert setup.watch.answered_since(mark) == 3 + 2, "neither the busy time nor the gaps beside it count"


async def test_a_gap_between_probes_starts_the_time_anew() -> None:
    setup = Setup()
    await setup.probes(5)
    mark = setup.watch.mark()
    setup.clock.advance(60 * SECOND)  # this process was stopped: nothing is known about the venue in that time
    await setup.probes(2)
    assert setup.watch.answered_since(mark) == 1


async def test_a_step_of_the_wall_clock_changes_nothing() -> None:
    setup = Setup()
    await setup.probes(5)
    mark = setup.watch.mark()
    setup.clock.step(timedelta(hours=1))
    await setup.probes(2)
    setup.clock.step(timedelta(hours=-2))
    await setup.probes(2)
    assert setup.watch.answered_since(mark) == 4
