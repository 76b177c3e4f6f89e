"""A position is closed once: many closes over two gateways, with kills and lost answers; the broker's log judges."""

import asyncio
from collections import Counter
from decimal import Decimal
from typing import Any

import aiohttp
import pytest

from tests.support.cluster import Cluster
from tests.support.orders import FINAL, PATIENT
from tests.support.polling import until
from tests.support.process import Process

ACCOUNTS = [f"trader-{number}" for number in range(4)]
QTY = 1000
# Far below the market, so it is filled at once; GTC, so it may wait until a worker sends it.
CLOSE = {"type": "LIMIT", "price": 1, "timeInForce": "GTC"}


class Trader:
    """An account that repeats its requests until they are answered, whatever happens to the gateways."""

    def __init__(self, session: aiohttp.ClientSession, gateways: tuple[Process, Process], account: str) -> None:
        self.session = session
        self.gateways = gateways
        self.account = account

    async def post(self, path: str, body: dict[str, Any], key: str, first: int = 0) -> tuple[int, dict[str, Any]]:
        """The status and body of the first answer that says what became of the request."""
        answer: tuple[int, dict[str, Any]] = (0, {})
        tries = iter(range(first, 10_000))

        async def is_answered() -> bool:
            nonlocal answer
            gateway = self.gateways[next(tries) % 2]
            headers = gateway.headers(self.account, key)
            try:
                async with self.session.post(gateway.url + path, json=body, headers=headers) as response:
                    answer = response.status, await response.json()
            except aiohttp.ClientError:
                return False
            return answer[0] < 500

        await until(is_answered, lambda: f"{self.account}: {answer}", pause_seconds=0.05)
        return answer

    async def close(self, key: str, first: int = 0) -> tuple[int, dict[str, Any]]:
        return await self.post("/positions/USDJPY/close", CLOSE, key, first)

    async def orders(self) -> list[dict[str, Any]]:
        gateway = self.gateways[1]
        async with self.session.get(f"{gateway.url}/orders", headers=gateway.headers(self.account)) as response:
            orders: list[dict[str, Any]] = (await response.json())["orders"]
            return orders

    async def until_final(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []

        async def are_final() -> bool:
            found[:] = await self.orders()
            return all(order["status"] in FINAL for order in found)

        await until(are_final, lambda: f"{found}", pause_seconds=0.1)
        return found

    async def position(self) -> float:
        gateway = self.gateways[1]
        async with self.session.get(f"{gateway.url}/positions?flat=true", headers=gateway.headers(self.account)) as one:
            [position] = (await one.json())["positions"]
            return float(position["qty"])


@pytest.mark.parametrize("dedupe", ["forever", "open_only"])
async def test_duplicate_closes_make_one_order_at_the_broker_also_after_kills(
    cluster: Cluster, database_url: str, session: aiohttp.ClientSession, dedupe: str
) -> None:
    broker = await cluster.broker(dedupe=dedupe).start()
    settings = broker.client_settings(SWITCHYARD_DATABASE_URL=database_url, VENUE_WINDOW_SEC_SIM="1")
    one, two = (cluster.process("gateway", f"gateway-{number}", **settings) for number in range(2))
    worker = cluster.process("worker", "worker", **settings)
    await asyncio.gather(one.start(), two.start(), worker.start())
    traders = [Trader(session, (one, two), account) for account in ACCOUNTS]
    await asyncio.gather(*(trader.post("/orders", {**PATIENT, "qty": QTY}, "open") for trader in traders))
    await asyncio.gather(*(trader.until_final() for trader in traders))
    await broker.set_faults(drop_answer=0.5)

    async def closes(trader: Trader) -> list[tuple[str, int, dict[str, Any]]]:
        keys = [*["same"] * 12, *(f"other-{number}" for number in range(4))]
        answers = await asyncio.gather(*(trader.close(key, number) for number, key in enumerate(keys)))
        return [(key, *answer) for key, answer in zip(keys, answers, strict=True)]

    async def kill() -> None:
        await until(lambda: len(broker.events("order")) > len(ACCOUNTS), lambda: worker.log)
        one.kill()
        worker.kill()
        await asyncio.gather(one.start(), worker.start())

    answered, _ = await asyncio.gather(asyncio.gather(*map(closes, traders)), kill())
    await broker.clear_faults()

    sold: Counter[str] = Counter()
    accounts: dict[str, str] = {}
    for trader, answers in zip(traders, answered, strict=True):
        orders = await trader.until_final()
        accounts |= {order["orderId"]: trader.account for order in orders}
        assert {status for _, status, _ in answers} <= {202, 404, 409}
        [(key, order_id)] = {(key, body["orderId"]) for key, status, body in answers if status == 202}
        assert await trader.close(key) == (202, {"orderId": order_id, "status": "ACCEPTED"})
        assert (await trader.close("new"))[0] == 404
        assert await trader.position() == 0
    broker.check_nothing_twice()
    for line in broker.events("order"):
        if line["order"]["side"] == "SELL":
            sold[accounts[line["trace_id"]]] += int(Decimal(str(line["order"]["qty"])))
    assert sold == dict.fromkeys(ACCOUNTS, QTY)
