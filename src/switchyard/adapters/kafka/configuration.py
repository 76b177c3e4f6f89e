"""The configurations of librdkafka's clients, and the check that it knows every property that was passed on."""

import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from switchyard.adapters.kafka.brokers import STATISTICS_MS
from switchyard.domain.errors import SettingError
from switchyard.settings.kafka import KafkaSettings, variable_of

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
