"""The trading of the day: places the planned orders one after the other, and follows the accounts' streams.

Calls the gateway's API as strategies do; counts what it was told.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Final, get_args

from switchyard.client import ApiError, ExecutionReported, is_final
from switchyard.domain.orders.lifecycle import Status
from switchyard.entrypoints.cli.demo.desk import Desk
from switchyard.entrypoints.cli.demo.plan import ACCOUNTS, LOT, PlannedOrder

_STATUSES: tuple[Status, ...] = get_args(Status)
OPEN_STATUSES: Final = tuple(status for status in _STATUSES if not is_final(status))
PAUSE_SECONDS = 0.2
# After the day, in a demo that is kept open: enough for a live dashboard.
QUIET_PAUSE_SECONDS = 1.0
# A client that asks for the result of `/do/order` again gets it from the cache.
ASKED_AGAIN_EVERY = 4
# Further ones are cancelled, the oldest first.
RESTING_MAX = 6


class Trading:
    """Places orders until it is stopped."""

    def __init__(self, desk: Desk, orders: Iterator[PlannedOrder], seed: int) -> None:
        self._desk = desk
        self._orders = orders
        self._prefix = f"demo-{seed}"
        self._resting: deque[tuple[str, str]] = deque()
        self._turn = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self.pause_seconds = PAUSE_SECONDS
        self.acknowledged: dict[str, str] = {}
        """The account of every order that the gateway has acknowledged."""
        self.rejected: Counter[str] = Counter()
        self.repeats = 0
        self.unequal_repeats: list[str] = []
        """Keys whose repeat was answered with another order; there must be none."""
        self.executions = 0
        """Execution reports that the streams have brought."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Trade, and follow the streams, until the end of the block."""
        self._tasks = [asyncio.create_task(self._trade()), *(asyncio.create_task(self._follow(a)) for a in ACCOUNTS)]
        try:
            yield
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def check(self) -> None:
        """Raise the error of a task that has ended."""
        for task in self._tasks:
            if task.done():
                task.result()

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Place nothing until the end of the block, which begins when no order is under way: faults are for its own."""
        async with self._turn:
            await self._desk.until("the orders under way come to rest", self._is_quiet)
            yield

    async def _is_quiet(self) -> bool:
        for client in self._desk.clients.values():
            async for order in client.orders(statuses=OPEN_STATUSES):
                rests = order.status == "WORKING" and order.type == "LIMIT"
                if not rests and order.status != "UNKNOWN":
                    return False
        return True

    async def _trade(self) -> None:
        for order in self._orders:
            async with self._turn:
                await self._place(order)
                await self._tidy()
            await asyncio.sleep(self.pause_seconds)

    async def _place(self, order: PlannedOrder) -> None:
        try:
            await self._send(order)
        except ApiError as error:
            self.rejected[error.reason_code or error.reason] += 1

    async def _send(self, order: PlannedOrder) -> None:
        account, key = order.trader.account, f"{self._prefix}-{order.number}"
        client = self._desk.clients[account]
        if order.manner == "lots":
            for _ in range(2 if order.number % ASKED_AGAIN_EVERY == 0 else 1):
                await client.do_order(order.symbol, order.side, order.qty / LOT, order_id=key, idempotency_key=key)
            return
        limit = None
        if order.manner in ("resting", "amended"):
            limit = await self._desk.away_from_market(account, order.symbol, order.side)
        wanted = {"limit_price": limit, "strategy": order.trader.strategy, "idempotency_key": key}
        placed = await client.place(order.symbol, order.side, order.qty, **wanted)  # type: ignore[arg-type]
        self.acknowledged[placed.order_id] = account
        if order.manner == "repeated":
            again = await client.place(order.symbol, order.side, order.qty, **wanted)  # type: ignore[arg-type]
            self.repeats += 1
            if again.order_id != placed.order_id:
                self.unequal_repeats.append(key)
        if order.manner == "amended":
            await client.amend(placed.order_id, qty=order.qty * 2, idempotency_key=f"{key}-amend")
        if limit is not None:
            self._resting.append((account, placed.order_id))

    async def _tidy(self) -> None:
        """Cancel the oldest resting order where there are many."""
        if len(self._resting) <= RESTING_MAX:
            return
        account, order_id = self._resting.popleft()
        try:
            await self._desk.clients[account].cancel(order_id)
        except ApiError as error:
            if error.reason != "ORDER_FINAL":
                raise

    async def _follow(self, account: str) -> None:
        async with aclosing(self._desk.clients[account].stream()) as events:
            async for event in events:
                self.executions += isinstance(event, ExecutionReported)
