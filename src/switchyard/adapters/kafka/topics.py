"""Topics as the brokers describe them: the id, which a topic that is created again does not keep, and partitions.

Each question has a client of its own: on a consumer's connection it would wait for the fetches before it.
"""

from collections.abc import Iterable
from concurrent.futures import TimeoutError as FutureTimeout

import msgspec
from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from switchyard.adapters.kafka import configuration
from switchyard.ports.publisher import BusUnavailable
from switchyard.settings.kafka import KafkaSettings

# Enough for a broker under load, and well below the silence after which another relay takes over.
ANSWER_SECONDS_MAX = 4.0
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]


class Topic(msgspec.Struct, frozen=True):
    """A topic that exists."""

    id: str
    partitions: int


def describe(kafka: KafkaSettings) -> Topic:
    """Ask the brokers, in the calling thread. Raises BusUnavailable if the topic is missing or they do not answer."""
    client = _client(kafka)  # what is asked fails when its client is gone
    asked = client.describe_topics(TopicCollection([kafka.topic]), request_timeout=ANSWER_SECONDS_MAX)
    try:
        found = asked[kafka.topic].result(ANSWER_SECONDS_MAX + 1.0)
    except KafkaException as error:
        raise BusUnavailable(_explained(kafka, error)) from None
    except FutureTimeout:
        raise BusUnavailable(f"no broker of {kafka.bootstrap_servers} answers") from None
    return Topic(str(found.topic_id), len(found.partitions))


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
    client = _client(kafka)
    asked = client.list_offsets(places, request_timeout=ANSWER_SECONDS_MAX)
    try:
        return {place.partition: each.result(ANSWER_SECONDS_MAX + 1.0).offset for place, each in asked.items()}
    except KafkaException as error:
        raise BusUnavailable(_explained(kafka, error)) from None
    except FutureTimeout:
        raise BusUnavailable(f"no broker of {kafka.bootstrap_servers} answers") from None


def _client(kafka: KafkaSettings) -> AdminClient:
    return AdminClient(configuration.client(kafka), logger=configuration.LOGGER)


def _explained(kafka: KafkaSettings, error: KafkaException) -> str:
    what = error.args[0]
    if what.name() in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"):
        return f"the topic {kafka.topic} does not exist: create it (docs/operate/kafka.md)"
    if what.name() in ("_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN"):
        return f"no broker of {kafka.bootstrap_servers} answers: {what.str()}"
    return f"the brokers do not describe the topic {kafka.topic}: {what.name()}, {what.str()}"
