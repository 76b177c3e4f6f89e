"""What only a message broker does to its readers: gaps, deleted messages, other topics of the same name."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer, Message, Producer

from switchyard.adapters.backoffice.sqlite.ledger import SqliteLedger
from switchyard.adapters.kafka import configuration
from switchyard.adapters.kafka.bus import KafkaBus
from switchyard.adapters.kafka.messages import PartitionSource, topic_id_of
from switchyard.adapters.kafka.publisher import KafkaPublisher
from switchyard.domain.errors import CannotStart
from switchyard.domain.journal.lines import BusEvent, Offset, bus_event
from switchyard.flow.bus.relay import PreviousEvents, Relay
from switchyard.flow.clock import Wake
from switchyard.ports.bus import Source, TopicResized
from switchyard.settings.kafka import KafkaSettings
from switchyard.telemetry.metrics import Metrics
from tests.support.databases import Database
from tests.support.journal_checks import verified
from tests.support.kafka import BUS_KEY, Kafka, stored_messages
from tests.support.kafka_books import Office, Services, check_books, has_read_all, kafka_bus
from tests.support.polling import until
from tests.support.relay import INSTALLATION, RelayUnderTest

KEY = BUS_KEY.encode()


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[SqliteLedger]:
    ledger = await SqliteLedger.open(tmp_path / "backoffice.db")
    yield ledger
    await ledger.close()


async def linked_events(database: Database) -> list[BusEvent]:
    """The whole journal as the relay would publish it."""
    return await PreviousEvents(database.queries).linked([bus_event(each) for each in await verified(database.journal)])


async def publish(
    kafka: Kafka, topic: str, events: Sequence[BusEvent], installation: str = INSTALLATION, key: bytes = KEY
) -> None:
    """Publish just these events."""
    settings = KafkaSettings(topic=topic, bootstrap_servers=kafka.bootstrap, client_id="test", queue_capacity=10_000)
    publisher = KafkaPublisher(settings, installation, key)
    await publisher.open("")
    await (await publisher.send(events))
    await publisher.close()


async def opened(kafka: Kafka, topic: str, ledger: SqliteLedger, keys: Sequence[bytes] = (KEY,)) -> Office:
    """A new back office on the topic, as its process would start it."""
    read = [state.source for state in await ledger.sources() if state.position != Offset()]
    ids = frozenset(filter(None, map(topic_id_of, read)))
    metrics = Metrics()
    office = Office(kafka_bus(kafka, topic, former_ids=ids, keys=keys, metrics=metrics), ledger, metrics=metrics)
    await office.consumer.open()
    return office


async def test_a_gap_halts_its_account_until_the_event_comes_and_nothing_is_booked_twice(
    embedded: Database, kafka: Kafka, ledger: SqliteLedger, tmp_path: Path
) -> None:
    topic = kafka.create_topic()
    await Services(embedded).trade(3)
    events = await linked_events(embedded)
    lost = next(each for each in events[10:] if each.event.account_id == "acc-1")
    await publish(kafka, topic, [each for each in events if each is not lost])
    office = await opened(kafka, topic, ledger)
    await office.run_until(lambda: office.consumer.processed == len(events) - 1)
    [halted] = await ledger.halted(10)
    assert (halted.account_id, halted.seq > lost.event.seq) == ("acc-1", True)
    assert "events are missing" in halted.reason
    assert office.consumer.problem is not None
    assert office.metrics.registry.get_sample_value("backoffice_halted_accounts") == 1
    # Everything is published again, as by a relay that starts from the first event.
    await publish(kafka, topic, events)
    await office.catch_up(embedded)
    assert office.consumer.problem is None
    await office.close()
    await check_books(ledger, embedded, tmp_path)


async def test_a_topic_that_was_created_again_is_read_only_after_a_reset(
    embedded: Database, kafka: Kafka, ledger: SqliteLedger, tmp_path: Path
) -> None:
    topic, services = kafka.create_topic(), Services(embedded)
    await services.trade(2)
    await publish(kafka, topic, await linked_events(embedded))
    office = await opened(kafka, topic, ledger)
    await office.catch_up(embedded)
    await office.close()
    kafka.delete_topic(topic)
    kafka.create_named(topic)
    await services.trade(1)
    await publish(kafka, topic, await linked_events(embedded))
    with pytest.raises(CannotStart, match=r"deleted and created again.*backoffice reset"):
        await opened(kafka, topic, ledger)
    assert not await has_read_all(ledger, embedded)
    for state in await ledger.sources():
        await ledger.reset(state.source, type(state.position)())
    again = await opened(kafka, topic, ledger)
    await again.catch_up(embedded)
    await again.close()
    await check_books(ledger, embedded, tmp_path)


async def test_messages_that_were_deleted_before_they_were_read_stop_the_partition(
    embedded: Database, kafka: Kafka, ledger: SqliteLedger
) -> None:
    topic = kafka.create_topic(1)
    await Services(embedded).trade(2)
    await publish(kafka, topic, await linked_events(embedded))
    kafka.delete_messages(topic, 5)
    office = await opened(kafka, topic, ledger)
    await office.run_until(lambda: office.consumer.source_problem is not None)
    assert "partition 0 of the topic does not have message 0" in (office.consumer.source_problem or "")
    assert office.metrics.registry.get_sample_value("backoffice_halted") == 1
    assert await ledger.count() == 0
    await office.close()


def write(kafka: Kafka, topic: str, *messages: dict[str, Any]) -> None:
    """Write messages as another program with access to the topic can."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for message in messages:
        producer.produce(topic, **message)
    assert producer.flush(30) == 0


