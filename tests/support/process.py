"""The command `switchyard` in its own process, as a user runs it."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import IO, Self

import aiohttp

from switchyard.adapters.system_clock import SystemClock
from switchyard.entrypoints.http.transport.auth import issue_token
from tests.support.polling import DEADLINE_SECONDS, until
from tests.support.ports import free_port

SECRET = "0123456789abcdef0123456789abcdef-for-tests"
ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).with_name("switchyard")


def clean_environment(**settings: str) -> dict[str, str]:
    """The environment without the developer's own settings; modules of `tests` can be run in it.

    Without a back office: most tests have no use for one, and its port would have to be free.
    """
    # Without compiled modules every process would compile the package again, for half a second.
    dropped = ("SWITCHYARD_", "JWT_", "SSE_", "OTEL_", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    fixed = {
        "PYTHONUNBUFFERED": "1",
        # The code beside the tests, wherever the package is installed from.
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        # No certificate authorities: aiohttp reads those of the system at each start, and no process here needs one.
        "SSL_CERT_FILE": os.devnull,
        "SWITCHYARD_BACKOFFICE": "false",
    }
    return {**kept, **fixed, **settings}


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
        self._process: subprocess.Popen[bytes] | None = None
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
        self._process = subprocess.Popen(
            [*self.command, self.role, *self.arguments],
            env=clean_environment(**self.settings),
            cwd=self.folder,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

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
    def _started(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.role} was not started"
        return self._process


def run_command(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a command that exits by itself."""
    return run_within(DEADLINE_SECONDS, *arguments, **settings)


def run_within(deadline_seconds: float, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a command that may take longer."""
    return subprocess.run(
        [str(COMMAND), *arguments],
        env=clean_environment(**settings),
        capture_output=True,
        text=True,
        timeout=deadline_seconds,
        check=False,
    )
