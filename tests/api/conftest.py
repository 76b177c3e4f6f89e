"""The gateway under test, on each engine; a bare database for what needs no gateway."""

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from switchyard.adapters.sqlite.database import SqliteDatabase
from tests.support.gateway import RunningGateway, running_gateway


@pytest.fixture(params=["sqlite", "postgres"])
def engine_settings(request: pytest.FixtureRequest) -> dict[str, str]:
    """What selects the engine."""
    if request.param == "sqlite":
        return {}
    return {"SWITCHYARD_DATABASE_URL": request.getfixturevalue("postgres_server").create_database()}


@pytest.fixture
async def gateway(tmp_path: Path, engine_settings: dict[str, str]) -> AsyncIterator[RunningGateway]:
    """Everything that `switchyard up` runs."""
    async with running_gateway(tmp_path, **engine_settings) as running:
        yield running


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """The same on SQLite alone, where the engine makes no difference."""
    async with running_gateway(tmp_path) as running:
        yield running


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    """A fresh file with its schema."""
    await SqliteDatabase.upgrade(tmp_path / "switchyard.db")
    database = await SqliteDatabase.open(tmp_path / "switchyard.db")
    yield database
    await database.close()


@pytest.fixture
def nothing_goes_wrong_unseen(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """uvicorn logs what an application does wrong, and goes on."""
    yield
    assert [record for record in caplog.get_records("call") if record.levelno >= logging.ERROR] == []
