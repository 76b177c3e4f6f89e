"""The duplicate rate: one alarm per window of five minutes when it is above the threshold."""

import math
import random
from collections import deque
from datetime import timedelta

import pytest

from switchyard.flow.intake.order_intake import (
    REQUESTS_MIN,
    SLOT_SECONDS,
    WINDOW_SECONDS,
    DuplicateRate,
    HighDuplicateRate,
)
from tests.support.memory.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def place(rate: DuplicateRate, *, new: int = 0, duplicates: int = 0) -> list[HighDuplicateRate]:
    alarms = [rate.record(is_duplicate=number >= new) for number in range(new + duplicates)]
    return [alarm for alarm in alarms if alarm is not None]


def test_without_requests_the_rate_is_zero(clock: ManualClock) -> None:
    assert DuplicateRate(0.05, clock).rate() == 0


def test_a_rate_above_the_threshold_is_an_alarm_and_one_at_it_is_not(clock: ManualClock) -> None:
    rate = DuplicateRate(0.05, clock)
    assert place(rate, new=100, duplicates=5) == []
    assert rate.rate() == 0.05
    [alarm] = place(rate, duplicates=1)
    assert alarm == HighDuplicateRate(duplicates=6, orders=100, threshold=0.05)


def test_a_few_requests_are_no_alarm(clock: ManualClock) -> None:
    rate = DuplicateRate(0.05, clock)
    assert place(rate, new=1, duplicates=REQUESTS_MIN - 2) == []
    assert len(place(rate, duplicates=1)) == 1


def test_a_lasting_high_rate_is_one_alarm_per_window(clock: ManualClock) -> None:
    rate = DuplicateRate(0.05, clock)
    assert len(place(rate, duplicates=50)) == 1
    clock.advance(timedelta(seconds=WINDOW_SECONDS - SLOT_SECONDS))
    assert place(rate, duplicates=50) == []
    clock.advance(timedelta(seconds=SLOT_SECONDS))
    assert len(place(rate, duplicates=50)) == 1


def test_old_duplicates_do_not_cause_an_alarm_later(clock: ManualClock) -> None:
    rate = DuplicateRate(0.05, clock)
    place(rate, duplicates=50)
    clock.advance(timedelta(seconds=WINDOW_SECONDS))
    assert rate.rate() == 0
    assert place(rate, new=50) == []


def test_a_long_pause_empties_the_window(clock: ManualClock) -> None:
    rate = DuplicateRate(1.0, clock)
    place(rate, new=3, duplicates=3)
    clock.advance(timedelta(days=400))
    assert rate.rate() == 0
    place(rate, new=2, duplicates=1)
    assert rate.rate() == 0.5


@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_threshold_zero_allows_no_duplicate_and_threshold_one_allows_one_per_order(
    clock: ManualClock, threshold: float
) -> None:
    rate = DuplicateRate(threshold, clock)
    assert len(place(rate, new=100, duplicates=1)) == (threshold == 0)
    assert len(place(rate, duplicates=100)) == (threshold == 1)


def test_duplicates_without_any_order_are_an_alarm(clock: ManualClock) -> None:
    rate = DuplicateRate(1.0, clock)
    [alarm] = place(rate, duplicates=100)
    assert (alarm.duplicates, alarm.orders) == (REQUESTS_MIN, 0)


@pytest.mark.parametrize("seed", range(5))
def test_the_rate_is_that_of_the_slots_within_the_window(clock: ManualClock, seed: int) -> None:
    draw = random.Random(seed)
    rate = DuplicateRate(1.0, clock)
    placed: deque[tuple[int, bool]] = deque()
    for _ in range(2000):
        clock.advance(timedelta(seconds=draw.choice([0, 0, 0, 1, 7, 40, 299, 700])))
        slot = int(clock.monotonic() // SLOT_SECONDS)
        is_duplicate = draw.random() < 0.3
        rate.record(is_duplicate=is_duplicate)
        placed.append((slot, is_duplicate))
        while placed[0][0] <= slot - WINDOW_SECONDS // SLOT_SECONDS:
            placed.popleft()
        duplicates = sum(duplicate for _, duplicate in placed)
        orders = len(placed) - duplicates
        assert rate.rate() == (duplicates / orders if orders else math.inf)
