"""Fresh databases of both engines, for suites that run the same contract on each."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest

from switchyard.adapters.postgres.database import PostgresDatabase
from switchyard.adapters.sqlite.database import SqliteDatabase
from tests.support.postgres import PostgresServer

Engine = Literal["sqlite", "postgres"]
Database: TypeAlias = SqliteDatabase | PostgresDatabase


@asynccontextmanager
async def fresh_database(engine: Engine, request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    """An empty database of the engine, closed afterwards."""
    database: Database
    if engine == "sqlite":
        folder: Path = request.getfixturevalue("tmp_path")
        await SqliteDatabase.upgrade(folder / "switchyard.db")
        database = await SqliteDatabase.open(folder / "switchyard.db")
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url = server.create_database()
        await PostgresDatabase.upgrade(url)
        database = await PostgresDatabase.open(url)
    try:
        yield database
    finally:
        await database.close()


async def run_sql(database: Database, sql: str) -> list[tuple[Any, ...]]:
    """The rows of a statement, on a connection that may write."""
    if isinstance(database, PostgresDatabase):
        return [tuple(record) for record in await database._reader.rows(sql)]
    return await database._connections.write(lambda connection: connection.execute(sql).fetchall())
