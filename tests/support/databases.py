"""Fresh databases of every engine, for the contract suites."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest

from switchyard.adapters.postgres.database import PostgresDatabase
from switchyard.adapters.sqlite.database import SqliteDatabase
from tests.support.memory.clock import ManualClock
from tests.support.memory.database import MemoryDatabase
from tests.support.postgres import PostgresServer
from tests.support.upgraded import borrowed_database

Engine = Literal["memory", "sqlite", "postgres"]
SqlDatabase: TypeAlias = SqliteDatabase | PostgresDatabase
Database: TypeAlias = MemoryDatabase | SqlDatabase


@asynccontextmanager
async def fresh_database(engine: Engine, request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    """An empty database of the engine, closed afterwards."""
    async with AsyncExitStack() as stack:
        database: Database
        match engine:
            case "memory":
                database = MemoryDatabase(ManualClock())
            case "sqlite":
                folder: Path = request.getfixturevalue("tmp_path")
                await SqliteDatabase.upgrade(folder / "switchyard.db")
                database = await SqliteDatabase.open(folder / "switchyard.db")
            case "postgres":
                server: PostgresServer = request.getfixturevalue("postgres_server")
                database = await PostgresDatabase.open(await stack.enter_async_context(borrowed_database(server)))
        stack.push_async_callback(database.close)
        yield database


async def run_sql(database: SqlDatabase, sql: str) -> list[tuple[Any, ...]]:
    """The rows of a statement, on a connection that may write."""
    if isinstance(database, PostgresDatabase):
        return [tuple(record) for record in await database._reader.rows(sql)]
    return await database._connections.write(lambda connection: connection.execute(sql).fetchall())
