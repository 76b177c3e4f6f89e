"""Amends that a restore has lost, over every database: their orders go on as they are at the venue."""

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from switchyard.adapters.system_clock import SystemRandomness
from switchyard.domain import decisions
from switchyard.domain.ids import VenueClientOrderId, VenueName
from switchyard.domain.journal.changes import Committed
from switchyard.domain.journal.lines import AuditLine
from switchyard.domain.journal.replay import Replay
from switchyard.domain.orders.amends import Amend, current_id, last_id, open_amend
from switchyard.domain.orders.keys import AMEND_ORDER
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import MayBeLost, OrderState, OutboxRow, never_lost
from switchyard.domain.orders.reports import ExecutionReport, ReportStatus
from switchyard.domain.risk.kills import Kill
from switchyard.flow.active_kills import ActiveKills
from switchyard.flow.clock import Wake
from switchyard.flow.commit.states import after as after_change
from switchyard.flow.executions.sync import StrayRecall
from switchyard.flow.lost_history import LostHistory
from switchyard.flow.sending.dispatch import Dispatcher
from switchyard.flow.sending.lanes import HeldLanes, WaitingLanes
from switchyard.flow.sending.lost_keys import LostKeys
from switchyard.flow.sending.resolve import Resolver, VenueWatch
from switchyard.flow.sending.sends import Send
from switchyard.ports.venue import Accepted, Lookup, SendOutcome, VenueAmend
from tests.support.build import VENUE, WORKER, an_accept, an_entry, state_after
from tests.support.databases import Database
from tests.support.memory.clock import START
from tests.support.sweeping import OUR_TAG, Sweeping, report

FIRST, SECOND = VenueClientOrderId(f"{OUR_TAG}-first"), VenueClientOrderId(f"{OUR_TAG}-second")
# Above every number that the tests give: all orders are of before the restore.
RESTORED_SEQ = 1_000_000_000


@pytest.fixture
async def sweeping(database: Database) -> AsyncIterator[Sweeping]:
    yield Sweeping(database, restored_seq=RESTORED_SEQ)


def an_amend(client_id: VenueClientOrderId, qty: int, *, replaces: bool = True) -> VenueAmend:
    return VenueAmend(client_order_id=client_id, replaces=replaces, qty=Decimal(qty), price=Decimal(149))


def show(
    sweeping: Sweeping, order: Order, status: ReportStatus, *fills: str, amends: tuple[VenueAmend, ...] = ()
) -> None:
    """Have the order at the venue as these amends have left it, and find it by every id."""
    sweeping.venue.show(order, status, *fills)
    shown = sweeping.venue.shown.pop(order.venue_client_order_id)
    legs = [order.venue_client_order_id, *(amend.client_order_id for amend in amends if amend.replaces)]
    for client_id in (order.venue_client_order_id, *(amend.client_order_id for amend in amends)):
        later = amends[legs.index(client_id) :] if client_id in legs else amends
        sweeping.venue.shown[client_id] = replace(
            shown,
            venue_client_order_id=legs[-1],
            venue_order_id="venue-2",
            qty=amends[-1].qty,
            price=amends[-1].price,
            amends=later,
        )


def of_leg(made: ExecutionReport, leg: VenueClientOrderId) -> ExecutionReport:
    return replace(made, venue_client_order_id=leg, venue_order_id=f"venue-of-{leg}")


def an_end(state: OrderState, exec_id: str = "end", status: ReportStatus = "CANCELED") -> ExecutionReport:
    return replace(report(state, exec_id, "0", "0", status), last_price=None, reason="REPLACED")


async def check_replay(sweeping: Sweeping, order: Order) -> None:
    """The journal's lines make the same order, rows and executions again."""
    replay, state = Replay(), await sweeping.state(order)
    for event in await sweeping.journal.read(0, 0, 1_000):
        replay.apply(msgspec.json.decode(event.line, type=AuditLine))
    assert replay.orders[order.order_id] == state.order
    assert [replay.outbox[row.key] for row in state.outbox] == list(state.outbox)
    for (venue, exec_id), execution in replay.executions.items():
        assert (await sweeping.queries.executions(venue, [exec_id]))[exec_id] == execution


async def test_an_end_is_applied_only_after_a_lookup_and_the_order_goes_on_as_its_successor(
    sweeping: Sweeping,
) -> None:
    order = await sweeping.working()
    state = await sweeping.state(order)
    show(sweeping, order, "PARTIALLY_FILLED", "a:30", amends=(an_amend(FIRST, 150),))
    sweeping.venue.can_be_asked = False
    await sweeping.receive(an_end(state))
    assert (await sweeping.state(order)).order == order
    assert sweeping.recorder.gate._waiting is not None

    await sweeping.recorder.run_once()
    assert (await sweeping.state(order)).order == order
    sweeping.venue.can_be_asked = True
    await sweeping.receive(of_leg(report(state, "a", "30", "30"), FIRST))

    after = (await sweeping.state(order)).order
    assert (after.status, int(after.qty), int(after.filled_qty)) == ("PARTIALLY_FILLED", 150, 30)
    assert (after.price, after.reserve_price, current_id(after)) == (Decimal(149), Decimal(149), FIRST)
    assert last_id(await sweeping.state(order)) == FIRST
    assert await sweeping.held() == 30
    assert sweeping.recorder.gate._waiting is None
    await sweeping.receive(of_leg(report(state, "b", "120", "150", "FILLED"), FIRST))
    assert ((await sweeping.state(order)).order.status, await sweeping.held()) == ("FILLED", 150)
    assert sweeping.counted("order_overfills_total") == 0
    await check_replay(sweeping, order)


