"""The adapters under contract: each test runs against all of them."""

from collections.abc import AsyncIterator

import pytest

from switchyard.adapters.memory.journal import MemoryJournal
from switchyard.adapters.postgres.database import PostgresDatabase
from switchyard.ports.journal import Journal
from switchyard.ports.liveness import Liveness
from switchyard.ports.queries import Queries
from tests.support.databases import Database, fresh_database
from tests.support.postgres import PostgresServer


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def journal(request: pytest.FixtureRequest) -> AsyncIterator[Journal]:
    """For tests that need nothing but the write port."""
    if request.param == "memory":
        yield MemoryJournal()
        return
    async with fresh_database(request.param, request) as database:
        yield database.journal


@pytest.fixture(params=["sqlite", "postgres"])
async def database(request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    """For tests that also look things up."""
    async with fresh_database(request.param, request) as database:
        yield database


@pytest.fixture
def queries(database: Database) -> Queries:
    return database.queries


@pytest.fixture
def liveness(database: Database) -> Liveness:
    return database.liveness


@pytest.fixture
async def postgres_url(postgres_server: PostgresServer) -> str:
    """A fresh database for tests that open it themselves, or several times over."""
    url = postgres_server.create_database()
    await PostgresDatabase.upgrade(url)
    return url
