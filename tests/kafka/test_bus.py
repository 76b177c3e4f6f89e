"""One suite for both buses, the journal and Kafka: the books are those that the journal gives, whatever happens."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from switchyard.adapters.backoffice.sqlite.ledger import SqliteLedger
from switchyard.ports.bus import Bus
from tests.support.databases import Database
from tests.support.kafka import Kafka
from tests.support.kafka_books import Office, Services, check_books, has_read_all, journal_bus, kafka_bus
from tests.support.polling import until
from tests.support.relay import RelayUnderTest


class BusUnderTest:
    """A journal, and one way to read it."""

    def __init__(self, database: Database, kafka: Kafka, kind: str) -> None:
        self.database = database
        self.services = Services(database, accounts=12)  # some in each partition
        self._kafka = kafka if kind == "kafka" else None
        self._topic = kafka.create_topic() if kind == "kafka" else ""
        self._relay = RelayUnderTest(database, kafka, self._topic) if kind == "kafka" else None

    def bus(self) -> Bus:
        return journal_bus(self.database) if self._kafka is None else kafka_bus(self._kafka, self._topic)

    async def trade(self, rounds: int) -> None:
        await self.services.trade(rounds)
        if self._relay is not None:
            await self._relay.catch_up()

    async def close(self) -> None:
        if self._relay is not None:
            await self._relay.relay.close()


@pytest.fixture(params=["journal", "kafka"])
async def under_test(request: pytest.FixtureRequest, embedded: Database, kafka: Kafka) -> AsyncIterator[BusUnderTest]:
    bus = BusUnderTest(embedded, kafka, request.param)
    yield bus
    await bus.close()


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[SqliteLedger]:
    ledger = await SqliteLedger.open(tmp_path / "backoffice.db")
    yield ledger
    await ledger.close()


async def booked(under_test: BusUnderTest, ledger: SqliteLedger) -> Office:
    """A new back office that has read everything."""
    office = Office(under_test.bus(), ledger)
    await office.consumer.open()
    await office.catch_up(under_test.database)
    assert office.consumer.problem is None
    return office


async def test_every_fill_is_booked_once_across_restarts_and_after_a_reset_to_zero(
    under_test: BusUnderTest, ledger: SqliteLedger, tmp_path: Path
) -> None:
    for _ in range(2):
        await under_test.trade(1)
        office = await booked(under_test, ledger)
        await office.close()
    first = await check_books(ledger, under_test.database, tmp_path)
    for state in await ledger.sources():
        await ledger.reset(state.source, type(state.position)())
    office = Office(under_test.bus(), ledger)
    await office.consumer.open()
    await office.run_until(lambda: office.consumer.processed == 120)
    assert office.consumer.skipped == 120
    await office.close()
    assert await check_books(ledger, under_test.database, tmp_path) == first


async def test_older_books_continue_from_their_own_position(under_test: BusUnderTest, tmp_path: Path) -> None:
    await under_test.trade(1)
    ledger = await SqliteLedger.open(tmp_path / "backoffice.db")
    await (await booked(under_test, ledger)).close()
    await ledger.close()
    folder = tmp_path / "backup"
    folder.mkdir()
    shutil.copy(tmp_path / "backoffice.db", folder / "backoffice.db")
    await under_test.trade(1)
    digests = []
    for each in (tmp_path, folder):
        opened = await SqliteLedger.open(each / "backoffice.db")
        await (await booked(under_test, opened)).close()
        digests.append(await check_books(opened, under_test.database, each))
        await opened.close()
    assert digests[0] == digests[1]


async def test_two_back_offices_of_the_same_books_end_in_the_same_state(
    under_test: BusUnderTest, ledger: SqliteLedger, tmp_path: Path
) -> None:
    """The second one joins and the first one leaves while pages are being booked."""
    first, second = (Office(under_test.bus(), ledger) for _ in range(2))
    stop = asyncio.Event()

    async def run(office: Office) -> None:
        await office.consumer.open()
        while not stop.is_set():
            await office.consumer.run_once()
            await asyncio.sleep(0)

    await under_test.trade(3)
    running = [asyncio.create_task(run(first))]
    await until(lambda: first.consumer.processed > 0)
    running.append(asyncio.create_task(run(second)))

    async def second_reads() -> bool:
        await under_test.trade(1)
        return second.consumer.processed > 0

    await until(second_reads)
    running.pop(0).cancel()
    await first.close()
    await under_test.trade(3)
    await until(lambda: has_read_all(ledger, under_test.database), lambda: str(second.consumer.problem))
    stop.set()
    await asyncio.gather(*running)
    await second.close()
    await check_books(ledger, under_test.database, tmp_path)