@pytest.mark.parametrize("is_new", [False, True])
async def test_reports_that_came_before_the_lookup_are_applied_under_their_own_ids(
    sweeping: Sweeping, database: Database, is_new: bool
) -> None:
    order = await sweeping.working()
    state = await sweeping.state(order)
    fills = [of_leg(report(state, "a", "10", "10"), FIRST), of_leg(report(state, "b", "20", "30"), SECOND)]
    await sweeping.receive(*fills)  # filed: neither id is known
    show(
        sweeping,
        order,
        "CANCELED",
        "a:10",
        "b:20",
        amends=(an_amend(FIRST, 150), an_amend(SECOND, 200)),
    )
    await sweeping.receive(an_end(state))

    recorder = Sweeping(database, restored_seq=RESTORED_SEQ).recorder if is_new else sweeping.recorder
    recall = StrayRecall(sweeping.venue, recorder, queries=sweeping.queries)
    assert await recall.run_once() == 2
    order = (await sweeping.state(order)).order
    assert (order.status, int(order.qty), int(order.filled_qty)) == ("PARTIALLY_FILLED", 200, 30)
    assert await sweeping.swept() == 1  # the end of the last leg
    await sweeping.receive(*fills, of_leg(an_end(state, "end-2"), SECOND))
    after = (await sweeping.state(order)).order
    assert (after.status, int(after.filled_qty), int(await sweeping.held())) == ("CANCELED", 30, 30)
    recorded = await sweeping.queries.executions(VENUE, ["a", "b"])
    assert {execution.order_id for execution in recorded.values()} == {order.order_id}
    assert sweeping.counted("execution_ids_reused_total") == sweeping.counted("venue_quantity_gaps_total") == 0
    await check_replay(sweeping, order)


async def test_a_sweep_finds_the_successor_without_any_report(sweeping: Sweeping) -> None:
    order = await sweeping.working()
    show(sweeping, order, "FILLED", "a:60", amends=(an_amend(FIRST, 60),))
    assert await sweeping.swept() == 1
    after = (await sweeping.state(order)).order
    assert (after.status, int(after.qty), int(await sweeping.held())) == ("FILLED", 60, 60)
    await check_replay(sweeping, order)


@pytest.mark.parametrize("first", ["report", "sweep"])
async def test_an_amend_in_place_that_raised_the_quantity_keeps_the_order_open(sweeping: Sweeping, first: str) -> None:
    order = await sweeping.working()
    state = await sweeping.state(order)
    show(sweeping, order, "WORKING", amends=(an_amend(FIRST, 150, replaces=False),))
    if first == "sweep":
        await sweeping.swept()
        assert (await sweeping.state(order)).order.price == Decimal(149)
    await sweeping.receive(report(state, "a", "100", "100"))
    after = (await sweeping.state(order)).order
    assert (after.status, int(after.qty), current_id(after)) == (
        "PARTIALLY_FILLED",
        150,
        order.venue_client_order_id,
    )
    assert last_id(await sweeping.state(order)) == FIRST
    await sweeping.receive(report(state, "b", "50", "150", "FILLED"))
    assert (await sweeping.state(order)).order.status == "FILLED"
    assert (int(await sweeping.held()), int(sweeping.counted("order_overfills_total"))) == (150, 0)
    await check_replay(sweeping, order)


async def test_the_end_of_an_order_whose_key_is_repeated_during_a_lookup_needs_one_too(sweeping: Sweeping) -> None:
    """The page of reports was read before the order was there, and its lookups take a while."""
    other = await sweeping.working()
    sweeping.venue.show(other, "CANCELED")
    repeated = an_accept(qty=Decimal(100))
    order, state = repeated.orders[0], state_after(repeated)
    show(sweeping, order, "WORKING", amends=(an_amend(FIRST, 150),))
    sweeping.venue.on_lookup = lambda: sweeping.commit(repeated)
    await sweeping.receive(an_end(await sweeping.state(other)), an_end(state, "end-2"))

    assert (await sweeping.state(other)).order.status == "CANCELED"
    after = (await sweeping.state(order)).order
    assert (after.status, int(after.qty), current_id(after)) == ("WORKING", 150, FIRST)
    await check_replay(sweeping, order)


async def test_a_report_on_an_order_whose_key_is_repeated_during_a_lookup_takes_it_to_its_venue(
    database: Database,
) -> None:
    """Its route prefers another venue today; the lost history sent it to this one."""
    sweeping = Sweeping(database, restored_seq=RESTORED_SEQ, route=(VenueName("elsewhere"), VENUE))
    other = await sweeping.working()
    sweeping.venue.show(other, "CANCELED")
    repeated = an_accept(qty=Decimal(100), venue=VenueName("elsewhere"))
    order, state = repeated.orders[0], state_after(repeated)
    sweeping.venue.show(order, "PARTIALLY_FILLED", "a:30")
    sweeping.venue.on_lookup = lambda: sweeping.commit(repeated)
    fill = replace(report(state, "a", "30", "30"), venue=VENUE)
    await sweeping.receive(an_end(await sweeping.state(other)), fill)

    after = (await sweeping.state(order)).order
    assert (after.venue, after.status, int(after.filled_qty)) == (VENUE, "PARTIALLY_FILLED", 30)
    assert int(await sweeping.held()) == 30
    await check_replay(sweeping, order)


