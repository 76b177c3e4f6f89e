"""A venue that says 'too many' is sent to more slowly, and the pace comes back by itself."""

from datetime import timedelta

from switchyard.adapters.memory.clock import START
from switchyard.flow.sending.throttle import REST, Throttle

SECOND = timedelta(seconds=1)


def test_nothing_is_held_back_without_need() -> None:
    throttle = Throttle(8)
    assert throttle.free(0, START) == 8
    assert throttle.free(8, START) == 0


def test_too_many_closes_for_as_long_as_the_venue_says_and_halves_the_pace() -> None:
    throttle = Throttle(8)
    throttle.slow_down(START, 3 * SECOND)
    assert throttle.free(0, START + 2 * SECOND) == 0
    assert throttle.free(0, START + 3 * SECOND) == 4
    assert throttle.free(3, START + 3 * SECOND) == 1


def test_without_a_time_it_rests_for_a_moment() -> None:
    throttle = Throttle(8)
    throttle.slow_down(START, None)
    assert throttle.free(0, START) == 0
    assert throttle.free(0, START + REST) == 4


def test_one_send_is_always_left_and_successes_bring_all_of_them_back() -> None:
    throttle = Throttle(8)
    for _ in range(20):
        throttle.slow_down(START, SECOND)
    assert throttle.free(0, START + SECOND) == 1
    for _ in range(1000):
        throttle.speed_up()
    assert throttle.free(0, START + SECOND) == 8


def test_a_shorter_wish_does_not_end_a_longer_one() -> None:
    throttle = Throttle(8)
    throttle.slow_down(START, 10 * SECOND)
    throttle.slow_down(START, SECOND)
    assert throttle.free(0, START + 5 * SECOND) == 0
