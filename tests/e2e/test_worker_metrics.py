"""A worker alone on PostgreSQL serves its metrics and its health, and nothing else."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.contract import Contract
from tests.support.postgres import PostgresServer
from tests.support.process import Process, run_command, until

BODY = {"symbol": "USDJPY", "side": "BUY", "type": "LIMIT", "price": 1000, "qty": 1000}
TOKEN = "let me see"


@pytest.fixture
def settings(postgres_server: PostgresServer) -> dict[str, str]:
    found = {"SWITCHYARD_DATABASE_URL": postgres_server.create_database()}
    assert run_command("db", "upgrade", **found).returncode == 0
    return found


@pytest.fixture
async def gateway(settings: dict[str, str], tmp_path: Path) -> AsyncIterator[Process]:
    process = await Process(tmp_path / "gateway", "gateway", **settings).start()
    yield process
    process.close()


def worker_in(folder: Path, settings: dict[str, str], **more: str) -> Process:
    return Process(folder / "worker", "worker", **settings, **more)


def address(worker: Process) -> str:
    """Where the worker says that it serves them."""
    said = re.search(r"metrics on (http://127\.0\.0\.1:\d+)", worker.log)
    assert said is not None, worker.log
    return said[1]


async def test_what_a_worker_sends_is_in_its_own_metrics(
    gateway: Process, settings: dict[str, str], tmp_path: Path
) -> None:
    worker = worker_in(tmp_path, settings, SWITCHYARD_METRICS_PORT="0", GATEWAY_METRICS_TOKEN=TOKEN)
    contract = Contract()
    try:
        await worker.start()
        url = address(worker)
        async with aiohttp.ClientSession() as session:

            async def get(path: str, **headers: str) -> tuple[int, str]:
                async with session.get(url + path, headers=headers) as response:
                    body = await response.read()
                    contract.check("GET", path, response.status, response.headers, body)
                    return response.status, body.decode()

            async def is_sent() -> bool:
                status, text = await get("/metrics", **{"X-Metrics-Token": TOKEN})
                assert status == 200
                return 'outbox_send_total{outcome="success"} 1.0' in text

            assert await get("/health") == (200, '{"status":"ok"}')
            assert (await get("/metrics"))[0] == (await get("/metrics", **{"X-Metrics-Token": "guess"}))[0] == 401
            async with session.post(f"{gateway.url}/orders", json=BODY, headers=gateway.headers()) as response:
                assert response.status == 202
            await until(is_sent)
            assert await answers(session, url, gateway.headers()) == [404, 404, 404, 404, 405]
        assert worker.stop() == 0
    finally:
        worker.close()


async def answers(session: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> list[int]:
    """What those get who take the worker for a gateway."""
    found: list[int] = []
    calls: list[tuple[str, str, Any]] = [
        ("POST", "/orders", BODY),
        ("GET", "/orders", None),
        ("GET", "/stream", None),
        ("GET", "/", None),
        ("POST", "/metrics", None),
    ]
    for method, path, body in calls:
        async with session.request(method, url + path, json=body, headers=headers) as response:
            found.append(response.status)
    return found


async def test_without_the_setting_a_worker_listens_nowhere(settings: dict[str, str], tmp_path: Path) -> None:
    worker = worker_in(tmp_path, settings)
    try:
        await worker.start()
        assert "http://" not in worker.log
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.get(f"{worker.url}/health")
    finally:
        worker.close()


async def test_a_port_that_is_taken_is_named_with_its_setting(
    gateway: Process, settings: dict[str, str], tmp_path: Path
) -> None:
    worker = worker_in(tmp_path, settings, SWITCHYARD_METRICS_PORT=str(gateway.port))
    try:
        worker.spawn()
        assert worker.wait() == 4
        assert f"SWITCHYARD_METRICS_PORT: 127.0.0.1:{gateway.port} is in use" in worker.log
    finally:
        worker.close()
