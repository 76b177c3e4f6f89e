"""One PostgreSQL database behind all database ports: checks the schema, builds the adapters."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from switchyard.adapters.postgres import migrations
from switchyard.adapters.postgres.connection import (
    CONNECT_SECONDS_MAX,
    DATABASE_ERRORS,
    Connection,
    Reader,
    connect,
)
from switchyard.adapters.postgres.database_time import PostgresTime
from switchyard.adapters.postgres.journal import PostgresJournal
from switchyard.adapters.postgres.keys import PostgresKeyStore
from switchyard.adapters.postgres.lanes import PostgresLanes
from switchyard.adapters.postgres.liveness import PostgresLiveness
from switchyard.adapters.postgres.notifications import CommitNotifications
from switchyard.adapters.postgres.queries import PostgresQueries
from switchyard.adapters.system_clock import SystemClock
from switchyard.domain.errors import CannotStart


class PostgresDatabase:
    """The engine that several gateways, workers and readers share."""

    def __init__(self, url: str, reader: Reader) -> None:
        self._url = url
        self._reader = reader
        self._notifications: list[CommitNotifications] = []
        self.journal = PostgresJournal(url, reader)
        self.queries = PostgresQueries(reader)
        self.liveness = PostgresLiveness(url, reader)
        self.lanes = PostgresLanes(reader, SystemClock())
        self.keys = PostgresKeyStore(reader)
        self.time = PostgresTime(reader)

    @classmethod
    async def open(cls, url: str) -> "PostgresDatabase":
        """Connect to a database that has the schema version of this code."""
        async with _first_connection(url) as connection:
            await migrations.check(connection)
            return cls(url, await Reader.open(url))

    @staticmethod
    async def is_new(url: str) -> bool:
        """Whether the database has no schema at all."""
        async with _first_connection(url) as connection:
            return await migrations.version(connection) == 0

    @staticmethod
    async def upgrade(url: str) -> int:
        """Bring the database's schema to this version; returns the version."""
        async with _first_connection(url) as connection:
            return await migrations.upgrade(connection)

    def listen(self, callback: Callable[[], None]) -> None:
        """Call back after each commit, of this process or another."""
        notifications = CommitNotifications(self._url, callback)
        notifications.start()
        self._notifications.append(notifications)

    async def close(self) -> None:
        """Finish the write in progress and disconnect."""
        for notifications in self._notifications:
            await notifications.close()
        await self.liveness.close()
        await self.journal.close()
        await self._reader.close()


@asynccontextmanager
async def _first_connection(url: str) -> AsyncIterator[Connection]:
    """A connection whose failure raises CannotStart with the cause."""
    try:
        connection = await connect(url)
    except ValueError as error:
        # asyncpg quotes the part of the URL that it rejects, which may be a part of the password.
        raise CannotStart(
            "SWITCHYARD_DATABASE_URL is not a PostgreSQL URL (postgresql://user@host:port/database?option=value): "
            "check the port and the options"
        ) from error
    except DATABASE_ERRORS as error:
        raise CannotStart(f"the database in SWITCHYARD_DATABASE_URL cannot be reached: {_text(error)}") from error
    try:
        yield connection
    except DATABASE_ERRORS as error:
        raise CannotStart(f"the database failed: {_text(error)}") from error
    finally:
        await connection.close(timeout=CONNECT_SECONDS_MAX)


def _text(error: BaseException) -> str:
    return str(error) or repr(error)
