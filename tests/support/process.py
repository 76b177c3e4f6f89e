"""The command `switchyard` in its own process, as a user runs it."""

import signal
import subprocess
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Self

import aiohttp

from switchyard.adapters.system_clock import SystemClock
from switchyard.entrypoints.http.transport.auth import issue_token
from tests.support.forked import COMMAND, ROOT, Started, clean_environment, start
from tests.support.polling import DEADLINE_SECONDS, until
from tests.support.ports import free_port

__all__ = ["COMMAND", "ROOT", "SECRET", "Process", "clean_environment", "run_command", "run_within"]

SECRET = "0123456789abcdef0123456789abcdef-for-tests"


class Process:
    """A `switchyard` process that a test starts and ends."""

    def __init__(self, folder: Path, role: str = "up", **settings: str) -> None:
        self.folder = folder
        self.role = role
        self.port = free_port()
        self.backoffice_port = free_port()
        self.settings = {
            "SWITCHYARD_DATA_DIR": str(folder / "var"),
            "SWITCHYARD_STATE_DIR": str(folder / "state"),
            "SWITCHYARD_PORT": str(self.port),
            "SWITCHYARD_BACKOFFICE_PORT": str(self.backoffice_port),
            "JWT_HS256_SECRET": SECRET,
            **settings,
        }
        self.arguments: list[str] = []
        self.command = [str(COMMAND)]
        self._process: Started | None = None
        self._log: IO[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def backoffice_url(self) -> str:
        """Of a process that also keeps the books (`SWITCHYARD_BACKOFFICE`)."""
        return f"http://127.0.0.1:{self.backoffice_port}"

    @property
    def log(self) -> str:
        return (self.folder / f"{self.role}-{self.port}.log").read_text("utf-8", "replace")

    @property
    def pid(self) -> int:
        return self._started.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def headers(
        self, account: str = "demo", key: str | None = None, scopes: Sequence[str] = (), subject: str | None = None
    ) -> dict[str, str]:
        token = issue_token(
            SECRET, account, clock=SystemClock(), ttl=timedelta(hours=1), scopes=scopes, subject=subject
        )
        headers = {"Authorization": f"Bearer {token}"}
        return headers if key is None else {**headers, "Idempotency-Key": key}

    def spawn(self) -> None:
        """Start it and return at once."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._log is not None:
            self._log.close()
        self._log = (self.folder / f"{self.role}-{self.port}.log").open("ab")
        environment = clean_environment(**self.settings)
        self._process = start([*self.command, self.role, *self.arguments], environment, self.folder, self._log)

    async def start(self) -> Self:
        """Start it and wait until it is ready."""
        self.spawn()
        async with aiohttp.ClientSession() as session:
            # A longer pause, because a start keeps a processor busy.
            await until(lambda: self._is_ready(session), lambda: self.log, pause_seconds=0.02)
        return self

    async def _is_ready(self, session: aiohttp.ClientSession) -> bool:
        assert self.is_running, f"{self.role} exited with {self._started.returncode}:\n{self.log}"
        if self.role == "worker":
            return "worker is running" in self.log
        try:
            async with session.get(f"{self.url}/health") as response:
                is_ready = response.status == 200
            if self.role == "up" and self.settings.get("SWITCHYARD_BACKOFFICE") == "true":
                # In a process of its own; halted books answer as well.
                async with session.get(f"{self.backoffice_url}/health"):
                    pass
        except aiohttp.ClientError:
            return False
        return is_ready

    def kill(self) -> None:
        """SIGKILL: the process cannot clean up."""
        self._end(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """Send a signal that does not end it, such as SIGSTOP or SIGCONT."""
        self._started.send_signal(number)

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        return self._end(signal.SIGTERM)

    def close(self) -> None:
        """Kill it if it still runs."""
        if self.is_running:
            self.kill()
        if self._log is not None:
            self._log.close()

    def wait(self) -> int:
        """Wait until it exits by itself and return the exit code."""
        code = self._started.wait(DEADLINE_SECONDS)
        assert self._log is not None
        self._log.close()
        return code

    def _end(self, how: signal.Signals) -> int:
        self._started.send_signal(how)
        return self.wait()

    @property
    def _started(self) -> Started:
        assert self._process is not None, f"{self.role} was not started"
        return self._process


def run_command(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a command that exits by itself."""
    return run_within(DEADLINE_SECONDS, *arguments, **settings)


def run_within(deadline_seconds: float, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a command that may take longer."""
    command = [str(COMMAND), *arguments]
    with TemporaryFile() as out, TemporaryFile() as error:
        process = start(command, clean_environment(**settings), Path.cwd(), out, error)
        try:
            code = process.wait(deadline_seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            raise
        out.seek(0)
        error.seek(0)
        return subprocess.CompletedProcess(command, code, out.read().decode(), error.read().decode())
