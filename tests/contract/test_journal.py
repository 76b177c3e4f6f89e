"""The contract of `Journal.append`, `read`, `lines`, `head` and `cursor`, on every engine."""

from collections.abc import Callable
from datetime import timedelta

import msgspec
import pytest

from switchyard.domain.decisions import apply_report, begin_attempt, record_sent, unmatched_report
from switchyard.domain.errors import GroupRejected
from switchyard.domain.ids import AccountId, WorkerId
from switchyard.domain.journal.changes import Change, Committed, Conflict, Cursor
from switchyard.domain.journal.events import SYSTEM_ACCOUNT, event
from switchyard.domain.journal.facts import CutFact
from switchyard.domain.journal.lines import data_of, head_text, parse_line, stamp
from switchyard.ports.journal import EPOCH_GAP, Epoch, Head, Journal
from tests.support.build import WORKER, a_report, an_accept, numbered, state_after
from tests.support.databases import Database, Engine, fresh_database
from tests.support.journal_checks import commit, verified
from tests.support.memory.clock import START


async def test_an_empty_journal_starts_at_genesis(journal: Journal) -> None:
    assert await journal.head(0) == Head(1, 0, "0" * 64)
    assert await journal.read(0, 0, 10) == []
    assert await journal.load([]) == {}


async def test_numbers_have_no_gap_and_the_chain_verifies(journal: Journal) -> None:
    accepted = [an_accept(key=f"key-{number}") for number in range(3)]
    filled = apply_report(state_after(accepted[1]), None, a_report(state_after(accepted[1])), START)

    assert await commit(journal, *accepted) == [1, 2, 3]
    assert await commit(journal, filled, an_accept()) == [4, 6]

    events = await verified(journal)
    expected = [event for change in (*accepted, filled) for event in change.events]
    assert len(events) == len(expected) + 1
    for read, appended in zip(events, expected, strict=False):
        assert (read.type, read.account_id, read.order_id) == (appended.type, appended.account_id, appended.order_id)
        assert read.text.endswith(appended.tail)


async def test_a_line_is_read_as_it_was_hashed_whatever_the_account(journal: Journal) -> None:
    accounts = ['say "hi"', "back\\slash", ',"data":', "naïve ⌛ 口座", *map(chr, range(1, 33)), "\x7f", "a/b", "<&>"]
    fact = CutFact(path="", expected_seq=1, found_seq=0)
    cuts = [event("AuditFileCut", AccountId(account), None, fact) for account in accounts]

    await commit(journal, *(Change(events=(cut,)) for cut in cuts))

    events = await verified(journal)
    assert [read.text for read in events] == [
        head_text(1, 0, read.seq, stamp(read.at)) + cut.tail for read, cut in zip(events, cuts, strict=True)
    ]
    assert {bytes(data_of(read)) for read in events} == {cuts[0].data.encode()}
    lines = await journal.lines(0, 0, len(events))
    assert lines is not None
    assert [parse_line(line + b"\n").account_id for line in lines.text.splitlines()] == accounts


async def test_lines_are_the_same_events_concatenated(journal: Journal) -> None:
    assert await journal.lines(0, 0, 10) is None
    await commit(journal, *(an_accept() for _ in range(5)))
    events = await journal.read(0, 0, 10)

    page = await journal.lines(0, 1, 3)

    assert page is not None
    assert page.text.decode() == "".join(event.line + "\n" for event in events[1:4])
    assert (page.count, page.last) == (3, Head(1, 4, events[3].hash))
    assert await journal.lines(0, 5, 3) is None


async def test_a_page_starts_after_the_last_seq_of_the_page_before(journal: Journal) -> None:
    await commit(journal, *(an_accept() for _ in range(5)))

    assert [event.seq for event in await journal.read(0, 0, 2)] == [1, 2]
    assert [event.seq for event in await journal.read(0, 2, 2)] == [3, 4]
    assert [event.seq for event in await journal.read(0, 4, 2)] == [5]


async def test_event_times_never_decrease_when_the_clock_steps_back(journal: Journal) -> None:
    await journal.append(0, "first", [an_accept()], START)
    await journal.append(0, "second", [an_accept()], START - timedelta(hours=1))
    await journal.append(0, "third", [an_accept()], START + timedelta(microseconds=1))

    events = await verified(journal)
    assert [event.at for event in events] == [START, START, START + timedelta(microseconds=1)]


