"""A Kafka for the tests: librdkafka's mock cluster, or a real broker where TEST_KAFKA_LIBS names its jars.

Both are processes of their own, with the same methods: `crash` and `recover` keep what was stored.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.support.ports import free_port
from tests.support.process import ROOT

LIBS_VARIABLE = "TEST_KAFKA_LIBS"
# Generous: a broker starts within seconds unless it is broken.
SECONDS_MAX = 90.0
_CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"
_NUMBERS = count(1)
BUS_KEY = "the key of the bus in the tests: 32 bytes"

_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""
_LOGGING = """
<Configuration status="warn">
  <Appenders><Console name="out"><PatternLayout pattern="%d %p %m%n"/></Console></Appenders>
  <Loggers><Root level="warn"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""


def bus_settings(bootstrap: str, topic: str) -> dict[str, str]:
    """The settings of the processes that publish to a topic or read it."""
    return {
        "KAFKA_ENABLE": "1",
        "KAFKA_TOPIC": topic,
        "KAFKA_BOOTSTRAP_SERVERS": bootstrap,
        "SWITCHYARD_BUS_KEY": BUS_KEY,
    }


class Kafka(Protocol):
    """A cluster that tests can break."""

    bootstrap: str

    @property
    def is_real(self) -> bool: ...

    def create_topic(self, partitions: int = 3) -> str:
        """A new topic; returns its name."""

    def create_named(self, name: str, partitions: int = 3) -> None:
        """A topic of this name, which may be one that was deleted."""

    def delete_topic(self, name: str) -> None:
        """Delete it with its messages."""

    def add_partitions(self, topic: str, total: int) -> None:
        """Give the topic more partitions."""

    def delete_messages(self, topic: str, before: int) -> None:
        """Delete the messages of its first partition before this one, as retention does."""

    @property
    def rejection(self) -> str:
        """The error of a topic that rejects messages."""

    def reject(self, topic: str) -> None:
        """Reject every message to the topic from now on."""

    def accept(self, topic: str) -> None:
        """Take messages again."""

    def crash(self) -> None:
        """No broker answers from now on."""

    def recover(self) -> None:
        """The brokers answer again and have what they acknowledged."""

    def remove(self) -> None:
        """End the processes and delete what they wrote."""


def start_kafka() -> Kafka:
    """The cluster that this run of the tests uses."""
    libs = os.environ.get(LIBS_VARIABLE)
    return RealKafka(Path(libs)) if libs else MockKafka()


