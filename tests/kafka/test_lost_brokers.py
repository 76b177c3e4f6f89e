"""A client of librdkafka that has no brokers left is noticed and replaced: by itself it would wait for ever."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from switchyard.adapters.backoffice.sqlite.ledger import SqliteLedger
from switchyard.adapters.kafka import configuration
from switchyard.settings.kafka import KafkaSettings
from tests.support.databases import Database
from tests.support.kafka import Kafka
from tests.support.kafka_books import Office, Services, check_books, kafka_bus
from tests.support.polling import until
from tests.support.relay import RelayUnderTest, check_complete, place_orders

PROPERTIES = pytest.mark.parametrize(
    ("client", "properties"), [(Producer, configuration.producer), (Consumer, configuration.consumer)]
)


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[SqliteLedger]:
    ledger = await SqliteLedger.open(tmp_path / "backoffice.db")
    yield ledger
    await ledger.close()


@pytest.fixture
def lose_brokers(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Has the next statistics say that no brokers are left."""
    monkeypatch.setattr(configuration, "STATISTICS_MS", 50)
    told, are_lost = asyncio.Event(), configuration.are_lost

    def said(statistics: str) -> bool:
        is_next = told.is_set()
        told.clear()
        return is_next or are_lost(statistics)

    monkeypatch.setattr(configuration, "are_lost", said)
    return told.set


@PROPERTIES
@pytest.mark.parametrize("address", ["127.0.0.1:9", ""])
async def test_a_client_says_whether_it_has_brokers_to_connect_to(
    client: Callable[[dict[str, Any]], Any], properties: Callable[..., dict[str, Any]], address: str
) -> None:
    verdicts: list[bool] = []
    kafka = KafkaSettings(topic="events", bootstrap_servers=address, client_id="test", queue_capacity=10)
    wanted = properties(kafka, lambda _: None, lambda text: verdicts.append(configuration.are_lost(text)))
    opened = client({**wanted, "statistics.interval.ms": 50, "log_level": 0})

    def has_said() -> bool:
        opened.poll(0.2)
        return bool(verdicts)

    await until(has_said)
    assert verdicts[0] == (not address)


async def test_a_consumer_without_brokers_is_replaced_and_reads_on(
    embedded: Database, kafka: Kafka, ledger: SqliteLedger, tmp_path: Path, lose_brokers: Callable[[], None]
) -> None:
    topic, services = kafka.create_topic(), Services(embedded)
    relay = RelayUnderTest(embedded, kafka, topic)
    office = Office(kafka_bus(kafka, topic), ledger)
    await office.consumer.open()
    await services.trade(1)
    await relay.catch_up()
    await office.catch_up(embedded)
    await relay.relay.close()  # so that the consumer is told
    lose_brokers()
    await office.run_until(lambda: not office.consumer.readers)
    await services.trade(1)
    await relay.catch_up()
    await office.catch_up(embedded)
    await office.close()
    await relay.relay.close()
    await check_books(ledger, embedded, tmp_path)


async def test_a_producer_without_brokers_is_replaced_and_every_event_is_published(
    embedded: Database, kafka: Kafka, lose_brokers: Callable[[], None]
) -> None:
    topic = kafka.create_topic()
    under_test = RelayUnderTest(embedded, kafka, topic)
    await place_orders(embedded, 5)
    await under_test.catch_up()
    lose_brokers()

    async def is_noticed() -> bool:
        await place_orders(embedded, 1)
        await under_test.relay.run_once()
        return "no brokers left" in (under_test.relay.trouble or "")

    await until(is_noticed)
    await under_test.catch_up()
    await under_test.relay.close()
    await check_complete(embedded, kafka, topic, repeats=True)
