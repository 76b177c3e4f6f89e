"""The system's clock and randomness, and the fakes for tests."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, timedelta

import pytest

from switchyard.adapters.system_clock import SystemClock, SystemRandomness
from switchyard.ports.clock import Clock, Randomness
from tests.support.memory.clock import START, ManualClock, SeededRandomness

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


def test_a_manual_clock_moves_only_when_advanced() -> None:
    clock = ManualClock()
    assert (clock.now(), clock.monotonic()) == (START, 0)
    clock.advance(timedelta(seconds=90))
    assert (clock.now(), clock.monotonic()) == (START + timedelta(seconds=90), 90)


def test_the_system_clock_is_in_utc_and_never_goes_back() -> None:
    clock: Clock = SystemClock()
    assert clock.now().tzinfo is UTC
    assert clock.monotonic() <= clock.monotonic()


def test_the_same_seed_gives_the_same_numbers() -> None:
    first, second = SeededRandomness(3), SeededRandomness(3)
    assert [first.bits(80) for _ in range(9)] == [second.bits(80) for _ in range(9)]
    assert first.jitter() == second.jitter()


@pytest.mark.parametrize("randomness", [SystemRandomness(), SeededRandomness()])
def test_numbers_have_the_requested_width(randomness: Randomness) -> None:
    for count in (1, 3, 8, 63, 80):
        draws = [randomness.bits(count) for _ in range(1_000)]
        assert 0 <= min(draws) <= max(draws) < 2**count
        assert max(draws) >= 2 ** (count - 1)
    assert all(-1 <= randomness.jitter() <= 1 for _ in range(1_000))


def test_threads_never_get_the_same_number() -> None:
    randomness = SystemRandomness()
    with ThreadPoolExecutor(4) as threads:
        draws = [
            draw
            for part in threads.map(lambda _: [randomness.bits(80) for _ in range(5_000)], range(4))
            for draw in part
        ]
    assert len(set(draws)) == len(draws) == 20_000


def test_a_forked_process_gets_other_numbers_than_its_parent() -> None:
    finished = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True)
    assert len(set(finished.stdout.split())) == 2
