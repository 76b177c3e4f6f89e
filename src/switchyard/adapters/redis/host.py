"""One Redis server: commands with a time limit, coalesced into one round trip, behind a circuit breaker."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

import structlog
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.exceptions import ResponseError

from switchyard.ports.clock import Clock

# A single lost connection or slow reply must not open the breaker.
FAILURES_MAX = 5
# The minimum is about the time of a server restart. The maximum bounds how often a request pays for a time-out during a
# long outage.
REST_SECONDS_MIN = 0.25
REST_SECONDS_MAX = 15.0


class Breaker:
    """Closed: every request passes. Open: no request passes until the rest period ends, then one probe passes.

    A failed probe doubles the rest period up to its maximum; any success closes the breaker.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        failures_max: int = FAILURES_MAX,
        rest_seconds_min: float = REST_SECONDS_MIN,
        rest_seconds_max: float = REST_SECONDS_MAX,
    ) -> None:
        assert failures_max > 0 and 0 < rest_seconds_min <= rest_seconds_max
        self._clock = clock
        self._failures_max = failures_max
        self._rest_seconds_min = rest_seconds_min
        self._rest_seconds_max = rest_seconds_max
        self._failures = 0
        self._rest_seconds = 0.0
        self._rests_until = 0.0
        self._is_probing = False

    @property
    def is_open(self) -> bool:
        """Whether requests are being held back."""
        return self._rest_seconds > 0

    def allows(self) -> bool:
        """Return whether to send a request now; once per rest period while the breaker is open."""
        if not self.is_open:
            return True
        now = self._clock.monotonic()
        if now < self._rests_until:
            return False
        # Start the next rest period now, so that a probe whose result is never recorded delays the next probe by one
        # period instead of blocking all of them.
        self._is_probing = True
        self._rests_until = now + self._rest_seconds
        return True

    def failed(self) -> bool:
        """Record a failed request; true when it opened the breaker."""
        self._failures += 1
        if self.is_open:
            # A request sent before the breaker opened may fail later; only the probe extends the rest period.
            if self._is_probing:
                self._rest(min(self._rest_seconds * 2, self._rest_seconds_max))
            return False
        if self._failures < self._failures_max:
            return False
        self._rest(self._rest_seconds_min)
        return True

    def succeeded(self) -> bool:
        """Record a successful request; true when it closed the breaker."""
        was_open = self.is_open
        self._failures = 0
        self._rest_seconds = 0.0
        self._is_probing = False
        return was_open

    def _rest(self, seconds: float) -> None:
        self._is_probing = False
        self._rest_seconds = seconds
        self._rests_until = self._clock.monotonic() + seconds


log = structlog.get_logger()

# Redis is expected on the local network, where connecting takes about a millisecond.
CONNECT_SECONDS = 0.05
# The key store answers within a few milliseconds, so a slower cache lookup would save nothing.
READ_SECONDS = 0.005
# Writes happen in the background after the response, so they may take longer.
WRITE_SECONDS = 0.1
# Event loop turns needed to read, parse and deliver a reply that has already arrived.
FINAL_TURNS = 3

Command = tuple[str | bytes | int, ...]
T = TypeVar("T")


class RedisUnavailable(Exception):
    """The exchange failed; `attempted` is false if the open breaker prevented it."""

    def __init__(self, *, attempted: bool) -> None:
        super().__init__("no reply in time" if attempted else "not attempted: the circuit breaker is open")
        self.attempted = attempted


class RedisHost:
    """The address, time limits and circuit breaker that all links to one server share."""

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        connect_seconds: float = CONNECT_SECONDS,
        read_seconds: float = READ_SECONDS,
        write_seconds: float = WRITE_SECONDS,
        breaker: Breaker | None = None,
        on_change: Callable[[bool], None] | None = None,
    ) -> None:
        """`on_change` is called with false when the breaker opens and with true when it closes."""
        # `within` limits a whole exchange; the client library's own time-outs would apply to each reply separately.
        self._pool = ConnectionPool.from_url(
            url, protocol=2, socket_timeout=None, socket_connect_timeout=None, driver_info=None
        )
        self.connect_seconds = connect_seconds
        self.read_seconds = read_seconds
        self.write_seconds = write_seconds
        self.breaker = breaker or Breaker(clock)
        self._on_change = on_change

    def link(self) -> "RedisLink":
        """Return a link with its own connection, which it opens on first use."""
        return RedisLink(self)

    def new_connection(self) -> AbstractConnection:
        """Return an unopened connection of the kind that the URL names (TCP, TLS or Unix socket)."""
        connection: AbstractConnection = self._pool.make_connection()  # type: ignore[no-untyped-call]
        return connection

    def failed(self, error: BaseException) -> None:
        """Record a failed exchange."""
        if self.breaker.failed():
            log.warning("redis_unavailable", error=repr(error))
            self._notify(False)

    def succeeded(self) -> None:
        """Record a successful exchange."""
        if self.breaker.succeeded():
            log.info("redis_available")
            self._notify(True)

    def _notify(self, is_up: bool) -> None:
        if self._on_change is not None:
            self._on_change(is_up)


class RedisLink:
    """One connection, one exchange at a time."""

    def __init__(self, host: RedisHost) -> None:
        self._host = host
        self._turn = asyncio.Lock()
        self._connection: AbstractConnection | None = None

    async def ask(self, commands: Sequence[Command], *, seconds: float | None = None) -> list[Any]:
        """Return one reply per command, a `ResponseError` for a rejected command; raises RedisUnavailable."""
        async with self._turn:
            if not self._host.breaker.allows():
                raise RedisUnavailable(attempted=False)
            try:
                connection = await self._connected()
                replies = await within(seconds or self._host.read_seconds, _exchange(connection, commands))
            except BaseException as error:
                # A late reply on this connection would be read as the reply to the next command.
                await self._drop()
                if not isinstance(error, Exception):
                    raise
                # Any exception: the server may send arbitrary bytes, and the parser's errors are not documented.
                self._host.failed(error)
                raise RedisUnavailable(attempted=True) from error
            self._host.succeeded()
            return replies

    async def close(self) -> None:
        """Close the connection; the next exchange opens a new one."""
        async with self._turn:
            await self._drop()

    async def _connected(self) -> AbstractConnection:
        if self._connection is None or not self._connection.is_connected:
            self._connection = self._host.new_connection()
            await within(self._host.connect_seconds, self._connection.connect())  # type: ignore[no-untyped-call]
        return self._connection

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Return the result, or raise TimeoutError.

    A busy event loop may run the timer before it reads bytes that arrived in time. So the loop gets a few more turns
    after the time-out, and a reply that had already arrived still counts.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        for _ in range(FINAL_TURNS):
            if task.done():
                return task.result()
            await asyncio.sleep(0)
        if task.done():
            return task.result()
        raise TimeoutError(f"no reply within {seconds:g} s")
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


async def _exchange(connection: AbstractConnection, commands: Sequence[Command]) -> list[Any]:
    await connection.send_packed_command(connection.pack_commands(commands))
    replies: list[Any] = []
    for _ in commands:
        try:
            replies.append(await connection.read_response())
        except ResponseError as error:
            replies.append(error)
    return replies


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
