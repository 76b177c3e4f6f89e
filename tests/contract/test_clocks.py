"""Time and randomness: the machine's own, and those that a test owns."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, timedelta

import pytest

from switchyard.adapters.memory.clock import START, ManualClock, SeededRandomness
from switchyard.adapters.system_clock import SystemClock, SystemRandomness
from switchyard.ports.clock import Clock
from switchyard.ports.randomness import Randomness

# Both processes draw after the fork, from a pool that was filled before it.
FORK = """
import os
from switchyard.adapters.system_clock import SystemRandomness
randomness = SystemRandomness()
randomness.bits(80)
child = os.fork()
os.write(1, f"{randomness.bits(80)}\\n".encode())
if child:
    os.waitpid(child, 0)
"""


def test_a_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock()
    assert (clock.now(), clock.monotonic()) == (START, 0)
    clock.advance(timedelta(seconds=90))
    assert (clock.now(), clock.monotonic()) == (START + timedelta(seconds=90), 90)


def test_the_system_clock_is_in_utc_and_never_goes_back() -> None:
    clock: Clock = SystemClock()
    assert clock.now().tzinfo is UTC
    assert clock.monotonic() <= clock.monotonic()


def test_the_same_seed_draws_the_same() -> None:
    one, other = SeededRandomness(3), SeededRandomness(3)
    assert [one.bits(80) for _ in range(9)] == [other.bits(80) for _ in range(9)]
    assert one.jitter() == other.jitter()


@pytest.mark.parametrize("randomness", [SystemRandomness(), SeededRandomness()])
def test_draws_have_the_width_that_was_asked_for(randomness: Randomness) -> None:
    for count in (1, 3, 8, 63, 80):
        draws = [randomness.bits(count) for _ in range(1_000)]
        assert 0 <= min(draws) <= max(draws) < 2**count
        assert max(draws) >= 2 ** (count - 1)
    assert all(-1 <= randomness.jitter() <= 1 for _ in range(1_000))


def test_no_two_threads_draw_the_same() -> None:
    randomness = SystemRandomness()
    with ThreadPoolExecutor(4) as threads:
        draws = [
            draw
            for part in threads.map(lambda _: [randomness.bits(80) for _ in range(5_000)], range(4))
            for draw in part
        ]
    assert len(set(draws)) == len(draws) == 20_000


def test_a_forked_process_does_not_draw_what_its_parent_draws() -> None:
    finished = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True)
    assert len(set(finished.stdout.split())) == 2
