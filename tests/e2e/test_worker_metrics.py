"""A worker on PostgreSQL serves its metrics and its health, and no other path."""

import re
from typing import Any

import aiohttp
import pytest

from tests.support.cluster import Cluster
from tests.support.contract import Contract
from tests.support.orders import PATIENT, place
from tests.support.polling import until
from tests.support.process import Process

TOKEN = "let me see"


@pytest.fixture
async def gateway(database_url: str, cluster: Cluster) -> Process:
    return await cluster.process("gateway", "gateway", SWITCHYARD_DATABASE_URL=database_url).start()


def new_worker(cluster: Cluster, database_url: str, **settings: str) -> Process:
    return cluster.process("worker", "worker", SWITCHYARD_DATABASE_URL=database_url, **settings)


def metrics_address(worker: Process) -> str:
    """The address that the worker prints at its start."""
    printed = re.search(r"metrics on (http://127\.0\.0\.1:\d+)", worker.log)
    assert printed is not None, worker.log
    return printed[1]


async def test_the_sends_of_a_worker_are_counted_in_its_own_metrics(
    gateway: Process, cluster: Cluster, database_url: str, session: aiohttp.ClientSession
) -> None:
    worker = new_worker(cluster, database_url, SWITCHYARD_METRICS_PORT="0", GATEWAY_METRICS_TOKEN=TOKEN)
    await worker.start()
    url = metrics_address(worker)
    contract = Contract()

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
    await place(session, gateway)
    await until(is_sent)
    assert await gateway_paths(session, url, gateway.headers()) == [404, 404, 404, 404, 405]
    assert worker.stop() == 0


async def gateway_paths(session: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> list[int]:
    """The statuses of requests that only a gateway serves."""
    requests: list[tuple[str, str, Any]] = [
        ("POST", "/orders", PATIENT),
        ("GET", "/orders", None),
        ("GET", "/stream", None),
        ("GET", "/", None),
        ("POST", "/metrics", None),
    ]
    statuses: list[int] = []
    for method, path, body in requests:
        async with session.request(method, url + path, json=body, headers=headers) as response:
            statuses.append(response.status)
    return statuses


async def test_without_the_setting_a_worker_listens_nowhere(
    cluster: Cluster, database_url: str, session: aiohttp.ClientSession
) -> None:
    worker = await new_worker(cluster, database_url).start()
    assert "http://" not in worker.log
    with pytest.raises(aiohttp.ClientConnectorError):
        await session.get(f"{worker.url}/health")


async def test_a_metrics_port_in_use_is_reported_with_its_setting(
    gateway: Process, cluster: Cluster, database_url: str
) -> None:
    worker = new_worker(cluster, database_url, SWITCHYARD_METRICS_PORT=str(gateway.port))
    worker.spawn()
    assert worker.wait() == 4
    assert f"SWITCHYARD_METRICS_PORT: 127.0.0.1:{gateway.port} is in use" in worker.log
