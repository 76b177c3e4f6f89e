"""What every test may ask for."""

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.postgres import PostgresServer
from tests.support.redis import RedisServer

# A property holds or it does not; how long an example takes says how busy the machine is.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


# Heads outside the data folder: no test, and no process that one starts, writes to the home folder.
_STATE_HOME = tempfile.mkdtemp(prefix="switchyard-state-")
os.environ["XDG_STATE_HOME"] = _STATE_HOME


def pytest_unconfigure() -> None:
    """Remove the state folder of the run."""
    shutil.rmtree(_STATE_HOME, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One real server for the whole run; take a fresh database of it, and leave it running."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One real server for the whole run; flush it before use, and leave it running."""
    with RedisServer() as server:
        yield server
