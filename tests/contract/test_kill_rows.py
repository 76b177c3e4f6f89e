"""The contract of kills: the append judges, on every engine, and the rows follow from the events."""

import asyncio
from itertools import count
from typing import Any

import msgspec
import pytest

from switchyard.domain import decisions
from switchyard.domain.errors import GroupRejected, KillCleared
from switchyard.domain.ids import KillId
from switchyard.domain.journal.changes import Change, Committed, Conflict
from switchyard.domain.journal.lines import parse_line
from switchyard.domain.journal.replay import Replay, ReplayMismatch
from switchyard.domain.risk.kills import Kill
from switchyard.ports.journal import Journal
from tests.support.build import WORKER, an_accept, an_entry, an_order_id, state_after
from tests.support.databases import Database
from tests.support.journal_checks import commit, verified
from tests.support.memory.clock import START
from tests.support.memory.journal import MemoryJournal

_numbers = count(1)


def a_kill(**scope: Any) -> Kill:
    return Kill(
        kill_id=KillId(f"kill_{next(_numbers):026d}"),
        set_by="ann",
        set_reason="a runaway strategy",
        set_at=START,
        version=1,
        **scope,
    )


async def set_kill(database: Database, **scope: Any) -> Kill:
    """A kill as the database has it."""
    kill = a_kill(**scope)
    [seq] = await commit(database.journal, decisions.set_kill(kill))
    return msgspec.structs.replace(kill, seq=seq)


async def append(journal: Journal, *changes: Change) -> list[Any]:
    return list(await journal.append(0, f"kills-{next(_numbers)}", changes, START))


async def test_a_kill_has_the_position_after_which_nothing_begins(database: Database) -> None:
    await commit(database.journal, an_accept(), an_accept())

    kill = await set_kill(database)

    assert kill.seq == 3
    assert await database.kills.active() == [kill]
    assert await database.kills.find(kill.kill_id) == kill
    assert await database.kills.find(KillId("kill_0")) is None
    assert (await verified(database.journal))[-1].type == "KillSwitchSet"


async def test_an_accept_under_a_kill_conflicts_and_names_the_kill(database: Database) -> None:
    kill = await set_kill(database)

    assert await append(database.journal, an_accept()) == [Conflict(kill=kill)]
    assert (await database.journal.head(0)).seq == kill.seq


@pytest.mark.parametrize(
    ("scope", "covered", "other"),
    [
        ({"account_id": "acc-1"}, {}, {"account": "acc-2"}),
        ({"symbol": "USDJPY"}, {}, {"symbol": "EURUSD"}),
        ({"strategy": "mean"}, {"strategy": "mean"}, {}),
        ({"strategy": "mean"}, {"strategy": "mean"}, {"strategy": "trend"}),
        ({"account_id": "acc-1", "symbol": "USDJPY"}, {}, {"symbol": "EURUSD"}),
        ({"account_id": "acc-1", "symbol": "USDJPY"}, {}, {"account": "acc-2"}),
        ({"venue": "sim", "strategy": "mean"}, {"strategy": "mean"}, {"strategy": "trend"}),
    ],
)
async def test_a_kill_covers_what_agrees_with_its_whole_scope(
    database: Database, scope: dict[str, Any], covered: dict[str, Any], other: dict[str, Any]
) -> None:
    kill = await set_kill(database, **scope)

    outcomes = await append(database.journal, an_accept(**covered), an_accept(**other))

    assert outcomes == [Conflict(kill=kill), Committed(kill.seq + 1)]


async def test_a_kill_of_another_venue_covers_nothing_here(database: Database) -> None:
    await set_kill(database, venue="elsewhere")

    assert await append(database.journal, an_accept()) == [Committed(2)]


async def test_an_attempt_under_a_kill_conflicts_and_another_order_of_the_group_is_sent(database: Database) -> None:
    covered, other = an_accept(), an_accept(symbol="EURUSD")
    await commit(database.journal, covered, other)
    kill = await set_kill(database, symbol="USDJPY")
    attempts = [
        decisions.begin_attempt(state_after(change), change.outbox[0], WORKER, START) for change in (covered, other)
    ]

    assert await append(database.journal, *attempts) == [Conflict(kill=kill), Committed(kill.seq + 1)]


