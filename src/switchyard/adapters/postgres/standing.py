"""A connection kept open for what lives in its session: a lock, a subscription."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import structlog

from switchyard.adapters.postgres.connection import CONNECT_SECONDS_MAX, FAILED, Connection, connect

log = structlog.get_logger()

# A network may swallow a connection without a word; asking this often costs nothing and finds out within seconds.
PULSE_SECONDS = 5.0
# Soon enough after a restart of the server, seldom enough during a long outage.
REST_SECONDS = 0.5


class StandingConnection:
    """Connects, has the session prepared, watches it, and begins anew when it is lost."""

    def __init__(self, url: str, purpose: str, prepare: Callable[[Connection], Awaitable[None]]) -> None:
        self._url = url
        self._purpose = purpose
        self._prepare = prepare
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect and prepare; what goes wrong this first time is raised, a later loss is repaired."""
        await self._connect()
        self.start()

    def start(self) -> None:
        """Keep it open from now on; does not wait for the first connection."""
        self._task = asyncio.create_task(self._keep(), name=self._purpose)

    async def close(self) -> None:
        """End the session for good."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._connection is not None:
            with contextlib.suppress(*FAILED):
                await self._connection.close(timeout=CONNECT_SECONDS_MAX)

    async def _keep(self) -> None:
        while True:
            while self._connection is None:
                try:
                    await self._connect()
                except FAILED:
                    await asyncio.sleep(REST_SECONDS)
            try:
                await self._watch(self._connection)
            except FAILED as error:
                log.error(
                    "a standing connection was lost and is being renewed", purpose=self._purpose, error=repr(error)
                )
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
        """Return never; raises once the connection is lost."""
        ended = asyncio.Event()
        connection.add_termination_listener(lambda _: ended.set())
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PULSE_SECONDS):
                    await ended.wait()
            await connection.execute("SELECT 1", timeout=CONNECT_SECONDS_MAX)
