"""The cluster of the Kafka suite: librdkafka's mock cluster, or a real broker in `make test-kafka`."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.databases import Database, fresh_database
from tests.support.kafka import Kafka, start_kafka


@pytest.fixture(scope="session")
def kafka() -> Iterator[Kafka]:
    """One cluster for the whole run; a test creates its own topics on it and must not leave it crashed."""
    cluster = start_kafka()
    yield cluster
    cluster.remove()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def database(request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    """A fresh database of each engine."""
    async with fresh_database(request.param, request) as database:
        yield database


@pytest.fixture
async def embedded(request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    """A fresh database of one engine, where the engine makes no difference."""
    async with fresh_database("sqlite", request) as database:
        yield database