async def test_a_resend_of_an_order_in_doubt_conflicts(database: Database) -> None:
    accepted = an_accept()
    sending = decisions.begin_attempt(state_after(accepted), accepted.outbox[0], WORKER, START)
    doubt = decisions.record_doubt(state_after(sending), sending.outbox[0], "NETWORK_TIMEOUT", START, START)
    for change in (accepted, sending, doubt):
        await commit(database.journal, change)
    kill = await set_kill(database)
    again = decisions.begin_attempt(state_after(doubt), doubt.outbox[0], WORKER, START)

    assert await append(database.journal, again) == [Conflict(kill=kill)]


async def test_an_accept_that_already_begins_its_attempt_conflicts(database: Database) -> None:
    kill = await set_kill(database)
    accepted = an_accept()
    row = msgspec.structs.replace(accepted.outbox[0], status="sending", attempt=1, worker=WORKER)
    order = msgspec.structs.replace(accepted.orders[0], status="SENDING")

    outcomes = await append(database.journal, msgspec.structs.replace(accepted, orders=(order,), outbox=(row,)))

    assert outcomes == [Conflict(kill=kill)]


async def test_outcomes_and_cancels_are_never_blocked(database: Database) -> None:
    accepted = an_accept()
    sending = decisions.begin_attempt(state_after(accepted), accepted.outbox[0], WORKER, START)
    await commit(database.journal, accepted)
    await commit(database.journal, sending)
    await set_kill(database)
    sent = decisions.record_sent(state_after(sending), sending.outbox[0], "venue-1", START)
    cancel = decisions.request_cancel(state_after(sent), START)
    assert cancel is not None
    cancelling = decisions.begin_attempt(state_after(sent, cancel), cancel.outbox[0], WORKER, START)

    for change in (sent, cancel, cancelling):
        await commit(database.journal, change)


async def test_an_order_that_ends_by_a_kill_is_written(database: Database) -> None:
    accepted = an_accept()
    await commit(database.journal, accepted)
    kill = await set_kill(database)

    await commit(database.journal, decisions.end_killed(state_after(accepted), kill, START))

    [state] = (await database.journal.load([accepted.orders[0].order_id])).values()
    assert (state.order.status, state.order.reason, state.outbox[0].status) == ("CANCELED", "KILL_SWITCH", "dead")


async def test_a_repeated_key_gets_its_order_also_under_a_kill(database: Database) -> None:
    accepted = an_accept(key="twice")
    await commit(database.journal, accepted)
    await set_kill(database)

    [conflict] = await append(database.journal, an_accept(key="twice"))

    assert conflict == Conflict(accepted.keys[0])


async def test_after_the_clearing_orders_are_accepted_again(database: Database) -> None:
    kill = await set_kill(database)
    await commit(database.journal, decisions.clear_kill(kill, "bob", "the strategy is fixed", START))

    await commit(database.journal, an_accept())

    assert await database.kills.active() == []
    cleared = await database.kills.find(kill.kill_id)
    assert cleared is not None
    assert (cleared.cleared_by, cleared.cleared_reason, cleared.cleared_at) == ("bob", "the strategy is fixed", START)
    assert (cleared.seq, cleared.version) == (kill.seq, 2)


async def test_of_two_who_clear_a_kill_the_second_conflicts(database: Database) -> None:
    kill = await set_kill(database)
    first = decisions.clear_kill(kill, "bob", "first", START)
    second = decisions.clear_kill(kill, "cleo", "second", START)
    await commit(database.journal, first)

    assert await append(database.journal, second) == [Conflict()]
    with pytest.raises(KillCleared):
        decisions.clear_kill(first.kills[0], "cleo", "second", START)


async def test_another_kill_still_blocks_after_one_was_cleared(database: Database) -> None:
    first, second = await set_kill(database, symbol="USDJPY"), await set_kill(database)
    await commit(database.journal, decisions.clear_kill(first, "bob", "fixed", START))

    assert await append(database.journal, an_accept()) == [Conflict(kill=second)]


async def test_the_oldest_of_several_kills_is_named(database: Database) -> None:
    first = await set_kill(database, account_id="acc-1")
    await set_kill(database)

    assert await append(database.journal, an_accept()) == [Conflict(kill=first)]


