"""A rebuild from the audit file gives an equal database, from every engine to every engine."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import timedelta
from decimal import Decimal
from itertools import count
from pathlib import Path

import pytest
from msgspec.structs import replace as replace_fields

from switchyard.adapters.files.audit_file import LocalAuditFile
from switchyard.adapters.postgres.database import PostgresDatabase
from switchyard.adapters.postgres.migrations import PostgresRebuild
from switchyard.adapters.postgres.queries import PostgresOrderDump
from switchyard.adapters.sqlite.database import SqliteDatabase
from switchyard.adapters.sqlite.migrations import SqliteRebuild
from switchyard.adapters.sqlite.queries import SqliteOrderDump
from switchyard.bootstrap import audit_files
from switchyard.domain import decisions
from switchyard.domain.errors import HistoryMismatch
from switchyard.domain.ids import AccountId, KillId, OrderId, VenueClientOrderId, VenueName, WorkerId
from switchyard.domain.journal.changes import Change, Committed, Conflict, Outcome
from switchyard.domain.journal.replay import ReplayMismatch
from switchyard.domain.orders.amends import Amend, last_id
from switchyard.domain.orders.keys import AMEND_ORDER, KeyEntry
from switchyard.domain.orders.order import OrderRequest
from switchyard.domain.orders.outbox import OrderState
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.domain.risk.checks import Violation, violation_of
from switchyard.domain.risk.kills import Kill
from switchyard.flow.history.replay import ChainBroken, NotEmpty, live_digest, replay
from switchyard.flow.history.restore import check_not_restoring
from switchyard.flow.readers.audit import AuditWriter
from switchyard.ports.books import RebuildTarget
from switchyard.ports.journal import Journal
from switchyard.ports.queries import OrderDump
from switchyard.telemetry.metrics import Metrics
from tests.support.databases import Database
from tests.support.memory.clock import START, ManualClock
from tests.support.memory.database import MemoryDatabase
from tests.support.memory.journal import MemoryJournal
from tests.support.memory.rebuild import MemoryOrderDump, MemoryRebuild
from tests.support.postgres import PostgresServer

VENUE = VenueName("sim")
ACCOUNT = AccountId("acct-1")
KEY = (ACCOUNT, "USDJPY")
ORDERS = 14
REJECTED = (12, 13)
REJECTED_ID = OrderId(f"ord_{REJECTED[0]:026d}")
ENGINES = ["memory", "sqlite", "postgres"]


class RebuildDatabase:
    """A fresh database that can be opened, dumped and rebuilt into."""

    def __init__(
        self,
        dump: OrderDump,
        rebuild: Callable[[], AbstractAsyncContextManager[RebuildTarget]],
        open_database: Callable[[], Awaitable[Database]],
    ) -> None:
        self.dump = dump
        self.rebuild = rebuild
        self._open_database = open_database
        self._opened: Database | None = None

    async def open(self) -> Database:
        """Open it; SQLite allows no rebuild while it is open."""
        self._opened = await self._open_database()
        return self._opened

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()
            self._opened = None

    async def digest(self) -> str:
        return await live_digest(self.dump.all_orders())


MakeDatabase = Callable[[str], Awaitable[RebuildDatabase]]


@pytest.fixture
async def make(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[MakeDatabase]:
    numbers = count(1)
    databases: list[RebuildDatabase] = []

    async def make_one(engine: str) -> RebuildDatabase:
        if engine == "memory":
            database = memory_database()
        elif engine == "sqlite":
            database = await sqlite_database(tmp_path / f"switchyard-{next(numbers)}.db")
        else:
            server: PostgresServer = request.getfixturevalue("postgres_server")
            database = await postgres_database(server.create_database())
        databases.append(database)
        return database

    yield make_one
    for database in databases:
        await database.close()


def memory_database() -> RebuildDatabase:
    database = MemoryDatabase(ManualClock())

    async def opened() -> MemoryDatabase:
        return database

    return RebuildDatabase(MemoryOrderDump(database.journal), lambda: MemoryRebuild(database.journal), opened)


async def sqlite_database(path: Path) -> RebuildDatabase:
    await SqliteDatabase.upgrade(path)
    return RebuildDatabase(SqliteOrderDump(path), lambda: SqliteRebuild(path), lambda: SqliteDatabase.open(path))


async def postgres_database(url: str) -> RebuildDatabase:
    await PostgresDatabase.upgrade(url)
    return RebuildDatabase(PostgresOrderDump(url), lambda: PostgresRebuild(url), lambda: PostgresDatabase.open(url))


class OrderHistory:
    """Writes orders in every state to a journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._now = START
        self._groups = count(1)

    async def commit(self, change: Change) -> Outcome:
        self._now += timedelta(milliseconds=1)
        [outcome] = await self._journal.append(0, f"group-{next(self._groups)}", [change], self._now)
        assert isinstance(outcome, Committed)
        return outcome

    async def write(self) -> None:
        for number in range(ORDERS):
            order_id = OrderId(f"ord_{number:026d}")
            accepted = self._accepted(order_id, number)
            await self.commit(accepted)
            if number in REJECTED:
                continue
            if number % 6 == 5:
                http_status = 200 if number == 5 else 503
                result = decisions.record_result(accepted.orders[0], http_status, '{"an":"ä"}', "sha256:01")
                await self.commit(result)
            if number == 6:
                await self._request_amend(order_id, 3, "11")
            if number % 6 == 0:
                continue
            state = await self._state(order_id)
            await self.commit(decisions.begin_attempt(state, state.row("new", 1), WorkerId("gone"), self._now))
            if number % 6 == 1:
                continue  # an orphan: the worker has exited and writes no outcome
            state = await self._state(order_id)
            await self._settle(state, number)
        await self.commit(decisions.unmatched_report(self._report("stray", "unknown", "1")))
        cleared = Kill(kill_id=KillId("kill_1"), set_by="ann", set_reason="drill", set_at=self._now, version=1)
        await self.commit(decisions.set_kill(cleared))
        await self.commit(decisions.clear_kill(cleared, "bob", "over", self._now))
        active = Kill(
            kill_id=KillId("kill_2"),
            account_id=AccountId("other"),
            mode="reduce_only",
            set_by="ann",
            set_reason="x",
            set_at=self._now,
            version=1,
        )
        await self.commit(decisions.set_kill(active))

    async def _settle(self, state: OrderState, number: int) -> None:
        row = state.row("new", 1)
        if number % 6 == 2:
            await self.commit(decisions.record_doubt(state, row, "UNKNOWN", None, self._now, detail="read time-out ⌛"))
            return
        await self.commit(decisions.record_sent(state, row, f"v-{number}", self._now))
        for part, qty in enumerate(("0.00000001", "2.5", "7.49999999")[: number % 6 - 2]):
            state = await self._state(state.order.order_id)
            report = self._report(f"e-{number}-{part}", state.order.venue_client_order_id, qty)
            held = await self._journal.load_positions([KEY])
            await self.commit(decisions.apply_report(state, held.get(KEY), report, self._now))
        state = await self._state(state.order.order_id)
        if number == 9:
            await self._amend(state.order.order_id)
            return
        cancel = decisions.request_cancel(state, self._now) if number % 6 != 5 else None
        if cancel is not None:
            await self.commit(cancel)

    async def _amend(self, order_id: OrderId) -> None:
        """Amend an order of which a part is filled: once carried out, once in doubt after the end of its leg."""
        for number, qty in ((1, "20.5"), (2, "9")):
            await self._request_amend(order_id, number, qty)
            state = await self._state(order_id)
            await self.commit(decisions.begin_attempt(state, state.row("amend", number), WorkerId("gone"), self._now))
            state = await self._state(order_id)
            if number == 1:
                await self.commit(decisions.record_amended(state, state.row("amend", 1), "v-9b", self._now))
        state = await self._state(order_id)
        await self.commit(decisions.record_doubt(state, state.row("amend", 2), "UNKNOWN", None, self._now))
        state = await self._state(order_id)
        ended = replace_fields(
            self._report("e-9-end", state.order.venue_client_order_id, "0"),
            status="CANCELED",
            last_price=None,
            venue_order_id="v-9b",
            leg_client_order_id="amend-1",
        )
        await self.commit(decisions.apply_report(state, None, ended, self._now))

    async def _request_amend(self, order_id: OrderId, number: int, qty: str) -> None:
        state = await self._state(order_id)
        amend = Amend(
            client_order_id=VenueClientOrderId(f"amend-{number}"),
            orig_client_order_id=last_id(state),
            qty=Decimal(qty),
            price=Decimal("151.3"),
            reserve_price=Decimal("151.4"),
            replaces=True,
            operation=AMEND_ORDER,
            key=f"amend-{number}",
        )
        entry = KeyEntry(
            account_id=ACCOUNT,
            operation=AMEND_ORDER,
            idempotency_key=amend.key,
            generation=0,
            order_id=order_id,
            request_digest="sha256:00",
            created_at=self._now,
            expires_at=self._now + timedelta(hours=24),
        )
        await self.commit(decisions.request_amend(state, amend, entry, self._now, reducing=False))

    async def _state(self, order_id: OrderId) -> OrderState:
        return (await self._journal.load([order_id]))[order_id]

    def _accepted(self, order_id: OrderId, number: int) -> Change:
        entry = KeyEntry(
            account_id=ACCOUNT,
            operation="orders",
            idempotency_key=f"key-{number}",
            generation=0,
            order_id=order_id,
            request_digest="sha256:00",
            # The database's clock may differ from the process's.
            created_at=self._now - timedelta(milliseconds=number % 2),
            expires_at=self._now + timedelta(hours=24),
        )
        request = OrderRequest(
            symbol="USDJPY",
            side="SELL" if number % 2 else "BUY",
            type="LIMIT",
            qty=Decimal(10),
            price=Decimal("151.235"),
            time_in_force="GTD" if number % 3 == 0 else "GTC",
            strategy="möwe",
            tags=("a", 'b"c'),
            post_only=number % 2 == 1,
            reduce_only=number % 3 == 1,
            display_qty=Decimal("0.5") if number % 3 == 2 else None,
        )
        return decisions.accept(
            request,
            account=ACCOUNT,
            order_id=order_id,
            venue=VENUE,
            venue_client_order_id=VenueClientOrderId(f"client-{number}"),
            key=entry,
            quote=None,
            now=self._now,
            expires_at=self._now + timedelta(days=number + 1, microseconds=1) if number % 3 == 0 else None,
            violation=Violation("RISK_MAX_QTY", "qty 10 is above 9 ⚠") if number in REJECTED else None,
        )

    def _report(self, exec_id: str, client_id: str, qty: str) -> ExecutionReport:
        return ExecutionReport(
            exec_id=exec_id,
            venue=VENUE,
            venue_client_order_id=VenueClientOrderId(client_id),
            venue_order_id="v-1",
            status="PARTIALLY_FILLED",
            last_qty=Decimal(qty),
            last_price=Decimal("151.23456789"),
            at=self._now,
        )


