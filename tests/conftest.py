"""Fixtures for all tests: the real servers, the processes of one test and the choice of a database."""

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
from hypothesis import HealthCheck, settings

from tests.support import forked, tiers
from tests.support.cluster import Cluster
from tests.support.costs import OPTION, Costs
from tests.support.postgres import PostgresServer
from tests.support.redis import RedisServer
from tests.support.time_limit import pytest_timeout_set_timer
from tests.support.upgraded import borrowed_database

__all__ = ["pytest_timeout_set_timer"]

# The time that an example takes depends on the load of the machine, not on the property under test.
# Without a database of examples: the guard of unit tests forbids its files, and would hide the example that failed.
settings.register_profile(
    "untimed", deadline=None, database=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("untimed")


# Heads outside the data folder: no test, and no process that one starts, writes to the home folder.
_STATE_HOME = tempfile.mkdtemp(prefix="switchyard-state-")
os.environ["XDG_STATE_HOME"] = _STATE_HOME


_SLOW_FIRST = {folder: rank for rank, folder in enumerate(("crash", "nemesis", "e2e", "kafka", "api"))}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that choose and measure tests."""
    parser.addoption(
        tiers.OPTION, action="store_true", help="run the tests of `make test`, not those of `make test-all`"
    )
    parser.addoption(OPTION, type=Path, help="append the processor seconds of each test to this file")


def pytest_configure(config: pytest.Config) -> None:
    """Measure the tests if that is asked for."""
    path = config.getoption(OPTION)
    if path is not None:
        config.pluginmanager.register(Costs(path.absolute()), OPTION)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the modules of which no test was asked for."""
    is_module = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if is_module and config.getoption(tiers.OPTION) and not tiers.has_core(collection_path) else None


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the fork server, and remove the state folder of the run."""
    forked.close()
    costs = config.pluginmanager.get_plugin(OPTION)
    if isinstance(costs, Costs):
        costs.write_total()
    shutil.rmtree(_STATE_HOME, ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the tests, the slow folders first: a long test that starts last would run alone at the end."""
    if config.getoption(tiers.OPTION):
        config.hook.pytest_deselected(items=[item for item in items if not tiers.is_core(item)])
        items[:] = filter(tiers.is_core, items)
    items.sort(key=lambda item: _SLOW_FIRST.get(item.path.parent.name, len(_SLOW_FIRST)))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One real server for the whole run; a test creates its own database on it and must not stop it."""
    # Nobody stops it, and it ends with the run: there is no crash of the machine that its data would have to survive.
    with PostgresServer({"fsync": "off", "full_page_writes": "off"}) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One real server for the whole run; a test flushes it before use and must not stop it."""
    with RedisServer() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
async def engine_settings(request: pytest.FixtureRequest) -> AsyncIterator[dict[str, str]]:
    """The settings that select the database, one after the other."""
    if request.param == "sqlite":
        yield {}
        return
    async with borrowed_database(request.getfixturevalue("postgres_server")) as url:
        # As on SQLite, where it is the default: the tests of `/do/order` and of its limits use no tokens.
        yield {"SWITCHYARD_DATABASE_URL": url, "DO_REQUIRE_TOKEN": "false"}


@pytest.fixture
async def database_url(postgres_server: PostgresServer) -> AsyncIterator[str]:
    """A PostgreSQL database with its schema and no orders."""
    async with borrowed_database(postgres_server) as url:
        yield url


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """The test's `switchyard` processes and brokers; those that still run at the end are killed."""
    processes = Cluster(tmp_path)
    yield processes
    processes.close()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """A session for requests to the processes of the test."""
    async with aiohttp.ClientSession() as session:
        yield session