async def test_the_same_request_at_the_same_time_sets_one_kill(database: Database) -> None:
    kills = [a_kill(symbol="USDJPY") for _ in range(5)]
    others = [a_kill(symbol="EURUSD"), msgspec.structs.replace(a_kill(symbol="USDJPY"), set_by="bob")]

    appended = [append(database.journal, decisions.set_kill(kill)) for kill in (*kills, *others)]
    outcomes = [outcome for [outcome] in await asyncio.gather(*appended)]

    [place] = [place for place, outcome in enumerate(outcomes[:5]) if isinstance(outcome, Committed)]
    kill = await database.kills.find(kills[place].kill_id)
    assert kill is not None
    assert [outcome for outcome in outcomes[:5] if outcome != outcomes[place]] == [Conflict(kill=kill)] * 4
    assert all(isinstance(outcome, Committed) for outcome in outcomes[5:])

    await commit(database.journal, decisions.clear_kill(kill, "bob", "over", START))
    await commit(database.journal, decisions.set_kill(a_kill(symbol="USDJPY")))


async def test_a_kill_shares_its_group_with_nothing(database: Database) -> None:
    with pytest.raises(GroupRejected):
        await append(database.journal, decisions.set_kill(a_kill()), an_accept())
    assert (await database.journal.head(0)).seq == 0


async def test_a_repeated_group_names_the_kill_again(database: Database) -> None:
    kill = await set_kill(database, symbol="USDJPY")
    group = [an_accept(), an_accept(symbol="EURUSD")]

    first = await database.journal.append(0, "lost answer", group, START)

    assert first == [Conflict(kill=kill), Committed(2)]
    assert await database.journal.append(0, "lost answer", group, START) == first


async def test_a_kill_lists_the_open_orders_that_it_covers(database: Database) -> None:
    accepted = [an_accept() for _ in range(6)]
    other = an_accept(symbol="EURUSD")
    await commit(database.journal, *accepted, other)
    queued, sending, doubtful, working, filled, cancelled = accepted
    attempts = [
        decisions.begin_attempt(state_after(change), change.outbox[0], WORKER, START)
        for change in (sending, doubtful, working, filled)
    ]
    await commit(database.journal, *attempts)
    await commit(
        database.journal,
        decisions.record_doubt(state_after(attempts[1]), attempts[1].outbox[0], "NETWORK_TIMEOUT", None, START),
        decisions.record_sent(state_after(attempts[2]), attempts[2].outbox[0], "v-1", START),
        decisions.record_rejected(state_after(attempts[3]), attempts[3].outbox[0], "BAD_REQUEST", START),
    )
    ended = decisions.request_cancel(state_after(cancelled), START)
    assert ended is not None
    await commit(database.journal, ended)

    kill = await set_kill(database, symbol="USDJPY")

    ids = [change.orders[0].order_id for change in (queued, sending, doubtful, working)]
    assert await database.kills.orders_of(kill.kill_id, limit=10) == sorted(ids)
    assert await database.kills.orders_of(kill.kill_id, after=ids[1], limit=1) == [ids[2]]
    await commit(database.journal, decisions.end_killed(state_after(queued), kill, START))
    assert await database.kills.orders_of(kill.kill_id, only_open=True, limit=10) == sorted(ids[1:])
    assert len(await database.kills.orders_of(kill.kill_id, limit=10)) == 4


async def test_kills_are_listed_newest_first_in_pages(database: Database) -> None:
    kills = [await set_kill(database, symbol=symbol) for symbol in ("A", "B", "C")]

    assert await database.kills.newest(limit=2) == kills[:0:-1]
    assert await database.kills.newest(before=kills[1].seq, limit=2) == kills[:1]


async def test_a_replay_rejects_an_order_that_was_placed_under_a_kill(database: Database) -> None:
    accepted = an_accept()
    await commit(database.journal, accepted)
    await set_kill(database)
    replay = Replay()
    for event in await database.journal.read(0, 0, 10):
        replay.apply(parse_line(event.line.encode() + b"\n"))
    assert list(replay.kills.rows.values()) == list(await database.kills.active())
    assert [row.order_id for row in replay.kills.orders] == [accepted.orders[0].order_id]

    forged = Replay()
    kill, order = decisions.set_kill(a_kill()), an_accept()

    lines = MemoryJournal()
    await commit(lines, order)
    await commit(lines, kill)
    first, second = await lines.read(0, 0, 10)
    forged.apply(parse_line(second.line.encode() + b"\n"))
    with pytest.raises(ReplayMismatch, match="kill_"):
        forged.apply(parse_line(first.line.encode() + b"\n"))


async def test_a_new_generation_of_a_key_is_blocked_too(database: Database) -> None:
    first = an_accept(key="again")
    await commit(database.journal, first)
    kill = await set_kill(database)
    second = an_accept(key="again", generation=1)
    entry = an_entry("again", an_order_id(), generation=1)
    assert entry.version == second.keys[0].version

    assert await append(database.journal, second) == [Conflict(kill=kill)]
