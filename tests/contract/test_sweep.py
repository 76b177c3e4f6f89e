"""The sweep over real databases: what no report told of is found by asking, counted once and never guessed."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from decimal import Decimal
from itertools import count

import pytest
from msgspec.structs import replace

from switchyard.adapters.memory.clock import START, ManualClock
from switchyard.adapters.memory.venue import NullVenue
from switchyard.domain.changes import Change, Outcome
from switchyard.domain.decisions import begin_attempt, record_sent, request_cancel
from switchyard.domain.ids import VenueClientOrderId
from switchyard.domain.money import ZERO
from switchyard.domain.orders import Order
from switchyard.domain.outbox import OrderState
from switchyard.domain.reports import ExecutionIdScope, ExecutionReport, ReportStatus
from switchyard.flow.executions import sweep
from switchyard.flow.executions.record import Recorder
from switchyard.flow.executions.sweep import GRACE, Sweeper
from switchyard.ports.venue import Capabilities, ReportPage, VenueFill, VenueOrder, VenueUnavailable
from switchyard.telemetry.metrics import Metrics
from tests.support.build import ACCOUNT, VENUE, WORKER, a_report, an_accept, state_after
from tests.support.databases import Database

KEY = (ACCOUNT, "USDJPY")
TEN, HUNDRED = Decimal(10), Decimal(100)
_groups = count(1)


class ShownVenue(NullVenue):
    """Shows orders and tells of executions as a test says."""

    def __init__(self) -> None:
        super().__init__(VENUE, clock=ManualClock())
        self.shown: dict[VenueClientOrderId, VenueOrder] = {}
        self.told: list[ExecutionReport] = []
        self.asked: list[VenueClientOrderId] = []
        self.execution_ids: ExecutionIdScope = "venue"
        self.can_be_asked = True

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, execution_ids=self.execution_ids)

    async def find_by_client_order_id(self, client_id: VenueClientOrderId) -> VenueOrder | None:
        self.asked.append(client_id)
        return self.shown.get(client_id)

    async def open_orders(self) -> Sequence[VenueOrder]:
        if not self.can_be_asked:
            raise VenueUnavailable("not now")
        return [order for order in self.shown.values() if order.status in ("WORKING", "PARTIALLY_FILLED")]

    async def reports(self, after: int, limit: int) -> ReportPage:
        page = tuple(self.told[after : after + limit])
        return ReportPage(page, after + len(page))

    def show(self, order: Order, status: ReportStatus, *fills: str, filled_qty: str | None = None) -> None:
        """Have this order, with fills such as `a:10` for ten under the id `a`."""
        made = [fill.split(":") for fill in fills]
        shown = tuple(
            VenueFill(exec_id=exec_id, qty=Decimal(qty), price=Decimal(150), at=START) for exec_id, qty in made
        )
        self.shown[order.venue_client_order_id] = VenueOrder(
            venue_client_order_id=order.venue_client_order_id,
            venue_order_id="venue-1",
            status=status,
            filled_qty=Decimal(filled_qty) if filled_qty is not None else sum((fill.qty for fill in shown), ZERO),
            fills=shown,
        )


class Desk:
    """A recorder and a sweeper with their venue, and orders that it has."""

    def __init__(self, database: Database) -> None:
        self.journal, self.queries = database.journal, database.queries
        self.venue = ShownVenue()
        self.clock = ManualClock()
        self.metrics = Metrics()
        self.recorder = Recorder(
            self.venue,
            journal=self.journal,
            queries=self.queries,
            commit=self.commit,
            clock=self.clock,
            metrics=self.metrics,
        )
        self.sweeper = self.a_sweeper()

    def a_sweeper(self) -> Sweeper:
        return Sweeper(
            self.venue,
            self.recorder,
            journal=self.journal,
            queries=self.queries,
            clock=self.clock,
            metrics=self.metrics,
            interval=timedelta(seconds=30),
        )

    async def commit(self, change: Change) -> Outcome:
        [outcome] = await self.journal.append(0, f"group-{next(_groups)}", [change], START)
        return outcome

    async def working(self, symbol: str = "USDJPY") -> Order:
        """An order of 100 that the venue has taken on."""
        accepted = an_accept(qty=Decimal(100), symbol=symbol)
        sending = begin_attempt(state_after(accepted), accepted.outbox[0], WORKER, START)
        sent = record_sent(state_after(accepted, sending), sending.outbox[0], "venue-1", START)
        for change in (accepted, sending, sent):
            await self.commit(change)
        return sent.orders[0]

    async def state(self, order: Order) -> OrderState:
        return (await self.journal.load([order.order_id]))[order.order_id]

    async def hear(self, *reports: ExecutionReport) -> None:
        self.venue.told += reports
        await self.recorder.run_once()

    async def swept(self) -> int:
        self.clock.advance(GRACE)
        return await self.sweeper.run_once()

    async def held(self) -> Decimal:
        found = (await self.journal.load_positions([KEY])).get(KEY)
        return ZERO if found is None else found.qty

    def counted(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0


@pytest.fixture
async def desk(database: Database) -> AsyncIterator[Desk]:
    yield Desk(database)


def report(
    state: OrderState, exec_id: str, qty: str, total: str, status: ReportStatus = "PARTIALLY_FILLED"
) -> ExecutionReport:
    made = a_report(state, status, exec_id=exec_id, qty=Decimal(qty))
    return replace(made, filled_qty_total=Decimal(total), last_price=Decimal(150) if made.last_qty else None)


async def test_fills_that_no_report_told_of_are_applied_under_their_own_ids(desk: Desk) -> None:
    order = await desk.working()
    await desk.hear(report(await desk.state(order), "a", "10", "10"))
    desk.venue.show(order, "FILLED", "a:10", "b:20", "c:70")

    assert await desk.swept() == 2

    state = await desk.state(order)
    assert (state.order.status, state.order.filled_qty, await desk.held()) == ("FILLED", HUNDRED, HUNDRED)
    assert await desk.queries.executions(VENUE, ["a", "b", "c"]) == {"a", "b", "c"}
    assert desk.counted("venue_missed_reports_total") == 2
    await desk.hear(report(state, "c", "70", "100", "FILLED"), report(state, "b", "20", "30"))
    assert (await desk.state(order), await desk.held()) == (state, HUNDRED)
    assert desk.counted("venue_reports_total", result="duplicate") == 2


async def test_an_end_that_no_report_told_of_is_taken_from_the_venue_and_its_report_changes_nothing(desk: Desk) -> None:
    order = await desk.working()
    cancel = request_cancel(await desk.state(order), START)
    assert cancel is not None
    await desk.commit(cancel)
    desk.venue.show(order, "CANCELED", "a:10")

    assert await desk.swept() == 2

    state = await desk.state(order)
    assert (state.order.status, state.order.filled_qty, await desk.held()) == ("CANCELED", TEN, TEN)
    assert state.row("cancel", 1).status == "dead"
    await desk.hear(report(state, "b", "0", "10", "CANCELED"), report(state, "a", "10", "10"))
    assert (await desk.state(order), await desk.held()) == (state, TEN)


@pytest.mark.parametrize("status", ["REJECTED", "EXPIRED"])
async def test_any_other_end_is_taken_as_well(desk: Desk, status: ReportStatus) -> None:
    order = await desk.working()
    desk.venue.show(order, status)
    assert await desk.swept() == 1
    assert (await desk.state(order)).order.status == status
    assert await desk.swept() == 0


async def test_what_agrees_or_was_touched_a_moment_ago_is_not_asked_for(desk: Desk) -> None:
    assert await desk.swept() == 0
    agreeing, fresh = await desk.working(), await desk.working()
    desk.venue.show(agreeing, "WORKING")
    assert await desk.swept() == 0
    assert desk.venue.asked == [fresh.venue_client_order_id]
    desk.venue.asked.clear()
    cancel = request_cancel(await desk.state(fresh), desk.clock.now())
    assert cancel is not None
    await desk.commit(cancel)
    assert await desk.sweeper.run_once() == 0
    assert desk.venue.asked == []


async def test_a_venue_that_cannot_be_asked_changes_nothing(desk: Desk) -> None:
    order = await desk.working()
    desk.venue.show(order, "FILLED", "a:100")
    desk.venue.can_be_asked = False
    assert await desk.swept() == 0
    assert (await desk.state(order)).order == order
    desk.venue.can_be_asked = True
    assert await desk.swept() == 1


async def test_a_total_beyond_the_fills_shown_is_never_guessed_and_holds_back_the_end(desk: Desk) -> None:
    order = await desk.working()
    desk.venue.show(order, "CANCELED", "a:10", filled_qty="30")

    assert await desk.swept() == 1
    assert await desk.swept() == 0

    state = await desk.state(order)
    assert (state.order.status, state.order.filled_qty) == ("PARTIALLY_FILLED", TEN)
    assert desk.counted("venue_quantity_gaps_total") == 1
    desk.venue.show(order, "CANCELED", "a:10", "b:20")
    assert await desk.swept() == 2
    assert (await desk.state(order)).order.status == "CANCELED"
    assert await desk.held() == 30


@pytest.mark.parametrize("fills", [("a:10",), ("x:20", "y:20")], ids=["less than ours", "ours under other ids"])
async def test_what_would_bring_us_beyond_the_venues_total_is_left_alone(desk: Desk, fills: tuple[str, ...]) -> None:
    order = await desk.working()
    await desk.hear(report(await desk.state(order), "a", "20", "20"), report(await desk.state(order), "b", "20", "40"))
    before = await desk.state(order)
    desk.venue.show(order, "WORKING", *fills, filled_qty="10" if len(fills) == 1 else "50")

    assert await desk.swept() == 0

    assert (await desk.state(order), await desk.held()) == (before, Decimal(40))
    assert desk.counted("venue_quantity_gaps_total") == 1


async def test_a_venue_that_says_filled_and_shows_less_is_an_alarm(desk: Desk) -> None:
    order = await desk.working()
    desk.venue.show(order, "FILLED", "a:60")
    assert await desk.swept() == 1
    assert (await desk.state(order)).order.status == "PARTIALLY_FILLED"
    assert desk.counted("venue_quantity_gaps_total") == 1


async def test_an_order_that_the_venue_does_not_know_any_more_is_an_alarm_and_stays_as_it_is(desk: Desk) -> None:
    order = await desk.working()
    assert [await desk.swept() for _ in range(4)] == [0] * 4
    assert (await desk.state(order)).order == order
    assert desk.counted("venue_orders_missing_total") == 1


async def test_an_order_whose_cancel_overtook_it_is_not_missed(desk: Desk) -> None:
    accepted = an_accept()
    sending = begin_attempt(state_after(accepted), accepted.outbox[0], WORKER, START)
    cancel = request_cancel(state_after(accepted, sending), START)
    assert cancel is not None
    for change in (accepted, sending, cancel):
        await desk.commit(change)
    assert [await desk.swept() for _ in range(3)] == [0] * 3
    assert desk.counted("venue_orders_missing_total") == 0


async def test_a_report_that_tells_of_more_than_we_heard_is_followed_up_at_once(desk: Desk) -> None:
    order = await desk.working()
    desk.venue.show(order, "PARTIALLY_FILLED", "a:10", "b:20")
    await desk.hear(report(await desk.state(order), "b", "20", "30"))
    assert await desk.sweeper.ask_behind_once() == 1
    assert (await desk.state(order)).order.filled_qty == 30
    assert await desk.held() == 30
    assert not desk.recorder.behind


async def test_an_order_that_ended_short_of_its_own_total_is_followed_up_too(desk: Desk) -> None:
    order = await desk.working()
    desk.venue.show(order, "CANCELED", "a:10")
    await desk.hear(report(await desk.state(order), "b", "0", "10", "CANCELED"))
    assert (await desk.state(order)).order.status == "CANCELED"
    assert await desk.sweeper.ask_behind_once() == 1
    assert ((await desk.state(order)).order.filled_qty, await desk.held()) == (TEN, TEN)


async def test_an_overtaken_report_needs_no_question(desk: Desk) -> None:
    order = await desk.working()
    state = await desk.state(order)
    await desk.hear(report(state, "b", "20", "30"), report(state, "a", "10", "10"))
    assert await desk.sweeper.ask_behind_once() == 0
    assert desk.venue.asked == []


async def test_a_shortfall_that_the_venue_cannot_explain_is_asked_for_once_between_two_sweeps(desk: Desk) -> None:
    order = await desk.working()
    desk.venue.show(order, "PARTIALLY_FILLED", "b:20", filled_qty="30")
    await desk.hear(report(await desk.state(order), "b", "20", "30"))
    for _ in range(3):
        assert await desk.sweeper.ask_behind_once() == 0
    assert desk.venue.asked == [order.venue_client_order_id]
    assert desk.counted("venue_quantity_gaps_total") == 1
    await desk.swept()
    await desk.sweeper.ask_behind_once()
    assert desk.venue.asked == [order.venue_client_order_id] * 3
    assert desk.counted("venue_quantity_gaps_total") == 1


async def test_two_sweepers_at_once_count_everything_once(desk: Desk) -> None:
    orders = [await desk.working() for _ in range(5)]
    for number, order in enumerate(orders):
        desk.venue.show(order, "CANCELED", f"{number}-a:10", f"{number}-b:20")
    desk.clock.advance(GRACE)

    await asyncio.gather(*(desk.a_sweeper().run_once() for _ in range(3)))

    assert {(await desk.state(order)).order.status for order in orders} == {"CANCELED"}
    assert await desk.held() == 150
    assert desk.counted("venue_missed_reports_total") == 15
    assert desk.counted("venue_quantity_gaps_total") == 0


async def test_every_page_is_swept(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "PAGE", 2)
    for number in range(5):
        desk.venue.show(await desk.working(), "FILLED", f"{number}:100")
    assert await desk.swept() == 5
    assert await desk.held() == 500


async def test_equal_ids_of_two_orders_are_two_fills_where_the_venue_says_so(desk: Desk) -> None:
    desk.venue.execution_ids = "order"
    orders = [await desk.working(), await desk.working()]
    await desk.hear(report(await desk.state(orders[0]), "1", "10", "10"))
    for order in orders:
        desk.venue.show(order, "PARTIALLY_FILLED", "1:10")
    assert await desk.swept() == 1
    assert await desk.held() == 20
