"""The circuit breaker: it opens after consecutive failures, and probes with one request per rest period."""

from datetime import timedelta

import pytest

from switchyard.adapters.redis.host import Breaker
from tests.support.memory.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def breaker(clock: ManualClock) -> Breaker:
    return Breaker(clock, failures_max=3, rest_seconds_min=1.0, rest_seconds_max=4.0)


def open_it(breaker: Breaker) -> None:
    assert [breaker.failed() for _ in range(3)] == [False, False, True]


def wait(clock: ManualClock, seconds: float) -> None:
    clock.advance(timedelta(seconds=seconds))


def test_it_opens_at_the_last_of_consecutive_failures_and_reports_that_once(breaker: Breaker) -> None:
    assert breaker.allows()
    open_it(breaker)
    assert breaker.is_open
    assert not breaker.allows()
    assert not breaker.failed()


def test_a_success_resets_the_failure_count(breaker: Breaker) -> None:
    for _ in range(10):
        breaker.failed()
        breaker.failed()
        assert not breaker.succeeded()
    assert breaker.allows()


def test_after_the_rest_period_one_request_passes(breaker: Breaker, clock: ManualClock) -> None:
    open_it(breaker)
    wait(clock, 0.9)
    assert not breaker.allows()
    wait(clock, 0.1)
    assert [breaker.allows() for _ in range(3)] == [True, False, False]


def test_a_successful_probe_closes_it_and_reports_that_once(breaker: Breaker, clock: ManualClock) -> None:
    open_it(breaker)
    wait(clock, 1)
    assert breaker.allows()
    assert [breaker.succeeded(), breaker.succeeded()] == [True, False]
    assert [breaker.allows() for _ in range(3)] == [True, True, True]


def test_a_failed_probe_doubles_the_rest_period_up_to_the_bound(breaker: Breaker, clock: ManualClock) -> None:
    open_it(breaker)
    wait(clock, 1)
    for rest in (2, 4, 4, 4):
        assert breaker.allows()
        assert not breaker.failed()
        wait(clock, rest - 0.5)
        assert not breaker.allows()
        wait(clock, 0.5)


def test_a_new_outage_starts_with_the_shortest_rest_period(breaker: Breaker, clock: ManualClock) -> None:
    open_it(breaker)
    wait(clock, 1)
    assert breaker.allows()
    breaker.failed()
    wait(clock, 2)
    assert breaker.allows()
    breaker.succeeded()
    open_it(breaker)
    wait(clock, 1)
    assert breaker.allows()


def test_late_failures_of_earlier_requests_do_not_extend_the_rest_period(breaker: Breaker, clock: ManualClock) -> None:
    open_it(breaker)
    for _ in range(20):
        assert not breaker.failed()
    wait(clock, 1)
    assert breaker.allows()


def test_a_probe_without_a_recorded_result_does_not_block_the_next_probe(breaker: Breaker, clock: ManualClock) -> None:
    open_it(breaker)
    wait(clock, 1)
    assert breaker.allows()
    wait(clock, 1)
    assert breaker.allows()
