"""The PDCA store's tables in the PostgreSQL database of the journal, which several processes share."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from switchyard.adapters.pdca.session import Dialect
from switchyard.adapters.postgres import migrations
from switchyard.adapters.postgres.connection import (
    COMMIT_SECONDS_MAX,
    CONNECT_SECONDS_MAX,
    CONNECTION_LOST,
    Connection,
    TransactionSession,
    single_connection,
)
from switchyard.adapters.postgres.reader import ReadBarrier, open_pool
from switchyard.domain.errors import OutcomeUnknown
from switchyard.ports.strategies import PdcaUnavailable


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
        return cls(*await open_pool(url))

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[TransactionSession]:
        """A read-only transaction at one snapshot; at its end the synchronous standby has what was read."""
        async with self._barrier.confirmed(PdcaUnavailable), self._connection() as connection:
            transaction = connection.transaction(isolation="repeatable_read", readonly=True)
            await transaction.start()
            try:
                yield TransactionSession(connection)
            finally:
                if not connection.is_closed():
                    await transaction.rollback()

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[TransactionSession]:
        """A transaction that is flushed to the disk, and to that of the synchronous standby, at its end."""
        # A transaction that only read, such as one that found a repeated key, has not waited for the standby.
        async with self._barrier.confirmed(OutcomeUnknown), self._connection() as connection:
            transaction = connection.transaction()
            await transaction.start()
            try:
                yield TransactionSession(connection)
            except BaseException:
                if not connection.is_closed():
                    await transaction.rollback()
                raise
            try:
                async with asyncio.timeout(COMMIT_SECONDS_MAX):
                    await transaction.commit()
            except CONNECTION_LOST as error:
                raise OutcomeUnknown(f"the answer to a commit was lost: {error!r}") from error

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