async def test_a_fill_of_the_known_quantity_needs_no_lookup(sweeping: Sweeping) -> None:
    order = await sweeping.working()
    await sweeping.receive(report(await sweeping.state(order), "a", "100", "100", "FILLED"))
    assert ((await sweeping.state(order)).order.status, sweeping.venue.asked) == ("FILLED", [])


async def test_an_order_of_after_the_restore_ends_without_a_lookup(database: Database) -> None:
    sweeping = Sweeping(database, restored_seq=1)
    order = await sweeping.working()
    await sweeping.receive(an_end(await sweeping.state(order)))
    assert ((await sweeping.state(order)).order.status, sweeping.venue.asked) == ("CANCELED", [])


@pytest.mark.parametrize("replaces", [True, False])
async def test_an_order_that_its_venue_recognised_may_have_an_amend_that_the_answer_did_not_show(
    database: Database, replaces: bool
) -> None:
    """Its key was repeated after the restore, and the venue answered as it had answered the lost order."""
    sweeping = Sweeping(database, restored_seq=1, may_be_amended=always)
    order = await sweeping.working()
    state = await sweeping.state(order)
    show(sweeping, order, "WORKING", amends=(an_amend(FIRST, 150, replaces=replaces),))
    await sweeping.receive(an_end(state) if replaces else report(state, "a", "100", "100"))
    after = (await sweeping.state(order)).order
    assert (after.status, int(after.qty)) == ("WORKING" if replaces else "PARTIALLY_FILLED", 150)
    await check_replay(sweeping, order)


async def test_an_end_that_a_lookup_contradicts_waits(sweeping: Sweeping) -> None:
    order = await sweeping.working()
    await sweeping.receive(an_end(await sweeping.state(order)))  # of an order that the venue does not show
    assert (await sweeping.state(order)).order.status == "WORKING"
    show(sweeping, order, "WORKING", amends=(an_amend(FIRST, 150),))
    await sweeping.receive()
    state = await sweeping.state(order)
    assert (state.order.status, int(state.order.qty)) == ("WORKING", 150)


async def test_the_amend_of_a_lost_order_whose_key_was_repeated_is_recorded(database: Database) -> None:
    sweeping = Sweeping(database, restored_seq=1)
    order = await sweeping.working()
    show(sweeping, order, "WORKING", amends=(an_amend(FIRST, 150),))
    await sweeping.swept()
    assert int((await sweeping.state(order)).order.qty) == 150
    await check_replay(sweeping, order)


@pytest.mark.parametrize("kept", ["ended", "replaced by another system"])
async def test_an_end_that_the_venue_confirms_is_applied(sweeping: Sweeping, kept: str) -> None:
    order = await sweeping.working()
    if kept == "ended":
        sweeping.venue.show(order, "CANCELED")
    else:
        show(sweeping, order, "WORKING", amends=(an_amend(VenueClientOrderId("of-a-person"), 150),))
    await sweeping.receive(an_end(await sweeping.state(order)))
    assert (await sweeping.state(order)).order.status == "CANCELED"
    assert sweeping.venue.asked == [order.venue_client_order_id]


async def test_a_kill_does_not_keep_a_lost_amend_out(sweeping: Sweeping) -> None:
    order = await sweeping.working()
    kill = Kill(kill_id=cast(Any, "kill_1"), set_by="ann", set_reason="drill", set_at=START, version=1)
    assert isinstance(await sweeping.commit(decisions.set_kill(kill)), Committed)
    show(sweeping, order, "WORKING", amends=(an_amend(FIRST, 150),))
    await sweeping.swept()
    assert int((await sweeping.state(order)).order.qty) == 150
    await check_replay(sweeping, order)


def always(_order: Order, _row: OutboxRow) -> bool:
    """The history that was lost may have sent everything."""
    return True


async def requested(
    sweeping: Sweeping,
    order: Order,
    *,
    by_lost_history: bool = False,
    client_id: VenueClientOrderId = FIRST,
    qty: int = 150,
    price: int = 149,
    replaces: bool = True,
    may_be_lost: MayBeLost = always,
) -> None:
    """Have an amend to 150 in the database: queued in the backup, or requested again after the restore."""
    state = await sweeping.state(order)
    amend = Amend(
        client_order_id=client_id,
        orig_client_order_id=last_id(state),
        qty=Decimal(qty),
        price=Decimal(price),
        reserve_price=Decimal(price),
        replaces=replaces,
        is_provable=True,
        operation=AMEND_ORDER,
        key=client_id,
    )
    key = replace(an_entry(client_id, order.order_id), operation=AMEND_ORDER)
    change = decisions.request_amend(state, amend, key, START, reducing=True, may_be_lost=may_be_lost)
    await sweeping.commit(change)
    if by_lost_history:
        state = await sweeping.state(order)
        await sweeping.commit(decisions.record_doubt(state, state.row("amend", 1), "RESTORED", None, START))


