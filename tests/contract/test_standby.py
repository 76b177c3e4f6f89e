"""Reads on PostgreSQL with a synchronous standby: what only the primary has is not shown before the standby has it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, suppress
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from switchyard.adapters.backoffice.postgres import ledger as ledger_of_books
from switchyard.adapters.backoffice.postgres.ledger import PostgresLedger, in_transaction
from switchyard.adapters.backoffice.reads import SqlLedgerLookup, SqlLedgerReports
from switchyard.adapters.memory.cache import MemoryCache
from switchyard.adapters.pdca.store import SqlPdcaStore
from switchyard.adapters.postgres.connection import READ_SECONDS_MAX
from switchyard.adapters.postgres.database import PostgresDatabase
from switchyard.adapters.postgres.journal import PostgresJournal
from switchyard.adapters.postgres.reader import CONNECTIONS_MAX, Reader
from switchyard.domain.books.entries import Adoption
from switchyard.domain.books.manual import ManualConflict, ManualEntry, entry_id_of_manual
from switchyard.domain.errors import (
    IdempotencyConflict,
    InvalidField,
    JournalUnavailable,
    NotReplicated,
    OutcomeUnknown,
)
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.journal.changes import Change
from switchyard.domain.journal.lines import Place
from switchyard.domain.orders.keys import CANCEL_ALL, PLACE_ORDER, KeyEntry
from switchyard.flow.intake.order_intake import IdempotentRequest, KeyCache
from switchyard.flow.readers.stream import StreamHub
from switchyard.ports.books import EntryFilter, LedgerUnavailable
from switchyard.ports.queries import OrderFilter, UnfinishedFilter
from switchyard.ports.strategies import PdcaUnavailable
from tests.support.build import ACCOUNT, an_accept
from tests.support.journal_checks import commit
from tests.support.memory.clock import START, ManualClock
from tests.support.pdca import a_recheck, add_strategies
from tests.support.polling import until
from tests.support.postgres import STANDBY, PostgresServer
from tests.support.replication import (
    Exposure,
    Replicated,
    configure,
    replicated_database,
    set_standby_names,
    two_servers,
)

OWNER = AccountId(ACCOUNT)


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    with two_servers() as pair:
        yield pair


@pytest.fixture
async def servers(pair: tuple[PostgresServer, PostgresServer]) -> Replicated:
    return await replicated_database(*pair)


@pytest.fixture
async def database(servers: Replicated) -> AsyncIterator[PostgresDatabase]:
    """The database as another process sees it, which has read it before and takes every setting as applied."""
    database = await PostgresDatabase.open(servers.url)
    database.journal._reader.barrier._settled_seconds = 0
    await database.journal.head(0)
    yield database
    await database.close()


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """Closes what a test opens."""
    async with AsyncExitStack() as stack:
        yield stack


async def exposed(servers: Replicated, change: Change, by: Exposure = "cancelled") -> None:
    """Commit a change while the standby is away, in a process that ends before it has an answer."""
    ended = await PostgresDatabase.open(servers.url)
    await asyncio.to_thread(servers.standby.stop)
    appending = asyncio.create_task(ended.journal.append(0, "exposed", [change], START))
    await servers.until_waiting()
    await servers.expose(by)
    await until(lambda: _is_stored(servers))
    appending.cancel()
    await asyncio.gather(appending, return_exceptions=True)
    await ended.close()


async def _is_stored(servers: Replicated) -> bool:
    return bool(await servers.on_primary("SELECT FROM append_groups WHERE group_id = 'exposed'"))


def proofs(database: PostgresDatabase, order_id: OrderId, key: str) -> dict[str, Callable[[], Awaitable[Any]]]:
    """Reads whose results are answered to clients or leave the process."""
    return {
        "key": lambda: database.keys.entry(OWNER, PLACE_ORDER, key),
        "order": lambda: database.queries.order(order_id),
        "orders": lambda: database.queries.orders(OrderFilter(account_id=OWNER)),
        "events of the order": lambda: database.queries.events_after(0, order_id=order_id, limit=10),
        "last events": lambda: database.queries.last_events(account_id=OWNER, limit=10),
        "first event at": lambda: database.queries.first_seq_at(START),
        "positions": lambda: database.queries.positions(OWNER, limit=10),
        "unfinished orders": lambda: database.accounts.unfinished_orders(UnfinishedFilter(account_id=OWNER, limit=10)),
        "open positions": lambda: database.accounts.open_positions(OWNER, limit=10),
        "kills": lambda: database.kills.newest(limit=10),
        "active kills": lambda: database.kills.active(),
        "state": lambda: database.journal.load([order_id]),
        "exposure in a symbol": lambda: database.journal.symbol_exposure(OWNER, "USDJPY", fresh=True),
        "exposure": lambda: database.journal.account_exposure(OWNER),
        "journal": lambda: database.journal.read(0, 0, 10),
        "audit lines": lambda: database.journal.lines(0, 0, 10),
        "head": lambda: database.journal.head(0),
    }


@pytest.mark.parametrize("by", ["cancelled", "terminated", "crashed"])
async def test_a_commit_that_only_the_primary_has_is_shown_once_the_standby_has_it(
    servers: Replicated, database: PostgresDatabase, by: Exposure
) -> None:
    change = an_accept(key="exposed")
    order_id = change.orders[0].order_id
    await exposed(servers, change, by)
    reads = proofs(database, order_id, "exposed")

    results = await asyncio.gather(*(read() for read in reads.values()), return_exceptions=True)

    kinds = {name: type(result) for name, result in zip(reads, results, strict=True)}
    assert kinds == {**dict.fromkeys(reads, NotReplicated), "key": OutcomeUnknown}
    servers.standby.start()
    await servers.until_synchronous()
    shown = {name: await read() for name, read in reads.items()}
    assert shown["key"].order_id == shown["order"].order_id == order_id
    assert [event.seq for event in shown["journal"]] == [1]
    assert shown["head"].seq == 1


async def test_a_key_without_an_order_is_shown_once_the_standby_has_it(
    servers: Replicated, database: PostgresDatabase
) -> None:
    await commit(database.journal, an_accept())
    entry = KeyEntry(
        account_id=OWNER,
        operation=CANCEL_ALL,
        idempotency_key="all",
        generation=0,
        order_id=OrderId(""),
        request_digest="digest",
        created_at=START,
        expires_at=START,
        version=1,
    )
    await exposed(servers, Change(keys=(entry,)))

    with pytest.raises(OutcomeUnknown):
        await database.keys.entry(OWNER, CANCEL_ALL, "all")

    servers.standby.start()
    assert await database.keys.entry(OWNER, CANCEL_ALL, "all") == entry


async def test_a_cancelled_wait_of_the_barrier_confirms_nothing(
    servers: Replicated, database: PostgresDatabase
) -> None:
    change = an_accept()
    await exposed(servers, change)
    reading = asyncio.create_task(database.queries.order(change.orders[0].order_id))

    async def is_cancelled() -> bool:
        assert not reading.done(), "shown without the standby"
        return await servers.cancel_one()

    for _ in range(3):
        await until(is_cancelled)

    servers.standby.start()
    shown = await reading
    assert shown is not None


async def test_concurrent_reads_share_a_check_and_known_events_need_none(
    servers: Replicated, database: PostgresDatabase
) -> None:
    change = an_accept(key="own")
    await commit(database.journal, change)
    order_id = change.orders[0].order_id
    await database.queries.order(order_id)
    before = await servers.writes()
    for _ in range(5):
        await database.queries.order(order_id)
    assert await servers.writes() == before, "the standby has the last event: nothing to wait for"

    other = await PostgresDatabase.open(servers.url)
    await commit(other.journal, an_accept())
    await other.close()
    before = await servers.writes()
    await asyncio.gather(*(database.queries.order(order_id) for _ in range(50)))
    assert await servers.writes() - before == 1


async def test_without_a_synchronous_standby_nothing_is_written_and_a_setting_holds_from_the_next_read_on(
    servers: Replicated, database: PostgresDatabase
) -> None:
    await set_standby_names(servers.url, "")
    change = an_accept()
    await commit(database.journal, change)
    before = await servers.writes()
    assert await database.queries.order(change.orders[0].order_id) is not None
    assert await servers.writes() == before

    await asyncio.to_thread(servers.standby.stop)
    await set_standby_names(servers.url, STANDBY)

    with pytest.raises(JournalUnavailable):
        await database.queries.order(change.orders[0].order_id)


@pytest.mark.parametrize("by", ["read", "append"])
async def test_what_did_not_wait_under_a_setting_that_is_not_applied_yet_is_not_remembered_as_confirmed(
    servers: Replicated, stack: AsyncExitStack, by: str
) -> None:
    database = await PostgresDatabase.open(servers.url)
    stack.push_async_callback(database.close)
    await set_standby_names(servers.url, "")
    change = an_accept()
    if by == "read":
        await commit(database.journal, change)
    await asyncio.to_thread(servers.standby.stop)
    async with servers.unapplied_settings():
        await set_standby_names(servers.url, STANDBY)
        await database.journal.head(0)
        if by == "append":
            await commit(database.journal, change)
    await servers.until_commits_wait()

    with pytest.raises(JournalUnavailable):
        await database.queries.order(change.orders[0].order_id)


async def test_until_a_setting_is_settled_each_read_writes_a_record_of_its_own(
    servers: Replicated, stack: AsyncExitStack
) -> None:
    database = await PostgresDatabase.open(servers.url)
    stack.push_async_callback(database.close)
    await commit(database.journal, an_accept())
    before = await servers.writes()
    for _ in range(3):
        await database.journal.head(0)
    assert await servers.writes() - before == 3

    database.journal._reader.barrier._settled_seconds = 0
    await database.journal.head(0)
    before = await servers.writes()
    await database.journal.head(0)
    assert await servers.writes() == before


async def test_a_recheck_is_acknowledged_once_the_standby_has_it(servers: Replicated, stack: AsyncExitStack) -> None:
    store, other = [await SqlPdcaStore.on_postgres(servers.url) for _ in range(2)]
    stack.push_async_callback(store.close)
    stack.push_async_callback(other.close)
    await add_strategies(store, "a")
    await asyncio.to_thread(servers.standby.stop)
    request = a_recheck()
    creating = asyncio.create_task(store.create(request, "key", "digest", ["a"]))
    await until(servers.cancel_one)  # the wait of its commit, which then is visible

    with pytest.raises(OutcomeUnknown):
        await creating
    with pytest.raises(OutcomeUnknown):
        await other.create(request, "key", "digest", ["a"])
    with pytest.raises(OutcomeUnknown):  # not that the key is in use
        await other.create(request, "key", "another digest", ["a"])
    with pytest.raises(PdcaUnavailable):
        await other.request(request.request_id)

    servers.standby.start()
    await servers.until_synchronous()
    assert (await other.create(request, "key", "digest", ["a"])).replayed
    with pytest.raises(IdempotencyConflict):
        await other.create(request, "key", "another digest", ["a"])


def answers(ledger: PostgresLedger) -> dict[str, Callable[[], Awaitable[Any]]]:
    """Reads of the books that are answered to people."""
    reports, lookup, day = SqlLedgerReports(ledger), SqlLedgerLookup(ledger), START.date()
    return {
        "entries": lambda: ledger.entries(EntryFilter(account_id=OWNER)),
        "entries of the strategy": lambda: ledger.strategy_entries(OWNER, "", None, 10),
        "holdings": lambda: ledger.holdings(OWNER, "", "", 10),
        "balances": lambda: ledger.balances(OWNER, "", 10),
        "adoptions": lambda: ledger.adoptions(),
        "orphans": lambda: ledger.orphans((AccountId(""), 0), 10),
        "results": lambda: reports.results(OWNER, "day", (day, day), ("", ""), 10),
        "closing balances": lambda: reports.closing_balances(OWNER, day, "", 10),
        "closing holdings": lambda: reports.closing_holdings(OWNER, day, ("", ""), 10),
        "open holdings": lambda: reports.open_holdings(OWNER, False, 10),
        "account": lambda: lookup.find_account(OWNER),
        "tables": lambda: lookup.tables(OWNER),
    }


async def test_an_entry_of_a_person_is_acknowledged_and_shown_once_the_standby_has_it(
    servers: Replicated, stack: AsyncExitStack
) -> None:
    ledger, other = [await PostgresLedger.open(servers.url) for _ in range(2)]
    stack.push_async_callback(ledger.close)
    stack.push_async_callback(other.close)
    deposit = ManualEntry(
        type="Deposit", account_id=OWNER, key="k1", by="ann", reason="a test", currency="JPY", amount=Decimal(1)
    )
    await asyncio.to_thread(servers.standby.stop)
    entering = asyncio.create_task(ledger.enter(deposit, START))
    await until(servers.cancel_one)  # the wait of its commit, which then is visible

    with pytest.raises(OutcomeUnknown):
        await entering
    with pytest.raises(OutcomeUnknown):
        await other.enter(deposit, START)
    reads = answers(other)
    shown = await asyncio.gather(*(read() for read in reads.values()), return_exceptions=True)
    kinds = {name: type(result) for name, result in zip(reads, shown, strict=True)}
    assert kinds == dict.fromkeys(reads, LedgerUnavailable)

    servers.standby.start()
    await servers.until_synchronous()
    assert (await other.enter(deposit, START)).repeated
    assert await other.balances(OWNER, "", 10)


async def test_an_entry_of_a_person_does_not_wait_longer_for_the_standby_than_an_order(
    servers: Replicated, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_of_books, "COMMIT_SECONDS_MAX", 1.0)
    ledger = await PostgresLedger.open(servers.url)
    stack.push_async_callback(ledger.close)
    deposit = ManualEntry(
        type="Deposit", account_id=OWNER, key="k1", by="ann", reason="a test", currency="JPY", amount=Decimal(1)
    )
    await ledger.balances(OWNER, "", 10)  # connects
    await asyncio.to_thread(servers.standby.stop)
    with pytest.raises(OutcomeUnknown):
        async with asyncio.timeout(READ_SECONDS_MAX / 2):
            await ledger.enter(deposit, START)


async def test_an_error_that_tells_of_an_entry_waits_for_the_standby_too(
    servers: Replicated, stack: AsyncExitStack
) -> None:
    """A person takes 'is reversed already' and 'the key is in use' for a proof that the entry is booked."""
    ledger, other = [await PostgresLedger.open(servers.url) for _ in range(2)]
    stack.push_async_callback(ledger.close)
    stack.push_async_callback(other.close)
    deposit = ManualEntry(
        type="Deposit", account_id=OWNER, key="k1", by="ann", reason="a test", currency="JPY", amount=Decimal(1)
    )
    await ledger.enter(deposit, START)
    target = entry_id_of_manual(deposit)
    reversal = ManualEntry(type="Reversal", account_id=OWNER, key="k2", by="ann", reason="a test", reverses=target)
    again, in_use = replace(reversal, key="k3"), replace(deposit, key="k2")
    await asyncio.to_thread(servers.standby.stop)
    entering = asyncio.create_task(ledger.enter(reversal, START))
    await until(servers.cancel_one)  # the wait of its commit, which then is visible

    shown = await asyncio.gather(
        entering, other.enter(again, START), other.enter(in_use, START), return_exceptions=True
    )
    assert [type(error) for error in shown] == [OutcomeUnknown] * 3

    servers.standby.start()
    await servers.until_synchronous()
    with pytest.raises(InvalidField, match="is reversed already"):
        await other.enter(again, START)
    with pytest.raises(ManualConflict):
        await other.enter(in_use, START)


async def test_an_adoption_is_acknowledged_once_the_standby_has_it(servers: Replicated, stack: AsyncExitStack) -> None:
    ledger = await PostgresLedger.open(servers.url)
    stack.push_async_callback(ledger.close)
    adoption = Adoption(epoch=2, after_seq=0, first_seq=1, by="ann", reason="a test", at=START)
    await asyncio.to_thread(servers.standby.stop)
    adopting = asyncio.create_task(ledger.adopt(adoption, "journal", Place()))
    await until(servers.cancel_one)

    with pytest.raises(OutcomeUnknown):
        await adopting

    servers.standby.start()
    await servers.until_synchronous()
    assert await ledger.adoptions() == [adoption]


@pytest.mark.parametrize("lost", [TimeoutError(), ConnectionResetError()])
async def test_an_entry_whose_commit_is_not_answered_may_be_booked(
    servers: Replicated, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch, lost: Exception
) -> None:
    ledger = await PostgresLedger.open(servers.url)
    stack.push_async_callback(ledger.close)

    async def commits_unanswered(*arguments: Any) -> Any:
        await in_transaction(*arguments)
        raise lost

    deposit = ManualEntry(
        type="Deposit", account_id=OWNER, key="k1", by="ann", reason="a test", currency="JPY", amount=Decimal(1)
    )
    with monkeypatch.context() as patch:
        patch.setattr(f"{PostgresLedger.__module__}.in_transaction", commits_unanswered)
        with pytest.raises(OutcomeUnknown):
            await ledger.enter(deposit, START)

    assert (await ledger.enter(deposit, START)).repeated


async def test_sessions_that_are_given_up_do_not_add_up_at_the_server(
    servers: Replicated, stack: AsyncExitStack
) -> None:
    reader = await Reader.open(servers.url)
    stack.push_async_callback(reader.close)
    journal = PostgresJournal(servers.url, reader, settle_seconds_max=0.5)
    stack.push_async_callback(journal.close)
    await asyncio.to_thread(servers.standby.stop)

    with pytest.raises(OutcomeUnknown):
        await journal.append(0, "given up", [an_accept()], START)
    assert await servers.waits() == 0
    with pytest.raises(JournalUnavailable):
        await journal.head(0)
    assert await servers.waits() == 0


async def test_the_barrier_needs_no_privilege(servers: Replicated) -> None:
    role = "plain"
    await servers.on_primary(f"CREATE ROLE {role} LOGIN")
    await servers.on_primary(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    reader = await Reader.open(servers.url.replace("postgres@", f"{role}@"))
    async with reader.barrier.confirmed() as read:
        read.must_write = True
    await reader.close()


@pytest.mark.parametrize("is_first", [False, True])
async def test_a_promoted_standby_confirms_no_read_of_the_primary_before_it(is_first: bool) -> None:
    with two_servers() as (primary, standby):
        servers = await replicated_database(primary, standby)
        database = await PostgresDatabase.open(servers.both_url)
        database.journal._reader.barrier._seconds_max = 60  # longer than the promotion takes
        if not is_first:
            await database.journal.head(0)
        change = an_accept()
        await exposed(servers, change)
        reading = asyncio.create_task(database.queries.order(change.orders[0].order_id))
        await until(lambda: _waits(servers))

        await asyncio.to_thread(primary.kill)
        await asyncio.to_thread(standby.start)
        await asyncio.to_thread(standby.promote)
        await set_standby_names(servers.standby_url, "")

        with pytest.raises(JournalUnavailable):
            await reading
        assert await database.queries.order(change.orders[0].order_id) is None
        await database.close()


@pytest.mark.parametrize("is_first", [False, True])
async def test_after_a_promotion_no_read_is_answered_by_the_primary_before_it(is_first: bool) -> None:
    """That one is alive and keeps its sessions, as if it were cut off from the promoted server alone."""
    with two_servers() as (primary, standby):
        servers = await replicated_database(primary, standby)
        database = await PostgresDatabase.open(servers.both_url)
        database.journal._reader.barrier._seconds_max = 60  # longer than a busy machine takes
        change = an_accept()
        order_id = change.orders[0].order_id

        async def reads() -> list[Any]:
            """As many at once as the pool has connections."""
            reading = [database.queries.order(order_id) for _ in range(CONNECTIONS_MAX)]
            return await asyncio.gather(*reading, return_exceptions=True)

        if is_first:  # its connections are open, but none of its reads was confirmed
            unconfirmed = database.journal._reader.unconfirmed_rows
            await asyncio.gather(*(unconfirmed("SELECT pg_sleep(0.1)") for _ in range(CONNECTIONS_MAX)))
        else:
            assert await reads() == [None] * CONNECTIONS_MAX
        await asyncio.to_thread(standby.promote)
        for url in (servers.url, servers.standby_url):
            await set_standby_names(url, "")
        old = await PostgresDatabase.open(servers.url)
        await commit(old.journal, change)
        await old.close()
        await configure(servers.url, "default_transaction_read_only", "on")  # new connections lead to the other server
        await servers.on_primary(_END_CHECKS)

        if not is_first:
            assert [type(error) for error in await reads()] == [NotReplicated] * CONNECTIONS_MAX
        assert await reads() == [None] * CONNECTIONS_MAX
        await database.close()


async def test_a_read_of_a_promoted_server_is_not_confirmed_by_the_primary_before_it() -> None:
    """That one is alive and keeps the session of the barrier; new connections lead to the promoted server."""
    with two_servers() as (primary, standby):
        servers = await replicated_database(primary, standby)
        database = await PostgresDatabase.open(servers.both_url)
        database.journal._reader.barrier._seconds_max = 10
        change = an_accept()
        order_id = change.orders[0].order_id
        assert await database.queries.order(order_id) is None
        await asyncio.to_thread(standby.promote)
        await set_standby_names(servers.url, "")
        await set_standby_names(servers.standby_url, "")
        new = await PostgresDatabase.open(servers.standby_url)
        await commit(new.journal, change)
        await new.close()
        await set_standby_names(servers.standby_url, "away")  # of the promoted server: it has not confirmed the order
        await configure(servers.url, "default_transaction_read_only", "on")
        await database.journal._reader._pool.expire_connections()

        for _ in range(3):
            with pytest.raises(JournalUnavailable):
                await database.queries.order(order_id)

        await set_standby_names(servers.standby_url, "")
        assert await database.queries.order(order_id) is not None
        await database.close()


# The sessions of barriers.
_END_CHECKS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE query LIKE '%pg_logical_emit_message%' AND pid <> pg_backend_pid()
"""


