"""Starts servers, waits until they are healthy, and stops them at the end of a block."""

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
# A server may have to write a full queue when it is stopped.
STOP_SECONDS_MAX = 15.0
LOG = "process.log"
LOG_TAIL_LINES = 40
# The only inherited variables: settings in the shell of the caller must not affect the measurement.
INHERITED = ("PATH", "HOME", "LANG", "TMPDIR")


class BenchError(Exception):
    """A measurement failed, or its result would not be valid."""


def free_port() -> int:
    """An unused loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(command: Sequence[str], environment: Mapping[str, str], folder: Path, port: int) -> Iterator[str]:
    """Run the command until the block ends; yields the server's URL once it responds to `GET /health`."""
    url = f"http://127.0.0.1:{port}"
    with running(command, environment, folder) as process:
        _wait_until_healthy(process, f"{url}/health", folder / LOG)
        yield url


@contextmanager
def running(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command until the block ends; raises BenchError if it exits before that."""
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
            raise BenchError(f"the process exited with {process.returncode}:\n{_tail(log)}")
    finally:
        _stop(process)


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
    return "\n".join(log.read_text("utf-8", "replace").splitlines()[-LOG_TAIL_LINES:]) or "(the log is empty)"
