"""A client under load that remembers what it was told, and the orders as they ended: the outside view."""

import asyncio
import json
import time
from typing import Any

import aiohttp

from tests.support.process import DEADLINE_SECONDS, Process

POSTERS = 24
FINAL = {"FILLED", "CANCELED", "REJECTED", "EXPIRED"}


class Client:
    """Posts orders and remembers what it was told of each: the outside view."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.acknowledged: dict[str, str] = {}
        self.unknown: set[str] = set()
        self._count = 0

    async def post(self, session: aiohttp.ClientSession, key: str) -> None:
        body = {"symbol": "USDJPY", "side": "BUY", "qty": 1000, "clientOrderId": key, **self._kind(key)}
        headers = self.process.headers(key=key)
        try:
            async with session.post(f"{self.process.url}/orders", json=body, headers=headers) as response:
                answer = json.loads(await response.read())
        except (aiohttp.ClientError, ConnectionError, ValueError):
            self.unknown.add(key)
            return
        if response.status == 503:
            self.unknown.add(key)
            return
        assert response.status == 202, answer
        earlier = self.acknowledged.setdefault(key, answer["orderId"])
        assert earlier == answer["orderId"], f"key {key} stands for two orders"
        self.unknown.discard(key)

    @staticmethod
    def _kind(key: str) -> dict[str, Any]:
        """Half of the orders may wait for their venue, half want to be filled at once or not at all."""
        waits = int(key.rpartition("-")[2]) % 2
        return {"type": "LIMIT", "price": 1000, "timeInForce": "GTC"} if waits else {"type": "MARKET"}

    async def load(self, stop: asyncio.Event) -> None:
        async def poster() -> None:
            while not stop.is_set():
                self._count += 1
                await self.post(session, f"key-{self._count}")
                if self.unknown:
                    await asyncio.sleep(0.01)  # the server is gone: do not burn keys until it is back

        async with aiohttp.ClientSession() as session:
            await asyncio.gather(*(poster() for _ in range(POSTERS)))


async def all_final(session: aiohttp.ClientSession, process: Process) -> list[dict[str, Any]]:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        orders = await pages(session, process)
        open_orders = [order for order in orders if order["status"] not in FINAL]
        if not open_orders:
            return orders
        assert time.monotonic() < deadline, f"{len(open_orders)} did not end, such as {open_orders[0]}\n{process.log}"
        await asyncio.sleep(0.1)


async def pages(session: aiohttp.ClientSession, process: Process) -> list[dict[str, Any]]:
    orders: list[dict[str, Any]] = []
    query = {"limit": "500"}
    while True:
        async with session.get(f"{process.url}/orders", params=query, headers=process.headers()) as response:
            page = await response.json()
        orders += page["orders"]
        if page["nextCursor"] is None:
            return orders
        query["cursor"] = page["nextCursor"]


def check_ends(orders: list[dict[str, Any]]) -> None:
    """Whatever happened in between, each order was filled once, or was never sent because it was too late."""
    ends = {(order["timeInForce"], order["status"], order["filledQty"], order["reason"]) for order in orders}
    late = {("IOC", "EXPIRED", 0, reason) for reason in ("BROKER_DOWN", "BROKER_TIMEOUT")}
    assert ends <= {("GTC", "FILLED", 1000, None), ("IOC", "FILLED", 1000, None), *late}
    assert ("GTC", "FILLED", 1000, None) in ends
