"""Starts servers, waits until they are healthy, and stops them at the end of a block."""

import os
import resource
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# A database with a million orders may take time to open, and Valgrind makes a start 30 times slower.
START_SECONDS_MAX = 180.0
# A server may have to write a full queue when it is stopped.
STOP_SECONDS_MAX = 15.0
HEALTH_POLL_SECONDS = 0.02
LOG = "process.log"
LOG_TAIL_LINES = 40
# Enough for the open loop or the idle streams on both sides; a gateway keeps 500 of its files for other purposes.
FILES_MIN = 8_192
# The only inherited variables: settings in the shell of the caller must not affect the measurement.
INHERITED = ("PATH", "HOME", "LANG", "TMPDIR")


class BenchError(Exception):
    """A measurement failed, or its result would not be valid."""


@dataclass(frozen=True)
class Server:
    """A running server."""

    url: str
    pid: int
    start_seconds: float
    """The time from the start of the process to the first healthy answer."""


def free_port() -> int:
    """An unused loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(command: Sequence[str], environment: Mapping[str, str], folder: Path, port: int) -> Iterator[Server]:
    """Run the command until the block ends; yields the server once it responds to `GET /health`."""
    url = f"http://127.0.0.1:{port}"
    started = time.monotonic()
    with running(command, environment, folder) as process:
        _wait_until_healthy(process, f"{url}/health", folder / LOG)
        yield Server(url, process.pid, time.monotonic() - started)


@contextmanager
def running(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, log_name: str = LOG
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command until the block ends; raises BenchError if it exits before that."""
    log = folder / log_name
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
        try:
            yield process
        except BenchError as error:
            if process.poll() is None:
                raise
            raise BenchError(f"{error}; the process exited with {process.returncode}:\n{_tail(log)}") from error
        if process.poll() is not None:
            raise BenchError(f"the process exited with {process.returncode}:\n{_tail(log)}")
    finally:
        _stop(process)


def allow_many_files() -> None:
    """Raise the limit of open files, for this process and all that it starts; raises BenchError if it cannot."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES_MIN:
        raise BenchError(f"{FILES_MIN} open files are needed and {hard} are allowed: raise `ulimit -Hn`")
    if soft != resource.RLIM_INFINITY and soft < FILES_MIN:
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES_MIN, hard))


def environment_of(own: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process under measurement."""
    return {name: os.environ[name] for name in INHERITED if name in os.environ} | dict(own)


def _wait_until_healthy(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BenchError(f"the server did not start, it exited with {process.returncode}:\n{_tail(log)}")
        try:
            with urllib.request.urlopen(url, timeout=1) as response:
                if response.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass  # not listening or not ready yet
        time.sleep(HEALTH_POLL_SECONDS)
    raise BenchError(f"the server was not healthy within {START_SECONDS_MAX:.0f} s:\n{_tail(log)}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tail(log: Path) -> str:
    return "\n".join(log.read_text("utf-8", "replace").splitlines()[-LOG_TAIL_LINES:]) or "(the log is empty)"
