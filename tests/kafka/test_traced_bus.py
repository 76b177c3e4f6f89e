"""Traces over the bus: that of an order's request reaches the books by the journal and by Kafka, on every engine."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from msgspec.structs import replace

from switchyard.adapters.backoffice.sqlite.ledger import SqliteLedger
from switchyard.adapters.otlp.tracer import OtlpTracer
from switchyard.domain.decisions import apply_report, begin_attempt
from switchyard.domain.journal.changes import Change
from switchyard.domain.risk.claims import Terms
from switchyard.flow.backoffice.source import JournalBus
from switchyard.flow.traced import EventTraces
from switchyard.ports.bus import Bus
from switchyard.settings.tracing import tracing_of
from switchyard.telemetry.metrics import Metrics
from tests.support.build import WORKER, a_report, an_accept, state_after
from tests.support.collector import Collector, collecting
from tests.support.databases import Database
from tests.support.journal_checks import commit, verified
from tests.support.kafka import Kafka, stored_messages
from tests.support.kafka_books import Office, check_books, kafka_bus
from tests.support.memory.clock import START
from tests.support.relay import RelayUnderTest

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


def traced(change: Change) -> Change:
    return replace(change, outbox=tuple(replace(row, traceparent=TRACEPARENT) for row in change.outbox))


async def trade(database: Database) -> str:
    """Fill an order of a traced request and one without a trace; returns the id of the first."""
    first = ""
    for account, change in (("acc-1", traced), ("acc-2", lambda plain: plain)):
        accepted = change(an_accept(account=account, terms=Terms(currency="JPY", price=Decimal("150.125"))))
        await commit(database.journal, accepted)
        state = state_after(accepted)
        sending = begin_attempt(state, state.outbox[0], WORKER, START)
        await commit(database.journal, sending)
        state = (await database.journal.load([state.order.order_id]))[state.order.order_id]
        assert state.outbox[0].attempt == 1
        report = a_report(state, exec_id=f"exec of {account}", qty=Decimal(500))
        await commit(database.journal, apply_report(state, None, report, START))
        first = first or state.order.order_id
    return first


async def test_the_trace_of_an_order_reaches_the_books_by_the_journal_and_by_kafka(
    database: Database, kafka: Kafka, collector: Collector, tmp_path: Path
) -> None:
    order_id = await trade(database)
    events = await verified(database.journal)
    assert not any(TRACE in event.text for event in events)
    topic = kafka.create_topic()
    relay = RelayUnderTest(database, kafka, topic, traced=True)
    await relay.catch_up()
    await relay.relay.close()
    stored = stored_messages(kafka, topic, len(events))
    headers = {(message.key(), dict(message.headers() or ()).get("traceparent")) for message in stored}
    assert headers == {(b"acc-1", TRACEPARENT.encode()), (b"acc-2", None)}

    settings = tracing_of({"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url})
    assert settings is not None
    traces = EventTraces(database.journal)
    buses: dict[str, Bus] = {
        "kafka": kafka_bus(kafka, topic),
        "journal": JournalBus(database.journal, traces=traces),
    }
    for name, bus in buses.items():
        tracer = OtlpTracer(settings, "backoffice", Metrics().traces)
        tracer.start()
        ledger = await SqliteLedger.open(tmp_path / f"{name}.db")
        office = Office(bus, ledger, tracer)
        await office.consumer.open()
        await office.catch_up(database)
        await office.close()
        await check_books(ledger, database, tmp_path)
        await ledger.close()
        await tracer.close()
    posted = {str(span["source"]).partition(":")[0]: span for span in collector.named("books.post")}
    assert set(posted) == set(buses) and len(collector.spans) == 2
    for span in posted.values():
        assert (span.trace_id, span.parent_id, span.kind) == (TRACE, SPAN, "consumer")
        assert (span["order_id"], span["event"]) == (order_id, "ExecutionReport")
