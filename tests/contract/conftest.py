"""The databases under contract: a test that takes one of these fixtures runs on every engine."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from switchyard.bootstrap.databases import DatabaseQueries
from switchyard.ports.journal import Journal, Liveness
from tests.support.databases import Database, SqlDatabase, fresh_database
from tests.support.ledgers import Ledgers, opened_ledgers
from tests.support.memory.database import MemoryDatabase
from tests.support.postgres import PostgresServer
from tests.support.upgraded import borrowed_database


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def database(request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    """A fresh database of each engine."""
    async with fresh_database(request.param, request) as database:
        yield database


@pytest.fixture(params=["sqlite", "postgres"])
async def sql_database(request: pytest.FixtureRequest) -> AsyncIterator[SqlDatabase]:
    """A fresh database of each SQL engine, for tests of views and plans."""
    async with fresh_database(request.param, request) as database:
        assert not isinstance(database, MemoryDatabase)
        yield database


@pytest.fixture(params=["sqlite", "postgres"])
async def ledgers(request: pytest.FixtureRequest) -> AsyncIterator[Ledgers]:
    """Fresh ledgers of each engine."""
    place: Path | str = request.getfixturevalue("tmp_path")
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        place = server.create_database()
    async with opened_ledgers(place) as opened:
        yield opened


@pytest.fixture
def journal(database: Database) -> Journal:
    return database.journal


@pytest.fixture
def queries(database: Database) -> DatabaseQueries:
    return database.queries


@pytest.fixture
def liveness(database: Database) -> Liveness:
    return database.liveness


@pytest.fixture
async def postgres_url(postgres_server: PostgresServer) -> AsyncIterator[str]:
    """The URL of a fresh database, for tests that open it themselves or more than once."""
    async with borrowed_database(postgres_server) as url:
        yield url
