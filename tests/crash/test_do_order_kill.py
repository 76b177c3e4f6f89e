"""`/do/order` while its own processes die: the same request finds its order, and the broker executes once."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from switchyard.adapters.postgres.database import PostgresDatabase
from switchyard.adapters.sqlite.database import SqliteDatabase
from switchyard.domain.do_order import DO_ORDER
from switchyard.domain.idempotency import KeyEntry
from switchyard.domain.ids import AccountId
from tests.support.databases import Database
from tests.support.do_order import PATIENT, error, post
from tests.support.gateway import Answer
from tests.support.postgres import PostgresServer
from tests.support.process import Process, run_command, until
from tests.support.venue_process import VenueProcess

# The broker takes the order and then never gets to the end of its answer; its report comes after the death.
SILENT = {"slow_bytes": 3600.0, "late_reports": 1.0}


@pytest.fixture
def venue(tmp_path: Path) -> Iterator[VenueProcess]:
    venue = VenueProcess(tmp_path / "venue", "--dedupe", "open_only")
    yield venue
    venue.close()


def settings_for(venue: VenueProcess) -> dict[str, str]:
    return {
        "VENUE_URL_SIM": venue.url,
        "VENUE_DEDUPE_SIM": "open_only",
        "VENUE_WINDOW_SEC_SIM": "1",
        "DO_RATE_PER_MIN": "10000",
    }


async def answered(process: Process, key: str, **changes: Any) -> Answer:
    """The first repeat that tells that the order is filled."""
    found: list[Answer] = []

    async def told() -> bool:
        found[:] = [await post(process, key, **changes)]
        return bool(found[0].json.get("status") == "filled")

    await until(told)
    return found[0]


async def test_killed_between_accept_and_answer_the_same_request_gets_the_result(
    venue: VenueProcess, tmp_path: Path
) -> None:
    process = Process(tmp_path, **settings_for(venue))
    try:
        await asyncio.gather(venue.start(), process.start())
        await answered(process, "earlier")
        await venue.set_faults(**SILENT)
        waiting = asyncio.create_task(post(process, "k", trace_id="t-1", **PATIENT))
        await until(lambda: len(venue.orders()) == 2)
        process.kill()
        with pytest.raises(aiohttp.ClientError):
            await waiting
        await venue.clear_faults()
        await process.start()
        answer = await answered(process, "k", **PATIENT)
        assert (answer.status, answer.headers["Idempotent-Replayed"]) == (200, "true")
        assert (await post(process, "k", **PATIENT)).body == answer.body
        assert list(venue.orders().values()) == [1, 1]
        assert error(await post(process, "k", qty=0.2, **PATIENT)) == (409, "IDEMPOTENCY_CONFLICT")
        await check_rebuilt(process, tmp_path, ["earlier", "k"])
    finally:
        process.close()


async def test_a_worker_may_die_and_come_back(
    venue: VenueProcess, tmp_path: Path, postgres_server: PostgresServer
) -> None:
    settings = {"SWITCHYARD_DATABASE_URL": postgres_server.create_database(), **settings_for(venue)}
    assert run_command("db", "upgrade", **settings).returncode == 0
    gateways = [Process(tmp_path / f"gateway-{number}", "gateway", **settings) for number in range(2)]
    worker = Process(tmp_path / "worker", "worker", **settings)
    try:
        await asyncio.gather(*(process.start() for process in (venue, *gateways, worker)))
        narrow: dict[str, Any] = {"risk_constraints": {"max_spread": 0.002}}
        answers = await asyncio.gather(*(post(gateways[number % 2], "once", **narrow) for number in range(20)))
        assert sorted(answer.status for answer in answers) == [200] * 19 + [201]
        assert (await post(gateways[1], "once", **narrow)).json["status"] == "filled"

        worker.kill()
        assert error(await post(gateways[0], "k")) == (503, "BROKER_DOWN")
        await worker.start()
        answer = await answered(gateways[1], "k")
        assert answer.status in (200, 201)
        assert (await post(gateways[0], "k")).body == answer.body
        assert list(venue.orders().values()) == [1, 1]
        worker.stop()
        gateways[1].stop()
        await check_rebuilt(gateways[0], tmp_path, ["once", "k"])
    finally:
        for process in (*gateways, worker):
            process.close()


async def check_rebuilt(process: Process, folder: Path, keys: list[str]) -> None:
    """The audit file verifies, and a key store rebuilt from it is the key store, row by row."""
    process.stop()
    settings = {name: value for name, value in process.settings.items() if name != "SWITCHYARD_PORT"}
    data = Path(settings["SWITCHYARD_DATA_DIR"])
    verified = run_command("audit", "verify", **settings)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    rebuilt = run_command("replay", str(data / "gateway/audit.log"), SWITCHYARD_DATA_DIR=str(folder / "rebuilt"))
    assert rebuilt.returncode == 0, rebuilt.stdout + rebuilt.stderr
    url = settings.get("SWITCHYARD_DATABASE_URL")
    live: Database = (
        await SqliteDatabase.open(data / "switchyard.db") if url is None else await PostgresDatabase.open(url)
    )
    again = await SqliteDatabase.open(folder / "rebuilt" / "switchyard.db")
    try:
        for key in keys:
            entry = await key_entry(live, key)
            assert await key_entry(again, key) == entry
            assert (entry.status, entry.http_status) == ("succeeded", 200)
            assert json.loads(entry.response_payload_json or "")["idempotency_key"] == key
    finally:
        await live.close()
        await again.close()


async def key_entry(database: Database, key: str) -> KeyEntry:
    entry = await database.keys.entry(AccountId("do"), DO_ORDER, key)
    assert entry is not None
    return entry
