"""Connections to one Redis server, with a time limit per exchange and a circuit breaker.

It reads and writes only the sockets; the cache and the rate limiter build the commands.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import structlog
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.exceptions import ResponseError

from switchyard.adapters.redis.breaker import Breaker
from switchyard.ports.clock import Clock

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
