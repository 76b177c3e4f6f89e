"""An audit file makes the same database again, on either engine, from either engine."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import timedelta
from decimal import Decimal
from itertools import count
from pathlib import Path

import pytest

from switchyard.adapters.memory.clock import START, ManualClock
from switchyard.adapters.memory.journal import MemoryJournal
from switchyard.adapters.postgres.database import PostgresDatabase
from switchyard.adapters.postgres.order_dump import PostgresOrderDump
from switchyard.adapters.postgres.rebuild import PostgresRebuild
from switchyard.adapters.sqlite.database import SqliteDatabase
from switchyard.adapters.sqlite.order_dump import SqliteOrderDump
from switchyard.adapters.sqlite.rebuild import SqliteRebuild
from switchyard.domain import decisions
from switchyard.domain.changes import Change, Committed, Outcome
from switchyard.domain.idempotency import KeyEntry
from switchyard.domain.ids import AccountId, OrderId, VenueClientOrderId, VenueName, WorkerId
from switchyard.domain.orders import OrderRequest
from switchyard.domain.outbox import OrderState
from switchyard.domain.replay import ReplayMismatch
from switchyard.domain.reports import ExecutionReport
from switchyard.flow.history.replay import NotEmpty, live_digest, replay
from switchyard.flow.history.verify import ChainBroken
from switchyard.flow.readers.audit import AuditWriter
from switchyard.ports.journal import Journal
from switchyard.ports.queries import Queries
from switchyard.ports.rebuild import OrderDump, RebuildTarget
from switchyard.telemetry.metrics import Metrics
from tests.support.postgres import PostgresServer

VENUE = VenueName("sim")
ACCOUNT = AccountId("acct-1")
KEY = (ACCOUNT, "USDJPY")
ORDERS = 12


class Engine:
    """A fresh database of one kind, with everything that this suite asks of it."""

    def __init__(
        self,
        dump: OrderDump,
        rebuild: Callable[[], AbstractAsyncContextManager[RebuildTarget]],
        open_database: Callable[[], Awaitable[SqliteDatabase | PostgresDatabase]],
    ) -> None:
        self.dump = dump
        self.rebuild = rebuild
        self._open_database = open_database
        self._database: SqliteDatabase | PostgresDatabase | None = None

    async def open(self) -> tuple[Journal, Queries]:
        self._database = await self._open_database()
        self.journal, self.queries = self._database.journal, self._database.queries
        self.keys = self._database.keys
        return self.journal, self.queries

    async def close(self) -> None:
        if self._database is not None:
            await self._database.close()
            self._database = None

    async def digest(self) -> str:
        return await live_digest(self.dump.all_orders())


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


MakeEngine = Callable[[str], Awaitable[Engine]]


@pytest.fixture
async def make(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[MakeEngine]:
    numbers = count(1)
    made: list[Engine] = []

    async def make_one(kind: str) -> Engine:
        if kind == "sqlite":
            path = tmp_path / f"switchyard-{next(numbers)}.db"
            await SqliteDatabase.upgrade(path)
            engine = Engine(SqliteOrderDump(path), lambda: SqliteRebuild(path), lambda: SqliteDatabase.open(path))
        else:
            url = request.getfixturevalue("server").create_database()
            await PostgresDatabase.upgrade(url)
            engine = Engine(PostgresOrderDump(url), lambda: PostgresRebuild(url), lambda: PostgresDatabase.open(url))
        made.append(engine)
        return engine

    yield make_one
    for engine in made:
        await engine.close()


class Life:
    """Orders in every condition, written through a journal like any other."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._now = START
        self._groups = count(1)

    async def commit(self, change: Change) -> Outcome:
        self._now += timedelta(milliseconds=1)
        [outcome] = await self._journal.append(0, f"group-{next(self._groups)}", [change], self._now)
        assert isinstance(outcome, Committed)
        return outcome

    async def live(self) -> None:
        for number in range(ORDERS):
            order_id = OrderId(f"ord_{number:026d}")
            accepted = self._accepted(order_id, number)
            await self.commit(accepted)
            if number % 6 == 5:
                answered = 200 if number == 5 else 503
                result = decisions.record_result(accepted.keys[0], answered, '{"an":"ä"}', "sha256:01")
                await self.commit(result)
            if number % 6 == 0:
                continue
            state = await self._state(order_id)
            await self.commit(decisions.begin_attempt(state, state.row("new", 1), WorkerId("gone"), self._now))
            if number % 6 == 1:
                continue  # an orphan: nobody will ever write this attempt's outcome
            state = await self._state(order_id)
            await self._go_on(state, number)
        await self.commit(decisions.unmatched_report(self._report("stray", "nobody's", "1")))

    async def _go_on(self, state: OrderState, number: int) -> None:
        row = state.row("new", 1)
        if number % 6 == 2:
            await self.commit(decisions.record_doubt(state, row, "read time-out ⌛", None, self._now))
            return
        await self.commit(decisions.record_sent(state, row, f"v-{number}", self._now))
        for part, qty in enumerate(("0.00000001", "2.5", "7.49999999")[: number % 6 - 2]):
            state = await self._state(state.order.order_id)
            report = self._report(f"e-{number}-{part}", state.order.venue_client_order_id, qty)
            held = await self._journal.load_positions([KEY])
            await self.commit(decisions.apply_report(state, held.get(KEY), report, self._now))
        state = await self._state(state.order.order_id)
        cancel = decisions.request_cancel(state, self._now) if number % 6 != 5 else None
        if cancel is not None:
            await self.commit(cancel)

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
            created_at=self._now - timedelta(milliseconds=number % 2),  # by the database's clock, which is another one
            expires_at=self._now + timedelta(hours=24),
        )
        request = OrderRequest(
            symbol="USDJPY",
            side="SELL" if number % 2 else "BUY",
            type="LIMIT",
            qty=Decimal(10),
            price=Decimal("151.235"),
            time_in_force="GTC",
            strategy="möwe",
            tags=("a", 'b"c'),
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


async def audited(journal: Journal, path: Path) -> None:
    life = Life(journal)
    await life.live()
    writer = AuditWriter(path, key=b"key", journal=journal, commit=life.commit, clock=ManualClock(), metrics=Metrics())
    while await writer.run_once():
        pass
    await writer.close()


async def everything(engine: Engine) -> list[object]:
    """All that the ports show of an open database."""
    journal, queries, keys = engine.journal, engine.queries, engine.keys
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
    ]


