"""The relay publishes every event of the journal, in order and with its place, whatever happens to the brokers."""

from switchyard.domain.ids import WorkerId
from switchyard.domain.journal.changes import Change
from switchyard.domain.journal.events import SYSTEM_ACCOUNT, event
from switchyard.domain.journal.facts import CutFact
from switchyard.domain.journal.lines import Place
from tests.support.databases import Database
from tests.support.journal_checks import commit
from tests.support.kafka import Kafka, stored_messages
from tests.support.polling import until
from tests.support.relay import RelayUnderTest, check_complete, place_orders


async def test_every_event_is_published_once_in_order_and_with_its_place_across_restarts(
    database: Database, kafka: Kafka
) -> None:
    topic = kafka.create_topic()
    for _ in range(2):
        await place_orders(database, 20)
        fact = CutFact(path="audit.log", expected_seq=2, found_seq=1)
        await commit(database.journal, Change(events=(event("AuditFileCut", SYSTEM_ACCOUNT, None, fact),)))
        under_test = RelayUnderTest(database, kafka, topic)
        await under_test.catch_up()
        await under_test.relay.close()
        assert under_test.metric("bus_in_flight") == 0
    await check_complete(database, kafka, topic)


async def test_events_wait_while_kafka_is_away_and_are_published_when_it_is_back(
    embedded: Database, kafka: Kafka
) -> None:
    topic = kafka.create_topic()
    under_test = RelayUnderTest(embedded, kafka, topic, capacity=40, reconnect_backoff_max_ms="200")
    await place_orders(embedded, 10)
    await under_test.catch_up()
    kafka.crash()
    try:
        await place_orders(embedded, 300)
        await under_test.run_until_trouble()

        async def is_full() -> bool:
            await under_test.relay.run_once()
            return under_test.metric("bus_lag_events") == 300 and under_test.metric("bus_in_flight") == 40

        await until(is_full)
        assert under_test.metric("bus_lag_seconds") > 0
        assert under_test.metric("bus_delivery_errors_total") > 0

        async def is_stored() -> bool:
            await under_test.relay.run_once()
            lease = await embedded.relay_leases.lease(topic)
            return lease is not None and lease.place.seq == 10

        await until(is_stored)
    finally:
        kafka.recover()
    await under_test.catch_up()
    assert under_test.relay.trouble is None
    await under_test.relay.close()
    await check_complete(embedded, kafka, topic, repeats=True)


async def test_messages_that_the_brokers_reject_are_published_again_and_none_is_dropped(
    embedded: Database, kafka: Kafka
) -> None:
    topic = kafka.create_topic()
    under_test = RelayUnderTest(embedded, kafka, topic)
    await place_orders(embedded, 5)
    await under_test.catch_up()
    kafka.reject(topic)
    await place_orders(embedded, 50)
    trouble = await under_test.run_until_trouble()
    assert kafka.rejection in trouble
    assert under_test.metric("bus_delivery_errors_total") > 0
    kafka.accept(topic)
    await under_test.catch_up()
    await under_test.relay.close()
    await check_complete(embedded, kafka, topic, repeats=True)


async def test_a_missing_topic_is_named_and_used_once_it_exists(embedded: Database, kafka: Kafka) -> None:
    topic = kafka.create_topic() + "-later"
    under_test = RelayUnderTest(embedded, kafka, topic)
    await place_orders(embedded, 5)
    assert f"the topic {topic} does not exist" in await under_test.run_until_trouble()
    kafka.create_named(topic)
    await under_test.catch_up()
    await under_test.relay.close()
    await check_complete(embedded, kafka, topic)


async def test_a_relay_that_was_taken_over_moves_nothing_and_repeats_are_all_it_can_publish(
    database: Database, kafka: Kafka
) -> None:
    topic = kafka.create_topic()
    paused, other = (RelayUnderTest(database, kafka, topic, owner=owner) for owner in ("rly_1", "rly_2"))
    await place_orders(database, 5)
    await paused.catch_up()
    held = paused.lease.held
    assert held is not None
    await other.relay.run_once()
    assert other.lease.held is None  # the owner is alive
    await place_orders(database, 20)
    await paused.relay.run_once()  # it has read the next events, and is paused before they are delivered
    assert await database.relay_leases.claim(topic, WorkerId("rly_2"), await database.relay_leases.lease(topic))
    await other.catch_up()
    await place_orders(database, 20)
    await other.catch_up()

    async def has_lost() -> bool:
        await paused.relay.run_once()
        return paused.lease.held is None

    await until(has_lost)
    assert paused.metric("bus_relay_active") == 0
    await other.relay.close()
    await paused.relay.close()
    lease = await database.relay_leases.lease(topic)
    assert lease is not None
    assert (lease.owner, lease.place.seq) == ("rly_2", 45)
    await check_complete(database, kafka, topic, repeats=True)


async def test_another_journal_halts_the_relay_before_it_publishes_anything(embedded: Database, kafka: Kafka) -> None:
    topic = kafka.create_topic()
    first = RelayUnderTest(embedded, kafka, topic)
    await place_orders(embedded, 5)
    await first.catch_up()
    await first.relay.close()
    lease = await embedded.relay_leases.lease(topic)
    assert lease is not None
    await embedded.relay_leases.renew(lease, lease.topic_id, Place(1, 3, "f" * 64))
    await place_orders(embedded, 5)
    second = RelayUnderTest(embedded, kafka, topic)

    async def is_halted() -> bool:
        await second.relay.run_once()
        return second.relay.halted is not None

    await until(is_halted)
    assert "published up to event 3" in (second.relay.halted or "")
    assert second.metric("bus_relay_halted") == 1
    await second.relay.close()
    assert len(stored_messages(kafka, topic, 5)) == 5


async def test_a_topic_that_was_deleted_and_created_again_gets_every_event(embedded: Database, kafka: Kafka) -> None:
    topic = kafka.create_topic()
    first = RelayUnderTest(embedded, kafka, topic)
    await place_orders(embedded, 5)
    await first.catch_up()
    await first.relay.close()
    kafka.delete_topic(topic)
    kafka.create_named(topic)
    second = RelayUnderTest(embedded, kafka, topic)
    await place_orders(embedded, 5)
    await second.catch_up()
    await second.relay.close()
    await check_complete(embedded, kafka, topic)
