"""The recorder over every database: each fill counts once, after crashes, repeats and conflicts too."""

from collections import Counter
from collections.abc import AsyncIterator
from decimal import Decimal

import pytest
from msgspec.structs import replace

from switchyard.domain.accounts.positions import ACCOUNT_TOTAL
from switchyard.domain.decisions import (
    apply_report,
    begin_attempt,
    record_rejected,
    record_sent,
    request_cancel,
    reroute,
)
from switchyard.domain.errors import JournalUnavailable
from switchyard.domain.ids import AccountId, VenueName
from switchyard.domain.journal.lines import parse_line
from switchyard.domain.journal.replay import Replay
from switchyard.domain.orders.reports import ExecutionIdScope
from switchyard.ports.queries import UnfinishedFilter
from tests.support.build import ACCOUNT, VENUE, WORKER, a_report, an_accept, state_after
from tests.support.databases import Database
from tests.support.memory.clock import START
from tests.support.recording import RecorderHarness, ScriptedVenue, fills


@pytest.fixture
async def harness(database: Database) -> AsyncIterator[RecorderHarness]:
    yield RecorderHarness(database)


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
    with pytest.raises(JournalUnavailable):
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


@pytest.mark.parametrize(("scope", "reused"), [("venue", 2), ("symbol", 1), ("order", 0)])
async def test_an_execution_id_of_another_order_is_another_execution(
    harness: RecorderHarness, scope: ExecutionIdScope, reused: int
) -> None:
    first, second, other = await harness.orders(an_accept(), an_accept(), an_accept(symbol="EURUSD"))
    harness.venue.execution_ids = scope
    reports = [a_report(state, "PARTIALLY_FILLED", exec_id="7", qty=Decimal(10)) for state in (first, other, second)]
    harness.venue.script = [*reports, *reports]

    await harness.recorder.run_once()
    harness.start()
    harness.venue.script += reports
    await harness.recorder.run_once()

    for state in (first, second, other):
        assert (await harness.state(state)).order.filled_qty == 10
    positions = await harness.queries.positions(ACCOUNT, limit=10)
    assert sum(position.qty for position in positions) == 30
    assert (harness.report_count("applied"), harness.report_count("duplicate")) == (3, 6)
    assert harness.counted("venue_execution_ids_reused_total") == reused
    exec_ids = {"venue": "7", "symbol": "USDJPY:7", "order": f"{first.order.venue_client_order_id}:7"}
    recorded = await harness.queries.executions(VENUE, [exec_ids[scope], "never"])
    assert {exec_id: execution.order_id for exec_id, execution in recorded.items()} == {
        exec_ids[scope]: first.order.order_id
    }


async def test_equal_execution_ids_of_unknown_orders_are_distinguished(harness: RecorderHarness) -> None:
    unknown = [state_after(an_accept()), state_after(an_accept())]
    harness.venue.execution_ids = "symbol"
    harness.venue.script = [a_report(state, exec_id="7") for state in unknown] * 2

    await harness.recorder.run_once()

    assert harness.report_count("unmatched") == 2


async def test_a_report_on_an_order_of_another_venue_is_counted_and_changes_nothing(harness: RecorderHarness) -> None:
    [state] = await harness.orders(an_accept())
    harness.venue = ScriptedVenue(VenueName("second-name"))
    harness.start()
    harness.venue.script = [replace(report, venue=harness.venue.name) for report in fills([state, state], "10")]

    assert await harness.recorder.run_once() == 2

    assert (await harness.state(state)).order.filled_qty == 0
    assert (harness.report_count("other_venue"), harness.report_count("unmatched")) == (2, 0)
    assert [change.executions for change in harness.commits] == [()]


async def test_the_results_of_all_symbols_of_an_account_add_up_and_can_be_replayed(harness: RecorderHarness) -> None:
    """A loss, a gain and two losses in three symbols, closed in one page and in the next."""
    key = (ACCOUNT, ACCOUNT_TOTAL)
    for symbol, results in (("USDJPY", [-5]), ("EURUSD", [20]), ("USDJPY", [-3]), ("GBPUSD", [-1])):
        for result in results:
            states = await harness.orders(
                *[an_accept(symbol=symbol, side=side, qty=Decimal(1), price=Decimal(100)) for side in ("BUY", "SELL")]
            )
            opened, closed = fills(states, "1")
            harness.venue.script += [
                replace(opened, last_price=Decimal(100)),
                replace(closed, last_price=Decimal(100 + result)),
            ]
            await harness.recorder.run_once()
    total = (await harness.journal.load_positions([key]))[key]

    assert [total.realised_pnl, total.high_water_mark, total.consecutive_losses] == [11, 15, 2]
    assert [total.qty, total.version] == [0, 4]
    assert total.symbol not in {position.symbol for position in await harness.queries.positions(ACCOUNT, limit=10)}
    replay = Replay()
    for event in await harness.journal.read(0, 0, 1000):
        replay.apply(parse_line(event.line.encode() + b"\n"))
    assert replay.positions[key] == total


async def test_a_report_of_a_venue_that_the_order_left_is_set_aside_with_an_alarm(harness: RecorderHarness) -> None:
    """The order was proven unsent there, so it went elsewhere: counting the fill could count it twice."""
    [left] = await harness.orders(an_accept())
    await harness.commit(reroute(left, VenueName("other"), "down", START))
    harness.venue.script = fills([left], "10") * 2

    await harness.recorder.run_once()

    assert (await harness.state(left)).order.filled_qty == 0
    assert harness.report_count("set_aside") == 1
    events = await harness.journal.read(0, 0, 10)
    [aside] = [event for event in events if event.type == "ReportSetAside"]
    assert "went to other because it was never sent here" in aside.text


async def test_a_report_on_an_order_that_another_worker_moved_here_is_applied(harness: RecorderHarness) -> None:
    [waiting] = await harness.orders(an_accept(venue=VenueName("other")))
    await harness.recorder._sequencer.states.load([waiting.order.order_id])  # as this worker's dispatcher does
    await harness.commit(reroute(waiting, VENUE, "down", START))
    harness.venue.script = fills([await harness.state(waiting)], "10")

    await harness.recorder.run_once()

    assert (await harness.state(waiting)).order.filled_qty == 10


async def test_an_order_that_was_rejected_is_open_again_on_every_engine_when_a_part_fill_is_reported(
    harness: RecorderHarness, database: Database
) -> None:
    """The answer to the send was 403, and the venue had taken the order all the same."""
    [state] = await harness.orders(an_accept(qty=Decimal(100)))
    order_id = state.order.order_id
    await harness.commit(begin_attempt(state, state.row("new", 1), WORKER, START))
    state = (await harness.journal.load([order_id]))[order_id]
    await harness.commit(record_rejected(state, state.row("new", 1), "UNAUTHORIZED", START))
    wanted = UnfinishedFilter(account_id=ACCOUNT)
    assert await database.accounts.unfinished_orders(wanted) == []

    harness.start()
    harness.venue.script = [a_report(state, "PARTIALLY_FILLED", exec_id="e-1", qty=Decimal(40))]
    await harness.recorder.run_once()

    [order] = await database.accounts.unfinished_orders(wanted)
    assert [order.order_id, order.status, order.filled_qty] == [order_id, "PARTIALLY_FILLED", 40]
    assert harness.metrics.registry.get_sample_value("venue_contradictions_total", {"venue": VENUE}) == 1

    harness.venue.script.append(a_report(state, "FILLED", exec_id="e-2", qty=Decimal(60)))
    await harness.recorder.run_once()
    assert await database.accounts.unfinished_orders(wanted) == []
    assert (await harness.position()).qty == 100