@pytest.mark.parametrize("by_lost_history", [True, False])
@pytest.mark.parametrize("can_be_asked", [True, False])
async def test_an_amend_that_was_queued_in_the_backup_or_is_repeated_is_the_one_at_the_venue(
    sweeping: Sweeping, by_lost_history: bool, can_be_asked: bool
) -> None:
    order = await sweeping.working()
    await requested(sweeping, order, by_lost_history=by_lost_history)
    state = await sweeping.state(order)
    show(sweeping, order, "PARTIALLY_FILLED", "a:30", amends=(an_amend(FIRST, 150),))
    sweeping.venue.can_be_asked = can_be_asked
    await sweeping.receive(an_end(state), of_leg(report(state, "a", "30", "30"), FIRST))
    sweeping.venue.can_be_asked = True
    await sweeping.recorder.run_once()
    await sweeping.swept()

    after = await sweeping.state(order)
    assert (after.order.status, int(after.order.qty), current_id(after.order)) == ("PARTIALLY_FILLED", 150, FIRST)
    assert [row.status for row in after.outbox] == ["sent", "sent"]
    assert (int(await sweeping.held()), after.order.amend_qty) == (30, None)
    await check_replay(sweeping, order)


async def test_an_amend_in_doubt_is_settled_by_a_later_one_of_the_lost_history(sweeping: Sweeping) -> None:
    order = await sweeping.working()
    await requested(sweeping, order, by_lost_history=True)
    show(sweeping, order, "WORKING", amends=(an_amend(SECOND, 120, replaces=False),))
    await sweeping.swept()
    after = await sweeping.state(order)
    assert [(row.venue_client_order_id, row.status) for row in after.outbox[1:]] == [(FIRST, "dead"), (SECOND, "sent")]
    assert (int(after.order.qty), after.order.amend_qty) == (120, None)
    await check_replay(sweeping, order)


async def test_an_order_that_was_queued_in_the_backup_is_the_one_that_was_sent_and_amended(sweeping: Sweeping) -> None:
    accepted = an_accept(qty=Decimal(100))
    await sweeping.commit(accepted)
    state = state_after(accepted)
    await sweeping.commit(decisions.record_doubt(state, state.row("new", 1), "RESTORED", None, START))
    show(sweeping, state.order, "WORKING", amends=(an_amend(FIRST, 150),))
    await sweeping.receive(an_end(state), of_leg(report(state, "a", "30", "30"), FIRST))
    after = (await sweeping.state(state.order)).order
    assert (after.status, int(after.qty), int(after.filled_qty)) == ("PARTIALLY_FILLED", 150, 30)
    await check_replay(sweeping, after)


async def resolved(sweeping: Sweeping, database: Database) -> int:
    """Ask about the rows in doubt, and again when 'absent' proves absence; returns how many were settled."""
    watch = VenueWatch(sweeping.venue, clock=sweeping.clock, metrics=sweeping.metrics)
    resolver = Resolver(
        watch,
        journal=sweeping.journal,
        queries=database.queries,
        liveness=database.liveness,
        commit=sweeping.commit,
        clock=sweeping.clock,
        metrics=sweeping.metrics,
        amends=sweeping.amends,
    )
    await watch.probe_once()
    settled = await resolver.run_once()
    for _ in range(30):
        sweeping.clock.advance(timedelta(seconds=1))
        await watch.probe_once()
    return settled + await resolver.run_once()


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_an_end_waits_while_an_amend_that_the_venue_shows_before_another_one_is_being_sent(
    sweeping: Sweeping, database: Database, elsewhere: bool
) -> None:
    order = await sweeping.working()
    await requested(sweeping, order)
    await sweeping.recorder._sequencer.states.load([order.order_id])
    state = await sweeping.state(order)
    show(sweeping, order, "PARTIALLY_FILLED", "a:30", amends=(an_amend(FIRST, 150), an_amend(SECOND, 200)))
    # Another process writes to the database alone: what this one has in memory is old then.
    commit = sweeping.commit if elsewhere else sweeping.recorder._sequencer.commit
    await commit(decisions.begin_attempt(state, state.row("amend", 1), WORKER, START))
    await sweeping.receive(an_end(state), of_leg(an_end(state, "end-2"), FIRST))
    assert sweeping.recorder.gate._waiting is not None

    state = await sweeping.state(order)
    await commit(decisions.record_sent(state, state.row("amend", 1), "venue-of-first", START))
    await sweeping.recorder.run_once()
    after = await sweeping.state(order)
    assert (after.order.status, int(after.order.qty), current_id(after.order)) == ("WORKING", 200, SECOND)
    assert sweeping.recorder.gate._waiting is None
    await sweeping.receive(of_leg(report(state, "a", "30", "30"), SECOND))
    assert ((await sweeping.state(order)).order.status, await sweeping.held()) == ("PARTIALLY_FILLED", 30)
    await check_replay(sweeping, order)


@pytest.mark.parametrize("shown", [{"price": Decimal(140)}, {"client_order_id": SECOND, "replaces": True}])
async def test_a_lost_amend_without_another_quantity_is_in_the_journal(
    sweeping: Sweeping, shown: dict[str, Any]
) -> None:
    order = await sweeping.working()
    amend = replace(VenueAmend(client_order_id=FIRST, replaces=False), **shown)
    show(sweeping, order, "WORKING", amends=(amend,))
    await sweeping.swept()
    assert last_id(await sweeping.state(order)) == amend.client_order_id
    await check_replay(sweeping, order)


