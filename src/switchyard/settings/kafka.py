"""The settings of the bus: seven of our own, and every other `KAFKA_…` variable as a property of librdkafka.

Reads the environment; raises SettingError. Whether librdkafka knows a property is checked where the library is
(`adapters/kafka/configuration.py`).
"""

from collections.abc import Mapping

import msgspec

from switchyard.domain.errors import SettingError
from switchyard.settings import parse
from switchyard.settings.parse import Secret, Setting, value_of, values_of

PREFIX = "KAFKA_"
# More than the brokers take in a minute; each message in flight is in memory, about a kilobyte.
QUEUE_CAPACITY_MAX = 1_000_000

KAFKA_SETTINGS: tuple[Setting, ...] = (
    Setting("KAFKA_ENABLE", "enable", "false", parse.flag,
            "Whether the journal's events are published to Kafka, and whether a `backoffice` process reads them from "
            "there. `false`: the journal itself is the bus, and the settings below are not used."),
    Setting("KAFKA_TOPIC", "topic", "events", parse.topic,
            "Topic of the events. It must exist; its number of partitions must not change afterwards."),
    Setting("KAFKA_BOOTSTRAP_SERVERS", "bootstrap_servers", "localhost:9092", parse.text,
            "Brokers to connect to first, as `host:port` separated by commas."),
    Setting("KAFKA_CLIENT_ID", "client_id", "gateway", parse.text,
            "Name of this process in the logs and quotas of the brokers."),
    Setting("KAFKA_QUEUE_CAPACITY", "queue_capacity", "10000", parse.whole(1, QUEUE_CAPACITY_MAX),
            "Events that may be on their way to the brokers without an acknowledgement. Further ones wait in the "
            "journal; none is dropped."),
    Setting("SWITCHYARD_BUS_KEY", "key", None, parse.text,
            "Key that signs the messages on the topic (HMAC-SHA256). A `backoffice` process drops messages that are "
            "not signed with it. At least 32 bytes, the same in every process of the installation. Required on "
            "PostgreSQL; on SQLite, unset: a random key is created in the data folder.", secret=True),
    Setting("SWITCHYARD_BUS_KEY_PREVIOUS", "previous_key", None, parse.text,
            "The key before it: a `backoffice` process takes messages that are signed with either. Unset: none.",
            secret=True),
)  # fmt: skip

# Set by Switchyard, because the order and the completeness of the events rest on them.
_OWN_PROPERTIES = frozenset(
    {
        "acks",
        "auto.offset.reset",
        "delivery.timeout.ms",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.gapless.guarantee",
        "enable.idempotence",
        "enable.partition.eof",
        "group.protocol",
        "message.timeout.ms",
        "metadata.broker.list",
        "partition.assignment.strategy",
        "partitioner",
        "queue.buffering.max.messages",
        "request.required.acks",
        "statistics.interval.ms",
        "transactional.id",
    }
)
_SECRET_ENDS = ("password", "secret", "pem")
# The only property of librdkafka with an underscore that is not a callback.
_UNDERSCORES = {"log.level": "log_level"}


class KafkaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the bus; `KAFKA_SETTINGS` documents each field."""

    topic: str
    bootstrap_servers: str
    client_id: str
    queue_capacity: int
    key: Secret | None = None
    previous_key: Secret | None = None
    properties: tuple[tuple[str, str], ...] = ()
    """Further properties of librdkafka, by name; a secret is a `Secret`."""


def kafka_of(environment: Mapping[str, str]) -> KafkaSettings | None:
    """The settings of the bus; none unless `KAFKA_ENABLE` is true."""
    values = values_of(KAFKA_SETTINGS, environment)
    if not values.pop("enable"):
        return None
    return KafkaSettings(**values, properties=tuple(_properties(environment)))


def passed_names(environment: Mapping[str, str]) -> set[str]:
    """The variables that are passed on to librdkafka."""
    own = {setting.name for setting in KAFKA_SETTINGS}
    return {name for name in environment if name.startswith(PREFIX) and name not in own}


def variable_of(property_name: str) -> str:
    """The variable that sets a property of librdkafka."""
    return PREFIX + property_name.replace(".", "_").upper()


def _properties(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    for variable in sorted(passed_names(environment)):
        name = property_of(variable)
        if name in _OWN_PROPERTIES:
            raise SettingError(variable, f"the property {name} is set by Switchyard and cannot be changed; unset it")
        is_secret = name.endswith(_SECRET_ENDS)
        setting = Setting(variable_of(name), name, None, parse.text, "", secret=is_secret)
        found[name] = value_of(setting, setting.name, environment, None)
    return list(found.items())


def property_of(variable: str) -> str:
    """The property of librdkafka that a variable sets; `_FILE` gives a secret's file."""
    name = variable.removeprefix(PREFIX).lower().replace("_", ".")
    if name.endswith(tuple(f"{end}.file" for end in _SECRET_ENDS)):
        name = name.removesuffix(".file")
    return _UNDERSCORES.get(name, name)
