"""What every test may ask for."""

from collections.abc import Iterator

import pytest

from tests.support.postgres import PostgresServer


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One real server for the whole run; take a fresh database of it, and leave it running."""
    with PostgresServer() as server:
        yield server
