"""A connection that is kept open for its session state (a lock, a subscription) and reopened when it is lost."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import structlog

from switchyard.adapters.postgres.connection import CONNECT_SECONDS_MAX, DATABASE_ERRORS, Connection, connect

log = structlog.get_logger()

# A network may drop a connection without a FIN or RST: a query this often costs little and detects it within seconds.
PING_SECONDS = 5.0
# Short enough to reconnect soon after a restart of the server, long enough not to load it during an outage.
RETRY_SECONDS = 0.5


class PersistentConnection:
    """Connects, runs `prepare` on the session, watches the connection, and starts over when it is lost."""

    def __init__(self, url: str, purpose: str, prepare: Callable[[Connection], Awaitable[None]]) -> None:
        self._url = url
        self._purpose = purpose
        self._prepare = prepare
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect and prepare; raises when the first connection fails. A later loss is repaired in the background."""
        await self._connect()
        self.start()

    def start(self) -> None:
        """Keep the connection open from now on; does not wait for the first connection."""
        self._task = asyncio.create_task(self._keep(), name=self._purpose)

    async def close(self) -> None:
        """End the session."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._connection is not None:
            with contextlib.suppress(*DATABASE_ERRORS):
                await self._connection.close(timeout=CONNECT_SECONDS_MAX)

    async def _keep(self) -> None:
        while True:
            while self._connection is None:
                try:
                    await self._connect()
                except DATABASE_ERRORS:
                    await asyncio.sleep(RETRY_SECONDS)
            try:
                await self._watch(self._connection)
            except DATABASE_ERRORS as error:
                log.error("database_connection_lost", purpose=self._purpose, error=repr(error))
                self._connection.terminate()
                self._connection = None

    async def _connect(self) -> None:
        connection = await connect(self._url)
        try:
            await self._prepare(connection)
        except BaseException:
            connection.terminate()
            raise
        self._connection = connection

    async def _watch(self, connection: Connection) -> None:
        """Never returns; raises when the connection is lost."""
        ended = asyncio.Event()
        connection.add_termination_listener(lambda _: ended.set())
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PING_SECONDS):
                    await ended.wait()
            await connection.execute("SELECT 1", timeout=CONNECT_SECONDS_MAX)