async def test_a_conflict_rejects_one_change_and_commits_the_others_of_its_group(journal: Journal) -> None:
    stale = an_accept(key="taken")
    await commit(journal, stale)
    before, after = an_accept(key="before"), an_accept(key="after")

    outcomes = await journal.append(0, "mixed", [before, stale, after], START)

    assert outcomes[0] == Committed(2)
    assert isinstance(outcomes[1], Conflict)
    assert outcomes[2] == Committed(3)
    assert [event.order_id for event in await verified(journal)][1:] == [
        before.orders[0].order_id,
        after.orders[0].order_id,
    ]


async def test_a_stale_version_is_a_conflict(journal: Journal) -> None:
    accepted = an_accept()
    await commit(journal, accepted)
    state = state_after(accepted)
    first = begin_attempt(state, state.row("new", 1), WORKER, START)
    second = begin_attempt(state, state.row("new", 1), WorkerId("worker-2"), START)

    await commit(journal, first)

    assert await journal.append(0, "second", [second], START) == [Conflict()]
    assert (await journal.load([state.order.order_id]))[state.order.order_id] == numbered(state_after(first), 1)


async def test_a_version_that_skips_one_is_a_conflict(journal: Journal) -> None:
    accepted, never_accepted = an_accept(), an_accept()
    await commit(journal, accepted)
    sending = begin_attempt(state_after(accepted), accepted.outbox[0], WORKER, START)
    sent = record_sent(state_after(sending), sending.outbox[0], "venue-1", START)
    orphan = begin_attempt(state_after(never_accepted), never_accepted.outbox[0], WORKER, START)

    assert await journal.append(0, "too early", [sent, orphan], START) == [Conflict(), Conflict()]


async def test_an_order_is_created_once(journal: Journal) -> None:
    accepted = an_accept()
    await commit(journal, accepted)
    sending = begin_attempt(state_after(accepted), accepted.outbox[0], WORKER, START)
    await commit(journal, sending)

    assert await journal.append(0, "again", [accepted], START) == [Conflict()]
    assert await journal.load([accepted.orders[0].order_id]) == {
        accepted.orders[0].order_id: numbered(state_after(sending), 1)
    }


@pytest.mark.parametrize("stale", ["order", "outbox row"])
async def test_a_stale_row_rejects_the_whole_change(journal: Journal, stale: str) -> None:
    accepted = an_accept()
    await commit(journal, accepted)
    state = state_after(accepted)
    sending = begin_attempt(state, state.row("new", 1), WORKER, START)
    await commit(journal, sending)

    order, row = sending.orders[0], sending.outbox[0]
    if stale == "order":
        row = msgspec.structs.replace(row, version=row.version + 1)
    else:
        order = msgspec.structs.replace(order, version=order.version + 1)
    mixed = Change(events=sending.events, orders=(order,), outbox=(row,))

    assert await journal.append(0, "mixed", [mixed], START) == [Conflict()]
    assert (await journal.load([state.order.order_id]))[state.order.order_id] == numbered(state_after(sending), 1)
    assert len(await verified(journal)) == 2


async def test_a_conflict_on_a_used_key_returns_the_existing_entry(journal: Journal) -> None:
    first, second = an_accept(key="same"), an_accept(key="same", client_id="other")
    await commit(journal, first)

    assert await journal.append(0, "second", [second], START) == [Conflict(first.keys[0])]
    assert second.orders[0].order_id not in await journal.load([second.orders[0].order_id])


async def test_the_same_key_of_another_account_is_another_key(journal: Journal) -> None:
    await commit(journal, an_accept(key="same"), an_accept(key="same", account="acc-2"))


async def test_the_next_generation_of_a_key_replaces_the_one_before(journal: Journal) -> None:
    first, second = an_accept(key="same"), an_accept(key="same", generation=1)
    third, late = an_accept(key="same", generation=2), an_accept(key="same", generation=1)
    await commit(journal, first)

    assert await journal.append(0, "too early", [third], START) == [Conflict(first.keys[0])]
    await commit(journal, second)
    assert await journal.append(0, "late", [late], START) == [Conflict(second.keys[0])]
    await commit(journal, third)


async def test_a_second_version_of_a_key_without_a_first_is_a_conflict(journal: Journal) -> None:
    assert await journal.append(0, "second", [an_accept(key="new", generation=1)], START) == [Conflict()]


