"""The recorder over real databases: each fill counts once, whatever happens around it."""

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


class ToldVenue(NullVenue):
    """Reports what a test tells it to."""

    def __init__(self) -> None:
        super().__init__(VENUE, clock=ManualClock())
        self.told: list[ExecutionReport] = []
        self.execution_ids: ExecutionIdScope = "venue"

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, execution_ids=self.execution_ids)

    async def reports(self, after: int, limit: int) -> ReportPage:
        page = tuple(self.told[after : after + limit])
        return ReportPage(page, after + len(page))


class Desk:
    """A recorder with its venue, and orders for it to hear about."""

    def __init__(self, database: Database) -> None:
        self.journal, self.queries = database.journal, database.queries
        self.venue = ToldVenue()
        self.commits: list[Change] = []
        self.crashes_before_cursor = False
        self.meanwhile: Change | None = None
        self.metrics = Metrics()
        self.start()

    def start(self) -> None:
        """A recorder that knows nothing but what is in the database."""
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
        if self.meanwhile is not None:
            sneaking, self.meanwhile = self.meanwhile, None
            assert isinstance(await self.commit(sneaking), Committed)
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

    def counted(self, result: str) -> float:
        value = self.metrics.registry.get_sample_value("venue_reports_total", {"result": result})
        return value or 0


_groups = count(1)


@pytest.fixture
async def desk(database: Database) -> AsyncIterator[Desk]:
    yield Desk(database)


def fills(states: Sequence[OrderState], qty: str, status: ReportStatus = "PARTIALLY_FILLED") -> list[ExecutionReport]:
    return [
        a_report(state, status, exec_id=f"{state.order.order_id}-{next(_groups)}", qty=Decimal(qty)) for state in states
    ]


async def test_a_page_costs_one_change_for_each_account_and_symbol(desk: Desk) -> None:
    states = await desk.orders(*[an_accept(account=f"acc-{number % 2}") for number in range(20)])
    desk.venue.told = fills(states, "10")

    assert await desk.recorder.run_once() == 20

    assert Counter(len(change.orders) for change in desk.commits) == {10: 2, 0: 1}
    for account in ("acc-0", "acc-1"):
        [position] = await desk.queries.positions(AccountId(account), limit=10)
        assert [position.qty, position.version] == [100, 10]


async def test_several_fills_of_one_order_in_a_page_all_count(desk: Desk) -> None:
    states = await desk.orders(an_accept(), an_accept(side="SELL"))
    desk.venue.told = fills(states, "10") + fills(states[:1], "5") + fills(states, "1")

    await desk.recorder.run_once()

    loaded = await desk.journal.load([state.order.order_id for state in states])
    assert [loaded[state.order.order_id].order.filled_qty for state in states] == [16, 11]
    assert (await desk.position()).qty == 5


async def test_a_page_that_is_read_again_after_a_crash_counts_once(desk: Desk) -> None:
    states = await desk.orders(*[an_accept() for _ in range(5)])
    desk.venue.told = fills(states, "10") + fills(states, "7")
    desk.crashes_before_cursor = True
    with pytest.raises(ConnectionError):
        await desk.recorder.run_once()
    once = await desk.position()
    assert once.qty == 85

    desk.crashes_before_cursor = False
    desk.venue.told += fills(states[:1], "1")
    desk.start()
    assert await desk.recorder.run_once() == 11

    position = await desk.position()
    assert [position.qty, position.version] == [86, once.version + 1]
    assert (desk.counted("applied"), desk.counted("duplicate")) == (11, 10)


async def test_a_report_that_comes_twice_in_one_page_counts_once(desk: Desk) -> None:
    states = await desk.orders(an_accept(), an_accept())
    first, second = fills(states, "10")
    desk.venue.told = [first, first, second, first]

    await desk.recorder.run_once()

    assert (await desk.position()).qty == 20
    assert desk.counted("duplicate") == 2


async def test_a_fill_that_somebody_else_recorded_meanwhile_is_built_upon(desk: Desk) -> None:
    states = await desk.orders(*[an_accept() for _ in range(4)])
    desk.venue.told = fills(states[:3], "10")
    [elsewhere] = fills(states[3:], "100")
    desk.meanwhile = apply_report(states[3], None, elsewhere, START)

    await desk.recorder.run_once()

    position = await desk.position()
    assert [position.qty, position.version] == [130, 4]


async def test_an_order_that_moved_on_meanwhile_holds_up_no_fill(desk: Desk) -> None:
    states = await desk.orders(*[an_accept() for _ in range(3)])
    desk.venue.told = fills(states, "10")
    desk.meanwhile = begin_attempt(states[1], states[1].row("new", 1), WORKER, START)

    await desk.recorder.run_once()

    assert (await desk.position()).qty == 30


async def test_fills_after_the_end_and_fills_beyond_the_order_are_held_like_any_other(desk: Desk) -> None:
    [state] = await desk.orders(accepted := an_accept(qty=Decimal(10)))
    sending = begin_attempt(state, state.row("new", 1), WORKER, START)
    sent = record_sent(state_after(accepted, sending), sending.outbox[0], "venue-1", START)
    cancel = request_cancel(state_after(accepted, sending, sent), START)
    assert cancel is not None
    await desk.orders(sending, sent, cancel)
    desk.venue.told = fills([state], "0", "CANCELED") + fills([state], "4") + fills([state], "9")

    await desk.recorder.run_once()

    order = (await desk.journal.load([state.order.order_id]))[state.order.order_id].order
    assert (await desk.position()).qty == order.filled_qty == 13


@pytest.mark.parametrize(("scope", "counted"), [("venue", 1), ("symbol", 2), ("order", 3)])
async def test_equal_execution_ids_of_different_symbols_or_orders_count_as_the_venue_declares(
    desk: Desk, scope: ExecutionIdScope, counted: int
) -> None:
    first, second, other = await desk.orders(an_accept(), an_accept(), an_accept(symbol="EURUSD"))
    desk.venue.execution_ids = scope
    told = [a_report(state, "PARTIALLY_FILLED", exec_id="7", qty=Decimal(10)) for state in (first, other, second)]
    desk.venue.told = [*told, *told]

    await desk.recorder.run_once()

    held = await desk.queries.positions(ACCOUNT, limit=10)
    assert sum(position.qty for position in held) == counted * 10
    assert (desk.counted("applied"), desk.counted("duplicate")) == (counted, 6 - counted)
    written = {
        "venue": {"7"},
        "symbol": {"USDJPY:7", "EURUSD:7"},
        "order": {f"{state.order.venue_client_order_id}:7" for state in (first, second, other)},
    }
    assert await desk.queries.executions(VENUE, sorted(set.union(*written.values()))) == written[scope]


async def test_equal_execution_ids_of_orders_that_nobody_knows_are_told_apart(desk: Desk) -> None:
    strangers = [state_after(an_accept()), state_after(an_accept())]
    desk.venue.execution_ids = "symbol"
    desk.venue.told = [a_report(state, exec_id="7") for state in strangers] * 2

    await desk.recorder.run_once()

    assert desk.counted("unmatched") == 2
