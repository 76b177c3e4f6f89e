"""A client that posts orders under load and records each acknowledgement."""

import asyncio
import json
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import aiohttp

from tests.support.figures import scrape
from tests.support.orders import Snapshot
from tests.support.polling import DEADLINE_SECONDS, until
from tests.support.process import Process

POSTERS = 24
# Slow enough that a worker on a busy machine keeps up.
PACE_SECONDS = 0.1
# After the start a process reads its venue's reports first; after this many sends it is in the middle of sending.
SENDS_MIN = 20


class LoadClient:
    """Posts orders and records which of them were acknowledged."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.acknowledged: dict[str, str] = {}
        self.unknown: set[str] = set()
        self._count = 0

    async def post(self, session: aiohttp.ClientSession, key: str) -> None:
        """Post the order of a key: an odd number makes one that may wait, an even one must be filled at once."""
        may_wait = int(key.rpartition("-")[2]) % 2
        kind = {"type": "LIMIT", "price": 1000, "timeInForce": "GTC"} if may_wait else {"type": "MARKET"}
        body: dict[str, Any] = {"symbol": "USDJPY", "side": "BUY", "qty": 1000, "clientOrderId": key, **kind}
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

    async def insist(self, keys: Iterable[str]) -> None:
        """Post the orders of these keys, each until it is acknowledged; fail when none is for a long time."""
        waiting = deque(keys)
        progress_at = time.monotonic()

        async def poster() -> None:
            nonlocal progress_at
            while waiting:
                key = waiting.popleft()
                await self.post(session, key)
                if key not in self.unknown:
                    progress_at = time.monotonic()
                    continue
                assert time.monotonic() < progress_at + DEADLINE_SECONDS, f"key {key} was never acknowledged"
                waiting.append(key)
                await asyncio.sleep(0.1)  # the server is down: leave the processor to its next start

        async with aiohttp.ClientSession() as session:
            await asyncio.gather(*(poster() for _ in range(POSTERS)))

    async def load(self, stop: asyncio.Event) -> None:
        """Post new orders until `stop` is set."""

        async def poster() -> None:
            while not stop.is_set():
                self._count += 1
                await self.post(session, f"key-{self._count}")
                await asyncio.sleep(PACE_SECONDS)

        async with aiohttp.ClientSession() as session:
            await asyncio.gather(*(poster() for _ in range(POSTERS)))


async def until_sending(process: Process) -> None:
    """Wait until the process is in the middle of sending orders."""

    async def has_sent() -> bool:
        return (await scrape(session, process.url)).get("outbox_send_total{success}", 0.0) > SENDS_MIN

    async with aiohttp.ClientSession() as session:
        await until(has_sent)


def check_ends(orders: Sequence[Snapshot]) -> None:
    """Assert that each order was filled once, or not executed because its deadline had passed.

    The sender of an order may die before the first byte; after a slow restart it is too late to send it again, and the
    venue does not have it.
    """
    ends = {(order["timeInForce"], order["status"], order["filledQty"], order["reason"]) for order in orders}
    late = {("IOC", "EXPIRED", 0, reason) for reason in ("BROKER_DOWN", "BROKER_TIMEOUT", "ABSENT_AT_VENUE")}
    allowed = {("GTC", "FILLED", 1000, None), ("IOC", "FILLED", 1000, None), *late}
    assert ends <= allowed, ends - allowed
    assert ("GTC", "FILLED", 1000, None) in ends