class MockKafka:
    """librdkafka's mock cluster in a process of its own."""

    is_real = False
    rejection = "Topic authorization failed"

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.mock_kafka_process"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.bootstrap = self._line()

    def create_topic(self, partitions: int = 3) -> str:
        name = f"events-{next(_NUMBERS)}"
        self.create_named(name, partitions)
        return name

    def create_named(self, name: str, partitions: int = 3) -> None:
        self._ask(f"topic {name} {partitions}")

    def delete_topic(self, name: str) -> None:
        self._ask(f"delete {name}")

    def add_partitions(self, topic: str, total: int) -> None:
        raise NotImplementedError("librdkafka's mock cluster cannot")

    def delete_messages(self, topic: str, before: int) -> None:
        self._ask(f"trim {topic} {before}")

    def reject(self, topic: str) -> None:
        self._ask(f"fail {KafkaError.TOPIC_AUTHORIZATION_FAILED}")

    def accept(self, topic: str) -> None:
        self._ask("fail 0")

    def crash(self) -> None:
        self._ask("down")

    def recover(self) -> None:
        self._ask("up")

    def remove(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _ask(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        answer = self._line()
        assert answer == "ok", f"{command}: {answer}"

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


class RealKafka:
    """Apache Kafka in KRaft mode: one process that is broker and controller."""

    is_real = True
    rejection = "Message size too large"

    def __init__(self, libs: Path, more: str = "") -> None:
        """`more`: further lines of the broker's properties, which take precedence."""
        self._libs = libs
        self._folder = Path(tempfile.mkdtemp(prefix="switchyard-kafka-"))
        port, controller = free_port(), free_port()
        self.bootstrap = f"127.0.0.1:{port}"
        self._properties = self._folder / "server.properties"
        text = _PROPERTIES.format(port=port, controller=controller, folder=self._folder)
        self._properties.write_text(text + more.format(port=port, controller=controller))
        (self._folder / "log4j2.xml").write_text(_LOGGING)
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._java("kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(self._properties)).wait()
            self.recover()
        except BaseException:
            self.remove()
            raise

    def create_topic(self, partitions: int = 3) -> str:
        name = f"events-{next(_NUMBERS)}"
        self.create_named(name, partitions)
        return name

    def create_named(self, name: str, partitions: int = 3) -> None:
        admin = self._admin()
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            try:
                admin.create_topics([NewTopic(name, num_partitions=partitions)])[name].result(SECONDS_MAX)
                return
            except KafkaException as error:
                # A deletion ends in the background.
                assert error.args[0].name() == "TOPIC_ALREADY_EXISTS" and time.monotonic() < deadline, error
                time.sleep(0.05)

    def delete_topic(self, name: str) -> None:
        admin = self._admin()
        admin.delete_topics([name])[name].result(SECONDS_MAX)

    def add_partitions(self, topic: str, total: int) -> None:
        admin = self._admin()
        admin.create_partitions([NewPartitions(topic, total)])[topic].result(SECONDS_MAX)

    def delete_messages(self, topic: str, before: int) -> None:
        admin = self._admin()
        [done] = admin.delete_records([TopicPartition(topic, 0, before)]).values()
        done.result(SECONDS_MAX)

    def reject(self, topic: str) -> None:
        self._set_largest(topic, 1)

    def accept(self, topic: str) -> None:
        self._set_largest(topic, 1_000_000)

    def _set_largest(self, topic: str, size: int) -> None:
        changed = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[changed])
        admin = self._admin()  # kept until the answer has come
        admin.incremental_alter_configs([resource])[resource].result(SECONDS_MAX)

    def crash(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._process = None

    def recover(self) -> None:
        self._process = self._java("kafka.Kafka", str(self._properties))
        deadline = time.monotonic() + SECONDS_MAX
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Kafka did not start:\n{(self._folder / 'kafka.log').read_text()}")

    def remove(self) -> None:
        if self._process is not None:
            self.crash()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            return bool(self._admin().list_topics(timeout=1).brokers)
        except KafkaException:
            return False

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def _java(self, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        options = [
            "-Xmx512m",
            "-cp",
            f"{self._libs}/*",
            f"-Dlog4j2.configurationFile={self._folder}/log4j2.xml",
        ]
        with (self._folder / "kafka.log").open("ab") as log:
            return subprocess.Popen(
                ["java", *options, main, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder
            )


def stored_messages(kafka: Kafka, topic: str, expected: int) -> list[Message]:
    """All messages of a topic, by partition; waits until there are at least as many as expected."""
    settings: dict[str, Any] = {
        "bootstrap.servers": kafka.bootstrap,
        "group.id": "reader of a test",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "log_level": 0,
    }
    consumer = Consumer(settings)
    try:
        partitions = consumer.list_topics(topic, timeout=SECONDS_MAX).topics[topic].partitions
        places = [TopicPartition(topic, each) for each in partitions]
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            ends = {each.partition: consumer.get_watermark_offsets(each, timeout=SECONDS_MAX)[1] for each in places}
            if sum(ends.values()) >= expected:
                break
            assert time.monotonic() < deadline, f"{sum(ends.values())} of {expected} messages are stored"
            time.sleep(0.05)
        consumer.assign([TopicPartition(topic, each.partition, 0) for each in places])
        found: list[Message] = []
        while len(found) < sum(ends.values()):
            for message in consumer.consume(1_000, timeout=1.0):
                assert message.error() is None, message.error()
                found.append(message)
            assert time.monotonic() < deadline, f"{len(found)} of {sum(ends.values())} messages were read"
        return sorted(found, key=lambda each: (each.partition(), each.offset()))
    finally:
        consumer.close()
