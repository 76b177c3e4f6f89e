"""The contract of a reroute: order, outbox row and event change together, on every engine, and only if nothing left."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from switchyard.domain import decisions
from switchyard.domain.ids import KillId, VenueName
from switchyard.domain.journal.changes import Change, Conflict, merged
from switchyard.domain.journal.lines import parse_line
from switchyard.domain.journal.replay import Replay, ReplayMismatch
from switchyard.domain.orders.outbox import OrderState
from switchyard.domain.risk.kills import Kill
from tests.support.build import VENUE, WORKER, an_accept, state_after
from tests.support.databases import Database
from tests.support.journal_checks import commit, verified
from tests.support.memory.clock import START

OTHER = VenueName("other")
LATER = START + timedelta(hours=1)


async def accepted(database: Database, **request: Any) -> OrderState:
    change = an_accept(**request)
    await commit(database.journal, change)
    return await stored(database, change)


async def stored(database: Database, change: Change) -> OrderState:
    order_id = change.orders[0].order_id
    return (await database.journal.load([order_id]))[order_id]


def a_move(state: OrderState) -> Change:
    return decisions.reroute(state, OTHER, "3 faults in a row, the last: BROKER_DOWN", START)


async def test_a_rerouted_order_is_due_at_its_new_venue_in_its_old_place(database: Database) -> None:
    state = await accepted(database)
    later = an_accept(venue=OTHER)
    await commit(database.journal, later)

    await commit(database.journal, a_move(state))

    moved = await stored(database, a_move(state))
    assert (moved.order.venue, moved.order.status, moved.outbox[0].venue) == (OTHER, "ACCEPTED", OTHER)
    assert moved.outbox[0].seq == state.outbox[0].seq
    assert await database.queries.due(START, 10, [VENUE]) == []
    due = await database.queries.due(START, 10, [OTHER])
    assert [each.row.order_id for each in due] == [state.order.order_id, later.orders[0].order_id]
    assert list(await database.queries.oldest_unsent([VENUE, OTHER])) == [OTHER]
    [event] = [event for event in await verified(database.journal) if event.type == "OrderRerouted"]
    assert '"reroute":{"from":"sim","to":"other","reason":"3 faults in a row, the last: BROKER_DOWN"}' in event.text


async def test_a_replay_makes_the_rows_of_a_moved_order_again(database: Database) -> None:
    state = await accepted(database)
    begun = decisions.begin_attempt(state, state.outbox[0], WORKER, START)
    await commit(database.journal, begun)
    sending = await stored(database, begun)
    unsent = decisions.record_unsent(sending, sending.outbox[0], "BROKER_DOWN", START, START)
    await commit(database.journal, unsent)
    await commit(database.journal, a_move(await stored(database, unsent)))

    replay = await replayed(database)

    moved = await stored(database, begun)
    assert moved.order.venue == OTHER
    assert replay.orders[moved.order.order_id] == moved.order
    assert replay.outbox[moved.outbox[0].key] == moved.outbox[0]


async def test_a_replay_finds_an_order_in_doubt_that_was_moved(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = await accepted(database)
    begun = decisions.begin_attempt(state, state.outbox[0], WORKER, START)
    await commit(database.journal, begun)
    sending = await stored(database, begun)
    await commit(database.journal, decisions.record_doubt(sending, sending.outbox[0], "NETWORK_TIMEOUT", None, START))
    monkeypatch.setattr("switchyard.domain.decisions.attempts.may_move", lambda _: True)  # the planted bug
    await commit(database.journal, a_move(await stored(database, begun)))

    with pytest.raises(ReplayMismatch, match="was moved although it may be at sim"):
        await replayed(database)


async def replayed(database: Database) -> Replay:
    replay = Replay()
    for event in await verified(database.journal):
        replay.apply(parse_line(event.line.encode() + b"\n"))
    return replay


@pytest.mark.parametrize("with_attempt", [False, True])
@pytest.mark.parametrize("killed", [VENUE, OTHER])
async def test_a_kill_of_either_venue_stops_the_move(database: Database, killed: VenueName, with_attempt: bool) -> None:
    state = await accepted(database)
    kill = Kill(kill_id=KillId("kill_1"), venue=killed, set_by="ann", set_reason="test", set_at=START, version=1)
    [seq] = await commit(database.journal, decisions.set_kill(kill))
    change = a_move(state)
    if with_attempt:
        moved = OrderState(order=change.orders[0], outbox=change.outbox)
        change = merged([change, decisions.begin_attempt(moved, moved.outbox[0], WORKER, START)])

    outcomes = await database.journal.append(0, "move", [change], START)

    assert outcomes == [Conflict(kill=msgspec.structs.replace(kill, seq=seq))]
    assert (await stored(database, change)).order.venue == VENUE


async def test_one_of_two_moves_at_once_is_written(database: Database) -> None:
    state = await accepted(database)
    await commit(database.journal, a_move(state))

    elsewhere = decisions.reroute(state, VenueName("third"), "down", START)

    assert await database.journal.append(0, "second", [elsewhere], START) == [Conflict()]
    assert (await stored(database, elsewhere)).order.venue == OTHER


def test_no_decision_moves_an_order_that_may_be_at_its_venue() -> None:
    state = state_after(an_accept())
    begun = decisions.begin_attempt(state, state.outbox[0], WORKER, START)
    sending = OrderState(order=begun.orders[0], outbox=begun.outbox)
    [row] = sending.outbox
    throttled = decisions.record_unsent(sending, row, "RATE_LIMITED", START, START, bytes_sent=True)
    doubted = decisions.record_doubt(sending, row, "NETWORK_TIMEOUT", None, START)
    resend = decisions.record_doubt(sending, row, "NETWORK_TIMEOUT", START, START)
    in_doubt = OrderState(order=doubted.orders[0], outbox=doubted.outbox)
    absent = decisions.record_absent(in_doubt, in_doubt.outbox[0], START)
    for change in (begun, throttled, doubted, resend, absent):
        after = OrderState(order=change.orders[0], outbox=change.outbox)
        assert not decisions.may_move(after)
        with pytest.raises(AssertionError, match="may be at its venue"):
            a_move(after)


async def test_only_orders_of_which_nothing_left_are_listed_due_or_not(database: Database) -> None:
    waiting = await accepted(database)
    sent, throttled, refused = [await accepted(database, symbol="EURUSD") for _ in range(3)]
    for state in (sent, throttled, refused):
        await commit(database.journal, decisions.begin_attempt(state, state.outbox[0], WORKER, START))
    for state, bytes_sent in ((throttled, True), (refused, False)):
        sending = await current(database, state)
        unsent = decisions.record_unsent(sending, sending.outbox[0], "BROKER_DOWN", LATER, START, bytes_sent=bytes_sent)
        await commit(database.journal, unsent)

    listed = await database.queries.never_sent([VENUE], None, 10)

    assert [due.row.order_id for due in listed] == [waiting.order.order_id, refused.order.order_id]
    assert [due.state for due in listed] == [await current(database, state) for state in (waiting, refused)]
    assert await database.queries.never_sent([OTHER], None, 10) == []
    assert await database.queries.never_sent([VENUE], [], 10) == []
    [behind] = await database.queries.never_sent([VENUE], [refused.outbox[0].lane], 1, after=listed[0].row.seq)
    assert behind.row.order_id == refused.order.order_id


async def test_cancels_alone_can_be_asked_for(database: Database) -> None:
    state = await accepted(database)
    await accepted(database, symbol="EURUSD")
    await commit(database.journal, decisions.begin_attempt(state, state.outbox[0], WORKER, START))
    sending = await current(database, state)
    await commit(database.journal, decisions.record_sent(sending, sending.outbox[0], "v-1", START))
    cancel = decisions.request_cancel(await current(database, state), START)
    assert cancel is not None
    await commit(database.journal, cancel)

    assert len(await database.queries.due(START, 10, [VENUE])) == 2
    assert [due.row.kind for due in await database.queries.due(START, 10, [VENUE], kind="cancel")] == ["cancel"]


async def current(database: Database, state: OrderState) -> OrderState:
    return (await database.journal.load([state.order.order_id]))[state.order.order_id]
