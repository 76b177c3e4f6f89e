"""The PDCA store's tables in the PostgreSQL database of the journal, which several processes share."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from switchyard.adapters.pdca.session import Dialect, Row
from switchyard.adapters.postgres import migrations
from switchyard.adapters.postgres.connection import (
    CONNECT_SECONDS_MAX,
    CONNECTION_LOST,
    READ_SECONDS_MAX,
    SERVER_SETTINGS,
    Connection,
    single_connection,
)
from switchyard.adapters.postgres.reader import ReadBarrier
from switchyard.domain.errors import JournalUnavailable, OutcomeUnknown
from switchyard.ports.pdca import PdcaUnavailable

# Of the API's readers and writers and of the runner, who all wait for the disk and not for each other.
CONNECTIONS_MAX = 8


class PostgresEngine:
    """adapters.pdca.session.Engine on a pool of connections."""

    dialect = Dialect(
        each="SELECT json_array_elements_text(CAST({} AS json))",
        skip_locked="FOR UPDATE OF item SKIP LOCKED",
        lock="FOR UPDATE",
        lock_caller="SELECT pg_advisory_xact_lock(hashtext('pdca'), hashtext($1))",
    )

    def __init__(self, pool: asyncpg.Pool, barrier: ReadBarrier) -> None:
        self._pool = pool
        self._barrier = barrier

    @classmethod
    async def open(cls, url: str) -> "PostgresEngine":
        """A pool that connects at the first transaction, on a database that has the schema of this version."""
        async with single_connection(url) as connection:
            await migrations.check(connection)
        pool = await asyncpg.create_pool(
            url,
            min_size=0,
            max_size=CONNECTIONS_MAX,
            max_inactive_connection_lifetime=0,
            timeout=CONNECT_SECONDS_MAX,
            command_timeout=READ_SECONDS_MAX,
            server_settings=SERVER_SETTINGS,
        )
        return cls(pool, ReadBarrier(url, pool.expire_connections))

    @asynccontextmanager
    async def reading(self) -> AsyncIterator["_PostgresSession"]:
        """A read-only transaction at one snapshot; at its end the synchronous standby has what was read."""
        since = self._barrier.timeline
        async with self._connection() as connection:
            transaction = connection.transaction(isolation="repeatable_read", readonly=True)
            await transaction.start()
            try:
                yield _PostgresSession(connection)
            finally:
                if not connection.is_closed():
                    await transaction.rollback()
        try:
            await self._barrier.wait(since)
        except JournalUnavailable as error:
            raise PdcaUnavailable(str(error)) from error

    @asynccontextmanager
    async def writing(self) -> AsyncIterator["_PostgresSession"]:
        """A transaction that is flushed to the disk, and to that of the synchronous standby, at its end."""
        since = self._barrier.timeline
        async with self._connection() as connection:
            transaction = connection.transaction()
            await transaction.start()
            try:
                yield _PostgresSession(connection)
            except BaseException:
                if not connection.is_closed():
                    await transaction.rollback()
                raise
            try:
                await transaction.commit()
            except CONNECTION_LOST as error:
                raise OutcomeUnknown(f"the answer to a commit was lost: {error!r}") from error
        try:
            # A transaction that only read, such as one that found a repeated key, has not waited for the standby.
            await self._barrier.wait(since)
        except JournalUnavailable as error:
            raise OutcomeUnknown(str(error)) from error

    async def close(self) -> None:
        """Wait for the transactions in progress, then disconnect."""
        await self._pool.close()
        await self._barrier.close()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        try:
            async with self._pool.acquire(timeout=CONNECT_SECONDS_MAX) as connection:
                yield connection
        except (*CONNECTION_LOST, asyncpg.InsufficientResourcesError) as error:
            raise PdcaUnavailable(f"the database does not answer: {error!r}") from error


class _PostgresSession:
    """A transaction in progress."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def rows(self, sql: str, *values: Any) -> Sequence[Row]:
        """Run a statement."""
        records: Sequence[Row] = await self._connection.fetch(sql, *values)
        return records