async def test_the_resolver_records_the_amends_of_an_order_in_doubt_that_it_finds(
    sweeping: Sweeping, database: Database
) -> None:
    accepted = an_accept(qty=Decimal(100))
    await sweeping.commit(accepted)
    state = state_after(accepted)
    await sweeping.commit(decisions.record_doubt(state, state.row("new", 1), "RESTORED", None, START))
    show(sweeping, state.order, "WORKING", amends=(an_amend(FIRST, 150), an_amend(SECOND, 200)))
    assert await resolved(sweeping, database) == 1
    after = await sweeping.state(state.order)
    assert (after.order.status, int(after.order.qty), current_id(after.order)) == ("WORKING", 200, SECOND)
    assert [row.status for row in after.outbox] == ["sent", "sent", "sent"]
    await check_replay(sweeping, after.order)


@pytest.mark.parametrize("by", ["cancel", "kill"])
async def test_a_cancel_leaves_a_repeated_amend_in_doubt_and_the_successor_is_cancelled(
    sweeping: Sweeping, by: str
) -> None:
    order = await sweeping.working()
    await requested(sweeping, order)
    state = await sweeping.state(order)
    kill = Kill(kill_id=cast(Any, "kill_1"), set_by="ann", set_reason="drill", set_at=START, version=1)
    change = (
        decisions.request_cancel(state, START, always)
        if by == "cancel"
        else decisions.cancel_killed(state, kill, START, always)
    )
    assert change is not None
    await sweeping.commit(change)
    state = await sweeping.state(order)
    assert {row.kind: row.status for row in state.outbox[1:]} == {"amend": "uncertain", "cancel": "queued"}
    show(sweeping, order, "WORKING", amends=(an_amend(FIRST, 150),))
    await sweeping.receive(an_end(state))

    after = (await sweeping.state(order)).order
    assert (after.status, int(after.qty), current_id(after)) == ("CANCEL_REQUESTED", 150, FIRST)
    assert after.amend_qty is None
    show(sweeping, order, "CANCELED", amends=(an_amend(FIRST, 150),))
    await sweeping.receive(of_leg(an_end(state, "end-2"), FIRST))
    assert (await sweeping.state(order)).order.status == "CANCELED"
    await check_replay(sweeping, order)


async def test_a_cancelled_order_whose_new_amend_never_was_at_the_venue_ends(
    sweeping: Sweeping, database: Database
) -> None:
    order = await sweeping.working()
    await requested(sweeping, order)
    change = decisions.request_cancel(await sweeping.state(order), START, always)
    assert change is not None
    await sweeping.commit(change)
    sweeping.venue.show(order, "CANCELED")
    await sweeping.receive(an_end(await sweeping.state(order)))
    assert await resolved(sweeping, database) == 1
    after = (await sweeping.state(order)).order
    assert (after.status, after.amend_qty) == ("CANCELED", None)
    await check_replay(sweeping, order)


async def test_an_amend_that_was_taken_for_refused_here_is_the_one_at_the_venue(sweeping: Sweeping) -> None:
    order = await sweeping.working()
    await requested(sweeping, order)
    state = await sweeping.state(order)
    await sweeping.commit(decisions.record_amend_refused(state, state.row("amend", 1), "QTY_FILLED", START))
    show(sweeping, order, "WORKING", amends=(an_amend(FIRST, 150),))
    await sweeping.receive(an_end(state))
    after = await sweeping.state(order)
    assert (after.order.status, int(after.order.qty), current_id(after.order)) == ("WORKING", 150, FIRST)
    assert (after.outbox[1].status, after.outbox[1].last_error) == ("sent", "CONTRADICTED")
    await check_replay(sweeping, order)


@pytest.mark.parametrize("may_be_lost", [always, never_lost])
async def test_a_fill_under_the_id_of_a_repeated_amend_shows_that_it_was_carried_out(
    sweeping: Sweeping, may_be_lost: MayBeLost
) -> None:
    order = await sweeping.working()
    await requested(sweeping, order, qty=60, may_be_lost=may_be_lost)
    state = await sweeping.state(order)
    sweeping.venue.can_be_asked = False
    await sweeping.receive(of_leg(report(state, "a", "60", "60", "FILLED"), FIRST))
    after = (await sweeping.state(order)).order
    assert (after.status, int(after.qty), int(after.filled_qty)) == ("FILLED", 60, 60)
    await check_replay(sweeping, order)


@pytest.mark.parametrize("replaces", [True, False])
@pytest.mark.parametrize("was_refused", [False, True])
async def test_a_repeated_amend_has_the_amounts_that_the_venue_shows(
    sweeping: Sweeping, replaces: bool, was_refused: bool
) -> None:
    """The lost amend raised the order to 150 at 149; its key is repeated with a smaller quantity."""
    order = await sweeping.working()
    await sweeping.receive(report(await sweeping.state(order), "a", "40", "40"))
    await requested(sweeping, order, qty=60, price=140, replaces=replaces)
    if was_refused:
        state = await sweeping.state(order)
        await sweeping.commit(decisions.record_amend_refused(state, state.row("amend", 1), "ORDER_FINAL", START))
    show(sweeping, order, "PARTIALLY_FILLED", "a:40", "b:20", amends=(an_amend(FIRST, 150, replaces=replaces),))
    await sweeping.swept()
    await check_amounts(sweeping, order, "150", "149", filled=60)


