"""Kafka as a bus: the partitions that the consumer group assigns to this process, each fetched from where the books are.

The books' position is the only offset: nothing is committed to Kafka, and no offset is ever chosen by Kafka.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from switchyard.adapters.kafka import configuration, topics
from switchyard.adapters.kafka.partition import PartitionSource
from switchyard.domain.errors import CannotStart
from switchyard.ports.bus import Source
from switchyard.ports.publisher import BusUnavailable
from switchyard.settings.kafka import KafkaSettings

log = structlog.get_logger()

# The longest wait for messages before the thread looks whether it should end.
POLL_SECONDS = 0.1
MESSAGES_MAX = 500
# Longer than a broker needs that has just started.
ANSWER_SECONDS_MAX = 10.0
# A partition that another process has claimed is not read again before the group has had time to notice.
RELEASE_SECONDS = 5.0
# How often the topic is compared with the one that was opened.
TOPIC_CHECK_SECONDS = 10.0
# The pause before Kafka is asked again for the topic.
RETRY_SECONDS = 2.0


class KafkaBus:
    """ports.bus.Bus on one topic; `trouble` says why nothing can be read at the moment."""

    def __init__(self, kafka: KafkaSettings, on_messages: Callable[[], None]) -> None:
        """`on_messages` is called on the event loop when there is something to read."""
        self._kafka = kafka
        self._on_messages = on_messages
        self._loop = asyncio.get_running_loop()
        self._consumer: Consumer | None = None
        self._reading: threading.Thread | None = None
        self._is_closing = threading.Event()
        self._lock = threading.Lock()
        self._assigned: dict[int, PartitionSource] = {}
        self._fetched: set[int] = set()
        """The partitions that librdkafka fetches: assigned, and with a position."""
        self._released: dict[int, float] = {}
        self._retry_at = self._check_at = 0.0
        self._replaced: str | None = None
        self.topic_id: str | None = None
        self.trouble: str | None = None

    async def open(self) -> str:
        """Look the topic up and join the group; returns the topic's id. Raises BusUnavailable."""
        topic = await asyncio.to_thread(topics.describe, self._kafka)
        self.topic_id = topic.id
        self._consumer = Consumer(configuration.consumer(self._kafka, self._note), logger=configuration.LOGGER)
        self._consumer.subscribe(
            [self._kafka.topic], on_assign=self._assign, on_revoke=self._revoke, on_lost=self._revoke
        )
        self._check_at = time.monotonic() + TOPIC_CHECK_SECONDS
        self._reading = threading.Thread(target=self._read, args=(self._consumer,), name="kafka-messages", daemon=True)
        self._reading.start()
        log.info("bus_joined", topic=self._kafka.topic, topic_id=topic.id, partitions=topic.partitions)
        return topic.id

    async def sources(self) -> Sequence[Source]:
        """The partitions of this process now; none while Kafka is away."""
        if self._replaced is not None:
            raise CannotStart(self._replaced)
        if time.monotonic() >= self._check_at:
            await self._check_topic()
        now = time.monotonic()
        with self._lock:
            return [
                source for number, source in self._assigned.items() if now >= self._released.get(number, float("-inf"))
            ]

    async def release(self, source: Source) -> None:
        """Leave a partition alone for a while: the group has given it to another process, or will say that it has not."""
        assert isinstance(source, PartitionSource), "not a source of this bus"
        number = source.partition
        with self._lock:
            if self._assigned.get(number) is not source:
                return
            assert self.topic_id is not None, "it has sources"
            self._assigned[number] = PartitionSource(self.topic_id, number, self)
            self._released[number] = time.monotonic() + RELEASE_SECONDS
        await asyncio.to_thread(self._unfetch, [number])

    async def close(self) -> None:
        """Leave the group."""
        if self._reading is not None:
            self._is_closing.set()
            await asyncio.to_thread(self._reading.join)

    async def fetch_from(self, partition: int, offset: int) -> None:
        """Fetch a partition from a message on."""
        await asyncio.to_thread(self._fetch, partition, offset)

    async def bounds(self, partition: int) -> tuple[int, int]:
        """The first message that the brokers have, and the number of the next one."""
        consumer, place = self._open_consumer, TopicPartition(self._kafka.topic, partition)
        try:
            found = await asyncio.to_thread(consumer.get_watermark_offsets, place, ANSWER_SECONDS_MAX)
        except KafkaException as error:
            raise BusUnavailable(f"the brokers do not answer: {error.args[0].str()}") from None
        if found is None:
            raise BusUnavailable("the brokers do not answer")
        return found

    def resume(self, partition: int) -> None:
        """Fetch again after a pause."""
        with self._lock:
            if partition in self._fetched:
                self._open_consumer.resume([TopicPartition(self._kafka.topic, partition)])

    @property
    def _open_consumer(self) -> Consumer:
        assert self._consumer is not None, "it is not open"
        return self._consumer

    async def _check_topic(self) -> None:
        self._check_at = time.monotonic() + TOPIC_CHECK_SECONDS
        try:
            topic = await asyncio.to_thread(topics.describe, self._kafka)
        except BusUnavailable as error:
            self._trouble(str(error))
            return
        if topic.id != self.topic_id:
            self._replaced = replaced_message(self._kafka.topic, str(self.topic_id), topic.id)
            raise CannotStart(self._replaced)

    def _fetch(self, partition: int, offset: int) -> None:
        place = TopicPartition(self._kafka.topic, partition, offset)
        with self._lock:
            if partition not in self._assigned:
                return  # revoked meanwhile; the reader is stopped at the next look at `sources`
            if partition in self._fetched:
                self._open_consumer.incremental_unassign([place])
            self._open_consumer.incremental_assign([place])
            self._fetched.add(partition)

    def _unfetch(self, partitions: Sequence[int]) -> None:
        with self._lock:
            fetched = self._fetched.intersection(partitions)
            self._fetched -= fetched
            self._open_consumer.incremental_unassign([TopicPartition(self._kafka.topic, each) for each in fetched])

    def _read(self, consumer: Consumer) -> None:
        """The thread: hand the messages to their partitions until it is to end."""
        while not self._is_closing.is_set():
            messages = consumer.consume(MESSAGES_MAX, POLL_SECONDS)
            for message in messages:
                self._take(message)
            if messages:
                self._loop.call_soon_threadsafe(self._on_messages)
        consumer.close()

    def _take(self, message: Message) -> None:
        number, error = message.partition(), message.error()
        with self._lock:
            source = None if number is None else self._assigned.get(number)
        if error is None:
            if source is not None and number is not None:
                source.put(message, lambda: self._pause(number))
            return
        if error.code() == KafkaError._AUTO_OFFSET_RESET and source is not None:
            source.fail(error.str())
        else:
            self._loop.call_soon_threadsafe(self._trouble, f"{error.name()}: {error.str()}")

    def _pause(self, partition: int) -> None:
        with self._lock:
            if partition in self._fetched:
                self._open_consumer.pause([TopicPartition(self._kafka.topic, partition)])

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Partitions are fetched once their reader names a position; called by the thread."""
        assert self.topic_id is not None, "it has joined"
        consumer.incremental_assign([])
        with self._lock:
            for each in partitions:
                self._assigned[each.partition] = PartitionSource(self.topic_id, each.partition, self)
        self._loop.call_soon_threadsafe(self._changed)

    def _revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """A page of a revoked partition that is being booked is rejected by the books' fence; called by the thread."""
        with self._lock:
            for each in partitions:
                self._assigned.pop(each.partition, None)
        self._unfetch([each.partition for each in partitions])
        self._loop.call_soon_threadsafe(self._changed)

    def _changed(self) -> None:
        log.info("bus_partitions_assigned", topic=self._kafka.topic, partitions=sorted(self._assigned))
        self._on_messages()

    def _note(self, error: KafkaError) -> None:
        """What librdkafka says about the brokers; called by the thread."""
        self._loop.call_soon_threadsafe(self._trouble, f"{error.name()}: {error.str()}")

    def _trouble(self, error: str) -> None:
        if self.trouble is None:
            log.error("bus_unreachable", topic=self._kafka.topic, error=error)
        self.trouble = error


def replaced_message(topic: str, former_id: str, topic_id: str) -> str:
    """Why a topic that was created again is not read."""
    return (
        f"the books were read from the topic {topic} with the id {former_id}, and it has the id {topic_id} now: it was "
        "deleted and created again, or belongs to another cluster. If it has every event from the first on, stop all "
        "back offices and run `switchyard backoffice reset`: it is read from its start, and nothing is booked twice"
    )