async def test_a_venue_client_order_id_is_used_by_one_order(journal: Journal) -> None:
    await commit(journal, an_accept(client_id="one"))

    outcomes = await journal.append(0, "again", [an_accept(client_id="one"), an_accept(client_id="two")], START)

    assert outcomes == [Conflict(), Committed(2)]


async def test_an_execution_counts_once(journal: Journal) -> None:
    accepted = an_accept()
    await commit(journal, accepted)
    report = a_report(state_after(accepted))
    filled = apply_report(state_after(accepted), None, report, START)
    await commit(journal, filled)

    assert await journal.append(
        0, "again", [apply_report(state_after(filled), filled.positions[0], report, START)], START
    ) == [Conflict()]
    assert len(await verified(journal)) == 3


async def test_a_report_on_an_unknown_order_is_stored_once(journal: Journal) -> None:
    report = a_report(state_after(an_accept()))
    await commit(journal, unmatched_report(report))

    assert await journal.append(0, "again", [unmatched_report(report)], START) == [Conflict()]
    [event] = await verified(journal)
    assert (event.type, event.account_id, event.order_id) == ("ReportUnmatched", SYSTEM_ACCOUNT, None)


async def test_a_repeated_group_returns_the_first_outcomes_and_writes_nothing(journal: Journal) -> None:
    taken = an_accept(key="taken")
    await commit(journal, taken)
    group = [an_accept(key="one"), an_accept(key="taken", client_id="other"), an_accept()]

    first = await journal.append(0, "group", group, START)
    head = await journal.head(0)
    await commit(journal, an_accept())
    second = await journal.append(0, "group", group, START + timedelta(hours=1))

    assert first == [Committed(2), Conflict(taken.keys[0]), Committed(3)]
    assert second == first
    assert (await journal.head(0)).seq == head.seq + 1
    await verified(journal)


async def test_a_group_with_conflicts_only_writes_nothing(journal: Journal) -> None:
    accepted = an_accept(key="key")
    await commit(journal, accepted)
    head = await journal.head(0)

    assert await journal.append(0, "again", [accepted], START) == [Conflict(accepted.keys[0])]
    assert await journal.head(0) == head


async def test_a_group_with_conflicts_only_is_checked_again_when_it_is_repeated(journal: Journal) -> None:
    accepted = an_accept()
    await commit(journal, accepted)
    sending = begin_attempt(state_after(accepted), accepted.outbox[0], WORKER, START)
    sent = record_sent(state_after(sending), sending.outbox[0], "venue-1", START)

    assert await journal.append(0, "early", [sent], START) == [Conflict()]
    await commit(journal, sending)
    assert await journal.append(0, "early", [sent], START) == [Committed(3)]


async def test_a_cursor_moves_without_an_event(journal: Journal) -> None:
    assert await journal.cursor("audit") is None
    for seq in (1, 7):
        cursor = Cursor(name="audit", epoch=1, seq=seq, hash="f" * 64)
        assert await commit(journal, Change(cursors=(cursor,))) == [0]
        assert await journal.cursor("audit") == cursor
    assert await journal.cursor("stream") is None
    assert (await journal.head(0)).seq == 0


async def test_a_cursor_of_a_rejected_change_does_not_move(journal: Journal) -> None:
    accepted = an_accept()
    await commit(journal, accepted)
    cursor = Cursor(name="reports", epoch=1, seq=1, hash="f" * 64)

    rejected = msgspec.structs.replace(accepted, cursors=(cursor,))

    assert await journal.append(0, "again", [rejected], START) == [Conflict()]
    assert await journal.cursor("reports") is None


async def test_events_of_a_new_epoch_continue_the_chain(database: Database) -> None:
    journal = database.journal
    await commit(journal, an_accept())
    before = await journal.head(0)

    opened = await journal.open_epoch(0, 0, START)
    assert opened == await journal.head(0) == Head(2, before.seq + EPOCH_GAP, before.hash)
    await commit(journal, an_accept())

    old_lines, new_lines = await journal.lines(0, 0, 1), await journal.lines(0, 1, 1)
    assert await journal.epochs(0) == [Epoch(1, 1, 0), Epoch(2, opened.seq + 1, before.seq)]
    assert old_lines is not None and new_lines is not None
    assert old_lines.last == before
    assert new_lines.last == await journal.head(0)
    assert new_lines.text.startswith(b'{"epoch":2,"shard":0,"seq":1000000002,')