def copy_of(message: Message, **changed: Any) -> dict[str, Any]:
    """A copy of a message, with other parts."""
    copied = {
        "key": message.key(),
        "value": message.value(),
        "headers": message.headers(),
        "partition": message.partition(),
    }
    return {**copied, **changed}


def rejected(office: Office, reason: str) -> float | None:
    return office.metrics.registry.get_sample_value("backoffice_rejected_messages_total", {"reason": reason})


async def test_messages_that_another_program_forged_are_dropped_and_counted_and_stop_nothing(
    embedded: Database, kafka: Kafka, ledger: SqliteLedger, tmp_path: Path
) -> None:
    """Every message of the relay, and between them what a writer without the key can make of those before."""
    topic = kafka.create_topic(2)
    services = Services(embedded)
    await services.trade(2)
    first = await linked_events(embedded)
    await publish(kafka, topic, first)
    genuine = stored_messages(kafka, topic, len(first))
    message = next(each for each in genuine if b'"lastQty":500' in (each.value() or b""))
    value, headers = message.value() or b"", dict(message.headers() or ())
    signature = headers["signature"]
    forged = {
        "unsigned": [
            copy_of(message, headers=[(name, each) for name, each in headers.items() if name != "signature"]),
            copy_of(message, headers=[*headers.items(), ("signature", None)]),
            {"value": b'{"type":"Fill"}', "key": b"acc-1"},
            {"value": None, "key": b"acc-1"},
        ],
        "signature": [
            copy_of(message, value=value.replace(b"500", b"900")),
            copy_of(message, headers={**headers, "previousSeq": b"999999"}),
            copy_of(message, headers={**headers, "seq": b"1000000"}),
            copy_of(message, headers={**headers, "epoch": b"9"}),
            copy_of(message, headers={**headers, "hash": b"0" * 64}),
            copy_of(message, headers={**headers, "installation": b"another"}),
            copy_of(message, headers=[*headers.items(), ("seq", None)]),
            copy_of(message, headers={**headers, "signature": b""}),
            copy_of(message, headers={**headers, "signature": b"\xff" * 64}),
            copy_of(message, key=b"acc-new"),
            copy_of(message, partition=1 - (message.partition() or 0)),
            {"value": b"", "key": b"acc-1", "headers": {"signature": signature}},
        ],
    }
    write(kafka, topic, *forged["unsigned"], *forged["signature"])
    await publish(kafka, topic, first[:1], key=b"the key of another installation, 32 bytes")
    await services.trade(1)
    await publish(kafka, topic, (await linked_events(embedded))[len(first) :])
    office = await opened(kafka, topic, ledger)
    await office.catch_up(embedded)
    await office.run_until(lambda: office.consumer.lag == 0)
    assert office.consumer.problem is None
    assert rejected(office, "unsigned") == len(forged["unsigned"])
    assert rejected(office, "signature") == len(forged["signature"]) + 1
    await office.close()
    await check_books(ledger, embedded, tmp_path)


