"""The recorder over every database: each fill counts once, after crashes, repeats and conflicts too."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from decimal import Decimal
from itertools import count

import pytest
from msgspec.structs import replace

from switchyard.adapters.memory.clock import START, ManualClock
from switchyard.adapters.memory.venue import NullVenue
from switchyard.domain.changes import Change, Committed, Outcome
from switchyard.domain.decisions import apply_report, begin_attempt, record_sent, request_cancel
from switchyard.domain.ids import AccountId
from switchyard.domain.outbox import OrderState
from switchyard.domain.positions import Position
from switchyard.domain.reports import ExecutionIdScope, ExecutionReport, ReportStatus
from switchyard.flow.executions.record import Recorder
from switchyard.ports.venue import Capabilities, ReportPage
from switchyard.telemetry.metrics import Metrics
from tests.support.build import ACCOUNT, VENUE, WORKER, a_report, an_accept, state_after
from tests.support.databases import Database

KEY = (ACCOUNT, "USDJPY")


class ScriptedVenue(NullVenue):
    """Sends the reports of `script`."""

    def __init__(self) -> None:
        super().__init__(VENUE, clock=ManualClock())
        self.script: list[ExecutionReport] = []
        self.execution_ids: ExecutionIdScope = "venue"

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, execution_ids=self.execution_ids)

    async def reports(self, after: int, limit: int) -> ReportPage:
        page = tuple(self.script[after : after + limit])
        return ReportPage(page, after + len(page))


class RecorderHarness:
    """A recorder with its database and venue; `concurrent` is committed just before the recorder's next change."""

    def __init__(self, database: Database) -> None:
        self.journal, self.queries = database.journal, database.queries
        self.venue = ScriptedVenue()
        self.commits: list[Change] = []
        self.crashes_before_cursor = False
        self.concurrent: Change | None = None
        self.metrics = Metrics()
        self.start()

    def start(self) -> None:
        """Start a new recorder, as a new process would."""
        self.recorder = Recorder(
            self.venue,
            journal=self.journal,
            queries=self.queries,
            commit=self.commit,
            clock=ManualClock(),
            metrics=self.metrics,
        )

    async def commit(self, change: Change) -> Outcome:
        if change.cursors and self.crashes_before_cursor:
            raise ConnectionError("the process ends here")
        if self.concurrent is not None:
            concurrent, self.concurrent = self.concurrent, None
            assert isinstance(await self.commit(concurrent), Committed)
        [outcome] = await self.journal.append(0, f"group-{next(_groups)}", [change], START)
        if isinstance(outcome, Committed):
            self.commits.append(change)
        return outcome

    async def orders(self, *accepted: Change) -> list[OrderState]:
        for change in accepted:
            await self.commit(change)
        self.commits.clear()
        return [state_after(change) for change in accepted]

    async def position(self) -> Position:
        return (await self.journal.load_positions([KEY]))[KEY]

    def report_count(self, result: str) -> float:
        value = self.metrics.registry.get_sample_value("venue_reports_total", {"result": result})
        return value or 0


_groups = count(1)


@pytest.fixture
async def harness(database: Database) -> AsyncIterator[RecorderHarness]:
    yield RecorderHarness(database)


def fills(states: Sequence[OrderState], qty: str, status: ReportStatus = "PARTIALLY_FILLED") -> list[ExecutionReport]:
    return [
        a_report(state, status, exec_id=f"{state.order.order_id}-{next(_groups)}", qty=Decimal(qty)) for state in states
    ]


async def test_a_page_makes_one_change_for_each_account_and_symbol(harness: RecorderHarness) -> None:
    states = await harness.orders(*[an_accept(account=f"acc-{number % 2}") for number in range(20)])
    harness.venue.script = fills(states, "10")

    assert await harness.recorder.run_once() == 20

    assert Counter(len(change.orders) for change in harness.commits) == {10: 2, 0: 1}
    for account in ("acc-0", "acc-1"):
        [position] = await harness.queries.positions(AccountId(account), limit=10)
        assert [position.qty, position.version] == [100, 10]


async def test_several_fills_of_one_order_in_a_page_all_count(harness: RecorderHarness) -> None:
    states = await harness.orders(an_accept(), an_accept(side="SELL"))
    harness.venue.script = fills(states, "10") + fills(states[:1], "5") + fills(states, "1")

    await harness.recorder.run_once()

    loaded = await harness.journal.load([state.order.order_id for state in states])
    assert [loaded[state.order.order_id].order.filled_qty for state in states] == [16, 11]
    assert (await harness.position()).qty == 5