def with_nul_in_a_row(change: Change) -> Change:
    return msgspec.structs.replace(change, orders=(msgspec.structs.replace(change.orders[0], reason="a\0b"),))


def with_nul_in_an_event(change: Change) -> Change:
    return msgspec.structs.replace(change, events=(msgspec.structs.replace(change.events[0], data="a\0b"),))


def with_half_a_surrogate_pair_in_a_row(change: Change) -> Change:
    return msgspec.structs.replace(change, orders=(msgspec.structs.replace(change.orders[0], reason="\udcff"),))


def with_half_a_surrogate_pair_in_an_event(change: Change) -> Change:
    return msgspec.structs.replace(change, events=(msgspec.structs.replace(change.events[0], data="\udcff"),))


# SQLite differs: it stores NUL, has one shard, and keeps the last of two changes that write the same row.
STRICT: list[Engine] = ["memory", "postgres"]


@pytest.mark.parametrize(
    ("engine", "spoil"),
    [
        *[(engine, spoil) for engine in STRICT for spoil in (with_nul_in_a_row, with_nul_in_an_event)],
        *[(engine, with_half_a_surrogate_pair_in_an_event) for engine in STRICT],
        *[(engine, with_half_a_surrogate_pair_in_a_row) for engine in ("memory", "sqlite")],
    ],
)
async def test_a_value_that_cannot_be_stored_rejects_its_group(
    engine: Engine, spoil: Callable[[Change], Change], request: pytest.FixtureRequest
) -> None:
    good, bad = an_accept(), spoil(an_accept())
    async with fresh_database(engine, request) as database:
        with pytest.raises(GroupRejected):
            await database.journal.append(0, "group", [good, bad], START)
        assert (await database.journal.head(0)).seq == 0
        assert await database.journal.load([good.orders[0].order_id]) == {}

        assert await commit(database.journal, good) == [1]


async def test_text_that_looks_like_an_escaped_nul_is_stored(journal: Journal) -> None:
    accepted = an_accept(tags=(r"a\u0000b", r"a\\u0000b"))
    await commit(journal, accepted)
    order_id = accepted.orders[0].order_id
    assert await journal.load([order_id]) == {order_id: numbered(state_after(accepted), 1)}


@pytest.mark.parametrize("engine", STRICT)
async def test_a_group_in_which_two_changes_write_the_same_row_is_rejected(
    engine: Engine, request: pytest.FixtureRequest
) -> None:
    group = [an_accept(key="same"), an_accept(key="same", client_id="other")]
    async with fresh_database(engine, request) as database:
        with pytest.raises(GroupRejected):
            await database.journal.append(0, "group", group, START)
        assert (await database.journal.head(0)).seq == 0


@pytest.mark.parametrize("engine", STRICT)
@pytest.mark.parametrize("part", ["orders", "outbox", "positions"])
async def test_a_group_in_which_two_changes_move_the_same_row_is_rejected(
    engine: Engine, part: str, request: pytest.FixtureRequest
) -> None:
    accepted = an_accept()
    filled = apply_report(state_after(accepted), None, a_report(state_after(accepted)), START)
    async with fresh_database(engine, request) as database:
        await commit(database.journal, accepted)
        await commit(database.journal, filled)
        moved = [msgspec.structs.replace(row, version=row.version + 1) for row in getattr(filled, part)]
        change = msgspec.structs.replace(Change(events=filled.events), **{part: tuple(moved)})
        head = await database.journal.head(0)
        with pytest.raises(GroupRejected):
            await database.journal.append(0, "twice", [change, change], START)
        assert await database.journal.head(0) == head


@pytest.mark.parametrize("engine", STRICT)
async def test_each_shard_has_its_own_numbers(engine: Engine, request: pytest.FixtureRequest) -> None:
    async with fresh_database(engine, request) as database:
        await commit(database.journal, an_accept())
        outcomes = await database.journal.append(7, "other shard", [an_accept(), an_accept()], START)

        assert outcomes == [Committed(1), Committed(2)]
        assert (await database.journal.head(0)).seq == 1
        assert (await database.journal.head(7)).seq == 2
        assert len(await database.journal.read(7, 0, 10)) == 2
