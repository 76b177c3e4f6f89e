"""A wall clock that is set by an hour while orders wait: they still leave, none leaves late and none expires early."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import aiohttp
import pytest

from tests.support.figures import scrape
from tests.support.polling import until
from tests.support.postgres import PostgresServer
from tests.support.posts import BODY, bearer, post
from tests.support.process import Process, run_command
from tests.support.skewed import SkewedProcess
from tests.support.stepped import step_server_clock
from tests.support.venue_process import VenueProcess

HOUR = timedelta(hours=1)
NO_TIME = timedelta(0)
GTC: dict[str, Any] = {"type": "LIMIT", "price": 1_000_000, "timeInForce": "GTC"}
IOC: dict[str, Any] = {"type": "MARKET"}


class Machine:
    """A gateway and a worker whose database's clock the test steps: one process on SQLite, two on PostgreSQL."""

    def __init__(self, folder: Path, simulator: VenueProcess, database_url: str | None) -> None:
        self.simulator = simulator
        self._url = database_url
        settings = simulator.client_settings(VENUE_DEDUPE_SIM="permanent")
        if database_url is None:
            self._embedded = SkewedProcess(folder, "up", NO_TIME, **settings)
            self.processes: list[Process] = [self._embedded]
        else:
            settings["SWITCHYARD_DATABASE_URL"] = database_url
            assert run_command("db", "upgrade", **settings).returncode == 0
            roles = ("gateway", "worker")
            self.processes = [Process(folder / role, role, **settings) for role in roles]
        self.gateway = self.processes[0]

    async def start(self) -> None:
        for process in self.processes:
            await process.start()

    async def step(self, ahead: timedelta) -> None:
        if self._url is None:
            self._embedded.step(ahead)
        else:
            await step_server_clock(self._url, ahead)

    async def status(self, session: aiohttp.ClientSession, order: dict[str, Any]) -> tuple[str, str | None]:
        url = f"{self.gateway.url}/orders/{order['orderId']}"
        async with session.get(url, headers=bearer("demo")) as response:
            found = await response.json()
        return found["status"], found["reason"]

    async def until_ended(self, session: aiohttp.ClientSession, order: dict[str, Any], *status: str | None) -> None:
        async def has_ended() -> bool:
            return await self.status(session, order) == status

        try:
            await until(has_ended)
        except AssertionError:
            raise AssertionError(f"expected {status}, not {await self.status(session, order)}") from None


async def post_when_the_queue_is_short(session: aiohttp.ClientSession, gateway: Process) -> dict[str, Any]:
    """Post an IOC order; right after a backlog the gateway answers 503 until it has read the queue again."""
    answers: list[dict[str, Any]] = []

    async def is_accepted() -> bool:
        async with session.post(f"{gateway.url}/orders", json={**BODY, **IOC}, headers=bearer("demo")) as response:
            answers.append(await response.json())
        assert response.status == 202 or answers[-1]["reason"] == "QUEUE_DELAY", answers[-1]
        return response.status == 202

    await until(is_accepted, pause_seconds=0.1)
    return answers[-1]


@pytest.fixture(params=["sqlite", "postgres"])
async def machine(
    request: pytest.FixtureRequest, tmp_path: Path, postgres_server: PostgresServer
) -> AsyncIterator[Machine]:
    engine: Literal["sqlite", "postgres"] = request.param
    url = postgres_server.create_database() if engine == "postgres" else None
    simulator = VenueProcess(tmp_path / "venue", dedupe="permanent")
    machine = Machine(tmp_path / "machine", simulator, url)
    yield machine
    for process in (*machine.processes, simulator):
        process.close()


@pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["ahead", "back"])
async def test_orders_that_wait_while_the_clock_is_stepped(machine: Machine, step: timedelta) -> None:
    async with aiohttp.ClientSession() as session:
        await machine.simulator.start()
        await machine.start()
        first = await post(session, machine.gateway, bearer("demo"), **IOC)
        await machine.until_ended(session, first, "FILLED", None)
        machine.simulator.kill()

        waiting = await post(session, machine.gateway, bearer("demo"), **GTC)
        impatient = await post(session, machine.gateway, bearer("demo"), **IOC)
        await machine.step(step)
        await machine.until_ended(session, impatient, "EXPIRED", "BROKER_DOWN")

        async def is_shown() -> bool:
            shown = (await scrape(session, machine.gateway.url))["clock_step_seconds"]
            return abs(shown - step.total_seconds()) < 2

        await until(is_shown)
        assert machine.gateway.log.count("clock_stepped") == 1
        await machine.simulator.start()
        await machine.until_ended(session, waiting, "FILLED", None)
        for _ in range(10):
            fresh = await post_when_the_queue_is_short(session, machine.gateway)
            await machine.until_ended(session, fresh, "FILLED", None)
        executions = machine.simulator.check_nothing_twice()
    assert impatient["orderId"] not in executions
    assert len(executions) == 12


@pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["ahead", "back"])
async def test_orders_that_wait_for_a_restart_after_the_clock_was_stepped(machine: Machine, step: timedelta) -> None:
    async with aiohttp.ClientSession() as session:
        await machine.start()  # the venue does not answer, so that both orders wait
        waiting = await post(session, machine.gateway, bearer("demo"), **GTC)
        impatient = await post(session, machine.gateway, bearer("demo"), **IOC)
        for process in machine.processes:
            process.kill()
        await machine.step(step)
        await machine.simulator.start()
        await machine.start()
        await machine.until_ended(session, waiting, "FILLED", None)
        fresh = await post_when_the_queue_is_short(session, machine.gateway)
        await machine.until_ended(session, fresh, "FILLED", None)
        status, _ = await machine.status(session, impatient)
        assert status == "EXPIRED"
        executions = machine.simulator.check_nothing_twice()
    assert set(executions) == {waiting["orderId"], fresh["orderId"]}
