"""`/do/order` while its own processes die: a repeat finds the order, and the broker executes it once."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from switchyard.adapters.postgres.database import PostgresDatabase
from switchyard.adapters.sqlite.database import SqliteDatabase
from switchyard.domain.ids import AccountId
from switchyard.domain.orders.keys import DO_ORDER, KeyEntry
from tests.support.cluster import Cluster
from tests.support.databases import Database
from tests.support.do_order import PATIENT, error, post
from tests.support.evidence import tool_settings
from tests.support.gateway import CheckedResponse
from tests.support.polling import until
from tests.support.process import Process, run_command
from tests.support.venue_process import VenueProcess

# The broker accepts the order, never completes its response, and sends its report after the process was killed.
SILENT = {"slow_bytes": 3600.0, "late_reports": 1.0}
UNLIMITED = {"VENUE_WINDOW_SEC_SIM": "1", "DO_RATE_PER_MIN": "10000"}


@pytest.fixture
async def broker(cluster: Cluster) -> VenueProcess:
    return await cluster.broker(dedupe="open_only").start()


async def until_filled(process: Process, key: str, **changes: Any) -> CheckedResponse:
    """Repeat the request until the response says that the order is filled; returns the response."""
    responses: list[CheckedResponse] = []

    async def is_filled() -> bool:
        responses[:] = [await post(process, key, **changes)]
        return bool(responses[0].json.get("status") == "filled")

    await until(is_filled, lambda: f"{responses[0].body!r}")
    return responses[0]


async def test_a_repeat_after_a_kill_between_accept_and_response_returns_the_result(
    broker: VenueProcess, cluster: Cluster
) -> None:
    process = await cluster.process(**broker.client_settings(**UNLIMITED)).start()
    await until_filled(process, "earlier")
    await broker.set_faults(**SILENT)
    waiting = asyncio.create_task(post(process, "k", trace_id="t-1", **PATIENT))
    await until(lambda: len(broker.orders()) == 2)
    process.kill()
    with pytest.raises(aiohttp.ClientError):
        await waiting
    await broker.clear_faults()
    await process.start()
    response = await until_filled(process, "k", **PATIENT)
    assert (response.status, response.headers["Idempotent-Replayed"]) == (200, "true")
    assert (await post(process, "k", **PATIENT)).body == response.body
    assert list(broker.orders().values()) == [1, 1]
    assert error(await post(process, "k", qty=0.2, **PATIENT)) == (409, "IDEMPOTENCY_CONFLICT")
    await check_rebuilt(process, cluster.folder, ["earlier", "k"])


async def test_a_killed_worker_is_reported_as_broker_down_and_the_order_is_filled_after_its_restart(
    broker: VenueProcess, cluster: Cluster, database_url: str
) -> None:
    settings = broker.client_settings(**UNLIMITED, SWITCHYARD_DATABASE_URL=database_url)
    gateways = [cluster.process("gateway", f"gateway-{number}", **settings) for number in range(2)]
    worker = cluster.process("worker", "worker", **settings)
    await asyncio.gather(*(process.start() for process in (*gateways, worker)))
    narrow: dict[str, Any] = {"risk_constraints": {"max_spread": 0.002}}
    responses = await asyncio.gather(*(post(gateways[number % 2], "once", **narrow) for number in range(20)))
    assert sorted(response.status for response in responses) == [200] * 19 + [201]
    assert (await post(gateways[1], "once", **narrow)).json["status"] == "filled"

    worker.kill()
    assert error(await post(gateways[0], "k")) == (503, "BROKER_DOWN")
    await worker.start()
    response = await until_filled(gateways[1], "k")
    assert response.status in (200, 201)
    assert (await post(gateways[0], "k")).body == response.body
    assert list(broker.orders().values()) == [1, 1]
    worker.stop()
    gateways[1].stop()
    await check_rebuilt(gateways[0], cluster.folder, ["once", "k"])


async def check_rebuilt(process: Process, folder: Path, keys: list[str]) -> None:
    """Stop it, verify its audit file, and compare the key store with one that is rebuilt from the file."""
    process.stop()
    settings = tool_settings(process)
    data = Path(settings["SWITCHYARD_DATA_DIR"])
    verified = run_command("audit", "verify", **settings)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    replayed = run_command("replay", str(data / "gateway/audit.log"), SWITCHYARD_DATA_DIR=str(folder / "rebuilt"))
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    url = settings.get("SWITCHYARD_DATABASE_URL")
    live: Database = (
        await SqliteDatabase.open(data / "switchyard.db") if url is None else await PostgresDatabase.open(url)
    )
    rebuilt = await SqliteDatabase.open(folder / "rebuilt" / "switchyard.db")
    try:
        for key in keys:
            entry = await key_entry(live, key)
            assert await key_entry(rebuilt, key) == entry
            assert (entry.status, entry.http_status) == ("succeeded", 200)
            assert json.loads(entry.response_payload_json or "")["idempotency_key"] == key
    finally:
        await live.close()
        await rebuilt.close()


async def key_entry(database: Database, key: str) -> KeyEntry:
    entry = await database.keys.entry(AccountId("do"), DO_ORDER, key)
    assert entry is not None
    return entry