async def write_audit_file(journal: Journal, path: Path) -> None:
    """Write a history to the journal and its audit file."""
    history = OrderHistory(journal)
    await history.write()
    writer = AuditWriter(
        *audit_files(path), key=b"key", journal=journal, commit=history.commit, clock=ManualClock(), metrics=Metrics()
    )
    while await writer.run_once():
        pass
    await writer.close()


async def contents(database: Database) -> list[object]:
    """Everything that the ports return of a database."""
    journal, queries, keys = database.journal, database.queries, database.keys
    ids = [OrderId(f"ord_{number:026d}") for number in range(ORDERS)]
    return [
        await journal.head(0),
        await journal.read(0, 0, 1_000),
        await journal.load(ids),
        await queries.unsettled("sending", 100),
        await queries.due(START + timedelta(days=1), 100),
        sorted(await queries.outbox_counts(), key=lambda counted: counted.status),
        await queries.executions(VENUE, ["e-3-0", "e-5-2", "stray", "never"]),
        await queries.positions(ACCOUNT, limit=100),
        [await keys.entry(ACCOUNT, "orders", f"key-{number}") for number in range(ORDERS)],
        await database.kills.newest(limit=10),
        await database.kills.active(),
        await database.kills.orders_of(KillId("kill_1"), limit=100),
        await database.kills.orders_of(KillId("kill_2"), limit=100),
    ]