@pytest.mark.parametrize(("replaces", "is_followed"), [(True, False), (True, True), (False, False)])
async def test_the_resolver_records_a_repeated_amend_as_the_venue_shows_it(
    sweeping: Sweeping, database: Database, replaces: bool, is_followed: bool
) -> None:
    """The order is filled to the quantity that the repeated request asks for, and to less than the lost one."""
    order = await sweeping.working()
    await sweeping.receive(report(await sweeping.state(order), "a", "40", "40"))
    await requested(sweeping, order, qty=60, price=140, replaces=replaces, by_lost_history=True)
    await sweeping.receive(report(await sweeping.state(order), "b", "20", "60"))
    later = (replace(an_amend(SECOND, 200), price=Decimal(148)),) if is_followed else ()
    amends = (an_amend(FIRST, 150, replaces=replaces), *later)
    show(sweeping, order, "PARTIALLY_FILLED", "a:40", "b:20", amends=amends)
    assert await resolved(sweeping, database) == 1
    await check_amounts(sweeping, order, *(("200", "148") if is_followed else ("150", "149")), filled=60)


@pytest.mark.parametrize(("lookup", "is_followed"), [("all", False), ("all", True), ("open", False)])
async def test_a_report_under_the_id_of_a_repeated_amend_waits_for_the_amounts_that_the_venue_shows(
    sweeping: Sweeping, lookup: Lookup, is_followed: bool
) -> None:
    order = await sweeping.working()
    await requested(sweeping, order, qty=60, price=140)
    state = await sweeping.state(order)
    later = (an_amend(SECOND, 200),) if is_followed else ()
    show(sweeping, order, "PARTIALLY_FILLED", "a:60", amends=(an_amend(FIRST, 150), *later))
    sweeping.venue.lookup = lookup
    if lookup == "open":
        del sweeping.venue.shown[order.venue_client_order_id]
    sweeping.venue.can_be_asked = False
    await sweeping.receive(of_leg(report(state, "a", "60", "60"), FIRST))
    assert (await sweeping.state(order)).order == state.order
    sweeping.venue.can_be_asked = True
    await sweeping.recorder.run_once()
    await check_amounts(sweeping, order, "200" if is_followed else "150", "149", filled=60)


async def test_an_amend_of_which_the_venue_shows_no_amounts_has_those_that_were_requested(
    sweeping: Sweeping, database: Database
) -> None:
    order = await sweeping.working()
    await requested(sweeping, order, by_lost_history=True)
    shown = VenueAmend(client_order_id=FIRST, replaces=True)
    show(sweeping, order, "WORKING", amends=(shown,))
    assert await resolved(sweeping, database) == 1
    await check_amounts(sweeping, order, "150", "149", filled=0)


async def check_amounts(sweeping: Sweeping, order: Order, qty: str, price: str, *, filled: int) -> None:
    after = (await sweeping.state(order)).order
    assert (after.status, int(after.filled_qty)) == ("PARTIALLY_FILLED" if filled else "WORKING", filled)
    assert (after.qty, after.price, after.reserve_price) == (Decimal(qty), Decimal(price), Decimal(price))
    assert after.amend_qty is None
    await check_replay(sweeping, order)


async def test_a_later_amend_is_recorded_only_after_the_one_before_it_is_settled(sweeping: Sweeping) -> None:
    order = await sweeping.working()
    await requested(sweeping, order)
    state = await sweeping.state(order)
    await sweeping.commit(decisions.begin_attempt(state, state.row("amend", 1), WORKER, START))
    show(sweeping, order, "WORKING", amends=(an_amend(FIRST, 150), an_amend(SECOND, 200)))
    await sweeping.swept()
    assert current_id((await sweeping.state(order)).order) == order.venue_client_order_id
    state = await sweeping.state(order)
    await sweeping.commit(decisions.record_sent(state, state.row("amend", 1), "venue-1", START))
    await sweeping.swept()
    after = await sweeping.state(order)
    assert (int(after.order.qty), current_id(after.order), last_id(after)) == (200, SECOND, SECOND)
    await check_replay(sweeping, order)


async def test_an_amend_that_precedes_the_present_one_changes_no_amounts(sweeping: Sweeping) -> None:
    order = await sweeping.working()
    await requested(sweeping, order, client_id=SECOND, qty=200)
    state = await sweeping.state(order)
    await sweeping.commit(decisions.record_sent(state, state.row("amend", 1), "venue-2", START))
    show(sweeping, order, "PARTIALLY_FILLED", "a:10", "b:20", amends=(an_amend(FIRST, 150), an_amend(SECOND, 200)))
    sweeping.venue.can_be_asked = False
    fills = [of_leg(report(state, "a", "10", "10"), FIRST), of_leg(report(state, "b", "20", "30"), SECOND)]
    await sweeping.receive(an_end(state), *fills)
    assert current_id((await sweeping.state(order)).order) == SECOND
    sweeping.venue.can_be_asked = True
    await sweeping.recorder.run_once()
    await StrayRecall(sweeping.venue, sweeping.recorder, queries=sweeping.queries).run_once()

    after = await sweeping.state(order)
    assert (after.order.status, int(after.order.qty), int(after.order.filled_qty)) == ("PARTIALLY_FILLED", 200, 30)
    assert (current_id(after.order), last_id(after)) == (SECOND, SECOND)
    assert [(row.venue_client_order_id, row.status) for row in after.outbox[1:]] == [(SECOND, "sent"), (FIRST, "dead")]
    await check_replay(sweeping, order)


