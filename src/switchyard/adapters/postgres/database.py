"""One PostgreSQL database behind all database ports: checks the schema, builds the adapters."""

from collections.abc import Callable

from switchyard.adapters.postgres import migrations
from switchyard.adapters.postgres.connection import CommitNotifications, single_connection
from switchyard.adapters.postgres.journal import PostgresJournal
from switchyard.adapters.postgres.liveness import (
    PostgresLanes,
    PostgresLiveness,
    PostgresRelayLeases,
    PostgresVenueSessions,
)
from switchyard.adapters.postgres.queries import PostgresKeyStore, PostgresSession, PostgresTime
from switchyard.adapters.postgres.reader import Reader
from switchyard.adapters.queries import SqlAccounts, SqlKills, SqlQueries, SqlStrategyOrders
from switchyard.adapters.system_clock import SystemClock

# A copy made by `pg_dump` or from a template has another number or another server; a standby has the same.
IDENTITY = "SELECT system_identifier, oid FROM pg_control_system(), pg_database WHERE datname = current_database()"


class PostgresDatabase:
    """The engine that several gateways, workers and readers share."""

    def __init__(self, url: str, reader: Reader) -> None:
        self._url = url
        self._reader = reader
        self._notifications: list[CommitNotifications] = []
        self.journal = PostgresJournal(url, reader)
        session = PostgresSession(reader)
        self.queries = SqlQueries(session)
        self.kills = SqlKills(session)
        self.strategy_orders = SqlStrategyOrders(session)
        self.accounts = SqlAccounts(session)
        self.liveness = PostgresLiveness(url, reader)
        self.relay_leases = PostgresRelayLeases(reader)
        self.lanes = PostgresLanes(reader, SystemClock())
        self.sessions = PostgresVenueSessions(url, reader)
        self.keys = PostgresKeyStore(reader)
        self.time = PostgresTime(reader)

    @classmethod
    async def open(cls, url: str) -> "PostgresDatabase":
        """Connect to a database that has the schema version of this code."""
        async with single_connection(url) as connection:
            await migrations.check(connection)
            return cls(url, await Reader.open(url))

    @staticmethod
    async def is_new(url: str) -> bool:
        """Whether the database has no schema at all."""
        async with single_connection(url) as connection:
            return await migrations.version(connection) == 0

    @staticmethod
    async def upgrade(url: str) -> int:
        """Bring the database's schema to this version; returns the version."""
        async with single_connection(url) as connection:
            return await migrations.upgrade(connection)

    async def identity(self) -> str:
        """The server's own id and the database's number in it."""
        [(server, database)] = await self._reader.rows(IDENTITY)
        return f"PostgreSQL {server}, database {database}"

    def listen(self, callback: Callable[[], None]) -> None:
        """Call back after each commit, of this process or another."""
        notifications = CommitNotifications(self._url, callback)
        notifications.start()
        self._notifications.append(notifications)

    def on_held_wal(self, callback: Callable[[], None]) -> None:
        """Do nothing: the server bounds its log itself."""

    def longest_read_seconds(self) -> float:
        """Return 0: the server bounds its log itself."""
        return 0.0

    async def close(self) -> None:
        """Finish the write in progress and disconnect."""
        for notifications in self._notifications:
            await notifications.close()
        await self.sessions.close()
        await self.liveness.close()
        await self.journal.close()
        await self._reader.close()
