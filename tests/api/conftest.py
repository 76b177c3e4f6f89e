"""The gateway under test: once per test, on each engine."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

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