async def test_a_copy_in_another_partition_halts_no_account(
    embedded: Database, kafka: Kafka, ledger: SqliteLedger, tmp_path: Path
) -> None:
    """It is genuine where it was published; in a partition that is read earlier it would look like a gap."""
    topic, other = kafka.create_topic(1), kafka.create_topic(1)
    await Services(embedded).trade(2)
    events = await linked_events(embedded)
    await publish(kafka, other, events)
    write(kafka, topic, *(copy_of(message) for message in stored_messages(kafka, other, len(events))[5:]))
    office = await opened(kafka, topic, ledger)
    await office.run_until(lambda: rejected(office, "signature") == len(events) - 5)
    assert (office.consumer.problem, await ledger.count()) == (None, 0)
    await publish(kafka, topic, events)
    await office.catch_up(embedded)
    await office.close()
    await check_books(ledger, embedded, tmp_path)


async def test_messages_under_the_previous_key_are_booked_while_it_is_configured(
    embedded: Database, kafka: Kafka, ledger: SqliteLedger, tmp_path: Path
) -> None:
    topic, services, new_key = kafka.create_topic(1), Services(embedded), b"the next key of the bus, 32 bytes or more"
    await services.trade(1)
    await publish(kafka, topic, await linked_events(embedded))
    await services.trade(1)
    await publish(kafka, topic, (await linked_events(embedded))[20:], key=new_key)
    office = await opened(kafka, topic, ledger, keys=(new_key, KEY))
    await office.catch_up(embedded)
    assert (rejected(office, "unsigned"), rejected(office, "signature")) == (0, 0)
    await office.close()
    await check_books(ledger, embedded, tmp_path)


async def test_the_relay_puts_accounts_into_the_partitions_that_librdkafka_would_choose(
    embedded: Database, kafka: Kafka
) -> None:
    topic, other = kafka.create_topic(5), kafka.create_topic(5)
    await Services(embedded, accounts=12).trade(1)
    events = await linked_events(embedded)
    await publish(kafka, topic, events)
    messages = stored_messages(kafka, topic, len(events))
    write(kafka, other, *({"key": each.key(), "value": b"-"} for each in messages))
    chosen = {each.key(): each.partition() for each in messages}
    assert len(set(chosen.values())) > 1
    assert chosen == {each.key(): each.partition() for each in stored_messages(kafka, other, len(events))}


