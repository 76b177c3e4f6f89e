"""The dead man's switch of a venue: when it is renewed, what counts as set, and what a failed renewal leads to."""

import asyncio
from datetime import timedelta

import pytest

from switchyard.domain.ids import VenueName
from switchyard.flow.health.dead_mans_switch import DeadMansSwitch
from switchyard.flow.health.venues import HealthBoard, HealthWriter, VenueBreaker
from switchyard.ports.venue import VenueUnavailable
from switchyard.telemetry.metrics import Metrics
from tests.support.memory.clock import ManualClock

VENUE = VenueName("acorn")
SECONDS = 30


class SwitchVenue:
    """Notes the times that were set; an answer takes `answer_takes`, and does not come without `answers`."""

    def __init__(self, clock: ManualClock) -> None:
        self.name = VENUE
        self.times: list[tuple[float, int]] = []
        self.answers = True
        self.answer_takes = timedelta()
        self._clock = clock

    async def cancel_all_after(self, seconds: int) -> None:
        self.times.append((self._clock.monotonic(), seconds))
        self._clock.advance(self.answer_takes)
        if not self.answers:
            raise VenueUnavailable("connection refused")


class Site:
    def __init__(self) -> None:
        self.clock, self.metrics = ManualClock(), Metrics()
        self.venue = SwitchVenue(self.clock)
        self.switch = DeadMansSwitch(self.venue, SECONDS, clock=self.clock, metrics=self.metrics)

    def value(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, {"venue": VENUE})


@pytest.fixture
def site() -> Site:
    return Site()


async def test_it_is_set_for_its_time_counted_from_before_the_request(site: Site) -> None:
    assert (site.switch.state, site.value("venue_switch_set")) == ("not_set", 0)
    site.venue.answer_takes = timedelta(seconds=4)
    assert await site.switch.run_once() == 1
    states = [site.switch.state]
    for seconds in (25.9, 0.1):
        site.clock.advance(timedelta(seconds=seconds))
        states.append(site.switch.state)
    assert (states, site.value("venue_switch_set")) == (["set", "set", "not_set"], 1)


async def test_a_renewal_that_fails_is_counted_and_the_time_before_it_goes_on(site: Site) -> None:
    await site.switch.run_once()
    site.venue.answers = False
    for left in (True, True, False):
        site.clock.advance(timedelta(seconds=site.switch.pause_seconds))
        assert await site.switch.run_once() == 0
        assert (site.switch.state == "set", site.value("venue_switch_set")) == (left, left)
    assert site.value("venue_switch_renewals_failed_total") == 3
    site.venue.answers = True
    await site.switch.run_once()
    assert (site.switch.state, site.value("venue_switch_set")) == ("set", 1)


async def test_a_step_of_the_wall_clock_changes_nothing(site: Site) -> None:
    await site.switch.run_once()
    site.clock.step(timedelta(days=1))
    assert site.switch.state == "set"


async def test_it_is_renewed_at_a_third_of_its_time(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def sleep(seconds: float) -> None:
        site.clock.advance(timedelta(seconds=seconds))
        if len(site.venue.times) == 4:
            raise asyncio.CancelledError

    monkeypatch.setattr("switchyard.flow.health.dead_mans_switch.asyncio.sleep", sleep)
    site.venue.answer_takes = timedelta(seconds=2)  # part of the pause, not added to it
    with pytest.raises(asyncio.CancelledError):
        await site.switch.run()
    assert site.venue.times == [(0, SECONDS), (10, SECONDS), (20, SECONDS), (30, SECONDS)]


async def test_an_orderly_stop_switches_it_off_if_the_orders_are_to_stay(site: Site) -> None:
    await site.switch.run_once()
    await site.switch.disarm()
    assert site.venue.times[-1] == (0, 0)
    assert (site.switch.state, site.value("venue_switch_set")) == ("not_set", 0)
    site.venue.answers = False
    await site.switch.disarm()  # a venue that does not answer does not hold up the stop


async def test_the_board_shows_it_and_a_change_is_written_at_once(site: Site) -> None:
    board, written = HealthBoard(), []

    async def commit(change: object) -> object:
        written.append(change)
        return None

    breaker = VenueBreaker(VENUE, faults_max=3, pause=timedelta(seconds=2), clock=site.clock, metrics=site.metrics)
    board.watch([breaker])
    writer = HealthWriter(board, [VENUE], commit, site.clock)  # type: ignore[arg-type]
    assert (board.record(VENUE).switch, await writer.run_once()) == (None, 1)  # type: ignore[union-attr]
    board.switches[VENUE] = site.switch
    assert await writer.run_once() == 1
    assert await writer.run_once() == 0
    await site.switch.run_once()
    assert (board.record(VENUE).switch, await writer.run_once()) == ("set", 1)  # type: ignore[union-attr]