async def _waits(servers: Replicated) -> bool:
    return bool(await servers.waits())


async def test_a_commit_without_a_standby_is_shown_under_a_later_setting_only_once_the_standby_has_it(
    servers: Replicated, database: PostgresDatabase
) -> None:
    await commit(database.journal, an_accept())
    await database.journal.head(0)  # the setting of now is known
    await asyncio.to_thread(servers.standby.stop)
    await set_standby_names(servers.url, "")
    change = an_accept()
    await commit(database.journal, change)
    await set_standby_names(servers.url, STANDBY)

    with pytest.raises(JournalUnavailable):
        await database.queries.order(change.orders[0].order_id)


@pytest.mark.parametrize("waiting", ["append", "read"])
async def test_a_wait_that_ended_while_the_setting_was_empty_confirms_nothing_once_it_is_set_again(
    servers: Replicated, database: PostgresDatabase, waiting: str
) -> None:
    await database.journal.head(0)
    await asyncio.to_thread(servers.standby.stop)
    change = an_accept()
    if waiting == "append":
        released: asyncio.Task[Any] = asyncio.create_task(commit(database.journal, change))
    else:
        await exposed(servers, change)
        released = asyncio.create_task(database.queries.order(change.orders[0].order_id))
    await until(lambda: _waits(servers))
    await set_standby_names(servers.url, "")
    await released
    await set_standby_names(servers.url, STANDBY)

    with pytest.raises(JournalUnavailable):
        await database.queries.order(change.orders[0].order_id)