async def test_the_next_amend_refers_to_the_last_one_whatever_the_order_of_their_rows(sweeping: Sweeping) -> None:
    order = await sweeping.working()
    await requested(sweeping, order, client_id=SECOND, qty=200)
    show(sweeping, order, "WORKING", amends=(an_amend(FIRST, 150), an_amend(SECOND, 200)))
    await sweeping.swept()
    after = await sweeping.state(order)
    assert [row.venue_client_order_id for row in after.outbox[1:]] == [SECOND, FIRST]
    assert (int(after.order.qty), last_id(after)) == (200, SECOND)
    await check_replay(sweeping, order)


async def test_a_lookup_of_before_an_amend_does_not_undo_it(sweeping: Sweeping) -> None:
    order = await sweeping.working()
    before = await sweeping.state(order)
    show(sweeping, order, "WORKING", amends=(an_amend(FIRST, 150, replaces=False),))
    found = sweeping.venue.shown[order.venue_client_order_id]
    await requested(sweeping, order, client_id=SECOND, qty=200, replaces=False)
    state = await sweeping.state(order)
    await sweeping.commit(decisions.record_sent(state, state.row("amend", 1), "venue-1", START))
    assert not await sweeping.amends.adopt(before, found)
    assert int((await sweeping.state(order)).order.qty) == 200


async def test_an_amend_in_place_is_not_overtaken_by_one_that_was_sent_before_it(
    sweeping: Sweeping, database: Database
) -> None:
    """The venue carried both out; its answer about the order is a copy of one that it gave before the second."""
    order = await sweeping.working()
    await requested(sweeping, order, replaces=False)
    state = await sweeping.state(order)
    await sweeping.commit(decisions.record_sent(state, state.row("amend", 1), "venue-1", START))
    await requested(sweeping, order, client_id=SECOND, qty=200, replaces=False)
    state = await sweeping.state(order)
    await sweeping.commit(decisions.record_doubt(state, state.row("amend", 2), "UNKNOWN", None, START))
    show(sweeping, order, "WORKING", amends=(an_amend(FIRST, 150, replaces=False),))
    sweeping.venue.unanswered.add(SECOND)
    assert await resolved(sweeping, database) == 0
    assert (await sweeping.state(order)).row("amend", 2).status == "uncertain"

    sweeping.venue.unanswered.clear()
    show(sweeping, order, "WORKING", amends=(an_amend(SECOND, 200, replaces=False),))
    assert await resolved(sweeping, database) == 1
    after = await sweeping.state(order)
    assert (after.row("amend", 2).status, int(after.order.qty)) == ("sent", 200)
    await check_replay(sweeping, order)


@pytest.mark.parametrize("is_asked_first", [True, False])
async def test_an_amend_in_place_that_a_later_one_followed_ends_without_effect(
    sweeping: Sweeping, database: Database, is_asked_first: bool
) -> None:
    order = await sweeping.working()
    show(sweeping, order, "WORKING", amends=(an_amend(SECOND, 120, replaces=False),))
    sweeping.venue.unanswered.add(FIRST)  # the answer would show the other amend, not this one
    if is_asked_first:
        await sweeping.swept()
    await requested(sweeping, order, replaces=False)
    state = await sweeping.state(order)
    repeated = open_amend(state)
    assert repeated is not None
    await sweeping.commit(decisions.record_doubt(state, repeated, "UNKNOWN", None, START))
    if not is_asked_first:
        await sweeping.swept()
    await resolved(sweeping, database)
    after = await sweeping.state(order)
    assert {row.venue_client_order_id: row.status for row in after.outbox[1:]} == {FIRST: "dead", SECOND: "sent"}
    assert (int(after.order.qty), after.order.amend_qty, last_id(after)) == (120, None, SECOND)
    await check_replay(sweeping, order)


class Sender:
    """A worker that sends the amends that are due."""

    def __init__(self, sweeping: Sweeping, database: Database, *, is_restored: bool = True) -> None:
        venues = {VENUE: sweeping.venue}
        capabilities = {VENUE: sweeping.venue.capabilities}
        restored_at = START - timedelta(minutes=1) if is_restored else None
        history = LostHistory(restored_at, timedelta(days=1), capabilities, sweeping.clock)
        self.lanes = HeldLanes(database.lanes, WORKER, sweeping.clock)
        self.dispatcher = Dispatcher(
            worker=WORKER,
            sequencer=sweeping.recorder._sequencer,
            queries=database.queries,
            liveness=database.liveness,
            lanes=self.lanes,
            venues=venues,
            clock=sweeping.clock,
            randomness=SystemRandomness(),
            metrics=sweeping.metrics,
            batch_size=8,
            parallelism=1,
            retry_max=8,
            idle_seconds=0.01,
            stuck_after=timedelta(minutes=10),
            kills=ActiveKills(database.kills, sweeping.metrics),
            waiting=WaitingLanes(Wake()),
            lost_keys=LostKeys(history, venues),
        )
        self.dispatcher.open_venue(VENUE)

    async def send(self) -> None:
        """Send what is due, also what goes back to the queue, until nothing is."""
        await self.lanes.renew()
        while await self.dispatcher.run_once():
            await self.dispatcher.drain(10)


@pytest.fixture
async def sender(sweeping: Sweeping, database: Database) -> Sender:
    return Sender(sweeping, database)


async def until_settled(sweeping: Sweeping, database: Database, order: Order, first: str, last: str) -> None:
    """Ask the venue; check the statuses of the repeated amend and of the last one, whose amounts the order has."""
    await resolved(sweeping, database)
    after = await sweeping.state(order)
    statuses = {row.venue_client_order_id: row.status for row in after.outbox[1:]}
    assert statuses == {FIRST: first, SECOND: last}
    assert (int(after.order.qty), after.order.amend_qty, last_id(after)) == (120, None, SECOND)
    await check_replay(sweeping, order)


