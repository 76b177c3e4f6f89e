"""One Redis server: asked within bounds of time, and left alone while it does not answer."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import structlog
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.exceptions import ResponseError

from switchyard.adapters.redis.breaker import Breaker
from switchyard.ports.clock import Clock

log = structlog.get_logger()

CONNECT_SECONDS = 0.05
# A lookup must stay cheaper than what it saves: the key store answers within some milliseconds.
READ_SECONDS = 0.005
# Nobody waits for a write, so it may take longer.
WRITE_SECONDS = 0.1
# Turns of the event loop in which an answer that has arrived is noticed, parsed and passed on.
LAST_TURNS = 3

Command = tuple[str | bytes | int, ...]
T = TypeVar("T")


class RedisAway(Exception):
    """No answer; `was_asked` is false while the server is being left alone."""

    def __init__(self, *, was_asked: bool) -> None:
        super().__init__("no answer" if was_asked else "not asked")
        self.was_asked = was_asked


class RedisHost:
    """What all links to one server share: its address, the bounds, and the breaker with its two log lines."""

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
        """`on_change` hears false when the server is left alone, and true when it answers again."""
        # Bounds of time are kept here, for a whole exchange; the client's own would count each reply.
        self._pool = ConnectionPool.from_url(
            url, protocol=2, socket_timeout=None, socket_connect_timeout=None, driver_info=None
        )
        self.connect_seconds = connect_seconds
        self.read_seconds = read_seconds
        self.write_seconds = write_seconds
        self.breaker = breaker or Breaker(clock)
        self._on_change = on_change

    def link(self) -> "RedisLink":
        """A connection of one's own; it is opened when first needed."""
        return RedisLink(self)

    def new_connection(self) -> AbstractConnection:
        """An unopened connection, by the rules of the address (TCP, TLS, socket)."""
        connection: AbstractConnection = self._pool.make_connection()  # type: ignore[no-untyped-call]
        return connection

    def failed(self, error: BaseException) -> None:
        """An exchange got no answer."""
        if self.breaker.failed():
            log.warning("redis does not answer and is left alone for a while", error=repr(error))
            self._tell(False)

    def succeeded(self) -> None:
        """An exchange got its answer."""
        if self.breaker.succeeded():
            log.info("redis answers again")
            self._tell(True)

    def _tell(self, is_up: bool) -> None:
        if self._on_change is not None:
            self._on_change(is_up)


class RedisLink:
    """One connection, one exchange at a time."""

    def __init__(self, host: RedisHost) -> None:
        self._host = host
        self._turn = asyncio.Lock()
        self._connection: AbstractConnection | None = None

    async def ask(self, commands: Sequence[Command], *, seconds: float | None = None) -> list[Any]:
        """One reply for each command, a `ResponseError` among them where the server rejected; raises RedisAway."""
        async with self._turn:
            if not self._host.breaker.allows():
                raise RedisAway(was_asked=False)
            try:
                connection = await self._connected()
                replies = await within(seconds or self._host.read_seconds, _exchange(connection, commands))
            except BaseException as error:
                # Whatever is still under way on this connection would be taken for the next answer.
                await self._drop()
                if not isinstance(error, Exception):
                    raise
                # Any exception: a server may send anything, and a parser may trip over it in any way.
                self._host.failed(error)
                raise RedisAway(was_asked=True) from error
            self._host.succeeded()
            return replies

    async def close(self) -> None:
        """Hang up; the next question would connect again."""
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
    """The result, or TimeoutError; an answer that was there in time counts, however late this process looks.

    A busy loop may see its timer before the bytes that had long arrived, so it takes a last look.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        for _ in range(LAST_TURNS):
            if task.done():
                return task.result()
            await asyncio.sleep(0)
        if task.done():
            return task.result()
        raise TimeoutError(f"no answer within {seconds:g} s")
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