HOUR = timedelta(hours=1)


async def _cached(database: PostgresDatabase, change: Change) -> Callable[[], Awaitable[Any]]:
    """Commit an order and cache its key; returns how a repeat looks it up."""
    [key] = change.keys
    request = IdempotentRequest(
        account_id=OWNER,
        operation=PLACE_ORDER,
        key=key.idempotency_key,
        digest=key.request_digest,
        created_at=START,
        ttl=HOUR,
    )
    cache = KeyCache(MemoryCache(clock=ManualClock()), HOUR, database.journal)
    await commit(database.journal, change)
    entry = await database.keys.entry(OWNER, PLACE_ORDER, key.idempotency_key)
    assert entry is not None
    cache.keep(entry, "submitted", now=START)
    return lambda: cache.find(request)


async def _in_the_ring(
    database: PostgresDatabase, change: Change, stack: AsyncExitStack
) -> Callable[[], Awaitable[Any]]:
    """Commit an order and show it on a stream; returns how another stream, which missed it, resumes."""
    hub = StreamHub(database.journal, database.queries)
    first = await stack.enter_async_context(hub.subscribe("account", OWNER))
    await commit(database.journal, change)
    while not await hub.run_once():
        pass

    async def resumed() -> Any:
        async with hub.subscribe("account", OWNER, first.start) as stream, aclosing(stream.batches(0)) as batches:
            return await anext(batches)

    return resumed


