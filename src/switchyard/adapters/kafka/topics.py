"""Topics as the brokers describe them: the id, which a topic that is created again does not keep, and partitions."""

from collections.abc import Iterable, Sequence
from concurrent.futures import TimeoutError as FutureTimeout

import msgspec
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from switchyard.adapters.kafka import configuration
from switchyard.ports.publisher import BusUnavailable, TopicResized
from switchyard.settings.kafka import KafkaSettings

# Enough for a broker under load, and well below the silence after which another relay takes over.
ANSWER_SECONDS_MAX = 4.0


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
            uuid, _, partitions = former.partition("/")
            if uuid == self.uuid and former != self.id:
                raise TopicResized(
                    f"the topic {self.name} had {partitions} partitions and has {self.partitions} now: accounts move "
                    "to other partitions, where their events would be read before the earlier ones. Create another "
                    "topic, set KAFKA_TOPIC to it everywhere, and run `switchyard backoffice reset`: every event is "
                    "published to it from the first on, and nothing is booked twice"
                )


def describe(kafka: KafkaSettings) -> Topic:
    """Ask the brokers, in the calling thread. Raises BusUnavailable if the topic is missing or they do not answer."""
    heard: list[KafkaError] = []
    """What librdkafka says about its connections, such as a rejected password; the request itself only times out."""
    properties = {**configuration.client(kafka), "error_cb": heard.append}
    admin = AdminClient(properties, logger=configuration.LOGGER)
    asked = admin.describe_topics(TopicCollection([kafka.topic]), request_timeout=ANSWER_SECONDS_MAX)
    try:
        found = asked[kafka.topic].result(ANSWER_SECONDS_MAX + 1.0)
    except KafkaException as error:
        admin.poll(0)  # hands over what was heard
        raise BusUnavailable(_explained(kafka, error.args[0], heard)) from None
    except FutureTimeout:
        admin.poll(0)
        raise BusUnavailable(_unanswered(kafka, heard, "")) from None
    return Topic(kafka.topic, str(found.topic_id), len(found.partitions))


def _explained(kafka: KafkaSettings, what: KafkaError, heard: Sequence[KafkaError]) -> str:
    if what.name() in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"):
        return f"the topic {kafka.topic} does not exist: create it (docs/operate/kafka.md)"
    if what.name() in ("_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN"):
        return _unanswered(kafka, heard, what.str())
    return f"the brokers do not describe the topic {kafka.topic}: {what.name()}, {what.str()}"


def _unanswered(kafka: KafkaSettings, heard: Sequence[KafkaError], otherwise: str) -> str:
    causes = [error.str() for error in heard if error.name() != "_ALL_BROKERS_DOWN"]
    why = causes[-1] if causes else otherwise
    return f"no broker of {kafka.bootstrap_servers} answers{f': {why}' if why else ''}"
