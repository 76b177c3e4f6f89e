"""Kafka as a bus: the partitions that the group assigns to this process, each read from where the books are.

The books' position is the only offset: nothing is committed to Kafka, and no offset is ever chosen by Kafka.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Collection, Sequence
from queue import SimpleQueue
from typing import TypeVar

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from switchyard.adapters.kafka import configuration
from switchyard.adapters.kafka.messages import MessageReader, PartitionSource, offset_in, source_name
from switchyard.domain.errors import CannotStart
from switchyard.domain.journal.lines import Offset
from switchyard.ports.books import SourceState
from switchyard.ports.bus import BusUnavailable, Source
from switchyard.settings.kafka import KafkaSettings

T = TypeVar("T")

log = structlog.get_logger()

# The longest wait for messages before the thread looks what else it is to do.
POLL_SECONDS = 0.05
MESSAGES_MAX = 500
# A partition that stays full for so long has a reader that stands still: it is not fetched until that goes on.
FULL_SECONDS_MAX = 1.0
# A partition that another process has claimed is not read again before the group has had time to notice.
RELEASE_SECONDS = 5.0
# How often the topic is compared with the one that was opened, and the brokers are asked for the partitions' ends.
TOPIC_CHECK_SECONDS = 10.0
# The pause before Kafka is asked again for the topic.
RETRY_SECONDS = 2.0


class KafkaBus:
    """ports.bus.Bus on one topic; `trouble` says why nothing can be read at the moment."""

    def __init__(
        self,
        kafka: KafkaSettings,
        reader: MessageReader,
        *,
        former_ids: Collection[str] = (),
        on_messages: Callable[[], None] = lambda: None,
    ) -> None:
        """`former_ids` are those of the topics that the books were read from.

        `on_messages` is called on the event loop when there is something to read.
        """
        self._kafka = kafka
        self._reader = reader
        self._former_ids = former_ids
        self._on_messages = on_messages
        self._loop = asyncio.get_running_loop()
        self._consumer: Consumer | None = None
        self._reading: threading.Thread | None = None
        self._is_closing = threading.Event()
        self._has_lost_brokers = threading.Event()
        self._calls: SimpleQueue[Callable[[Consumer], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._sources: dict[int, PartitionSource] = {}
        """One for each partition that was ever assigned: a reader keeps its source when a rebalance gives it back."""
        self._assigned: set[int] = set()
        self._fetched: set[int] = set()
        """The partitions that librdkafka fetches: assigned, and with a position."""
        self._room = threading.Event()
        """Set when a reader has taken messages of a full partition."""
        self._released: dict[int, float] = {}
        self._ends: dict[int, int] = {}
        """The ends of all partitions as the brokers said lately, in case that nothing is fetched."""
        self._ask_at = 0.0
        self._topic_id = ""
        self.trouble: str | None = None

    async def _join(self) -> None:
        """Look the topic up and join the group."""
        topic = await asyncio.to_thread(configuration.describe, self._kafka)
        topic.check_not_resized(self._former_ids)
        if self._former_ids and topic.id not in self._former_ids:
            raise _replaced(self._kafka.topic, ", ".join(self._former_ids), topic.id)
        if self._topic_id and topic.id != self._topic_id:  # a new consumer after a failure
            raise _replaced(self._kafka.topic, self._topic_id, topic.id)
        self._topic_id = topic.id
        self._has_lost_brokers.clear()
        properties = configuration.consumer(self._kafka, self._hear, self._count_brokers)
        self._consumer = Consumer(properties, logger=configuration.LOGGER)
        self._consumer.subscribe(
            [self._kafka.topic], on_assign=self._assign, on_revoke=self._revoke, on_lost=self._revoke
        )
        self._reading = threading.Thread(target=self._read, args=(self._consumer,), name="kafka-messages", daemon=True)
        self._reading.start()
        log.info("bus_joined", topic=self._kafka.topic, topic_id=topic.id, partitions=topic.partitions)

    async def sources(self) -> Sequence[Source]:
        """The partitions of this process now; none before Kafka has answered.

        CannotStart if the topic is another, or has another number of partitions.
        """
        now = time.monotonic()
        if now >= self._ask_at:
            try:
                await self._ask()
                self.trouble = None
            except BusUnavailable as error:
                self._note(str(error))
            self._ask_at = time.monotonic() + (RETRY_SECONDS if self._consumer is None else TOPIC_CHECK_SECONDS)
        with self._lock:
            return [
                self._sources[number]
                for number in sorted(self._assigned)
                if now >= self._released.get(number, float("-inf"))
            ]

    async def left_to_others(self, states: Sequence[SourceState]) -> int:
        """What the partitions have after the books' positions, as of the last look at the topic.

        The group gives the partitions of a process that is gone to the others, if there is a group: a coordinator that
        does not answer assigns none to anybody.
        """
        reached = {state.source: state.position for state in states}
        ends = {source_name(self._topic_id, number): end for number, end in self._ends.items()}
        return sum(max(end - offset_in(reached.get(name, Offset())), 0) for name, end in ends.items())

    async def release(self, source: Source) -> None:
        """Leave a partition alone for a while: the group may have given it to another process."""
        assert isinstance(source, PartitionSource), "not a source of this bus"
        number = source.partition
        self._released[number] = time.monotonic() + RELEASE_SECONDS
        with contextlib.suppress(BusUnavailable):  # then nothing is fetched
            await self._call(lambda consumer: self._unfetch(consumer, [number]))
        source.forget()

    async def close(self) -> None:
        """Leave the group."""
        if self._reading is not None:
            self._is_closing.set()
            await asyncio.to_thread(self._reading.join)

    async def fetch_from(self, partition: int, offset: int) -> None:
        """Fetch a partition from a message on."""
        await self._call(lambda consumer: self._fetch(consumer, partition, offset))

    async def bounds(self, partition: int) -> tuple[int, int]:
        """The first message that the brokers have, and the number of the next one."""
        return await asyncio.to_thread(configuration.bounds, self._kafka, partition)

    async def end(self, partition: int) -> int:
        """The number of the next message to come, as of the last fetch or of the last look at the topic."""
        place = TopicPartition(self._kafka.topic, partition)
        _, fetched = await self._call(lambda consumer: consumer.get_watermark_offsets(place, cached=True))
        return max(fetched, self._ends.get(partition, 0))

    def has_room(self) -> None:
        """Take messages again."""
        self._room.set()

    async def _call(self, work: Callable[[Consumer], T]) -> T:
        """Have the thread do it: calls of other threads would wait for as long as the thread waits for messages."""
        if self._consumer is None:
            raise BusUnavailable("this process is not a member of the group")
        done: asyncio.Future[T] = self._loop.create_future()

        def end(settle: Callable[[], None]) -> None:
            if not done.done():  # the caller may have given up
                settle()

        def call(consumer: Consumer) -> None:
            try:
                result = work(consumer)
            except (KafkaException, RuntimeError) as error:  # the latter from a consumer that was closed
                failure = BusUnavailable(f"the brokers do not answer: {error}")
                self._loop.call_soon_threadsafe(end, lambda: done.set_exception(failure))
            else:
                self._loop.call_soon_threadsafe(end, lambda: done.set_result(result))

        self._calls.put(call)
        return await done

    async def _ask(self) -> None:
        """Join the group, or compare the topic with the one that was joined."""
        if self._consumer is None:
            await self._join()
            return
        topic = await asyncio.to_thread(configuration.describe, self._kafka)
        topic.check_not_resized([self._topic_id])
        if topic.id != self._topic_id:
            raise _replaced(self._kafka.topic, self._topic_id, topic.id)
        self._ends = await asyncio.to_thread(configuration.ends, self._kafka, range(topic.partitions))

    def _fetch(self, consumer: Consumer, partition: int, offset: int) -> None:
        place = TopicPartition(self._kafka.topic, partition, offset)
        if partition not in self._assigned:
            return  # revoked meanwhile; the reader is stopped at the next look at `sources`
        if partition in self._fetched:
            consumer.incremental_unassign([place])
            self._fetched.discard(partition)
        consumer.incremental_assign([place])
        self._fetched.add(partition)
        self._sources[partition].begin(offset)

    def _unfetch(self, consumer: Consumer, partitions: Sequence[int]) -> None:
        fetched = self._fetched.intersection(partitions)
        self._fetched -= fetched
        consumer.incremental_unassign([TopicPartition(self._kafka.topic, each) for each in fetched])

    def _read(self, consumer: Consumer) -> None:
        """The thread, which alone uses the consumer: hand the messages to their partitions until it is to end.

        librdkafka's own pause is not used: it outlives the assignment, and a resume may be lost.
        """
        full_since: float | None = None
        failure: str | None = None
        try:
            while not self._is_closing.is_set() and not self._has_lost_brokers.is_set():
                self._make_calls(consumer)
                full = self._full()
                if full:
                    full_since = time.monotonic() if full_since is None else full_since
                    if time.monotonic() - full_since < FULL_SECONDS_MAX:
                        self._room.wait(POLL_SECONDS)
                        self._room.clear()
                        continue
                    self._stop_fetching(consumer, full)
                full_since = None
                messages = consumer.consume(MESSAGES_MAX, POLL_SECONDS)
                for message in messages:
                    self._take(message)
                if messages:
                    self._loop.call_soon_threadsafe(self._arrived)
            if self._has_lost_brokers.is_set():
                failure = configuration.LOST
        except Exception as error:  # of the client, or of a callback: without the thread nothing would be read
            failure = str(error) or repr(error)
        consumer.close()
        self._make_calls(consumer)
        if failure is not None:
            self._loop.call_soon_threadsafe(self._break, failure)

    def _full(self) -> list[PartitionSource]:
        with self._lock:
            return [self._sources[each] for each in self._assigned & self._fetched if self._sources[each].is_full]

    def _stop_fetching(self, consumer: Consumer, sources: Sequence[PartitionSource]) -> None:
        for source in sources:
            source.stop()
        self._unfetch(consumer, [source.partition for source in sources])

    def _make_calls(self, consumer: Consumer) -> None:
        is_closed = self._is_closing.is_set()  # then each fails at once, and none waits for brokers
        while not self._calls.empty() and self._is_closing.is_set() == is_closed:
            self._calls.get()(consumer)

    def _break(self, error: str) -> None:
        """A new consumer joins after a pause; the last one is closed, and has no partitions any more."""
        self._note(error)
        self._consumer = None
        self._ask_at = time.monotonic() + RETRY_SECONDS

    def _take(self, message: Message) -> None:
        number, error = message.partition(), message.error()
        with self._lock:
            source = self._sources[number] if number is not None and number in self._assigned else None
        if error is None:
            if source is not None:
                source.put(message)
            return
        if error.code() == KafkaError._AUTO_OFFSET_RESET and source is not None:
            source.fail(error.str())
        else:
            self._hear(error)

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Partitions are fetched once their reader names a position; called by the thread."""
        consumer.incremental_assign([])
        with self._lock:
            for number in [each.partition for each in partitions]:
                self._sources.setdefault(number, PartitionSource(self._topic_id, number, self, self._reader)).forget()
                self._assigned.add(number)
        self._loop.call_soon_threadsafe(self._changed)

    def _revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """A page of a revoked partition that is being booked is rejected by the books' fence; called by the thread."""
        with self._lock:
            self._assigned.difference_update(each.partition for each in partitions)
        self._unfetch(consumer, [each.partition for each in partitions])
        self._loop.call_soon_threadsafe(self._changed)

    def _changed(self) -> None:
        log.info("bus_partitions_assigned", topic=self._kafka.topic, partitions=sorted(self._assigned))
        self._on_messages()

    def _arrived(self) -> None:
        self.trouble = None
        self._on_messages()

    def _count_brokers(self, statistics: str) -> None:
        """Called by the thread."""
        if configuration.are_lost(statistics):
            self._has_lost_brokers.set()

    def _hear(self, error: KafkaError) -> None:
        """What librdkafka says about the brokers; called by the thread."""
        self._loop.call_soon_threadsafe(self._note, f"{error.name()}: {error.str()}")

    def _note(self, error: str) -> None:
        if self.trouble is None:
            log.error("bus_unreachable", topic=self._kafka.topic, error=error)
        self.trouble = error


def _replaced(topic: str, former_id: str, topic_id: str) -> CannotStart:
    return CannotStart(
        f"the books were read from the topic {topic} with the id {former_id}, and it has the id {topic_id} now: it was "
        "deleted and created again, or belongs to another cluster. If it has every event from the first on, stop all "
        "back offices and run `switchyard backoffice reset`: it is read from its start, and nothing is booked twice"
    )
