"""What the nemesis attacks: real processes on one engine, and a venue of one class behind a proxy."""

import asyncio
import shutil
import signal
from pathlib import Path
from typing import Literal

import aiohttp

from switchyard.settings.table import VENUE_SETTINGS
from tests.support.evidence import tool_settings
from tests.support.hop_proxy import HopProxy
from tests.support.nemesis_client import Intent, NemesisClient
from tests.support.nemesis_process import NO_BUG, NemesisProcess
from tests.support.postgres import PostgresServer
from tests.support.process import run_command
from tests.support.venue_process import VenueProcess

Engine = Literal["sqlite", "postgres"]
WINDOW_SECONDS = 2.0
TTL_SECONDS = 20.0
# The exit code of a process that refuses to start on an older database.
REFUSED = 4
DATABASE_FILES = "switchyard.db*"


class Site:
    """One engine and one venue class: processes, venue, proxy, client, and a backup."""

    def __init__(
        self, folder: Path, engine: Engine, dedupe: str, *, seed: int, hop_hold_seconds: float, bug: str = NO_BUG
    ) -> None:
        self.folder, self.engine, self.dedupe = folder, engine, dedupe
        self.hop_hold_seconds = hop_hold_seconds
        self.server = PostgresServer() if engine == "postgres" else None
        self.simulator = VenueProcess(folder / "venue", dedupe=dedupe)
        self.simulator.arguments += ["--dedupe-ttl", str(TTL_SECONDS), "--seed", str(seed)]
        self.proxy = HopProxy(self.simulator.port)
        self._settings = {
            "VENUE_DEDUPE_SIM": dedupe,
            "VENUE_DEDUPE_TTL_SEC_SIM": str(TTL_SECONDS),
            "VENUE_WINDOW_SEC_SIM": str(WINDOW_SECONDS),
            "VENUE_SWEEP_SEC_SIM": "5",
            "OUTBOX_STUCK_THRESHOLD_MIN": "0.05",
            "DO_RATE_PER_MIN": "1000000",
            "SWITCHYARD_LOG_LEVEL": "warning",
            "XDG_STATE_HOME": str(folder / "state"),
        }
        if any(setting.name == "VENUE_HOP_HOLD_SEC_" for setting in VENUE_SETTINGS):
            self._settings["VENUE_HOP_HOLD_SEC_SIM"] = str(hop_hold_seconds)
        if self.server is not None:
            self._settings["SWITCHYARD_DATABASE_URL"] = self.server.create_database()
        roles = ("up",) if self.server is None else ("gateway", "worker")
        self.processes = [NemesisProcess(folder, role, bug=bug, **self._settings) for role in roles]
        self.gateway, self.sender = self.processes[0], self.processes[-1]
        self.client = NemesisClient(self.gateway, f"{seed} client {engine} {dedupe}")
        self._backup: Path | None = None
        self._kept: set[int] = set()

    @property
    def name(self) -> str:
        return f"{self.engine}/{self.dedupe}"

    async def start(self) -> None:
        """Start everything; returns when the gateway answers."""
        await self.simulator.start()
        await self.proxy.start()
        for process in self.processes:
            process.settings["VENUE_URL_SIM"] = self.proxy.url
        if self.server is not None:
            upgraded = await self.tool("db", "upgrade")
            assert upgraded[0] == 0, upgraded[1]
        await self.revive()

    async def tool(self, *arguments: str) -> tuple[int, str]:
        """Run a command on this site's data; returns its exit code and its output."""
        done = await asyncio.to_thread(run_command, *arguments, **tool_settings(self.gateway))
        return done.returncode, done.stdout + done.stderr

    async def kill(self, process: NemesisProcess) -> None:
        """SIGKILL; where a process died on its own, this changes nothing."""
        if process.is_running:
            await asyncio.to_thread(process.kill)

    async def revive(self) -> None:
        """Start every process that does not run; one that refuses an older database is told that it was restored."""
        for process in self.processes:
            if process.is_running:
                continue
            process.spawn()
            if await process.has_started():
                continue
            code = await asyncio.to_thread(process.wait)
            if code == REFUSED:
                await self._declare_restored()
                process.spawn()
            assert await process.has_started(), f"{self.name}: {process.role} ended with {code}\n{process.log[-2000:]}"

    def back_up(self) -> None:
        """Keep the database as it is; on SQLite its process must not be running."""
        # Before the dump, which takes a while: an order that is acknowledged meanwhile may not be in it.
        self._kept = {intent.number for intent in self.client.intents if intent.told == "ok"}
        if self.server is not None:
            self._backup = self.server.dump(self._settings["SWITCHYARD_DATABASE_URL"])
        else:
            self._backup = self.folder / "backup"
            shutil.rmtree(self._backup, ignore_errors=True)
            shutil.copytree(self.folder / "var", self._backup, ignore=shutil.ignore_patterns("*.sock"))

    @property
    def has_backup(self) -> bool:
        return self._backup is not None

    def restore(self, *, whole_folder: bool) -> list[Intent]:
        """Put the backup in place of the newest state; returns the intents that it may not have."""
        assert self._backup is not None
        if self.server is not None:
            self.server.restore(self._settings["SWITCHYARD_DATABASE_URL"], self._backup)
        elif whole_folder:
            shutil.rmtree(self.folder / "var")
            shutil.copytree(self._backup, self.folder / "var")
        else:
            for path in (self.folder / "var").glob(DATABASE_FILES):
                path.unlink()
            for path in self._backup.glob(DATABASE_FILES):
                shutil.copy2(path, self.folder / "var" / path.name)
        return [intent for intent in self.client.intents if intent.number not in self._kept]

    async def set_faults(self, faults: dict[str, float]) -> None:
        """Set the venue's faults; does nothing while the venue does not answer."""
        await self._admin("post", faults)

    async def heal(self) -> None:
        """End every fault."""
        self.proxy.heal()
        self.simulator.send(signal.SIGCONT)
        for process in self.processes:
            process.step(0.0)
            if process.is_running:
                process.send(signal.SIGCONT)
        await self._admin("delete", None)
        await self.revive()

    async def close(self) -> None:
        """End everything that this site started."""
        for process in (*self.processes, self.simulator):
            await asyncio.to_thread(process.close)
        await self.proxy.stop()
        if self.server is not None:
            await asyncio.to_thread(self.server.remove)

    async def _declare_restored(self) -> None:
        for process in self.processes:
            await self.kill(process)
        code, output = await self.tool("db", "restored")
        assert code == 0, output

    async def _admin(self, method: str, faults: dict[str, float] | None) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
            for _ in range(50):  # the fault that closes its listener ends by itself
                try:
                    async with session.request(method, f"{self.simulator.url}/admin/faults", json=faults) as response:
                        assert response.status == 200, await response.text()
                        return
                except aiohttp.ClientError:
                    await asyncio.sleep(0.1)