@pytest.mark.parametrize("kept", ["cache", "ring"])
@pytest.mark.parametrize(("before", "after"), [("", STANDBY), (STANDBY, "another")])
async def test_what_was_kept_under_another_setting_is_shown_once_the_standby_has_it(
    servers: Replicated, database: PostgresDatabase, stack: AsyncExitStack, kept: str, before: str, after: str
) -> None:
    await set_standby_names(servers.url, before)
    change = an_accept(key="kept")
    again = await (_cached(database, change) if kept == "cache" else _in_the_ring(database, change, stack))
    assert await again(), "the standby of now has it"
    writes = await servers.writes()
    assert await again()
    assert await servers.writes() == writes, "known to be at the standby: nothing to wait for"

    await asyncio.to_thread(servers.standby.stop)
    await set_standby_names(servers.url, after)
    if not before:
        # Every process reads the kills each second. Until then, hits of an empty setting ask no server.
        with pytest.raises(JournalUnavailable):
            await database.kills.active()

    with pytest.raises(JournalUnavailable):
        await again()

    await set_standby_names(servers.url, STANDBY)
    servers.standby.start()
    await servers.until_synchronous()
    assert await again()


async def test_an_append_tells_of_a_setting_too(servers: Replicated, database: PostgresDatabase) -> None:
    await set_standby_names(servers.url, "")
    again = await _cached(database, an_accept(key="kept"))
    assert await again()
    await set_standby_names(servers.url, STANDBY)
    await servers.until_synchronous()
    await commit(database.journal, an_accept())
    await asyncio.to_thread(servers.standby.stop)

    with pytest.raises(JournalUnavailable):
        await again()


async def test_what_was_kept_before_a_promotion_is_read_again() -> None:
    """The standby was not synchronous: it lacks the order."""
    with two_servers() as (primary, standby):
        servers = await replicated_database(primary, standby)
        await set_standby_names(servers.url, "")
        database = await PostgresDatabase.open(servers.both_url)
        database.journal._reader.barrier._seconds_max = 60  # longer than a busy machine takes
        await asyncio.to_thread(standby.stop)
        again = await _cached(database, an_accept(key="kept"))
        assert await again()

        await asyncio.to_thread(primary.kill)
        await asyncio.to_thread(standby.start)
        await asyncio.to_thread(standby.promote)

        await until(lambda: _answers(database))
        assert await again() is None
        await database.close()


async def _answers(database: PostgresDatabase) -> bool:
    with suppress(JournalUnavailable):
        await database.kills.active()
        return True
    return False
