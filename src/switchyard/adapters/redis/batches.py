"""Coalesces concurrent requests to a server into one round trip.

The cache and the rate limiter use it: many gateway requests at once cost one Redis exchange.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import structlog

log = structlog.get_logger()

Request = TypeVar("Request")
Reply = TypeVar("Reply")

# Large enough to spread the cost of a round trip, small enough that the server replies within the time limit of one.
BATCH_MAX = 64
# With more than this many requests queued, doing without the reply is faster than waiting for it.
WAITING_MAX = 4_096


class Batches(Generic[Request, Reply]):
    """Sends one batch at a time; requests that arrive meanwhile form the next batch."""

    def __init__(
        self,
        ask_all: Callable[[Sequence[Request]], Awaitable[Sequence[Reply]]],
        *,
        batch_max: int = BATCH_MAX,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        self._ask_all = ask_all
        self._batch_max = batch_max
        self._waiting_max = waiting_max
        self._waiting: deque[tuple[Request, asyncio.Future[Reply | None]]] = deque()
        self._in_flight: list[tuple[Request, asyncio.Future[Reply | None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def ask(self, request: Request) -> Reply | None:
        """Return the reply, or None if too many requests are queued."""
        if len(self._waiting) >= self._waiting_max:
            return None
        reply: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, reply))
        if self._task is None:
            # A separate task: cancelling one caller must not cancel the batch that others wait for.
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._on_task_done)
        return await reply

    async def close(self) -> None:
        """Stop sending; every waiting caller gets None."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        while self._waiting:
            count = min(len(self._waiting), self._batch_max)
            self._in_flight = [self._waiting.popleft() for _ in range(count)]
            replies = await self._ask_all([request for request, _ in self._in_flight])
            for (_, waiter), reply in zip(self._in_flight, replies, strict=True):
                if not waiter.done():
                    waiter.set_result(reply)
        # Cleared here and not in the done callback: a request that arrives in between must start a new task.
        self._task = None

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        """After a cancellation or an unexpected error, release every waiting caller with None."""
        if self._task is not task:
            return
        self._task = None
        if not task.cancelled():
            log.error("redis_batch_failed", exc_info=task.exception())
        unanswered = [*self._in_flight, *self._waiting]
        self._in_flight.clear()
        self._waiting.clear()
        for _, waiter in unanswered:
            if not waiter.done():
                waiter.set_result(None)