async def test_an_amend_that_a_lost_one_has_followed_is_not_sent(
    sweeping: Sweeping, database: Database, sender: Sender
) -> None:
    """The client repeats the first amend of a lost history before the venue was asked, which has the second one."""
    order = await sweeping.working()
    await requested(sweeping, order, replaces=False)
    show(sweeping, order, "WORKING", amends=(an_amend(SECOND, 120, replaces=False),))
    sweeping.venue.on_amend = lambda: accepted(already=False)
    await sweeping.swept()
    await sender.send()
    assert sweeping.venue.amended == []
    assert (await sweeping.state(order)).row("amend", 1).status == "uncertain"
    await until_settled(sweeping, database, order, "dead", "sent")


async def accepted(*, already: bool) -> SendOutcome:
    """The answer to an amend as the venue gave it the first time."""
    return Accepted("venue-1", already_processed=already)


@pytest.mark.parametrize("already", [True, False])
async def test_the_answer_to_a_repeated_amend_does_not_bring_its_amounts_back(
    sweeping: Sweeping, database: Database, sender: Sender, already: bool
) -> None:
    """The venue recognises the amend, and answers with the order as it was then."""
    order = await sweeping.working()
    show(sweeping, order, "WORKING", amends=(an_amend(SECOND, 120, replaces=False),))
    await sweeping.swept()
    await requested(sweeping, order, replaces=False)
    sweeping.venue.on_amend = lambda: accepted(already=already)
    await sender.send()
    assert sweeping.venue.amended == [FIRST]
    after = await sweeping.state(order)
    assert (int(after.order.qty), after.order.amend_qty) == (120, Decimal(150))
    await until_settled(sweeping, database, order, "dead", "sent")


async def test_a_lost_amend_that_is_recorded_while_an_earlier_one_is_sent_keeps_its_amounts(
    sweeping: Sweeping, database: Database, sender: Sender
) -> None:
    order = await sweeping.working()
    await requested(sweeping, order, replaces=False)

    async def carry_out_after_a_sweep() -> SendOutcome:
        show(sweeping, order, "WORKING", amends=(an_amend(SECOND, 120, replaces=False),))
        await sweeping.swept()
        return Accepted("venue-1")

    sweeping.venue.on_amend = carry_out_after_a_sweep
    await sender.send()
    assert sweeping.venue.amended == [FIRST]
    await until_settled(sweeping, database, order, "dead", "sent")


@pytest.mark.parametrize("already", [True, False])
async def test_the_answer_that_an_amend_was_carried_out_before_leads_to_a_lookup(
    sweeping: Sweeping, database: Database, already: bool
) -> None:
    """Also in a database that was never restored: a proxy may have repeated the request."""
    sender = Sender(sweeping, database, is_restored=False)
    order = await sweeping.working()
    await requested(sweeping, order, replaces=False, may_be_lost=never_lost)
    sweeping.venue.on_amend = lambda: accepted(already=already)
    await sender.send()
    assert (await sweeping.state(order)).row("amend", 1).status == ("uncertain" if already else "sent")
    show(sweeping, order, "WORKING", amends=(an_amend(FIRST, 150, replaces=False),))
    assert await resolved(sweeping, database) == already
    await check_amounts(sweeping, order, "150", "149", filled=0)


async def test_an_amend_of_after_a_restore_is_settled_by_a_lookup(
    sweeping: Sweeping, database: Database, sender: Sender
) -> None:
    order = await sweeping.working()
    await requested(sweeping, order, qty=130, replaces=False)
    show(sweeping, order, "WORKING", amends=(an_amend(FIRST, 130, replaces=False),))
    sweeping.venue.on_amend = lambda: accepted(already=False)
    await sender.send()
    assert await resolved(sweeping, database) == 1
    await check_amounts(sweeping, order, "130", "149", filled=0)


async def test_an_amend_that_is_overtaken_after_its_claim_is_not_sent(
    sweeping: Sweeping, database: Database, sender: Sender
) -> None:
    """Another amend is recorded in the commit before the send, which the claim has not seen."""
    order = await sweeping.working()
    await requested(sweeping, order, replaces=False)
    show(sweeping, order, "WORKING", amends=(an_amend(SECOND, 120, replaces=False),))
    sweeping.venue.on_amend = lambda: accepted(already=False)
    claim = sender.dispatcher._sends.start

    def start(sends: Sequence[Send]) -> None:
        [send] = sends
        adopted = decisions.adopt_amend(
            send.state,
            SECOND,
            START,
            replaces=False,
            shown=an_amend(SECOND, 120).amounts,
            venue_order_id="venue-1",
        )
        assert adopted is not None
        newest = after_change(send.state, adopted.orders[0], adopted)
        sender.dispatcher._sends._newest = lambda _: newest
        claim(sends)

    sender.dispatcher._sends.start = start  # type: ignore[method-assign]
    await sender.lanes.renew()
    await sender.dispatcher.run_once()
    await sender.dispatcher.drain(10)
    row = (await sweeping.state(order)).row("amend", 1)
    assert (sweeping.venue.amended, row.status, row.last_error) == ([], "failed", "ATTEMPT_STALE")
