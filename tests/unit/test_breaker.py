"""A server that does not answer is left alone for a growing while, and tried again one question at a time."""

from datetime import timedelta

import pytest

from switchyard.adapters.memory.clock import ManualClock
from switchyard.adapters.redis.breaker import Breaker


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def breaker(clock: ManualClock) -> Breaker:
    return Breaker(clock, failures_max=3, rest_seconds_min=1.0, rest_seconds_max=4.0)


def opened(breaker: Breaker) -> None:
    assert [breaker.failed() for _ in range(3)] == [False, False, True]


def wait(clock: ManualClock, seconds: float) -> None:
    clock.advance(timedelta(seconds=seconds))


def test_it_opens_at_the_last_of_consecutive_failures_and_says_so_once(breaker: Breaker) -> None:
    assert breaker.allows()
    opened(breaker)
    assert breaker.is_open
    assert not breaker.allows()
    assert not breaker.failed()


def test_a_success_in_between_begins_the_count_anew(breaker: Breaker) -> None:
    for _ in range(10):
        breaker.failed()
        breaker.failed()
        assert not breaker.succeeded()
    assert breaker.allows()


def test_after_the_rest_one_question_goes_through(breaker: Breaker, clock: ManualClock) -> None:
    opened(breaker)
    wait(clock, 0.9)
    assert not breaker.allows()
    wait(clock, 0.1)
    assert [breaker.allows() for _ in range(3)] == [True, False, False]


def test_its_success_closes_and_says_so_once(breaker: Breaker, clock: ManualClock) -> None:
    opened(breaker)
    wait(clock, 1)
    assert breaker.allows()
    assert [breaker.succeeded(), breaker.succeeded()] == [True, False]
    assert [breaker.allows() for _ in range(3)] == [True, True, True]


def test_its_failure_doubles_the_rest_up_to_the_bound_and_says_nothing(breaker: Breaker, clock: ManualClock) -> None:
    opened(breaker)
    wait(clock, 1)
    for rest in (2, 4, 4, 4):
        assert breaker.allows()
        assert not breaker.failed()
        wait(clock, rest - 0.5)
        assert not breaker.allows()
        wait(clock, 0.5)


def test_a_new_outage_begins_with_a_short_rest(breaker: Breaker, clock: ManualClock) -> None:
    opened(breaker)
    wait(clock, 1)
    assert breaker.allows()
    breaker.failed()
    wait(clock, 2)
    assert breaker.allows()
    breaker.succeeded()
    opened(breaker)
    wait(clock, 1)
    assert breaker.allows()


def test_late_failures_of_earlier_questions_do_not_lengthen_the_rest(breaker: Breaker, clock: ManualClock) -> None:
    opened(breaker)
    for _ in range(20):
        assert not breaker.failed()
    wait(clock, 1)
    assert breaker.allows()


def test_a_probe_of_which_nothing_is_heard_does_not_keep_it_open(breaker: Breaker, clock: ManualClock) -> None:
    opened(breaker)
    wait(clock, 1)
    assert breaker.allows()
    wait(clock, 1)
    assert breaker.allows()
