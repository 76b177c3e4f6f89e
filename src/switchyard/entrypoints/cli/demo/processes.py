"""The processes of the demo: venue simulators and one `switchyard up`, all on this machine's loopback address.

Starts and ends processes; their files are in the demo's folder. They get no setting of the caller's environment, so
that a demo cannot reach a real database or broker.
"""

import asyncio
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from switchyard.domain.errors import SwitchyardError

if TYPE_CHECKING:
    from aiohttp import ClientSession

    from switchyard.settings import Settings

HOST = "127.0.0.1"
CHILD = "switchyard.entrypoints.cli.demo.child"
# All that a Python process needs of its surroundings.
KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "PYTHONPATH", "LD_LIBRARY_PATH")
START_SECONDS_MAX = 60.0
# `up` finishes its requests and sends within 10 s.
STOP_SECONDS_MAX = 20.0
POLL_SECONDS = 0.1
LOG_LINES_SHOWN = 2
# Not the disk: a demo needs little of it.
NEEDED_CHECKS = ("journal", "worker", "venues", "books")


class DemoFailed(SwitchyardError):
    """The demo cannot go on; the text says why."""


class Venue(msgspec.Struct, frozen=True, kw_only=True):
    """A simulated broker: how it treats repeated ids, and what goes wrong there all day."""

    name: str
    city: str
    dedupe: str
    lookup: str
    symbols: tuple[str, ...]
    faults: Mapping[str, float] = {}


VENUES = (
    Venue(
        name="tokyo",
        city="Tokyo",
        dedupe="permanent",
        lookup="all",
        symbols=("USDJPY", "EURJPY"),
        faults={"partial_fills": 3, "fee_basis_points": 1, "duplicate_reports": 0.1},
    ),
    Venue(
        name="london",
        city="London",
        dedupe="while_open",
        lookup="all",
        symbols=("EURUSD", "GBPUSD"),
        faults={"fee_basis_points": 1, "reordered_reports": 0.1},
    ),
    Venue(
        name="newyork",
        city="New York",
        dedupe="none",
        lookup="none",
        symbols=("AAPL", "MSFT"),
        faults={"fee_basis_points": 2, "reject": 0.15},
    ),
)
PAPER = "paper"
"""The exchange within the process, for all other symbols."""


class Child:
    """One process."""

    def __init__(self, name: str, folder: Path, environment: Mapping[str, str], *arguments: str) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._folder = folder
        self._environment = environment
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    def spawn(self) -> None:
        """Start it, in a session of its own: Ctrl-C is for the demo, which ends the processes in order."""
        command = [sys.executable, "-P", "-m", CHILD, str(os.getpid()), *self._arguments]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self._folder,
                env=dict(self._environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def check(self) -> None:
        """Raise DemoFailed if it has ended."""
        if self._process is not None and self._process.poll() is not None:
            end = " ".join(self.log.read_text("utf-8", "replace").splitlines()[-LOG_LINES_SHOWN:])
            raise DemoFailed(f"{self.name} ended with exit code {self._process.returncode}; the end of its log: {end}")

    async def stop(self) -> None:
        """Let it finish; kill it if that takes too long."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(process.wait, STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Site:
    """All processes and their settings."""

    def __init__(self, folder: Path, *, seed: int, port: int, backoffice_port: int) -> None:
        self.folder = folder
        port, backoffice_port = port or _free_port(), backoffice_port or _free_port()
        self.url = f"http://{HOST}:{port}"
        self.backoffice_url = f"http://{HOST}:{backoffice_port}"
        ports = {venue.name: _free_port() for venue in VENUES}
        self.venue_urls = {name: f"http://{HOST}:{number}" for name, number in ports.items()}
        self.variables = _variables(folder, port, backoffice_port, self.venue_urls)
        kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        self._environment = {**kept, "PYTHONUNBUFFERED": "1", **self.variables}
        self.venues = {
            venue.name: self._child(venue.name, *_simulator(venue, ports[venue.name], self.venue_log(venue), seed))
            for venue in VENUES
        }
        self.gateway = self._child("switchyard", "up")

    def _child(self, name: str, *arguments: str) -> Child:
        return Child(name, self.folder, self._environment, *arguments)

    @property
    def settings(self) -> "Settings":
        """The settings of the gateway, to sign tokens with."""
        from switchyard.settings import load_settings

        return load_settings(self.variables)

    def venue_log(self, venue: Venue) -> Path:
        """The file in which a venue records what it accepted."""
        return self.folder / f"{venue.name}.jsonl"

    async def start(self, session: "ClientSession") -> None:
        """Start everything and return when orders are sent to all venues."""
        path = self.folder / "demo.env"
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in self.variables.items()]
        path.write_text("".join(lines), "utf-8")
        for venue in self.venues.values():
            venue.spawn()
        for name, venue in self.venues.items():
            await self._until_ready(session, venue, f"{self.venue_urls[name]}/health")
        self.gateway.spawn()
        await self._until_ready(session, self.gateway, f"{self.url}/health/ready")

    def check(self) -> None:
        """Raise DemoFailed if a process has ended."""
        for child in (self.gateway, *self.venues.values()):
            child.check()

    async def command(self, *arguments: str) -> str:
        """The output of a `switchyard` command, as an operator on this machine runs it."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", CHILD, str(os.getpid()), *arguments),
            cwd=self.folder,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        if process.returncode:
            raise DemoFailed(f"`switchyard {shlex.join(arguments)}` failed: {err.decode('utf-8', 'replace').strip()}")
        return out.decode()

    async def stop(self) -> None:
        """End the gateway, then the venues that it talks to."""
        await self.gateway.stop()
        await asyncio.gather(*(venue.stop() for venue in self.venues.values()))

    async def _until_ready(self, session: "ClientSession", child: Child, url: str) -> None:
        import aiohttp

        try:
            async with asyncio.timeout(START_SECONDS_MAX):
                while True:
                    child.check()
                    try:
                        async with session.get(url) as response:
                            if response.status == 200 and _is_ready(await response.read()):
                                return
                    except aiohttp.ClientError:
                        pass  # it does not listen yet
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise DemoFailed(f"{child.name} was not ready after {START_SECONDS_MAX:g} s: see {child.log}") from None