@pytest.mark.parametrize("target_engine", ENGINES)
@pytest.mark.parametrize("source_engine", ENGINES)
async def test_a_rebuilt_database_equals_its_source(
    make: MakeDatabase, tmp_path: Path, source_engine: str, target_engine: str
) -> None:
    source, target = await make(source_engine), await make(target_engine)
    path = tmp_path / "audit.log"
    original = await source.open()
    await write_audit_file(original.journal, path)
    async with target.rebuild() as rebuilding:
        result = await replay(LocalAuditFile(path), rebuilding)
    assert result.orders == ORDERS
    assert result.digest == await source.digest() == await target.digest()
    rebuilt = await target.open()
    assert await contents(rebuilt) == await contents(original)
    orphans = await rebuilt.queries.unsettled("sending", 100)
    assert {due.row.worker for due in orphans} == {"gone"}
    assert len(orphans) == 2
    rejected = (await rebuilt.journal.load([REJECTED_ID]))[REJECTED_ID]
    assert violation_of(rejected.order) == Violation("RISK_MAX_QTY", "qty 10 is above 9 ⚠")
    assert rejected.outbox == ()
    entry = await rebuilt.keys.entry(ACCOUNT, "orders", f"key-{REJECTED[0]}")
    assert entry is not None and (entry.status, entry.version) == ("failed", 2)


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_rebuilt_database_accepts_further_changes(make: MakeDatabase, tmp_path: Path, engine: str) -> None:
    path = tmp_path / "audit.log"
    lost = MemoryJournal()
    await write_audit_file(lost, path)
    target = await make(engine)
    async with target.rebuild() as rebuilding:
        await replay(LocalAuditFile(path), rebuilding)
    journal = (await target.open()).journal
    [state] = (await journal.load([OrderId(f"ord_{0:026d}")])).values()
    change = decisions.begin_attempt(state, state.row("new", 1), WorkerId("new"), START)
    [outcome] = await journal.append(0, "first group after the rebuild", [change], START)
    assert outcome == Committed((await lost.head(0)).seq + 1)
    entry = lost.keys[ACCOUNT, "orders", "key-3"]
    assert await journal.append(0, "used key", [Change(keys=(entry,))], START) == [Conflict(entry)]


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_rebuilt_database_is_not_used_before_it_is_declared_restored(
    make: MakeDatabase, tmp_path: Path, engine: str
) -> None:
    source, target = await make("memory"), await make(engine)
    await write_audit_file((await source.open()).journal, tmp_path / "audit.log")
    async with target.rebuild() as rebuilding:
        await replay(LocalAuditFile(tmp_path / "audit.log"), rebuilding)
    with pytest.raises(HistoryMismatch, match="run `switchyard db restored`"):
        await check_not_restoring((await target.open()).journal)


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_rebuild_needs_an_empty_database(make: MakeDatabase, tmp_path: Path, engine: str) -> None:
    path = tmp_path / "audit.log"
    await write_audit_file(MemoryJournal(), path)
    target = await make(engine)
    async with target.rebuild() as rebuilding:
        await replay(LocalAuditFile(path), rebuilding)
    before = await target.digest()
    async with target.rebuild() as rebuilding:
        with pytest.raises(NotEmpty):
            await replay(LocalAuditFile(path), rebuilding)
    assert await target.digest() == before


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_broken_file_leaves_the_database_empty(
    make: MakeDatabase, tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("switchyard.flow.history.replay.BATCH", 7)
    path = tmp_path / "audit.log"
    await write_audit_file(MemoryJournal(), path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:20] + lines[21:]))
    target = await make(engine)
    async with target.rebuild() as rebuilding:
        with pytest.raises(ChainBroken) as caught:
            await replay(LocalAuditFile(path), rebuilding)
    assert caught.value.number == 21
    async with target.rebuild() as rebuilding:
        assert await rebuilding.is_empty()


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_dump_may_be_closed_early(make: MakeDatabase, tmp_path: Path, engine: str) -> None:
    database = await make(engine)
    await OrderHistory((await database.open()).journal).write()
    async with aclosing(database.dump.all_orders()) as orders:  # type: ignore[type-var]
        first = await anext(orders)
    assert first.order_id == f"ord_{0:026d}"


async def test_a_replay_without_a_database_gives_the_same_result_each_time(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    await write_audit_file(MemoryJournal(), path)
    with path.open("ab") as file:
        file.write(b'{"epoch":1,"sh')
    result = await replay(LocalAuditFile(path))
    assert (result.orders, result.partial_bytes) == (ORDERS, 14)
    assert result.events == result.seq
    assert await replay(LocalAuditFile(path)) == result


async def test_a_file_that_ends_within_a_change_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    await write_audit_file(MemoryJournal(), path)
    lines = path.read_bytes().splitlines(keepends=True)
    report = max(number for number, line in enumerate(lines) if b'"type":"ExecutionReport"' in line)
    path.write_bytes(b"".join(lines[: report + 1]))
    with pytest.raises(ReplayMismatch, match="ends between a report and its order's update"):
        await replay(LocalAuditFile(path))


async def test_an_empty_file_has_no_events(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.touch()
    assert (await replay(LocalAuditFile(path))).events == 0
