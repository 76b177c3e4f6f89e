"""Books that are kept from a bus, the journal or Kafka, and the orders that fill them."""

import asyncio
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path

from switchyard.adapters.backoffice.reads import SqlLedgerDump
from switchyard.adapters.backoffice.sqlite.ledger import SqliteLedger
from switchyard.adapters.kafka.bus import KafkaBus
from switchyard.adapters.kafka.messages import MessageReader
from switchyard.adapters.system_clock import SystemClock
from switchyard.domain.accounts.positions import Position
from switchyard.domain.decisions import apply_report
from switchyard.domain.journal.changes import Change
from switchyard.domain.orders.outbox import OrderState
from switchyard.domain.risk.claims import Terms
from switchyard.flow.backoffice.check import LedgerDigest, read_events_of, rebuild
from switchyard.flow.backoffice.consumer import Consumer
from switchyard.flow.backoffice.source import JournalBus, JournalSource
from switchyard.ports.bus import Bus
from switchyard.ports.tracing import Tracer
from switchyard.settings.kafka import KafkaSettings
from switchyard.telemetry.metrics import Metrics
from tests.support.build import a_report, an_accept, state_after
from tests.support.databases import Database
from tests.support.journal_checks import commit, verified
from tests.support.kafka import BUS_KEY, Kafka
from tests.support.memory.clock import START
from tests.support.polling import until
from tests.support.posting import differences, digest
from tests.support.relay import INSTALLATION


class Services:
    """Several accounts that place orders and get each filled in two parts."""

    def __init__(self, database: Database, accounts: int = 4) -> None:
        self._journal = database.journal
        self._positions: dict[str, Position] = {}
        self._names = [f"acc-{number}" for number in range(accounts)]
        self._count = 0

    async def trade(self, rounds: int) -> None:
        for _ in range(rounds):
            for account in self._names:
                accepted = an_accept(account=account, terms=Terms(currency="JPY", price=Decimal("150.125")))
                await commit(self._journal, accepted)
                state = state_after(accepted)
                for _part in range(2):
                    change = self._filled(account, state)
                    state = OrderState(order=change.orders[0], outbox=change.outbox or state.outbox)
                    await commit(self._journal, change)

    def _filled(self, account: str, state: OrderState) -> Change:
        self._count += 1
        report = a_report(state, exec_id=f"exec-{self._count}", qty=Decimal(500))
        change = apply_report(state, self._positions.get(account), report, START)
        [self._positions[account]] = change.positions
        return change


class Office:
    """A back office in the test: a consumer of a bus into a ledger."""

    def __init__(
        self, bus: Bus, ledger: SqliteLedger, tracer: Tracer | None = None, metrics: Metrics | None = None
    ) -> None:
        self.bus = bus
        self.ledger = ledger
        self.metrics = metrics or Metrics()
        self.consumer = Consumer(bus, ledger, clock=SystemClock(), metrics=self.metrics.backoffice, tracer=tracer)

    async def run_until(self, condition: Callable[[], object]) -> None:
        """Book pages until the condition holds."""

        async def holds() -> bool:
            await self.consumer.run_once()
            held = condition()
            return bool(await held if asyncio.iscoroutine(held) else held)

        await until(holds, lambda: f"{self.consumer.problem}; {getattr(self.bus, 'trouble', None)}")

    async def catch_up(self, database: Database) -> None:
        """Book pages until every account's last event was read."""
        await self.run_until(lambda: has_read_all(self.ledger, database))

    async def close(self) -> None:
        if isinstance(self.bus, KafkaBus):
            await self.bus.close()


async def has_read_all(ledger: SqliteLedger, database: Database) -> bool:
    """Whether the books have read each account's last event."""
    last = {event.account_id: event.seq for event in await verified(database.journal)}
    return dict(await read_events_of(SqlLedgerDump(ledger))) == last


def kafka_bus(
    kafka: Kafka,
    topic: str,
    group: str = "books",
    *,
    former_ids: frozenset[str] = frozenset(),
    keys: Sequence[bytes] = (BUS_KEY.encode(),),
    metrics: Metrics | None = None,
) -> KafkaBus:
    """A member of a consumer group that is gone soon after it is not heard of any more."""
    settings = KafkaSettings(
        topic=topic,
        bootstrap_servers=kafka.bootstrap,
        client_id="test",
        queue_capacity=1,
        properties=(
            ("log_level", "0"),
            ("group.id", f"{group} of {topic}"),
            ("session.timeout.ms", "6000"),
            ("heartbeat.interval.ms", "200"),
        ),
    )
    reader = MessageReader(INSTALLATION, keys, (metrics or Metrics()).backoffice.rejected)
    return KafkaBus(settings, reader, former_ids=former_ids)


async def check_books(ledger: SqliteLedger, database: Database, folder: Path) -> LedgerDigest:
    """Assert that the books are those that the journal gives; returns their digest."""
    dump = SqlLedgerDump(ledger)
    assert await differences(dump) == []
    again = await SqliteLedger.open(folder / "again.db")
    try:
        await rebuild(JournalSource(database.journal), again, None)
        expected = await digest(SqlLedgerDump(again))
    finally:
        await again.close()
        (folder / "again.db").unlink()
    found = await digest(dump)
    assert found == expected
    return found


def journal_bus(database: Database) -> JournalBus:
    """The journal as the bus."""
    return JournalBus(database.journal)
