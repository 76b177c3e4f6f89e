"""The throttle: a 429 halves the sends under way to a venue, and accepted sends restore them."""

from datetime import timedelta

from switchyard.flow.sending.sends import REST, Throttle
from tests.support.memory.clock import START

SECOND = timedelta(seconds=1)


def test_without_a_429_all_slots_are_free() -> None:
    throttle = Throttle(8)
    assert throttle.free(0, START) == 8
    assert throttle.free(8, START) == 0


def test_a_429_closes_the_venue_for_its_retry_after_and_halves_the_limit() -> None:
    throttle = Throttle(8)
    throttle.slow_down(START, 3 * SECOND)
    assert throttle.free(0, START + 2 * SECOND) == 0
    assert throttle.free(0, START + 3 * SECOND) == 4
    assert throttle.free(3, START + 3 * SECOND) == 1


def test_a_429_without_retry_after_closes_the_venue_for_the_default_pause() -> None:
    throttle = Throttle(8)
    throttle.slow_down(START, None)
    assert throttle.free(0, START) == 0
    assert throttle.free(0, START + REST) == 4


def test_one_slot_always_remains_and_accepted_sends_restore_all_of_them() -> None:
    throttle = Throttle(8)
    for _ in range(20):
        throttle.slow_down(START, SECOND)
    assert throttle.free(0, START + SECOND) == 1
    for _ in range(1000):
        throttle.speed_up()
    assert throttle.free(0, START + SECOND) == 8


def test_a_shorter_pause_does_not_end_a_longer_one() -> None:
    throttle = Throttle(8)
    throttle.slow_down(START, 10 * SECOND)
    throttle.slow_down(START, SECOND)
    assert throttle.free(0, START + 5 * SECOND) == 0
