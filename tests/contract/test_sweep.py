"""The sweep over real databases: executions without a report are found by lookups, counted once, never guessed."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal

import pytest
from msgspec.structs import replace

from switchyard.domain.decisions import begin_attempt, record_doubt, record_sent, request_cancel
from switchyard.domain.journal.lines import data_of, decode_report_fact
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OrderState
from switchyard.domain.orders.reports import ReportStatus
from switchyard.domain.values import ZERO
from switchyard.flow.executions import sync
from switchyard.flow.executions.record import GAP_SECONDS, GapWatch
from switchyard.flow.executions.sync import CANCEL_SECONDS, CANCELS_MAX, GRACE, LAG
from tests.support.build import VENUE, WORKER, a_report, an_accept, state_after
from tests.support.databases import Database
from tests.support.memory.clock import START
from tests.support.sweeping import Sweeping, report

TEN, HUNDRED = Decimal(10), Decimal(100)


@pytest.fixture
async def sweeping(database: Database) -> AsyncIterator[Sweeping]:
    yield Sweeping(database)


async def test_fills_without_a_report_are_applied_under_their_own_ids(sweeping: Sweeping) -> None:
    order = await sweeping.working()
    await sweeping.receive(report(await sweeping.state(order), "a", "10", "10"))
    sweeping.venue.show(order, "FILLED", "a:10", "b:20", "c:70")

    assert await sweeping.swept() == 2

    state = await sweeping.state(order)
    assert (state.order.status, state.order.filled_qty, await sweeping.held()) == ("FILLED", HUNDRED, HUNDRED)
    assert (await sweeping.queries.executions(VENUE, ["a", "b", "c"])).keys() == {"a", "b", "c"}
    assert sweeping.counted("venue_missed_reports_total") == 2
    await sweeping.receive(report(state, "c", "70", "100", "FILLED"), report(state, "b", "20", "30"))
    assert (await sweeping.state(order), await sweeping.held()) == (state, HUNDRED)
    assert sweeping.counted("venue_reports_total", result="duplicate") == 2


async def test_a_fill_without_a_report_keeps_its_fee(sweeping: Sweeping) -> None:
    order = await sweeping.working()
    sweeping.venue.show(order, "FILLED", "a:100")
    found = sweeping.venue.shown[order.venue_client_order_id]
    charged = tuple(replace(fill, fee=Decimal("1.5"), fee_currency="JPY", exec_type="FILL") for fill in found.fills)
    sweeping.venue.shown[order.venue_client_order_id] = replace(found, fills=charged)

    assert await sweeping.swept() == 1

    [event] = [one for one in await sweeping.journal.read(0, 0, 100) if one.type == "ExecutionReport"]
    fact = decode_report_fact(data_of(event))
    assert (fact.fee, fact.fee_currency, fact.exec_type, fact.ref_exec_id) == (Decimal("1.5"), "JPY", "FILL", None)


async def test_a_bust_in_a_lookup_is_not_taken_for_a_fill(sweeping: Sweeping) -> None:
    order = await sweeping.working()
    await sweeping.receive(report(await sweeping.state(order), "a", "60", "60"))
    sweeping.venue.show(order, "WORKING", "a:60", "bust:60", filled_qty="0")
    found = sweeping.venue.shown[order.venue_client_order_id]
    bust = replace(found.fills[1], exec_type="CANCEL", ref_exec_id="a")
    sweeping.venue.shown[order.venue_client_order_id] = replace(found, fills=(found.fills[0], bust))

    assert await sweeping.swept() == 0

    assert ((await sweeping.state(order)).order.filled_qty, await sweeping.held()) == (Decimal(60), Decimal(60))
    assert sweeping.counted("venue_quantity_gaps_total") == 1


async def test_an_end_without_a_report_is_taken_from_the_venue_and_a_later_report_changes_nothing(
    sweeping: Sweeping,
) -> None:
    order = await sweeping.working()
    cancel = request_cancel(await sweeping.state(order), START)
    assert cancel is not None
    await sweeping.commit(cancel)
    sweeping.venue.show(order, "CANCELED", "a:10")

    assert await sweeping.swept() == 2

    state = await sweeping.state(order)
    assert (state.order.status, state.order.filled_qty, await sweeping.held()) == ("CANCELED", TEN, TEN)
    assert state.row("cancel", 1).status == "dead"
    await sweeping.receive(report(state, "b", "0", "10", "CANCELED"), report(state, "a", "10", "10"))
    assert (await sweeping.state(order), await sweeping.held()) == (state, TEN)


@pytest.mark.parametrize("status", ["REJECTED", "EXPIRED"])
async def test_other_ends_are_taken_from_the_venue_as_well(sweeping: Sweeping, status: ReportStatus) -> None:
    order = await sweeping.working()
    sweeping.venue.show(order, status)
    assert await sweeping.swept() == 1
    assert (await sweeping.state(order)).order.status == status
    assert await sweeping.swept() == 0


async def test_an_order_that_agrees_or_changed_a_moment_ago_is_not_looked_up(sweeping: Sweeping) -> None:
    assert await sweeping.swept() == 0
    agreeing, fresh = await sweeping.working(), await sweeping.working()
    sweeping.venue.show(agreeing, "WORKING")
    assert await sweeping.swept() == 0
    assert sweeping.venue.asked == [fresh.venue_client_order_id]
    sweeping.venue.asked.clear()
    cancel = request_cancel(await sweeping.state(fresh), sweeping.clock.now())
    assert cancel is not None
    await sweeping.commit(cancel)
    assert await sweeping.sweeper.run_once() == 0
    assert sweeping.venue.asked == []


async def test_a_venue_that_cannot_be_asked_changes_nothing(sweeping: Sweeping) -> None:
    order = await sweeping.working()
    sweeping.venue.show(order, "FILLED", "a:100")
    sweeping.venue.can_be_asked = False
    assert await sweeping.swept() == 0
    assert (await sweeping.state(order)).order == order
    sweeping.venue.can_be_asked = True
    assert await sweeping.swept() == 1


async def test_a_total_beyond_the_fills_shown_is_never_guessed_and_holds_back_the_end(sweeping: Sweeping) -> None:
    order = await sweeping.working()
    sweeping.venue.show(order, "CANCELED", "a:10", filled_qty="30")

    assert await sweeping.swept() == 1
    assert await sweeping.swept() == 0

    state = await sweeping.state(order)
    assert (state.order.status, state.order.filled_qty) == ("PARTIALLY_FILLED", TEN)
    assert sweeping.counted("venue_quantity_gaps_total") == 1
    sweeping.venue.show(order, "CANCELED", "a:10", "b:20")
    assert await sweeping.swept() == 2
    assert (await sweeping.state(order)).order.status == "CANCELED"
    assert await sweeping.held() == 30


@pytest.mark.parametrize("fills", [("a:10",), ("x:20", "y:20")], ids=["less than ours", "ours under other ids"])
async def test_fills_that_would_exceed_the_venues_total_are_not_applied(
    sweeping: Sweeping, fills: tuple[str, ...]
) -> None:
    order = await sweeping.working()
    await sweeping.receive(
        report(await sweeping.state(order), "a", "20", "20"), report(await sweeping.state(order), "b", "20", "40")
    )
    before = await sweeping.state(order)
    sweeping.venue.show(order, "WORKING", *fills, filled_qty="10" if len(fills) == 1 else "50")

    assert await sweeping.swept() == 0

    assert (await sweeping.state(order), await sweeping.held()) == (before, Decimal(40))
    assert sweeping.counted("venue_quantity_gaps_total") == 1


async def test_a_filled_order_with_too_few_fills_raises_an_alarm(sweeping: Sweeping) -> None:
    order = await sweeping.working()
    sweeping.venue.show(order, "FILLED", "a:60")
    assert await sweeping.swept() == 1
    assert (await sweeping.state(order)).order.status == "PARTIALLY_FILLED"
    assert sweeping.counted("venue_quantity_gaps_total") == 1


async def test_an_order_that_is_missing_at_the_venue_raises_an_alarm_and_stays_unchanged(sweeping: Sweeping) -> None:
    order = await sweeping.working()
    assert [await sweeping.swept() for _ in range(4)] == [0] * 4
    assert (await sweeping.state(order)).order == order
    assert sweeping.counted("venue_orders_missing_total") == 1


async def test_an_order_that_ended_here_and_is_open_at_the_venue_raises_an_alarm_until_it_is_gone(
    sweeping: Sweeping,
) -> None:
    order = await sweeping.working()
    sweeping.venue.reported = [a_report(await sweeping.state(order), "CANCELED", qty=ZERO)]
    await sweeping.recorder.run_once()
    sweeping.venue.show(order, "WORKING")
    gate = sweeping.recorder.gate
    gate.open()
    await sweeping.sweeper.run_once()
    assert gate.problem is None, "the venue's list may lag behind its reports"

    sweeping.clock.advance(LAG)
    for _ in range(2):
        await sweeping.sweeper.run_once()
    assert gate.problem is not None
    assert order.order_id in gate.problem.reason
    assert sweeping.counted("venue_ended_orders_open_total", venue=VENUE) == 1

    sweeping.venue.shown.clear()
    await sweeping.sweeper.run_once()
    assert gate.problem is None


async def test_an_order_that_is_not_sent_yet_is_not_missing(sweeping: Sweeping) -> None:
    accepted = an_accept()
    sending = begin_attempt(state_after(accepted), accepted.outbox[0], WORKER, START)
    cancel = request_cancel(state_after(accepted, sending), START)
    assert cancel is not None
    for change in (accepted, sending, cancel):
        await sweeping.commit(change)
    assert [await sweeping.swept() for _ in range(3)] == [0] * 3
    assert sweeping.counted("venue_orders_missing_total") == 0


async def test_a_report_with_a_higher_total_is_followed_by_a_lookup_at_once(sweeping: Sweeping) -> None:
    order = await sweeping.working()
    sweeping.venue.show(order, "PARTIALLY_FILLED", "a:10", "b:20")
    await sweeping.receive(report(await sweeping.state(order), "b", "20", "30"))
    assert await sweeping.sweeper.ask_behind_once() == 1
    assert (await sweeping.state(order)).order.filled_qty == 30
    assert await sweeping.held() == 30
    assert not sweeping.recorder.behind


async def test_an_ended_order_with_a_higher_total_is_looked_up_too(sweeping: Sweeping) -> None:
    order = await sweeping.working()
    sweeping.venue.show(order, "CANCELED", "a:10")
    await sweeping.receive(report(await sweeping.state(order), "b", "0", "10", "CANCELED"))
    assert (await sweeping.state(order)).order.status == "CANCELED"
    assert await sweeping.sweeper.ask_behind_once() == 1
    assert ((await sweeping.state(order)).order.filled_qty, await sweeping.held()) == (TEN, TEN)


async def test_reports_out_of_order_need_no_lookup(sweeping: Sweeping) -> None:
    order = await sweeping.working()
    state = await sweeping.state(order)
    await sweeping.receive(report(state, "b", "20", "30"), report(state, "a", "10", "10"))
    assert await sweeping.sweeper.ask_behind_once() == 0
    assert sweeping.venue.asked == []


async def test_an_unexplained_total_is_looked_up_once_between_two_sweeps(sweeping: Sweeping) -> None:
    order = await sweeping.working()
    sweeping.venue.show(order, "PARTIALLY_FILLED", "b:20", filled_qty="30")
    await sweeping.receive(report(await sweeping.state(order), "b", "20", "30"))
    for _ in range(3):
        assert await sweeping.sweeper.ask_behind_once() == 0
    assert sweeping.venue.asked == [order.venue_client_order_id]
    assert sweeping.counted("venue_quantity_gaps_total") == 1
    await sweeping.swept()
    await sweeping.sweeper.ask_behind_once()
    assert sweeping.venue.asked == [order.venue_client_order_id] * 3
    assert sweeping.counted("venue_quantity_gaps_total") == 1


async def test_two_sweepers_at_once_count_everything_once(sweeping: Sweeping) -> None:
    orders = [await sweeping.working() for _ in range(5)]
    for number, order in enumerate(orders):
        sweeping.venue.show(order, "CANCELED", f"{number}-a:10", f"{number}-b:20")
    sweeping.clock.advance(GRACE)

    await asyncio.gather(*(sweeping.a_sweeper().run_once() for _ in range(3)))

    assert {(await sweeping.state(order)).order.status for order in orders} == {"CANCELED"}
    assert await sweeping.held() == 150
    assert sweeping.counted("venue_missed_reports_total") == 15
    assert sweeping.counted("venue_quantity_gaps_total") == 0


async def test_every_page_is_swept(sweeping: Sweeping, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "PAGE", 2)
    for number in range(5):
        sweeping.venue.show(await sweeping.working(), "FILLED", f"{number}:100")
    assert await sweeping.swept() == 5
    assert await sweeping.held() == 500


async def test_equal_ids_of_two_orders_are_two_fills_where_the_venue_says_so(sweeping: Sweeping) -> None:
    sweeping.venue.execution_ids = "order"
    orders = [await sweeping.working(), await sweeping.working()]
    await sweeping.receive(report(await sweeping.state(orders[0]), "1", "10", "10"))
    for order in orders:
        sweeping.venue.show(order, "PARTIALLY_FILLED", "1:10")
    assert await sweeping.swept() == 1
    assert await sweeping.held() == 20


async def canceled_but_open(sweeping: Sweeping) -> Order:
    """An order whose cancel the venue acknowledged, and that the venue still shows open."""
    order = await sweeping.working()
    sweeping.venue.show(order, "WORKING")
    cancel = request_cancel(await sweeping.state(order), START)
    assert cancel is not None
    await sweeping.commit(cancel)
    await acknowledge_cancels(sweeping, order)
    return order


async def acknowledge_cancels(sweeping: Sweeping, order: Order) -> None:
    state = await sweeping.state(order)
    for row in state.outbox:
        if row.kind == "cancel" and row.status == "queued":
            sending = begin_attempt(state, row, WORKER, START)
            await sweeping.commit(sending)
            await sweeping.commit(record_sent(await sweeping.state(order), sending.outbox[0], None, START))


def cancel_count(state: OrderState) -> int:
    return sum(row.kind == "cancel" for row in state.outbox)


async def test_a_cancel_that_is_acknowledged_and_not_carried_out_is_sent_again(sweeping: Sweeping) -> None:
    order = await canceled_but_open(sweeping)
    await sweeping.swept()
    await sweeping.swept()
    assert cancel_count(await sweeping.state(order)) == 1, "the venue gets some seconds to carry it out"
    sweeping.clock.advance(timedelta(seconds=CANCEL_SECONDS))
    await asyncio.gather(sweeping.swept(), sweeping.a_sweeper().run_once())
    state = await sweeping.state(order)
    assert (cancel_count(state), state.row("cancel", 2).status, state.order.status) == (2, "queued", "CANCEL_REQUESTED")
    assert sweeping.counted("venue_cancels_repeated_total") == 1
    await sweeping.swept()
    assert cancel_count(await sweeping.state(order)) == 2, "that one is not acknowledged yet"


async def test_a_cancel_of_an_order_in_doubt_is_sent_again_as_well(sweeping: Sweeping) -> None:
    accepted = an_accept(qty=HUNDRED)
    order = accepted.orders[0]
    sending = begin_attempt(state_after(accepted), accepted.outbox[0], WORKER, START)
    doubt = record_doubt(state_after(accepted, sending), sending.outbox[0], "NETWORK_TIMEOUT", None, START)
    cancel = request_cancel(state_after(accepted, sending, doubt), START)
    assert cancel is not None
    for change in (accepted, sending, doubt, cancel):
        await sweeping.commit(change)
    state = await sweeping.state(order)
    await sweeping.commit(record_sent(state, state.row("new", 1), "venue-1", START))
    await acknowledge_cancels(sweeping, order)
    sweeping.venue.show(order, "WORKING")

    await sweeping.swept()
    sweeping.clock.advance(timedelta(seconds=CANCEL_SECONDS))
    await sweeping.swept()

    assert sweeping.counted("venue_cancels_repeated_total") == 1


async def test_after_a_few_ignored_cancels_an_alarm_is_raised_once(sweeping: Sweeping) -> None:
    order = await canceled_but_open(sweeping)
    for _ in range(3 * CANCELS_MAX):
        await acknowledge_cancels(sweeping, order)
        await sweeping.swept()
        sweeping.clock.advance(timedelta(seconds=CANCEL_SECONDS))
    assert cancel_count(await sweeping.state(order)) == CANCELS_MAX
    assert sweeping.counted("venue_cancels_ignored_total") == 1


async def test_a_cancel_that_was_carried_out_is_not_repeated(sweeping: Sweeping) -> None:
    order = await canceled_but_open(sweeping)
    await sweeping.swept()
    sweeping.venue.show(order, "CANCELED")
    sweeping.clock.advance(timedelta(seconds=CANCEL_SECONDS))
    await sweeping.swept()
    state = await sweeping.state(order)
    assert (state.order.status, cancel_count(state)) == ("CANCELED", 1)


async def test_a_total_beyond_our_fills_raises_an_alarm_where_the_venue_cannot_be_asked(sweeping: Sweeping) -> None:
    order, late = await sweeping.working(), await sweeping.working()
    watch = GapWatch(VENUE, sweeping.recorder, clock=sweeping.clock, metrics=sweeping.metrics)
    await sweeping.receive(report(await sweeping.state(order), "b", "20", "30"))
    await sweeping.receive(report(await sweeping.state(late), "d", "20", "30"))
    assert watch.run_once() == 0, "the missing report may follow"
    await sweeping.receive(report(await sweeping.state(late), "c", "10", "10"))
    sweeping.clock.advance(timedelta(seconds=GAP_SECONDS))
    assert [watch.run_once(), watch.run_once()] == [1, 0]
    assert sweeping.counted("venue_quantity_gaps_total") == 1
