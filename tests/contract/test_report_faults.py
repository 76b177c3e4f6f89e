"""The recorder and the synchronisation at a venue that fails: an error is no answer, one bad report stops nothing."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from itertools import pairwise

import pytest
from msgspec.structs import replace

from switchyard.domain import decisions
from switchyard.domain.ids import VenueClientOrderId
from switchyard.domain.journal.changes import Change, Cursor
from switchyard.domain.orders.outbox import OrderState
from switchyard.domain.orders.reports import ExecType
from switchyard.domain.values import ZERO
from switchyard.flow.executions import record
from switchyard.flow.executions.sync import LAG, VenueSync
from switchyard.ports.venue import ReportPage, UnreadableReport, VenueOrder, VenueUnavailable
from tests.support.build import VENUE, a_report, an_accept, state_after
from tests.support.databases import Database
from tests.support.memory.clock import START, ManualClock
from tests.support.polling import until
from tests.support.recording import OUR_TAG, RecorderHarness, fills

TEN = Decimal(10)


@pytest.fixture
async def harness(database: Database) -> AsyncIterator[RecorderHarness]:
    yield RecorderHarness(database)


def sync_of(harness: RecorderHarness) -> VenueSync:
    return VenueSync(
        harness.venue,
        harness.recorder,
        journal=harness.journal,
        clock=ManualClock(),
        metrics=harness.metrics,
        gate=harness.gate,
    )


def shown(client_id: str) -> VenueOrder:
    return VenueOrder(
        venue_client_order_id=VenueClientOrderId(client_id), venue_order_id="v-9", status="WORKING", filled_qty=ZERO
    )


def assert_open(harness: RecorderHarness) -> None:
    assert harness.gate.is_open
    assert harness.gate.problem is None


async def is_reported_before(harness: RecorderHarness, client_id: str) -> bool:
    """Whether an order that is accepted now under this client order id counts as executed before."""
    await harness.commit(an_accept(client_id=client_id))
    [due] = [due for due in await harness.queries.due(START, 100) if due.row.venue_client_order_id == client_id]
    return due.reported_before


async def events(harness: RecorderHarness, kind: str) -> list[dict[str, object]]:
    lines = [json.loads(event.line) for event in await harness.journal.read(0, 0, 1_000)]
    return [line["data"] for line in lines if line["type"] == kind]


@pytest.mark.parametrize("fault", ["reports_down", "orders_down"])
async def test_a_venue_opens_only_after_a_complete_pass(harness: RecorderHarness, fault: str) -> None:
    lost = state_after(an_accept(client_id="lost-1"))
    harness.venue.script = [a_report(lost)]
    setattr(harness.venue, fault, True)
    for _ in range(3):
        assert not await sync_of(harness).run_once()
    assert not harness.gate.is_open
    assert harness.gate.problem is not None
    assert "HTTP 503" in harness.gate.problem.reason
    assert harness.counted("venue_state", venue=VENUE) == 0

    setattr(harness.venue, fault, False)
    assert await sync_of(harness).run_once()

    assert_open(harness)
    assert harness.counted("venue_state", venue=VENUE) == 1
    assert await is_reported_before(harness, "lost-1")


async def test_a_failed_read_of_reports_is_counted_shown_and_tried_again(
    harness: RecorderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "RETRY_SECONDS", 0.001)
    harness.gate.open()
    [state] = await harness.orders(an_accept())
    harness.venue.reports_down = True
    running = asyncio.create_task(harness.recorder.run())
    await until(lambda: harness.counted("venue_report_reads_failed_total", venue=VENUE) >= 3)
    assert harness.gate.problem is not None
    assert harness.gate.problem.is_open
    harness.venue.script = fills([state], "10")
    harness.venue.reports_down = False
    await until(lambda: harness.report_count("applied") == 1)
    assert harness.gate.problem is None
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_open_orders_that_are_unknown_here_are_filed(harness: RecorderHarness) -> None:
    [known] = await harness.orders(an_accept())
    harness.venue.shown = [shown("lost-1"), shown(known.order.venue_client_order_id), shown("lost-2")]
    for _ in range(2):
        assert await sync_of(harness).run_once()
    filed = await events(harness, "ReportUnmatched")
    assert [fact["venueClientOrderId"] for fact in filed] == ["lost-1", "lost-2"]
    assert await is_reported_before(harness, "lost-1")
    assert await is_reported_before(harness, "lost-2")
    assert not await is_reported_before(harness, "new-1")


async def test_an_order_that_was_not_sent_from_here_and_is_open_at_the_venue_is_not_sent(
    harness: RecorderHarness,
) -> None:
    [state] = await harness.orders(an_accept())
    assert not state.row("new", 1).attempt
    harness.venue.shown = [shown(state.order.venue_client_order_id)]
    for _ in range(2):
        assert await sync_of(harness).run_once()
    found = await harness.state(state)
    assert (found.order.status, found.order.venue_order_id, found.row("new", 1).status) == ("WORKING", "v-9", "sent")
    assert await harness.queries.due(START, 100) == []


@pytest.mark.parametrize("found_in", ["open orders", "reports"])
async def test_an_unknown_order_of_this_installation_closes_the_venue(harness: RecorderHarness, found_in: str) -> None:
    [known] = await harness.orders(an_accept())
    client_id = f"{OUR_TAG}-lost"
    if found_in == "reports":
        lost = state_after(an_accept(client_id=client_id))
        harness.venue.script = [a_report(lost, exec_id="x"), *fills([known], "10")]
    else:
        harness.venue.shown = [shown(client_id)]

    for _ in range(2):  # a new process comes to the same conclusion
        assert await sync_of(harness).run_once()
        assert (harness.gate.is_open, harness.gate.is_locked) == (False, True)
        assert harness.gate.problem is not None
        assert client_id in harness.gate.problem.reason
        harness.start()
    assert await is_reported_before(harness, client_id)
    if found_in == "reports":
        assert (await harness.state(known)).order.filled_qty == TEN, "reports are recorded while it is closed"


@pytest.mark.parametrize("found_in", ["open orders", "reports"])
async def test_after_a_declared_restore_such_an_order_is_a_stray(harness: RecorderHarness, found_in: str) -> None:
    await harness.commit(Change(cursors=(Cursor(name="restored", epoch=0, seq=0, hash="x"),)))
    client_id = f"{OUR_TAG}-lost"
    if found_in == "reports":
        harness.venue.script = [a_report(state_after(an_accept(client_id=client_id)), exec_id="x")]
    else:
        harness.venue.shown = [shown(client_id)]
    assert await sync_of(harness).run_once()
    assert harness.gate.is_open
    assert await is_reported_before(harness, client_id)


async def test_a_report_at_run_time_on_an_unknown_order_of_this_installation_closes_the_venue(
    harness: RecorderHarness,
) -> None:
    assert await sync_of(harness).run_once()
    assert harness.gate.is_open
    harness.venue.script = [a_report(state_after(an_accept(client_id=f"{OUR_TAG}-lost")))]
    await harness.recorder.run_once()
    assert harness.gate.is_locked
    harness.gate.open()
    assert not harness.gate.is_open


@pytest.mark.parametrize("bad", ["a\0b", "a\ud800b"], ids=["NUL", "surrogate"])
@pytest.mark.parametrize("field", ["exec_id", "venue_order_id", "venue_client_order_id", "ref_exec_id", "fee_currency"])
async def test_a_report_that_cannot_be_stored_is_set_aside_and_the_rest_is_applied(
    harness: RecorderHarness, field: str, bad: str
) -> None:
    states = await harness.orders(an_accept(), an_accept(), an_accept(symbol="EURUSD"))
    good = fills(states, "10")
    harness.venue.script = [good[0], replace(fills(states[:1], "5")[0], **{field: bad}), *good[1:]]

    for _ in range(2):
        await harness.recorder.run_once()
        harness.start()

    for state in states:
        assert (await harness.state(state)).order.filled_qty == TEN
    assert harness.report_count("set_aside") == 1
    assert harness.report_count("applied") == 3
    [fact] = await events(harness, "ReportSetAside")
    assert "a\\" in str(fact["text"])
    assert str(fact["text"]).isascii()
    assert await harness.recorder.run_once() == 0, "the cursor has passed it"


async def test_an_unstorable_report_on_an_unknown_order_still_marks_its_client_order_id(
    harness: RecorderHarness,
) -> None:
    harness.venue.script = [a_report(state_after(an_accept(client_id="lost-1")), exec_id="a\0b")]
    await harness.recorder.run_once()
    assert await is_reported_before(harness, "lost-1")


@pytest.mark.parametrize("exec_type", ["CORRECT", "CANCEL"])
async def test_a_correction_or_bust_of_an_execution_changes_the_position_and_not_the_order(
    harness: RecorderHarness, exec_type: ExecType
) -> None:
    [state] = await harness.orders(an_accept())
    [fill], [other] = fills([state], "10"), fills([state], "5")
    revision = replace(
        fill, exec_id="revision", exec_type=exec_type, ref_exec_id=fill.exec_id, status="CANCELED", last_qty=Decimal(7)
    )
    harness.venue.script = [revision, fill, other, revision]  # before its execution, and twice

    for _ in range(2):
        await harness.recorder.run_once()
        harness.start()

    order = (await harness.state(state)).order
    assert (order.status, order.filled_qty) == ("PARTIALLY_FILLED", Decimal(15))
    assert (await harness.position()).qty == Decimal(5 if exec_type == "CANCEL" else 12)
    assert (harness.report_count("applied"), harness.report_count("revised")) == (2, 1)
    [fact] = await events(harness, "ExecutionRevised")
    assert (fact["execType"], fact["refExecId"], fact["lastQty"]) == (exec_type, fill.exec_id, 7)


async def test_a_bust_that_names_no_execution_or_one_of_another_order_is_set_aside(harness: RecorderHarness) -> None:
    state, other = await harness.orders(an_accept(), an_accept())
    [fill], [foreign] = fills([state], "10"), fills([other], "10")
    harness.venue.script = [
        foreign,
        replace(fill, exec_id="bust-1", exec_type="CANCEL", ref_exec_id=foreign.exec_id),
        replace(fill, exec_id="bust-2", exec_type="CANCEL"),
    ]
    await harness.recorder.run_once()
    assert [fact["error"] for fact in await events(harness, "ReportSetAside")] == [
        f"CANCEL of the execution {foreign.exec_id}, which is one of another order",
        "CANCEL without refExecId",
    ]
    assert await events(harness, "ExecutionRevised") == []


async def test_a_correction_on_an_unknown_order_marks_its_client_order_id(harness: RecorderHarness) -> None:
    lost = a_report(state_after(an_accept(client_id="lost-1")))
    harness.venue.script = [replace(lost, exec_id="revision", exec_type="CORRECT", ref_exec_id=lost.exec_id)]
    await harness.recorder.run_once()
    assert await is_reported_before(harness, "lost-1")
    assert await events(harness, "ReportUnmatched") == []


@pytest.mark.parametrize("exec_type", [None, "FILL"])
async def test_the_fee_of_a_fill_is_in_its_event(harness: RecorderHarness, exec_type: ExecType | None) -> None:
    states = await harness.orders(an_accept(), an_accept())
    charged, plain = fills(states, "10")
    harness.venue.script = [replace(charged, fee=Decimal("-0.25"), fee_currency="USD", exec_type=exec_type), plain]
    await harness.recorder.run_once()
    assert [(await harness.state(state)).order.filled_qty for state in states] == [TEN, TEN]
    optional = {"fee", "feeCurrency", "execType", "refExecId"}
    shown = [{name: fact[name] for name in optional & fact.keys()} for fact in await events(harness, "ExecutionReport")]
    kind = {} if exec_type is None else {"execType": "FILL"}
    assert shown == [{"fee": -0.25, "feeCurrency": "USD", **kind}, {}]


async def test_an_unprintable_reason_keeps_no_fill_back(harness: RecorderHarness) -> None:
    [state] = await harness.orders(an_accept())
    harness.venue.script = [replace(report, reason="no\0way") for report in fills([state], "10")]
    await harness.recorder.run_once()
    assert (await harness.state(state)).order.filled_qty == TEN
    assert harness.report_count("set_aside") == 0


async def test_a_number_beyond_all_precision_is_set_aside(harness: RecorderHarness) -> None:
    states = await harness.orders(an_accept(), an_accept())
    harness.venue.script = [*fills(states[:1], "1e70"), *fills(states[:1], "1e-40"), *fills(states, "10")]
    await harness.recorder.run_once()
    assert (await harness.state(states[1])).order.filled_qty == TEN
    assert harness.report_count("set_aside") >= 1


async def test_an_unreadable_report_is_set_aside_and_the_page_is_applied(harness: RecorderHarness) -> None:
    [state] = await harness.orders(an_accept())
    harness.venue.script = fills([state], "10")
    harness.venue.unreadable = [UnreadableReport(text='{"exec_id": 5}', error="exec_id: expected str")]
    assert await harness.recorder.run_once() == 2
    assert (await harness.state(state)).order.filled_qty == TEN
    [fact] = await events(harness, "ReportSetAside")
    assert (fact["text"], fact["error"]) == ('report: {"exec_id": 5}', "exec_id: expected str")


async def test_report_numbers_that_start_again_are_followed_from_the_start(harness: RecorderHarness) -> None:
    states = await harness.orders(an_accept(), an_accept())
    harness.venue.script = fills(states, "10")
    assert await harness.recorder.run_once() == 2
    harness.venue.script = fills(states[:1], "1")
    harness.venue.restarted = True
    while await harness.recorder.run_once():
        pass
    assert (await harness.state(states[0])).order.filled_qty == 11
    assert harness.counted("venue_report_numbers_restarted_total", venue=VENUE) == 1
    harness.clock.advance(timedelta(seconds=record.CURSOR_SECONDS))
    assert await harness.recorder.run_once() == 0
    cursor = await harness.journal.cursor(f"venue:{VENUE}")
    assert cursor is not None
    assert (cursor.seq, cursor.hash) == (0, "1")


@pytest.mark.parametrize(("seq", "text"), [(1, ""), (0, "1")])
async def test_reports_are_read_on_from_the_stored_cursor_also_from_that_of_an_earlier_version(
    harness: RecorderHarness, seq: int, text: str
) -> None:
    states = await harness.orders(an_accept(), an_accept())
    await harness.commit(Change(cursors=(Cursor(name=f"venue:{VENUE}", epoch=0, seq=seq, hash=text),)))
    harness.venue.script = fills(states, "10")
    assert await harness.recorder.run_once() == 1
    assert [(await harness.state(state)).order.filled_qty for state in states] == [0, TEN]


async def test_an_execution_id_of_a_stray_is_not_taken_from_it(harness: RecorderHarness) -> None:
    """Otherwise the stray's client order id would be forgotten, and its key, if repeated, sent."""
    [known] = await harness.orders(an_accept())
    strays = [state_after(an_accept(client_id=f"lost-{number}")) for number in range(2)]
    reports = [a_report(state, exec_id="7", qty=TEN) for state in (strays[0], known, strays[1])]
    harness.venue.script = reports[:1]
    await harness.recorder.run_once()
    harness.venue.script = [*reports, *reports]
    await harness.recorder.run_once()
    assert (await harness.state(known)).order.filled_qty == TEN
    assert harness.report_count("unmatched") == 2
    assert await is_reported_before(harness, "lost-0")
    assert await is_reported_before(harness, "lost-1")


