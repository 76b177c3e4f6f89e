"""What every test may ask for."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.postgres import PostgresServer
from tests.support.redis import RedisServer
from tests.support.time_limit import pytest_timeout_set_timer

__all__ = ["pytest_timeout_set_timer"]

# A property holds or it does not; how long an example takes says how busy the machine is.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


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
