"""The real command in a real process, as a user would run it."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import IO

import aiohttp

from switchyard.adapters.system_clock import SystemClock
from switchyard.entrypoints.http.transport.auth import issue_token
from tests.support.ports import free_port

# Generous: a start is waited for as an event, and only a hung one comes near this.
DEADLINE_SECONDS = 60.0
SECRET = "0123456789abcdef0123456789abcdef-for-tests"
ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).with_name("switchyard")


def clean_environment(**settings: str) -> dict[str, str]:
    """The machine's environment without settings of a developer's own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SWITCHYARD_", "JWT_", "SSE_"))}
    return {**kept, "PYTHONUNBUFFERED": "1", **settings}


class Process:
    """One `switchyard …` process, started and ended by a test."""

    def __init__(self, folder: Path, role: str = "up", **settings: str) -> None:
        self.folder = folder
        self.role = role
        self.port = free_port()
        self.settings = {
            "SWITCHYARD_DATA_DIR": str(folder / "var"),
            "SWITCHYARD_STATE_DIR": str(folder / "state"),
            "SWITCHYARD_PORT": str(self.port),
            "JWT_HS256_SECRET": SECRET,
            **settings,
        }
        self.arguments: list[str] = []
        self.command = [str(COMMAND)]
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.folder / f"{self.role}-{self.port}.log").read_text("utf-8", "replace")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def headers(self, account: str = "demo", key: str | None = None) -> dict[str, str]:
        token = issue_token(SECRET, account, clock=SystemClock(), ttl=timedelta(hours=1))
        headers = {"Authorization": f"Bearer {token}"}
        return headers if key is None else {**headers, "Idempotency-Key": key}

    def spawn(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._log is not None:
            self._log.close()
        self._log = (self.folder / f"{self.role}-{self.port}.log").open("ab")
        self._process = subprocess.Popen(
            [*self.command, self.role, *self.arguments],
            env=clean_environment(**self.settings),
            cwd=self.folder,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    async def start(self) -> "Process":
        """Run it and wait until it answers."""
        self.spawn()
        if self.role == "worker":
            await until(lambda: "worker is running" in self.log)
            return self
        async with aiohttp.ClientSession() as session:
            deadline = time.monotonic() + DEADLINE_SECONDS
            while True:
                assert self._process is not None
                assert self._process.poll() is None, f"ended with {self._process.returncode}:\n{self.log}"
                try:
                    async with session.get(f"{self.url}/health") as response:
                        if response.status == 200:
                            return self
                except aiohttp.ClientError:
                    pass
                assert time.monotonic() < deadline, f"did not start:\n{self.log}"
                await asyncio.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL: no chance to tidy up."""
        self._end(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """Pause it, or let it go on."""
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        return self._end(signal.SIGTERM)

    def close(self) -> None:
        """End it if it still runs."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        if self._log is not None:
            self._log.close()

    def wait(self) -> int:
        """The exit code, once it has ended by itself."""
        assert self._process is not None
        assert self._log is not None
        code = self._process.wait(DEADLINE_SECONDS)
        self._log.close()
        return code

    def _end(self, how: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(how)
        code = self._process.wait(DEADLINE_SECONDS)
        assert self._log is not None
        self._log.close()
        return code


async def until(
    condition: Callable[[], bool | Awaitable[bool]], seconds_max: float = DEADLINE_SECONDS, pause_seconds: float = 0.01
) -> None:
    """Wait for something that will happen, with a deadline that only a defect reaches.

    A look that is work for the one who is looked at wants a longer pause: it would slow down what it waits for.
    """
    deadline = time.monotonic() + seconds_max
    while True:
        found = condition()
        if found if isinstance(found, bool) else await found:
            return
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(pause_seconds)


def run_command(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself."""
    return subprocess.run(
        [str(COMMAND), *arguments],
        env=clean_environment(**settings),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
