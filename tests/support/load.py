"""A client under load that remembers what it was told, and the orders as they ended: the outside view."""

import asyncio
import json
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import aiohttp

from tests.support.process import DEADLINE_SECONDS, Process, until

POSTERS = 24
PACE_SECONDS = 0.1
SENDS_MIN = 20
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

    async def insist(self, keys: Iterable[str]) -> None:
        """Post these, and each again until it is acknowledged."""
        waiting = deque(keys)
        deadline = time.monotonic() + DEADLINE_SECONDS

        async def poster() -> None:
            while waiting:
                key = waiting.popleft()
                await self.post(session, key)
                if key in self.unknown:
                    assert time.monotonic() < deadline, f"key {key} was never acknowledged"
                    waiting.append(key)
                    await asyncio.sleep(0.1)  # the server is gone: leave the machine to its next start

        async with aiohttp.ClientSession() as session:
            await asyncio.gather(*(poster() for _ in range(POSTERS)))

    async def load(self, stop: asyncio.Event) -> None:
        """New orders until told to stop, at a pace at which a worker on a busy machine keeps up."""

        async def poster() -> None:
            while not stop.is_set():
                self._count += 1
                await self.post(session, f"key-{self._count}")
                await asyncio.sleep(PACE_SECONDS)

        async with aiohttp.ClientSession() as session:
            await asyncio.gather(*(poster() for _ in range(POSTERS)))


async def sends(session: aiohttp.ClientSession, process: Process) -> float:
    """How many orders the process has sent in this life of its."""
    async with session.get(f"{process.url}/metrics") as response:
        lines = (await response.text()).splitlines()
    values = [line.rpartition(" ")[2] for line in lines if line.startswith('outbox_send_total{outcome="success"}')]
    return sum(map(float, values))


async def in_mid_send(process: Process) -> None:
    """Wait until it has sent some: a process that has just started listens to its venue first."""

    async def has_sent() -> bool:
        return await sends(session, process) > SENDS_MIN

    async with aiohttp.ClientSession() as session:
        await until(has_sent)


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
