"""One PostgreSQL database as journal, queries and liveness."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from switchyard.adapters.postgres import migrations
from switchyard.adapters.postgres.connection import CONNECT_SECONDS_MAX, FAILED, Connection, Reader, connect
from switchyard.adapters.postgres.journal import PostgresJournal
from switchyard.adapters.postgres.keys import PostgresKeyStore
from switchyard.adapters.postgres.lanes import PostgresLanes
from switchyard.adapters.postgres.liveness import PostgresLiveness
from switchyard.adapters.postgres.news import News
from switchyard.adapters.postgres.queries import PostgresQueries
from switchyard.domain.errors import CannotStart


class PostgresDatabase:
    """The engine that several gateways, workers and readers share."""

    def __init__(self, url: str, reader: Reader) -> None:
        self._url = url
        self._reader = reader
        self._news: list[News] = []
        self.journal = PostgresJournal(url, reader)
        self.queries = PostgresQueries(reader)
        self.liveness = PostgresLiveness(url, reader)
        self.lanes = PostgresLanes(reader)
        self.keys = PostgresKeyStore(reader)

    @classmethod
    async def open(cls, url: str) -> "PostgresDatabase":
        """Connect to a database whose schema is up to date."""
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
        """Call back when somebody has written, another process or this one."""
        news = News(self._url, callback)
        news.start()
        self._news.append(news)

    async def close(self) -> None:
        """Finish what is being written and disconnect."""
        for news in self._news:
            await news.close()
        await self.liveness.close()
        await self.journal.close()
        await self._reader.close()


@asynccontextmanager
async def _first_connection(url: str) -> AsyncIterator[Connection]:
    """A connection that explains itself when it cannot be made or fails."""
    try:
        connection = await connect(url)
    except ValueError as error:
        # The URL itself is not repeated: it may hold a password.
        raise CannotStart(f"the database URL is not one that PostgreSQL understands: {error}") from error
    except FAILED as error:
        raise CannotStart(f"the database cannot be reached: {_why(error)}") from error
    try:
        yield connection
    except FAILED as error:
        raise CannotStart(f"the database failed: {_why(error)}") from error
    finally:
        await connection.close(timeout=CONNECT_SECONDS_MAX)


def _why(error: BaseException) -> str:
    return str(error) or repr(error)
