"""The counts of the benchmark, on a small program instead of a server."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.counts import OBSERVER, CallCounter, processes, valgrind_facts
from bench.processes import BenchError
from tests.support.polling import DEADLINE_SECONDS

# A child process, a thread in each of them, and a call for each byte of the input; the child's comes from the parent.
# Signals are handled between two reads: one that arrives just before a read without a timeout would wait for its end.
PROGRAM = """
import os, select, subprocess, sys, threading

def called():
    pass

child = subprocess.Popen([sys.executable, __file__, "child"], stdin=subprocess.PIPE) if len(sys.argv) == 1 else None
threading.Thread(target=threading.Event().wait, name="paper-sim", daemon=True).start()
while True:
    if select.select([0], [], [], 0.02)[0]:
        byte = os.read(0, 1)
        if not byte:
            break
        called()
        if child is not None:
            os.write(child.stdin.fileno(), byte)
"""
POLL_SECONDS = 0.02


def test_calls_are_counted_in_a_process_and_in_its_child(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, "utf-8")
    observed = {"PYTHONPATH": str(OBSERVER), "BENCH_OBSERVED": str(tmp_path), "BENCH_OBSERVE": "calls"}
    counter = CallCounter(tmp_path)
    with subprocess.Popen(
        [sys.executable, str(program)], env={**os.environ, **observed}, stdin=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        _until(lambda: len(processes(tmp_path)) == 2 and _calls(counter) == {})
        process.stdin.write("123")
        process.stdin.flush()
        counted: dict[str, int] = {}

        def all_are_counted() -> bool:
            for name, number in _calls(counter).items():
                counted[name] = counted.get(name, 0) + number
            return sum(counted.values()) >= 6

        _until(all_are_counted)
        process.stdin.close()
    assert counted == {"program.py": 3, "program.py child": 3}


def test_a_missing_valgrind_is_reported_with_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BenchError, match="apt-get install valgrind"):
        valgrind_facts()


def _calls(counter: CallCounter) -> dict[str, int]:
    """The calls of `called` by process, since the last call of this function."""
    return {call.thread.process: number for call, number in counter.take().items() if call.function == "called"}


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(POLL_SECONDS)
