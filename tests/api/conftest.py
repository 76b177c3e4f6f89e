"""Fixtures for the HTTP tests: a gateway in the test's own process, and a database without one."""

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from switchyard.adapters.sqlite.database import SqliteDatabase
from tests.support.gateway import RunningGateway, running_gateway


@pytest.fixture
async def gateway(tmp_path: Path, engine_settings: dict[str, str]) -> AsyncIterator[RunningGateway]:
    """Everything that `switchyard up` runs, on each database."""
    async with running_gateway(tmp_path, **engine_settings) as running:
        yield running


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """The same on SQLite only, for tests that do not depend on the database."""
    async with running_gateway(tmp_path) as running:
        yield running


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    """A new SQLite file with its schema."""
    await SqliteDatabase.upgrade(tmp_path / "switchyard.db")
    database = await SqliteDatabase.open(tmp_path / "switchyard.db")
    yield database
    await database.close()


@pytest.fixture
def no_logged_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail the test if uvicorn logged an error: it logs an exception of the application and goes on."""
    yield
    assert [record for record in caplog.get_records("call") if record.levelno >= logging.ERROR] == []
