"""A forked process is like one that was started: its arguments, streams, folder, files, signals and exit code."""

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from tests.support.forked import COMMAND, Forked, Started, clean_environment, processor_seconds, start

SHOWS = """
import os, signal, sys, threading

print(__name__, sys.argv[1:], os.getcwd(), os.environ.get("ONE"), os.environ.get("HOME"), sys.stdin.read())
print(sys.path)
print(sorted(os.listdir("/proc/self/fd"))[:3], len(os.listdir("/proc/self/fd")), threading.active_count())
print([signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE)])
print("an error", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""
WAITS = """
import signal

while True:
    signal.pause()
"""
# A variable that the interpreter reads, so that it has to be started.
NOT_FORKED = {"PYTHONHASHSEED": "0"}


def run(command: list[str], folder: Path, **environment: str) -> tuple[Started, int, str, str]:
    with TemporaryFile() as out, TemporaryFile() as error:
        process = start(command, clean_environment(**environment), folder, out, error)
        code = process.wait(60)
        out.seek(0)
        error.seek(0)
        return process, code, out.read().decode(), error.read().decode()


@pytest.mark.parametrize("code", [0, 3])
def test_a_forked_module_sees_what_a_started_one_does(tmp_path: Path, code: int) -> None:
    (tmp_path / "shows.py").write_text(SHOWS)
    command = [sys.executable, "-m", "shows", str(code), "two words"]
    settings = {"ONE": "1", "PYTHONPATH": f"{tmp_path}/plugin:{clean_environment()['PYTHONPATH']}"}
    forked, *shown = run(command, tmp_path, **settings)
    started, *shown_by_started = run(command, tmp_path, **settings, **NOT_FORKED)
    assert isinstance(forked, Forked)
    assert isinstance(started, subprocess.Popen)
    assert shown == shown_by_started
    assert shown[0] == code


def test_a_forked_command_answers_as_a_started_one_does(tmp_path: Path) -> None:
    for arguments in (["db", "digest"], ["no-such-command"], ["--version"]):
        _, *answer = run([str(COMMAND), *arguments], tmp_path)
        _, *answer_of_started = run([str(COMMAND), *arguments], tmp_path, **NOT_FORKED)
        assert answer == answer_of_started


def test_a_forked_process_is_stopped_continued_and_killed_by_its_id(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    with TemporaryFile() as out:
        process = start([sys.executable, "-m", "waits"], clean_environment(), tmp_path, out)
    process.send_signal(signal.SIGSTOP)
    process.send_signal(signal.SIGCONT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    assert process.poll() is None
    before = processor_seconds()
    with ThreadPoolExecutor() as threads:
        waiting = [threads.submit(process.wait, 60) for _ in range(3)]
        process.send_signal(signal.SIGKILL)
    assert {one.result() for one in waiting} == {-signal.SIGKILL}
    assert process.wait(60) == process.returncode == process.poll() == -signal.SIGKILL
    assert processor_seconds() > before
    process.send_signal(signal.SIGKILL)  # of a process that has ended: nothing happens


def test_a_command_with_long_arguments_is_started(tmp_path: Path) -> None:
    process, code, _, error = run([str(COMMAND), "order", "show", "x" * 100_000], tmp_path)
    assert (type(process), code) == (subprocess.Popen, 2), error
