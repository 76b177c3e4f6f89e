"""The journal on PostgreSQL only: several writers, segments, and values that the server rejects."""

import asyncio
from collections.abc import Callable
from decimal import Decimal
from functools import partial

import asyncpg
import msgspec
import pytest

from switchyard.adapters.postgres.database import PostgresDatabase
from switchyard.domain.decisions import apply_report, begin_attempt, record_result, set_kill, unmatched_report
from switchyard.domain.errors import GroupRejected
from switchyard.domain.ids import KillId, WorkerId
from switchyard.domain.journal.changes import Change, Committed, Conflict, merged
from switchyard.domain.risk.claims import Claim, Limits, Terms
from switchyard.domain.risk.kills import Kill
from tests.support.build import VENUE, a_report, an_accept, state_after
from tests.support.journal_checks import commit, verified
from tests.support.memory.clock import START
from tests.support.polling import until


async def test_two_gateways_write_one_chain(postgres_url: str) -> None:
    gateways = [await PostgresDatabase.open(postgres_url) for _ in range(2)]

    async def write(gateway: int) -> None:
        for group in range(20):
            changes = [an_accept(key=f"{gateway}-{group}-{number}") for number in range(5)]
            await commit(gateways[gateway].journal, *changes)

    await asyncio.gather(*(write(gateway) for gateway in range(len(gateways))))

    assert len(await verified(gateways[0].journal)) == 200
    for gateway in gateways:
        await gateway.close()


async def test_of_two_workers_that_claim_the_same_row_one_gets_it(postgres_url: str) -> None:
    gateways = [await PostgresDatabase.open(postgres_url) for _ in range(2)]
    accepted = [an_accept() for _ in range(20)]
    await commit(gateways[0].journal, *accepted)

    async def claim(gateway: int) -> list[bool]:
        claims = [
            begin_attempt(state_after(change), change.outbox[0], WorkerId(f"worker-{gateway}"), START)
            for change in accepted
        ]
        outcomes = await gateways[gateway].journal.append(0, f"claim-{gateway}", claims, START)
        return [isinstance(outcome, Committed) for outcome in outcomes]

    first, second = await asyncio.gather(claim(0), claim(1))

    assert [by_first != by_second for by_first, by_second in zip(first, second, strict=True)] == [True] * 20
    assert len(await verified(gateways[0].journal)) == 40
    for gateway in gateways:
        await gateway.close()


LIMITS = Limits(symbol_open_orders=1)


def the_same_order(accepted: Change) -> tuple[Change, Change]:
    """Two workers begin to send it."""
    state = state_after(accepted)
    first, second = (begin_attempt(state, state.outbox[0], WorkerId(name), START) for name in ("one", "two"))
    return first, second


def the_same_key(_: Change) -> tuple[Change, Change]:
    return an_accept(key="same"), an_accept(key="same", client_id="other")


def the_same_position(accepted: Change) -> tuple[Change, Change]:
    state = state_after(accepted)
    first, second = (apply_report(state, None, a_report(state, exec_id=name), START) for name in ("one", "two"))
    return first, Change(events=second.events, positions=second.positions)


def the_same_execution(accepted: Change) -> tuple[Change, Change]:
    change = unmatched_report(a_report(state_after(accepted)))
    return change, change


def a_kill_and_an_order(_: Change) -> tuple[Change, Change]:
    kill = Kill(kill_id=KillId("kill-1"), version=1, set_by="a person", set_reason="stop", set_at=START)
    return set_kill(kill), an_accept(symbol="EURUSD")


def a_queue_and_an_attempt(_: Change) -> tuple[Change, Change]:
    accepted = an_accept(symbol="EURUSD")
    state = state_after(accepted)
    begun = merged([accepted, begin_attempt(state, state.outbox[0], WorkerId("one"), START)])
    return an_accept(symbol="EURUSD"), begun


def two_orders_under_a_limit_of_one(_: Change) -> tuple[Change, Change]:
    first, second = (
        an_accept(symbol="EURUSD", terms=Terms(currency="USD", price=Decimal(1), reducing=False)) for _ in range(2)
    )
    return _claimed(first), _claimed(second)


def _claimed(change: Change) -> Change:
    claim = Claim(order_id=change.orders[0].order_id, limits=LIMITS, day=START.date())
    return msgspec.structs.replace(change, claims=(claim,))