async def test_a_page_that_is_read_again_after_a_crash_counts_once(harness: RecorderHarness) -> None:
    states = await harness.orders(*[an_accept() for _ in range(5)])
    harness.venue.script = fills(states, "10") + fills(states, "7")
    harness.crashes_before_cursor = True
    with pytest.raises(ConnectionError):
        await harness.recorder.run_once()
    once = await harness.position()
    assert once.qty == 85

    harness.crashes_before_cursor = False
    harness.venue.script += fills(states[:1], "1")
    harness.start()
    assert await harness.recorder.run_once() == 11

    position = await harness.position()
    assert [position.qty, position.version] == [86, once.version + 1]
    assert (harness.report_count("applied"), harness.report_count("duplicate")) == (11, 10)


async def test_a_repeated_report_in_a_page_counts_once(harness: RecorderHarness) -> None:
    states = await harness.orders(an_accept(), an_accept())
    first, second = fills(states, "10")
    harness.venue.script = [first, first, second, first]

    await harness.recorder.run_once()

    assert (await harness.position()).qty == 20
    assert harness.report_count("duplicate") == 2


async def test_a_concurrent_fill_of_the_same_position_is_kept(harness: RecorderHarness) -> None:
    states = await harness.orders(*[an_accept() for _ in range(4)])
    harness.venue.script = fills(states[:3], "10")
    [concurrent] = fills(states[3:], "100")
    harness.concurrent = apply_report(states[3], None, concurrent, START)

    await harness.recorder.run_once()

    position = await harness.position()
    assert [position.qty, position.version] == [130, 4]


async def test_a_concurrent_change_of_one_order_delays_no_fill(harness: RecorderHarness) -> None:
    states = await harness.orders(*[an_accept() for _ in range(3)])
    harness.venue.script = fills(states, "10")
    harness.concurrent = begin_attempt(states[1], states[1].row("new", 1), WORKER, START)

    await harness.recorder.run_once()

    assert (await harness.position()).qty == 30


async def test_fills_after_a_cancel_and_overfills_count(harness: RecorderHarness) -> None:
    [state] = await harness.orders(accepted := an_accept(qty=Decimal(10)))
    sending = begin_attempt(state, state.row("new", 1), WORKER, START)
    sent = record_sent(state_after(accepted, sending), sending.outbox[0], "venue-1", START)
    cancel = request_cancel(state_after(accepted, sending, sent), START)
    assert cancel is not None
    await harness.orders(sending, sent, cancel)
    harness.venue.script = fills([state], "0", "CANCELED") + fills([state], "4") + fills([state], "9")

    await harness.recorder.run_once()

    order = (await harness.journal.load([state.order.order_id]))[state.order.order_id].order
    assert (await harness.position()).qty == order.filled_qty == 13


@pytest.mark.parametrize(("scope", "counted"), [("venue", 1), ("symbol", 2), ("order", 3)])
async def test_execution_ids_are_unique_in_the_scope_that_the_venue_declares(
    harness: RecorderHarness, scope: ExecutionIdScope, counted: int
) -> None:
    first, second, other = await harness.orders(an_accept(), an_accept(), an_accept(symbol="EURUSD"))
    harness.venue.execution_ids = scope
    reports = [a_report(state, "PARTIALLY_FILLED", exec_id="7", qty=Decimal(10)) for state in (first, other, second)]
    harness.venue.script = [*reports, *reports]

    await harness.recorder.run_once()

    positions = await harness.queries.positions(ACCOUNT, limit=10)
    assert sum(position.qty for position in positions) == counted * 10
    assert (harness.report_count("applied"), harness.report_count("duplicate")) == (counted, 6 - counted)
    exec_ids = {
        "venue": {"7"},
        "symbol": {"USDJPY:7", "EURUSD:7"},
        "order": {f"{state.order.venue_client_order_id}:7" for state in (first, second, other)},
    }
    assert await harness.queries.executions(VENUE, sorted(set.union(*exec_ids.values()))) == exec_ids[scope]


async def test_equal_execution_ids_of_unknown_orders_are_distinguished(harness: RecorderHarness) -> None:
    unknown = [state_after(an_accept()), state_after(an_accept())]
    harness.venue.execution_ids = "symbol"
    harness.venue.script = [a_report(state, exec_id="7") for state in unknown] * 2

    await harness.recorder.run_once()

    assert harness.report_count("unmatched") == 2