async def test_a_report_ends_the_doubt_about_its_order(harness: RecorderHarness) -> None:
    accepted = an_accept()
    [state] = await harness.orders(accepted)
    doubt = decisions.record_doubt(state, state.row("new", 1), "RESTORED", None, START)
    await harness.commit(doubt)
    harness.venue.script = fills([state], "10")
    await harness.recorder.run_once()
    settled: OrderState = await harness.state(state)
    assert (settled.order.status, settled.row("new", 1).status) == ("PARTIALLY_FILLED", "sent")
    assert harness.counted("orders_resolved_total", verdict="reported") == 1


async def test_a_contradiction_is_counted(harness: RecorderHarness) -> None:
    [state] = await harness.orders(an_accept())
    harness.venue.script = [*fills([state], "10"), *fills([state], "0", "REJECTED")]
    await harness.recorder.run_once()
    assert (await harness.state(state)).order.status == "CANCELED"
    assert harness.counted("venue_contradictions_total", venue=VENUE) == 1


async def test_an_error_of_the_venue_is_no_empty_page(harness: RecorderHarness) -> None:
    harness.venue.reports_down = True
    with pytest.raises(VenueUnavailable):
        await harness.recorder.run_once()


async def test_a_synchronisation_shows_an_order_that_ended_here_and_is_open_at_the_venue(
    harness: RecorderHarness,
) -> None:
    [state] = await harness.orders(an_accept(now=START - LAG))
    cancel = decisions.request_cancel(state, START - LAG)
    assert cancel is not None
    await harness.orders(cancel)
    harness.venue.shown = [shown(state.order.venue_client_order_id)]
    assert await sync_of(harness).run_once()
    assert harness.gate.problem is not None
    assert state.order.order_id in harness.gate.problem.reason
    assert harness.counted("venue_ended_orders_open_total", venue=VENUE) == 1


async def test_a_venue_that_answers_at_once_is_not_asked_without_a_pause(harness: RecorderHarness) -> None:
    loop, asked_at = asyncio.get_running_loop(), list[float]()
    enough = asyncio.Event()
    answer = harness.venue.reports

    async def reports(after: str | None, limit: int) -> ReportPage:
        asked_at.append(loop.time())
        if len(asked_at) == 4:
            enough.set()
        return await answer(after, limit)

    harness.venue.reports = reports  # type: ignore[method-assign]
    running = asyncio.create_task(harness.recorder.run())
    await enough.wait()
    running.cancel()
    pauses = [later - earlier for earlier, later in pairwise(asked_at)]
    assert min(pauses) >= record.EMPTY_SECONDS - 0.01, pauses