@pytest.mark.parametrize(
    "contenders",
    [
        the_same_order,
        the_same_key,
        the_same_position,
        the_same_execution,
        a_kill_and_an_order,
        a_queue_and_an_attempt,
        two_orders_under_a_limit_of_one,
    ],
)
async def test_a_group_that_waited_for_the_lock_is_judged_on_what_the_group_before_it_wrote(
    postgres_url: str, contenders: Callable[[Change], tuple[Change, Change]]
) -> None:
    gateways = [await PostgresDatabase.open(postgres_url) for _ in range(2)]
    accepted = an_accept()
    await commit(gateways[0].journal, accepted)
    holder = await asyncpg.connect(postgres_url)
    watcher = await asyncpg.connect(postgres_url)
    holding = holder.transaction()
    await holding.start()
    await holder.execute("SELECT FROM journal_heads FOR UPDATE")

    # Both have parsed their rows before the first of them is judged.
    appends = []
    for number, (gateway, change) in enumerate(zip(gateways, contenders(accepted), strict=True)):
        appends.append(asyncio.create_task(gateway.journal.append(0, f"waiting-{number}", [change], START)))
        await until(partial(_are_waiting, watcher, number + 1))
    await holding.rollback()
    [first], [second] = await asyncio.gather(*appends)

    assert isinstance(first, Committed)
    assert isinstance(second, Conflict)
    await verified(gateways[0].journal)
    for connection in (holder, watcher):
        await connection.close()
    for gateway in gateways:
        await gateway.close()


async def _are_waiting(connection: asyncpg.Connection, number: int) -> bool:
    """Whether so many appends wait for the lock of the shard."""
    waiting: int = await connection.fetchval(
        """
        SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%append_group%'
        """
    )
    return waiting == number


async def test_a_change_of_an_orders_status_touches_no_index(postgres_url: str) -> None:
    # With an index on `status`, or with a condition on it, every change of status would write to all indexes of the
    # table.
    connection = await asyncpg.connect(postgres_url)
    indexes = await connection.fetch("SELECT indexdef FROM pg_indexes WHERE tablename = 'orders'")
    await connection.close()

    assert len(indexes) > 1
    assert [found["indexdef"] for found in indexes if "status" in found["indexdef"]] == []


@pytest.mark.parametrize("has_statistics", [False, True])
async def test_a_look_for_strays_does_not_read_all_executions(postgres_url: str, has_statistics: bool) -> None:
    database = await PostgresDatabase.open(postgres_url)
    accepted = an_accept()
    await commit(database.journal, accepted)
    connection = await asyncpg.connect(postgres_url)
    await connection.execute(
        """
        INSERT INTO executions (venue, exec_id, order_id, stray_client_order_id)
        SELECT $1, number, '', CASE number WHEN 7 THEN $2 END FROM generate_series(1, 50000) AS number
        """,
        VENUE,
        accepted.orders[0].venue_client_order_id,
    )
    if has_statistics:
        await connection.execute("ANALYZE executions")
    else:  # those of an earlier test may be left
        await connection.execute("DELETE FROM pg_statistic WHERE starelid = 'executions'::regclass")
    before = await _reads_of(connection, "executions")

    [stray] = await database.queries.matched_strays(VENUE, limit=500)
    assert stray.exec_id == "7"
    await database.close()

    async def is_counted() -> bool:
        return await _reads_of(connection, "executions") != before  # a session reports what it read when it ends

    await until(is_counted)
    after = await _reads_of(connection, "executions")
    # Entries of rows that an earlier test deleted may still be there.
    assert all(entries - before[name] < 100 for name, entries in after.items())
    await connection.close()


APPENDED_TABLES = ("orders", "unfinished_orders", "idempotency_keys", "outbox_orders", "positions", "executions")


async def test_an_append_planned_while_the_tables_are_empty_does_not_read_them_when_they_have_grown(
    postgres_url: str,
) -> None:
    connection = await asyncpg.connect(postgres_url)
    for table in APPENDED_TABLES:
        await connection.execute(f"VACUUM ANALYZE {table}")
    database = await PostgresDatabase.open(postgres_url)

    async def fill(name: str) -> None:
        accepted = an_accept(key=name, account=name)
        state = state_after(accepted)
        begun = merged([accepted, begin_attempt(state, state.outbox[0], WorkerId("one"), START)])
        await commit(database.journal, begun)
        [state] = (await database.journal.load([state.order.order_id])).values()
        filled = apply_report(state, None, a_report(state, exec_id=name), START)
        result = record_result(filled.orders[0], 200, "{}", "sha256:0")
        await commit(database.journal, merged([filled, result]))

    await fill("planned")
    for table in APPENDED_TABLES:
        await connection.execute(
            f"""
            INSERT INTO {table} SELECT copy.* FROM {table} AS stored, generate_series(1, 5000) AS copied
            CROSS JOIN LATERAL jsonb_populate_record(stored, jsonb_build_object(
                'order_id', copied, 'venue_client_order_id', copied, 'account_id', copied, 'exec_id', copied
            )) AS copy
            """
        )
    await connection.execute(
        "INSERT INTO unfinished_orders SELECT number, number, $1 FROM generate_series(1, 5000) AS number", VENUE
    )
    before = await _reads_of(connection, *APPENDED_TABLES)
    await fill("grown")
    await database.close()

    async def is_counted() -> bool:
        return await _reads_of(connection, *APPENDED_TABLES) != before

    await until(is_counted)
    after = await _reads_of(connection, *APPENDED_TABLES)
    assert {name: entries - before[name] for name, entries in after.items() if entries - before[name] > 1000} == {}
    await connection.close()