async def test_a_signed_message_that_is_no_event_stops_the_partition(
    embedded: Database, kafka: Kafka, ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a relay can have written it: a version that this one cannot read."""
    topic = kafka.create_topic(1)
    await Services(embedded).trade(1)
    event = (await linked_events(embedded))[0]
    await publish(kafka, topic, [msgspec.structs.replace(event, epoch=2)])
    office = await opened(kafka, topic, ledger)
    await office.run_until(lambda: office.consumer.source_problem is not None)
    assert "message 0 of partition 0 is signed and is not an event of the journal" in (
        office.consumer.source_problem or ""
    )
    await office.close()


async def test_events_of_another_installation_stop_the_partition(
    embedded: Database, kafka: Kafka, ledger: SqliteLedger
) -> None:
    topic = kafka.create_topic(1)
    await Services(embedded).trade(1)
    events = await linked_events(embedded)
    await publish(kafka, topic, events[:3])
    await publish(kafka, topic, events[:1], installation="another")
    office = await opened(kafka, topic, ledger)
    await office.run_until(lambda: office.consumer.source_problem is not None)
    assert "message 3 of partition 0 is an event of the installation another" in (office.consumer.source_problem or "")
    assert "two installations publish to one topic" in (office.consumer.source_problem or "")
    await office.close()


async def test_another_number_of_partitions_stops_the_relay_and_the_books(
    embedded: Database, kafka: Kafka, ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.create_topic(2)
    relay = RelayUnderTest(embedded, kafka, topic)
    await Services(embedded).trade(1)
    await relay.catch_up()
    office = await opened(kafka, topic, ledger)
    await office.catch_up(embedded)
    if kafka.is_real:
        kafka.add_partitions(topic, 3)
    else:  # the mock cluster cannot add any, so its answer is changed
        describe = configuration.describe
        monkeypatch.setattr(
            configuration, "describe", lambda settings: msgspec.structs.replace(describe(settings), partitions=3)
        )

    async def looks_again() -> bool:
        monkeypatch.setattr(office.bus, "_ask_at", 0.0)
        await office.consumer.run_once()
        return False

    with pytest.raises(CannotStart, match=r"had 2 partitions and has 3 now.*Create another topic"):
        await until(looks_again)
    await office.close()
    with pytest.raises(CannotStart, match=r"had 2 partitions and has 3 now"):  # also after a restart
        await opened(kafka, topic, ledger)

    for running in (relay, RelayUnderTest(embedded, kafka, topic)):  # the second as after a restart
        monkeypatch.setattr(running.relay, "_check_at", 0.0)

        async def is_halted(of: Relay = running.relay) -> bool:
            await of.run_once()
            return of.halted is not None

        await until(is_halted)
        assert "had 2 partitions and has 3 now" in (running.relay.halted or "")
        await running.relay.close()


@pytest.mark.parametrize("full_seconds_max", [0.0, 60.0])
async def test_a_full_partition_is_read_to_its_end_also_when_it_moves_away_and_back(
    embedded: Database,
    kafka: Kafka,
    ledger: SqliteLedger,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    full_seconds_max: float,
) -> None:
    """Whether its reader stands still, so that it is not fetched any more, or only lags."""
    monkeypatch.setattr("switchyard.adapters.kafka.bus.FULL_SECONDS_MAX", full_seconds_max)
    monkeypatch.setattr("switchyard.adapters.kafka.bus.MESSAGES_MAX", 50)
    monkeypatch.setattr("switchyard.adapters.kafka.messages.MESSAGES_MAX", 100)
    topic = kafka.create_topic(1)
    await Services(embedded).trade(20)
    await publish(kafka, topic, await linked_events(embedded))
    office = await opened(kafka, topic, ledger)
    bus, sources = office.bus, list[Source]()
    assert isinstance(bus, KafkaBus)

    async def is_assigned() -> bool:
        sources[:] = await bus.sources()
        return bool(sources)

    await until(is_assigned)
    [source] = sources
    assert isinstance(source, PartitionSource)
    await source.page(Offset(), 0)  # its reader has named a position, and takes nothing yet
    await until(lambda: source.is_full)
    await office.run_until(lambda: office.consumer.processed > 100)
    await bus.release(source)
    await office.catch_up(embedded)
    await office.close()
    await check_books(ledger, embedded, tmp_path)


async def test_messages_that_do_not_arrive_are_counted_and_then_named(
    embedded: Database, kafka: Kafka, ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that gets nothing has read everything only if the brokers have no more."""
    monkeypatch.setattr("switchyard.flow.backoffice.source.SILENCE_SECONDS_MAX", 0.5)
    monkeypatch.setattr(PartitionSource, "put", lambda *_: None)
    topic = kafka.create_topic(1)
    await Services(embedded).trade(1)
    await publish(kafka, topic, await linked_events(embedded))
    office = await opened(kafka, topic, ledger)
    running = asyncio.create_task(office.consumer.run(Wake()))
    await until(lambda: office.consumer.trouble is not None)
    assert "has 20 events left, and none was booked for more than" in (office.consumer.trouble or "")
    # Shown once a second, by another task than the one that counts.
    await until(lambda: office.metrics.registry.get_sample_value("backoffice_lag_events") == 20)
    running.cancel()
    await office.close()


async def test_a_process_without_partitions_counts_and_names_what_no_other_one_reads(
    embedded: Database, kafka: Kafka, ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group has given the only partition to a member that is alive and reads nothing."""
    monkeypatch.setattr("switchyard.flow.backoffice.consumer.SILENCE_SECONDS_MAX", 0.5)
    monkeypatch.setattr("switchyard.adapters.kafka.bus.TOPIC_CHECK_SECONDS", 0.2)
    topic = kafka.create_topic(1)
    idle = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": f"books of {topic}",
            "partition.assignment.strategy": "cooperative-sticky",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    idle.subscribe([topic])

    def has_partition() -> bool:
        idle.poll(0.2)
        return bool(idle.assignment())

    await until(has_partition)
    await Services(embedded).trade(1)
    await publish(kafka, topic, await linked_events(embedded))
    office = await opened(kafka, topic, ledger)

    def is_named() -> bool:
        idle.poll(0.01)  # a rebalance needs the member's answer
        return office.consumer.trouble is not None

    await office.run_until(is_named)
    assert "has 20 events left, and has booked none" in (office.consumer.trouble or "")
    assert office.metrics.registry.get_sample_value("backoffice_lag_events") == 20
    await office.close()
    await asyncio.to_thread(idle.close)


def test_an_id_of_a_topic_with_slashes_is_compared_as_a_whole() -> None:
    topic = configuration.Topic("events", "AJgzWt8H/P6VQ+9FC/OgDA", 2)
    topic.check_not_resized(["", topic.id, "AJgzWt8H/another/3"])
    with pytest.raises(TopicResized, match=r"had 3 partitions and has 2 now"):
        topic.check_not_resized(["AJgzWt8H/P6VQ+9FC/OgDA/3"])