def _is_ready(body: bytes) -> bool:
    """Whether a gateway has opened its venues; a simulator that answers is ready."""
    checks = msgspec.json.decode(body).get("checks", ())
    return all(check["status"] == "ok" for check in checks if check["check"] in NEEDED_CHECKS)


def _simulator(venue: Venue, port: int, log: Path, seed: int) -> list[str]:
    where = ["venue-sim", "--port", str(port), "--log", str(log), "--seed", str(seed), "--amend", "in_place"]
    # The simulator can always be asked; whether Switchyard asks is a setting.
    kind = ["--dedupe", venue.dedupe, "--lookup", "all"]
    return [*where, *kind, *(word for name, value in venue.faults.items() for word in ("--fault", f"{name}={value}"))]


def _variables(folder: Path, port: int, backoffice_port: int, venue_urls: Mapping[str, str]) -> dict[str, str]:
    routes = [f"{symbol}={venue.name}" for venue in VENUES for symbol in venue.symbols]
    variables = {
        "SWITCHYARD_DATA_DIR": str(folder / "var"),
        "SWITCHYARD_STATE_DIR": str(folder / "state"),
        "SWITCHYARD_HOST": HOST,
        "SWITCHYARD_PORT": str(port),
        "SWITCHYARD_BACKOFFICE_PORT": str(backoffice_port),
        "SWITCHYARD_RECONCILE_SEC": "3",
        "SWITCHYARD_RECONCILE_QUIET_SEC": "1",
        "SOR_VENUES": ",".join([*venue_urls, PAPER]),
        "SOR_DEFAULT_VENUE": PAPER,
        "SOR_SYMBOL_ROUTES": ",".join(routes),
        "RISK_MAX_QTY": "50000",
        "RISK_RESTRICTED_SYMBOLS": "XRP",
        # Far above what the demo has open: it makes the gateway count reservations.
        "RISK_MAX_OPEN_NOTIONAL": "10000000000",
    }
    for venue in VENUES:
        name = venue.name.upper()
        variables |= {
            f"VENUE_URL_{name}": venue_urls[venue.name],
            f"VENUE_DEDUPE_{name}": venue.dedupe,
            f"VENUE_LOOKUP_{name}": venue.lookup,
            f"VENUE_WINDOW_SEC_{name}": "2",
            f"VENUE_AMEND_{name}": "in_place",
            f"VENUE_SWEEP_SEC_{name}": "5",
        }
    return variables


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