async def _reads_of(connection: asyncpg.Connection, *tables: str) -> dict[str, int]:
    """How many rows or entries were read of these tables and of each of their indexes."""
    rows = await connection.fetch(
        """
        SELECT indexrelname, idx_tup_read FROM pg_stat_user_indexes WHERE relname = ANY ($1)
        UNION ALL SELECT relname, seq_tup_read FROM pg_stat_user_tables WHERE relname = ANY ($1)
        """,
        tables,
    )
    return dict(rows)


async def test_shards_are_journals_of_their_own(postgres_url: str) -> None:
    database = await PostgresDatabase.open(postgres_url)
    await commit(database.journal, an_accept())

    assert await database.journal.append(7, "other shard", [an_accept(), an_accept()], START) == [
        Committed(1),
        Committed(2),
    ]

    assert (await database.journal.head(0)).seq == 1
    assert (await database.journal.head(7)).seq == 2
    assert len(await database.journal.read(7, 0, 10)) == 2
    await database.close()


async def test_the_journal_grows_into_the_next_segment(postgres_url: str) -> None:
    database = await PostgresDatabase.open(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    await commit(database.journal, an_accept())
    await connection.execute("UPDATE journal_heads SET seq = 499998")
    segments = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'events'::regclass"
    assert await connection.fetchval(segments) == 1

    await commit(database.journal, an_accept(), an_accept())
    assert await connection.fetchval(segments) == 2
    await connection.execute("UPDATE journal_heads SET seq = 999998")
    assert await commit(database.journal, *(an_accept() for _ in range(3))) == [999_999, 1_000_000, 1_000_001]

    page = await database.journal.read(0, 499_999, 10)
    assert [event.seq for event in page] == [500_000, 999_999, 1_000_000, 1_000_001]
    mine = await database.queries.last_events(account_id=page[0].account_id, limit=3)
    assert mine == page[1:]
    assert await connection.fetchval("SELECT count(*) FROM events_000001") == 2
    await connection.close()
    await database.close()


def with_nul_in_a_row(change: Change) -> Change:
    return msgspec.structs.replace(change, orders=(msgspec.structs.replace(change.orders[0], reason="a\0b"),))


def with_nul_in_an_event(change: Change) -> Change:
    return msgspec.structs.replace(change, events=(msgspec.structs.replace(change.events[0], data="a\0b"),))


def with_half_a_character(change: Change) -> Change:
    return msgspec.structs.replace(change, events=(msgspec.structs.replace(change.events[0], data="\udcff"),))


@pytest.mark.parametrize("spoil", [with_nul_in_a_row, with_nul_in_an_event, with_half_a_character])
async def test_a_value_that_cannot_be_stored_rejects_its_group_and_writes_nothing(
    postgres_url: str, spoil: Callable[[Change], Change]
) -> None:
    database = await PostgresDatabase.open(postgres_url)
    good, bad = an_accept(), spoil(an_accept())

    with pytest.raises(GroupRejected):
        await database.journal.append(0, "with a bad one", [good, bad], START)
    assert (await database.journal.head(0)).seq == 0

    assert await commit(database.journal, good) == [1]
    await database.close()


async def test_a_group_whose_changes_share_a_row_is_rejected(postgres_url: str) -> None:
    database = await PostgresDatabase.open(postgres_url)

    with pytest.raises(GroupRejected):
        await database.journal.append(0, "twins", [an_accept(key="same"), an_accept(key="same", client_id="x")], START)

    assert (await database.journal.head(0)).seq == 0
    await database.close()


async def test_old_outcomes_are_deleted_and_recent_ones_are_kept(postgres_url: str) -> None:
    database = await PostgresDatabase.open(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    old, young = an_accept(), an_accept(key="young")
    await database.journal.append(0, "old", [old], START)
    await database.journal.append(0, "young", [young], START)
    await connection.execute(
        "UPDATE append_groups SET recorded_at = recorded_at - interval '61 minutes' WHERE group_id = 'old'"
    )

    await connection.execute("UPDATE journal_heads SET seq = 4095")
    await commit(database.journal, an_accept())

    assert await database.journal.append(0, "young", [young], START) == [Committed(2)]
    assert await database.journal.append(0, "old", [old], START) == [Conflict()]
    await connection.close()
    await database.close()
