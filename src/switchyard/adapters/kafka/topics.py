"""Topics as the brokers describe them: the id, which a topic that is created again does not keep, and partitions.

Each question has a client of its own: on a consumer's connection it would wait for the fetches before it.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager

import msgspec
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from switchyard.adapters.kafka import configuration
from switchyard.ports.bus import BusUnavailable, TopicResized
from switchyard.settings.kafka import KafkaSettings

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
    properties = {**configuration.client(kafka), "error_cb": heard.append}
    admin = AdminClient(properties, logger=configuration.LOGGER)  # what is asked fails when its client is gone
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
