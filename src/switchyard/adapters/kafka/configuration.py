"""How librdkafka is configured, which brokers it reached, and what a topic looks like."""

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from switchyard.domain.errors import SettingError
from switchyard.ports.bus import BusUnavailable, TopicResized
from switchyard.settings.kafka import KafkaSettings, variable_of

# How often a client lists its brokers; its own work, no question to them.
STATISTICS_MS = 5_000
LOST = "the client has no brokers left that it could connect to"


class _Broker(msgspec.Struct, frozen=True):
    source: str
    """`configured` or `learned`; `internal` and `logical` ones have no address of their own."""


class _Statistics(msgspec.Struct, frozen=True):
    brokers: dict[str, _Broker]


_decoder = msgspec.json.Decoder(_Statistics)


def are_lost(statistics: str) -> bool:
    """Whether a client's statistics list no broker that it can connect to."""
    brokers = _decoder.decode(statistics).brokers.values()
    return not any(broker.source in ("configured", "learned") for broker in brokers)


# A broker that is away is tried twenty times a second, by each client, with a line each.
REPEAT_SECONDS = 30.0
# Lines of clients, addresses and errors that differ; beyond, all are let through again once.
LINES_MAX = 100


class RepeatFilter(logging.Filter):
    """Lets a line through that was not let through lately; lines that differ in their figures are the same."""

    def __init__(self) -> None:
        super().__init__()
        self._passed: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is to be written; called by the clients' threads."""
        # Each question to the brokers has a client of its own, and librdkafka numbers them.
        kind, now = re.sub(r"\d+ ?ms|(?<=#)\w+-\d+", "", record.getMessage()), time.monotonic()
        if now - self._passed.get(kind, float("-inf")) < REPEAT_SECONDS:
            return False
        if len(self._passed) >= LINES_MAX:
            self._passed.clear()
        self._passed[kind] = now
        return True


# librdkafka's own log lines; clients hand them over when they are polled.
LOGGER = logging.getLogger("librdkafka")
LOGGER.addFilter(RepeatFilter())

# The consumer group of the back offices of one installation; KAFKA_GROUP_ID changes it.
GROUP = "switchyard-backoffice"
_CLIENT_FAILED = "Failed to create"


def check_properties(kafka: KafkaSettings) -> None:
    """Raise SettingError, naming the variable, for a property or a value that librdkafka does not take."""
    for name, value in kafka.properties:
        error = _rejection({name: value})
        # Alone, a property may lack those that it needs; then the client is what fails, not the property.
        if error is not None and not error.startswith(_CLIENT_FAILED):
            raise SettingError(variable_of(name), f"librdkafka rejects it: {error}")
    if (error := _rejection(client(kafka))) is not None:
        raise SettingError("KAFKA_…", f"librdkafka rejects the settings together: {error}")


def client(kafka: KafkaSettings) -> dict[str, Any]:
    """The properties of every client."""
    return {
        **{name: str(value) for name, value in kafka.properties},
        "bootstrap.servers": kafka.bootstrap_servers,
        "client.id": kafka.client_id,
    }


def producer(
    kafka: KafkaSettings, on_error: Callable[[KafkaError], None], on_statistics: Callable[[str], None]
) -> dict[str, Any]:
    """The properties of the relay's producer: in order, complete, and never given up."""
    return {
        **client(kafka),
        "acks": "all",
        "enable.idempotence": True,
        # A batch that fails for good must not be followed by later ones of its partition.
        "enable.gapless.guarantee": True,
        # Events wait for the brokers for as long as it takes.
        "message.timeout.ms": 0,
        "queue.buffering.max.messages": kafka.queue_capacity,
        "error_cb": on_error,
        "statistics.interval.ms": STATISTICS_MS,
        "stats_cb": on_statistics,
    }


def consumer(
    kafka: KafkaSettings, on_error: Callable[[KafkaError], None], on_statistics: Callable[[str], None]
) -> dict[str, Any]:
    """The properties of the back office's consumer: the books keep the only offset, and Kafka never chooses one."""
    return {
        "group.id": GROUP,
        # Bounds the memory for messages that were fetched and not read yet, per partition.
        "queued.min.messages": 1_000,
        "queued.max.messages.kbytes": 8_192,
        # The partitions of a process that was killed are read by another one after this time.
        "session.timeout.ms": 10_000,
        **client(kafka),
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        # Only the partitions that move are interrupted by a rebalance.
        "partition.assignment.strategy": "cooperative-sticky",
        "error_cb": on_error,
        "statistics.interval.ms": STATISTICS_MS,
        "stats_cb": on_statistics,
    }