@pytest.mark.parametrize("target_kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("source_kind", ["sqlite", "postgres"])
async def test_a_rebuilt_database_is_the_one_that_was_lost(
    make: MakeEngine, tmp_path: Path, source_kind: str, target_kind: str
) -> None:
    source, target = await make(source_kind), await make(target_kind)
    path = tmp_path / "audit.log"
    journal, _ = await source.open()
    await audited(journal, path)
    async with target.rebuild() as database:
        result = await replay(path, database)
    assert result.orders == ORDERS
    assert result.digest == await source.digest() == await target.digest()
    _, rebuilt_queries = await target.open()
    assert await everything(target) == await everything(source)
    orphans = await rebuilt_queries.unsettled("sending", 100)
    assert {due.row.worker for due in orphans} == {"gone"}
    assert len(orphans) == 2


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_life_goes_on_in_a_rebuilt_database(make: MakeEngine, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "audit.log"
    lost = MemoryJournal()
    await audited(lost, path)
    target = await make(kind)
    async with target.rebuild() as database:
        await replay(path, database)
    journal, _ = await target.open()
    first = await journal.load([OrderId(f"ord_{0:026d}")])
    [state] = first.values()
    change = decisions.begin_attempt(state, state.row("new", 1), WorkerId("new"), START)
    [outcome] = await journal.append(0, "the first group after", [change], START)
    assert outcome == Committed((await lost.head(0)).seq + 1)
    [entry] = [entry for entry in lost.keys.values() if entry.idempotency_key == "key-3"]
    [rejected] = await journal.append(0, "a used key", [Change(keys=(entry,))], START)
    assert not isinstance(rejected, Committed)
    assert rejected.key == entry


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_only_an_empty_database_is_rebuilt(make: MakeEngine, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "audit.log"
    await audited(MemoryJournal(), path)
    target = await make(kind)
    async with target.rebuild() as database:
        await replay(path, database)
    before = await target.digest()
    async with target.rebuild() as database:
        with pytest.raises(NotEmpty):
            await replay(path, database)
    assert await target.digest() == before


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_file_that_does_not_hold_leaves_the_database_empty(
    make: MakeEngine, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("switchyard.flow.history.replay.BATCH", 7)
    path = tmp_path / "audit.log"
    await audited(MemoryJournal(), path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:20] + lines[21:]))
    target = await make(kind)
    async with target.rebuild() as database:
        with pytest.raises(ChainBroken) as caught:
            await replay(path, database)
    assert caught.value.number == 21
    async with target.rebuild() as database:
        assert await database.is_empty()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_dump_may_be_left_early(make: MakeEngine, tmp_path: Path, kind: str) -> None:
    engine = await make(kind)
    journal, _ = await engine.open()
    await Life(journal).live()
    async with aclosing(engine.dump.all_orders()) as orders:  # type: ignore[type-var]
        first = await anext(orders)
    assert first.order_id == f"ord_{0:026d}"


async def test_a_file_without_a_database_is_a_proof(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    await audited(MemoryJournal(), path)
    with path.open("ab") as file:
        file.write(b'{"epoch":1,"sh')
    result = await replay(path)
    assert (result.orders, result.partial_bytes) == (ORDERS, 14)
    assert result.events == result.seq
    assert await replay(path) == result


async def test_a_file_that_ends_within_a_change_is_named(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    await audited(MemoryJournal(), path)
    lines = path.read_bytes().splitlines(keepends=True)
    report = max(number for number, line in enumerate(lines) if b'"type":"ExecutionReport"' in line)
    path.write_bytes(b"".join(lines[: report + 1]))
    with pytest.raises(ReplayMismatch, match="ends between a report and its order's update"):
        await replay(path)


async def test_an_empty_file_makes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.touch()
    assert (await replay(path)).events == 0
