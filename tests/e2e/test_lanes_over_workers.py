"""Several workers on one database: what an account sends in one symbol leaves in the order in which it was accepted."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg

from tests.support.load import all_final
from tests.support.postgres import PostgresServer
from tests.support.process import Process, run_command, until
from tests.support.simulator import Simulator, venue_settings

SYMBOLS = ("USDJPY", "EURUSD", "EURJPY", "GBPUSD", "AUDUSD", "BTC", "ETH", "XAU")
ORDERS_PER_PHASE = 100


class Posters:
    """One for each symbol, each with one order after the other."""

    def __init__(self, session: aiohttp.ClientSession, gateway: Process) -> None:
        self._session = session
        self._gateway = gateway
        self._stop = asyncio.Event()
        self.count = 0
        self._tasks = [asyncio.create_task(self._post(symbol)) for symbol in SYMBOLS]

    async def some_more(self) -> None:
        wanted = self.count + ORDERS_PER_PHASE
        await until(lambda: self.count >= wanted)

    async def stop(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)

    async def _post(self, symbol: str) -> None:
        body = {"symbol": symbol, "side": "BUY", "type": "LIMIT", "price": 1_000_000, "qty": 1000}
        while not self._stop.is_set():
            async with self._session.post(
                f"{self._gateway.url}/orders", json=body, headers=self._gateway.headers()
            ) as response:
                assert response.status == 202, await response.text()
            self.count += 1


async def test_workers_that_come_and_go_do_not_let_orders_overtake(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    url = postgres_server.create_database()
    simulator = Simulator(tmp_path / "venue", "forever")
    settings = {"SWITCHYARD_DATABASE_URL": url, **venue_settings("forever", simulator)}
    assert run_command("db", "upgrade", **settings).returncode == 0
    gateway = Process(tmp_path / "gateway", "gateway", **settings)
    workers = [Process(tmp_path / f"worker-{number}", "worker", **settings) for number in range(3)]
    observer = await asyncpg.connect(url)

    async def owners() -> int:
        count: int = await observer.fetchval("SELECT count(DISTINCT worker) FROM outbox_lanes")
        return count

    async def are_owners(wanted: int) -> bool:
        return await owners() == wanted

    try:
        await asyncio.gather(*(process.start() for process in (simulator, gateway, workers[0])))
        async with aiohttp.ClientSession() as session:
            posters = Posters(session, gateway)
            await posters.some_more()
            await workers[1].start()
            await until(lambda: are_owners(2))
            await posters.some_more()
            await workers[2].start()
            await until(lambda: are_owners(3))
            assert await asyncio.to_thread(workers[0].stop) == 0
            await posters.some_more()
            await posters.stop()
            await all_final(session, gateway)
        lines = [json.loads(row["text"] + "}") for row in await observer.fetch("SELECT text FROM events ORDER BY seq")]
    finally:
        await observer.close()
        for process in (*workers, gateway, simulator):
            process.close()
    first_attempts = [line for line in lines if line["data"].get("outbox", [{}])[0].get("attempt", 0) <= 1]
    accepted, sending = (in_order(first_attempts, kind) for kind in ("OrderAccepted", "OrderSending"))
    for symbol in SYMBOLS:
        assert sending[symbol] == accepted[symbol], f"overtaken in {symbol}"
    assert len({line["data"]["outbox"][0]["worker"] for line in lines if line["type"] == "OrderSending"}) == 3
    assert set(simulator.executions().values()) == {1}


def in_order(lines: list[dict[str, Any]], kind: str) -> dict[str, list[str]]:
    """The orders of each symbol in the order in which this happened to them."""
    found: dict[str, list[str]] = {symbol: [] for symbol in SYMBOLS}
    for line in lines:
        if line["type"] == kind:
            found[line["data"]["order"]["symbol"]].append(line["orderId"])
    return found
