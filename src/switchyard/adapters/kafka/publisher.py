"""The producer of the relay: hands events to librdkafka and collects its delivery reports in a thread of its own.

confluent-kafka's asyncio producer drops headers, which carry the place of an event; so its plain producer is used, and
no call that can block runs on the event loop.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from zlib import crc32

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from switchyard.adapters.kafka import configuration
from switchyard.adapters.kafka.messages import headers_of, source_name
from switchyard.domain.journal.lines import BusEvent
from switchyard.ports.bus import BusUnavailable
from switchyard.settings.kafka import KafkaSettings

log = structlog.get_logger()

# The longest wait for a report before the thread looks whether it should end.
POLL_SECONDS = 0.1


class _Delivery:
    """A page of messages and how many reports of it are missing; the reports come in the thread."""

    def __init__(self, missing: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self.loop.create_future()
        self._missing = missing
        self._error: BusUnavailable | None = None

    def report(self, error: KafkaError | None, _message: Message) -> None:
        self._missing -= 1
        if error is not None:
            self._error = self._error or BusUnavailable(f"{error.name()}: {error.str()}")
        # The first error is told at once: the others may come only after the producer was given up.
        if not self._missing or error is not None:
            self.loop.call_soon_threadsafe(self._end)

    def fail(self, error: BusUnavailable) -> None:
        """End it, because the rest of the page was not handed over."""
        self._error = self._error or error
        self._end()

    def _end(self) -> None:
        if self.done.done():
            return
        if self._error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(self._error)


class KafkaPublisher:
    """ports.bus.Publisher on one topic; `on_trouble` is told what librdkafka says about the brokers."""

    _loop: asyncio.AbstractEventLoop

    def __init__(self, kafka: KafkaSettings, installation: str, key: bytes) -> None:
        """`installation`: the one whose events these are; every message names it. `key` signs the messages."""
        self._kafka = kafka
        self._installation = installation
        self._key = key
        self._topic_id = ""
        self._producer: Producer | None = None
        self._polling: threading.Thread | None = None
        self._is_closing = threading.Event()
        self._open: set[_Delivery] = set()
        self._broken: str | None = None
        """Why this producer sends nothing any more; set on the event loop."""
        self._has_lost_brokers = threading.Event()
        self.on_trouble: Callable[[str], None] = lambda _: None

    async def open(self, former_id: str) -> str:
        """Look the topic up and start a producer; a missing topic or silent brokers raise BusUnavailable."""
        self._loop = asyncio.get_running_loop()
        self._topic_id = topic_id = await self.topic_id(former_id)
        self._producer = await asyncio.to_thread(self._started)
        self._broken = None
        self._is_closing.clear()
        self._has_lost_brokers.clear()
        self._polling = threading.Thread(target=self._poll, args=(self._producer,), name="kafka-reports", daemon=True)
        self._polling.start()
        return topic_id

    async def topic_id(self, former_id: str) -> str:
        """The topic's id, from the brokers."""
        topic = await asyncio.to_thread(configuration.describe, self._kafka)
        topic.check_not_resized([former_id])
        return topic.id

    async def send(self, events: Sequence[BusEvent]) -> "asyncio.Future[None]":
        """Hand a page to librdkafka."""
        assert self._producer is not None, "it is not open"
        delivery = _Delivery(len(events))
        self._open.add(delivery)
        delivery.done.add_done_callback(lambda _: self._open.discard(delivery))
        try:
            if self._broken is not None:
                raise BusUnavailable(self._broken)
            await asyncio.to_thread(self._produce, self._producer, events, delivery)
        except BusUnavailable as error:
            delivery.fail(error)
        return delivery.done

    async def close(self) -> None:
        """Drop what was not delivered; batches on the wire may still be stored, as repeats."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        assert self._polling is not None, "it was started with the producer"
        self._is_closing.set()
        await asyncio.to_thread(self._polling.join)
        for delivery in list(self._open):
            delivery.fail(BusUnavailable("the producer was closed before the brokers acknowledged the events"))
        # In a thread: it waits for librdkafka's own threads.
        await asyncio.to_thread(_destroy, producer)

    def _started(self) -> Producer:
        properties = configuration.producer(self._kafka, self._hear, self._count_brokers)
        return Producer(properties, logger=configuration.LOGGER)

    def _produce(self, producer: Producer, events: Sequence[BusEvent], delivery: _Delivery) -> None:
        topic, report = self._kafka.topic, delivery.report
        partitions = int(self._topic_id.rpartition("/")[2])
        try:
            for each in events:
                event, key = each.event, each.event.account_id.encode()
                # As librdkafka's own partitioner would: a message is signed for its partition.
                partition = crc32(key) % partitions
                producer.produce(
                    topic,
                    value=event.line.encode(),
                    key=key,
                    partition=partition,
                    headers=headers_of(each, self._installation, source_name(self._topic_id, partition), self._key),
                    on_delivery=report,
                )
        except BufferError:
            raise BusUnavailable(
                "librdkafka's queue is full: the events in flight exceed queue.buffering.max.kbytes"
            ) from None
        except KafkaException as error:
            raise BusUnavailable(f"event {event.seq}: {error.args[0].name()}, {error.args[0].str()}") from None

    def _poll(self, producer: Producer) -> None:
        failure: str | None = None
        try:
            while not self._is_closing.is_set() and not self._has_lost_brokers.is_set():
                producer.poll(POLL_SECONDS)
            if self._has_lost_brokers.is_set():
                failure = configuration.LOST
        except Exception as error:  # of the client, or of a callback: without the thread no report would come
            failure = str(error) or repr(error)
        if failure is not None:
            self._loop.call_soon_threadsafe(self._break, failure)

    def _break(self, error: str) -> None:
        """This producer sends nothing any more."""
        self._broken = error
        for delivery in list(self._open):
            delivery.fail(BusUnavailable(error))

    def _count_brokers(self, statistics: str) -> None:
        """Called by the thread."""
        if configuration.are_lost(statistics):
            self._has_lost_brokers.set()

    def _hear(self, error: KafkaError) -> None:
        """What librdkafka says about the brokers; called by the thread."""
        self._loop.call_soon_threadsafe(self._note, f"{error.name()}: {error.str()}")

    def _note(self, error: str) -> None:
        if self._producer is not None:
            self.on_trouble(error)


def _destroy(producer: Producer) -> None:
    with contextlib.suppress(KafkaException):  # it may have failed fatally
        producer.purge()
        producer.flush(0)
