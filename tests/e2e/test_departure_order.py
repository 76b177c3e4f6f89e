"""Two gateways, one with a slower clock: sequential orders of an account and symbol leave as they were accepted."""

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg

from tests.support.orders import until_all_final
from tests.support.postgres import PostgresServer
from tests.support.process import Process, run_command
from tests.support.skewed import SkewedProcess
from tests.support.venue_process import VenueProcess

LATE = timedelta(seconds=0.3)
ORDERS = 60
BODY = {"symbol": "USDJPY", "side": "BUY", "type": "LIMIT", "price": 1_000_000, "qty": 1000}


async def test_orders_over_two_gateways_do_not_overtake_each_other(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    url = postgres_server.create_database()
    simulator = VenueProcess(tmp_path / "venue", dedupe="permanent")
    settings = {"SWITCHYARD_DATABASE_URL": url, **simulator.client_settings(VENUE_DEDUPE_SIM="permanent")}
    assert run_command("db", "upgrade", **settings).returncode == 0
    # The slow answer of a database makes a gateway late; its own wall clock plays no part.
    late = SkewedProcess(tmp_path / "late", "gateway", timedelta(0), **settings)
    late.make_database_late(LATE)
    exact = Process(tmp_path / "exact", "gateway", **settings)
    worker = Process(tmp_path / "worker", "worker", **settings)
    gateways = (exact, late)
    placed: list[str] = []
    try:
        await asyncio.gather(*(process.start() for process in (simulator, exact, late)))
        async with aiohttp.ClientSession() as session:
            for number in range(ORDERS):
                gateway = gateways[number % 2]
                async with session.post(f"{gateway.url}/orders", json=BODY, headers=gateway.headers()) as response:
                    answer: dict[str, Any] = await response.json()
                assert response.status == 202, answer
                placed.append(answer["orderId"])
            await worker.start()
            await until_all_final(session, exact)
        accepted_at, sent = await dates_and_attempts(url)
    finally:
        for process in (worker, *gateways, simulator):
            process.close()
    assert [accepted_at[order] for order in placed] != sorted(accepted_at.values()), "the clocks must differ"
    assert sent == placed
    assert simulator.check_nothing_twice().keys() == set(placed)


async def dates_and_attempts(url: str) -> tuple[dict[str, str], list[str]]:
    """When each order was accepted by its gateway's clock, and the orders in the order of their first attempts."""
    observer = await asyncpg.connect(url)
    try:
        lines = [json.loads(row["text"] + "}") for row in await observer.fetch("SELECT text FROM journal ORDER BY seq")]
    finally:
        await observer.close()
    accepted_at = {
        line["orderId"]: line["data"]["order"]["acceptedAt"] for line in lines if line["type"] == "OrderAccepted"
    }
    attempts = [line["orderId"] for line in lines if line["type"] == "OrderSending"]
    return accepted_at, list(dict.fromkeys(attempts))
