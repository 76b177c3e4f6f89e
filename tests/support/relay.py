"""Relays of a test, and what they have published."""

from collections import defaultdict

from confluent_kafka import Message

from switchyard.adapters.kafka.publisher import KafkaPublisher
from switchyard.adapters.system_clock import SystemClock
from switchyard.domain.ids import WorkerId
from switchyard.flow.bus.relay import HeldLease, PreviousEvents, Relay, RelaySource
from switchyard.flow.traced import EventTraces
from switchyard.ports.clock import Clock
from switchyard.settings.kafka import KafkaSettings
from switchyard.telemetry.metrics import Metrics
from tests.support.build import an_accept
from tests.support.contract import decoded, problems
from tests.support.contract_files import EVENT
from tests.support.databases import Database
from tests.support.journal_checks import commit, verified
from tests.support.kafka import BUS_KEY, Kafka, stored_messages
from tests.support.polling import until

INSTALLATION = "01J8TPZ7YJ1E1X4C5N9ZP3M3QA"


class RelayUnderTest:
    """A relay with the parts that a process would give it; the test calls its steps."""

    def __init__(
        self,
        database: Database,
        kafka: Kafka,
        topic: str,
        *,
        owner: str = "rly_1",
        capacity: int = 10_000,
        accounts_max: int = 2,
        clock: Clock | None = None,
        traced: bool = False,
        **properties: str,
    ) -> None:
        self._journal = database.journal
        self.metrics = Metrics()
        clock = clock or SystemClock()
        passed = tuple((name.replace("_", "."), value) for name, value in properties.items())
        settings = KafkaSettings(
            topic=topic,
            bootstrap_servers=kafka.bootstrap,
            client_id="test",
            queue_capacity=capacity,
            properties=(("log_level", "0"), *passed),
        )
        publisher = KafkaPublisher(settings, INSTALLATION, BUS_KEY.encode())
        self.lease = HeldLease(
            topic, WorkerId(owner), leases=database.relay_leases, liveness=database.liveness, clock=clock
        )
        self.relay = Relay(
            publisher,
            source=RelaySource(database.journal, traces=EventTraces(database.journal) if traced else None),
            previous=PreviousEvents(database.queries, accounts_max),
            lease=self.lease,
            capacity=capacity,
            clock=clock,
            metrics=self.metrics.bus,
        )
        publisher.on_trouble = self.relay.note_trouble

    def metric(self, name: str) -> float:
        value = self.metrics.registry.get_sample_value(name)
        assert value is not None, f"{name} does not exist"
        return value

    async def catch_up(self) -> None:
        """Run until everything was delivered."""
        head = await self._journal.head(0)

        async def is_delivered() -> bool:
            await self.relay.run_once()
            assert self.relay.halted is None, self.relay.halted
            return self.relay.delivered.seq == head.seq

        await until(is_delivered, lambda: f"{self.relay.delivered} of {head}: {self.relay.trouble}")

    async def run_until_trouble(self) -> str:
        """Run until nothing can be delivered; returns why."""

        async def is_in_trouble() -> bool:
            await self.relay.run_once()
            return self.relay.trouble is not None

        await until(is_in_trouble)
        assert self.relay.trouble is not None
        return self.relay.trouble


async def place_orders(database: Database, count: int, accounts: int = 3) -> None:
    """Accept orders of several accounts in turn."""
    changes = [an_accept(account=f"acc-{number % accounts}") for number in range(count)]
    for start in range(0, count, 100):
        await commit(database.journal, *changes[start : start + 100])


def first_occurrences(messages: list[Message]) -> dict[str, list[Message]]:
    """The messages of each account in the order of its partition, without repeats."""
    found: dict[str, list[Message]] = defaultdict(list)
    seen = set()
    for message in messages:
        key, seq = message.key(), header(message, "seq")
        assert key is not None
        if seq not in seen:
            seen.add(seq)
            found[key.decode()].append(message)
    return found


def header(message: Message, name: str) -> str:
    """The one header of this name."""
    value = dict(message.headers() or ())[name]
    assert isinstance(value, bytes)
    return value.decode()


async def check_complete(database: Database, kafka: Kafka, topic: str, *, repeats: bool = False) -> None:
    """Assert that the topic has the whole journal, each event with its place, the events of an account in order."""
    events = await verified(database.journal)
    messages = stored_messages(kafka, topic, len(events))
    assert repeats or len(messages) == len(events)
    by_seq = {event.seq: event for event in events}
    found = first_occurrences(messages)
    for account, published in found.items():
        expected = [each.seq for each in events if each.account_id == account]
        assert [int(header(message, "seq")) for message in published] == expected
        assert [int(header(message, "previousSeq")) for message in published] == [0, *expected[:-1]]
        assert len({message.partition() for message in published}) == 1
        for message in published:
            known, value = by_seq[int(header(message, "seq"))], message.value()
            assert value == known.line.encode()
            assert (header(message, "hash"), header(message, "epoch")) == (known.hash, "1")
            assert problems(EVENT, decoded(value)) == []
    assert sum(len(published) for published in found.values()) == len(events)
