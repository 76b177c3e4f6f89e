"""Servers under measurement: started, awaited, and always ended."""

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

START_SECONDS_MAX = 30.0
# A server may have a full queue to write when it is told to end.
STOP_SECONDS_MAX = 15.0
LOG = "process.log"
LOG_TAIL_LINES = 40
# Nothing else is inherited: a setting left in the caller's shell must not change what is measured.
INHERITED = ("PATH", "HOME", "LANG", "TMPDIR")


class BenchError(Exception):
    """A measurement that cannot be made, or whose figure would not be honest."""


def free_port() -> int:
    """A loopback port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(command: Sequence[str], environment: Mapping[str, str], folder: Path, port: int) -> Iterator[str]:
    """Run the command until the block ends; yields the server's address once it answers `GET /health`."""
    url = f"http://127.0.0.1:{port}"
    with running(command, environment, folder) as process:
        _wait_until_healthy(process, f"{url}/health", folder / LOG)
        yield url


@contextmanager
def running(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command until the block ends, which it must not do by itself before."""
    log = folder / LOG
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment_of(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield process
        if process.poll() is not None:
            raise BenchError(f"the process ended by itself with {process.returncode}:\n{_tail(log)}")
    finally:
        _stop(process)


def environment_of(own: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process under measurement."""
    return {name: os.environ[name] for name in INHERITED if name in os.environ} | dict(own)


def _wait_until_healthy(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BenchError(f"the server did not start, it ended with {process.returncode}:\n{_tail(log)}")
        try:
            with urllib.request.urlopen(url, timeout=1) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass  # not listening yet, or not ready yet
        time.sleep(0.05)
    raise BenchError(f"the server was not healthy within {START_SECONDS_MAX:.0f} s:\n{_tail(log)}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tail(log: Path) -> str:
    return "\n".join(log.read_text("utf-8", "replace").splitlines()[-LOG_TAIL_LINES:]) or "(its log is empty)"