def _rejection(properties: Mapping[str, Any]) -> str | None:
    """Why librdkafka does not take the properties; none if it does."""
    try:
        # A client without brokers connects to nothing.
        Producer({**properties, "bootstrap.servers": "", "log_level": "0"})
    except KafkaException as error:
        return str(error.args[0].str())
    except (TypeError, ValueError) as error:
        return str(error)
    return None


# Enough for a broker under load, and well below the silence after which another relay takes over.
ANSWER_SECONDS_MAX = 4.0
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]


class Topic(msgspec.Struct, frozen=True):
    """A topic that exists."""

    name: str
    uuid: str
    partitions: int

    @property
    def id(self) -> str:
        """The brokers' id and the number of partitions: with another number, accounts are in other partitions."""
        return f"{self.uuid}/{self.partitions}"

    def check_not_resized(self, former_ids: Iterable[str]) -> None:
        """Raise TopicResized if one of the ids is this topic's with another number of partitions."""
        for former in former_ids:
            uuid, _, partitions = former.rpartition("/")  # the id itself may have one, in base64
            if uuid == self.uuid and former != self.id:
                raise TopicResized(
                    f"the topic {self.name} had {partitions} partitions and has {self.partitions} now: accounts move "
                    "to other partitions, where their events would be read before the earlier ones. Create another "
                    "topic, set KAFKA_TOPIC to it everywhere, and run `switchyard backoffice reset`: every event is "
                    "published to it from the first on, and nothing is booked twice"
                )


def describe(kafka: KafkaSettings) -> Topic:
    """Ask the brokers, in the calling thread. Raises BusUnavailable if the topic is missing or they do not answer."""
    with _asking(kafka) as admin:
        asked = admin.describe_topics(TopicCollection([kafka.topic]), request_timeout=ANSWER_SECONDS_MAX)
        found = asked[kafka.topic].result(ANSWER_SECONDS_MAX + 1.0)
    return Topic(kafka.topic, str(found.topic_id), len(found.partitions))


def bounds(kafka: KafkaSettings, partition: int) -> tuple[int, int]:
    """The first message that the brokers have, and the number of the next one; raises BusUnavailable."""
    [first] = _offsets(kafka, [partition], _EARLIEST).values()
    [end] = _offsets(kafka, [partition], _LATEST).values()
    return first, end


def ends(kafka: KafkaSettings, partitions: Iterable[int]) -> dict[int, int]:
    """The number of the next message of each partition; raises BusUnavailable."""
    return _offsets(kafka, partitions, _LATEST)


def _offsets(kafka: KafkaSettings, partitions: Iterable[int], wanted: OffsetSpec) -> dict[int, int]:
    places = {TopicPartition(kafka.topic, each): wanted for each in partitions}
    if not places:
        return {}
    with _asking(kafka) as admin:
        asked = admin.list_offsets(places, request_timeout=ANSWER_SECONDS_MAX)
        return {place.partition: each.result(ANSWER_SECONDS_MAX + 1.0).offset for place, each in asked.items()}


@contextmanager
def _asking(kafka: KafkaSettings) -> Iterator[AdminClient]:
    """A client for one question; raises BusUnavailable where it is not answered, with the cause that is known.

    Where the brokers reject a password or a certificate, the question only times out; librdkafka tells the cause apart.
    """
    heard: list[KafkaError] = []
    properties = {**client(kafka), "error_cb": heard.append}
    admin = AdminClient(properties, logger=LOGGER)  # what is asked fails when its client is gone
    try:
        yield admin
    except (KafkaException, FutureTimeout) as error:
        admin.poll(0)  # hands over what was heard
        causes = [each.str() for each in heard if each.name() != "_ALL_BROKERS_DOWN"]
        what = error.args[0] if isinstance(error, KafkaException) else None
        raise BusUnavailable(_explained(kafka, what, causes[-1] if causes else None)) from None


def _explained(kafka: KafkaSettings, what: KafkaError | None, cause: str | None) -> str:
    if what is None or what.name() in ("_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN"):
        why = cause or (None if what is None else what.str())
        return f"no broker of {kafka.bootstrap_servers} answers{'' if why is None else f': {why}'}"
    if what.name() in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"):
        return f"the topic {kafka.topic} does not exist: create it (docs/operate/kafka.md)"
    return f"the brokers do not describe the topic {kafka.topic}: {what.name()}, {what.str()}"
