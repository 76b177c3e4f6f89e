"""The back office follows the journal of every engine: nothing twice, nothing left out, and it stops at a gap."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from switchyard.adapters.backoffice.reads import SqlLedgerDump
from switchyard.adapters.backoffice.sqlite.ledger import SqliteLedger
from switchyard.domain.accounts.positions import Position
from switchyard.domain.books.entries import parse_entry
from switchyard.domain.decisions import apply_report
from switchyard.domain.errors import HistoryMismatch
from switchyard.domain.journal.changes import Change
from switchyard.domain.journal.lines import BusEvent, Place, SourcePosition
from switchyard.domain.orders.outbox import OrderState
from switchyard.domain.risk.claims import Terms
from switchyard.flow.backoffice.check import Differences, check_ledger, compare_ledgers, read_events_of, rebuild
from switchyard.flow.backoffice.consumer import Consumer
from switchyard.flow.backoffice.source import EVENTS_MAX, JOURNAL, JournalBus, JournalSource
from switchyard.flow.clock import Wake
from switchyard.ports.books import EntryFilter, LedgerUnavailable, Posted, SourceClaim
from switchyard.ports.bus import Bus, Page, Source
from switchyard.ports.journal import Journal
from switchyard.telemetry.metrics import Metrics
from tests.support.build import ACCOUNT, a_report, an_accept, state_after
from tests.support.databases import Database
from tests.support.journal_checks import commit
from tests.support.memory.clock import START, ManualClock
from tests.support.polling import until
from tests.support.posting import digest


class Trading:
    """Places orders and fills them in two parts, as the stages would."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._position: Position | None = None
        self._count = 0

    async def fill_orders(self, count: int) -> None:
        for _ in range(count):
            accepted = an_accept(terms=Terms(currency="JPY", price=Decimal("150.125")))
            await commit(self._journal, accepted)
            state = state_after(accepted)
            for _part in range(2):
                change = self._filled(state)
                state = OrderState(order=change.orders[0], outbox=change.outbox or state.outbox)
                await commit(self._journal, change)

    def _filled(self, state: OrderState) -> Change:
        self._count += 1
        report = a_report(state, exec_id=f"exec-{self._count}", qty=Decimal(500))
        change = apply_report(state, self._position, report, START)
        [self._position] = change.positions
        return change


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[SqliteLedger]:
    ledger = await SqliteLedger.open(tmp_path / "backoffice.db")
    yield ledger
    await ledger.close()


async def started(bus: Bus, ledger: SqliteLedger, metrics: Metrics | None = None) -> Consumer:
    office = (metrics or Metrics()).backoffice
    consumer = Consumer(bus, ledger, clock=ManualClock(), metrics=office)
    await consumer.open()
    return consumer


async def caught_up(consumer: Consumer) -> None:
    while await consumer.run_once():
        pass


async def quantity(ledger: SqliteLedger) -> Decimal:
    [holding] = await ledger.holdings(ACCOUNT, "", "", 10)
    return holding.qty


async def test_every_fill_is_booked_once_across_restarts_and_a_rebuild_gives_the_same_books(
    database: Database, ledger: SqliteLedger, tmp_path: Path
) -> None:
    trading, bus = Trading(database.journal), JournalBus(database.journal)
    await trading.fill_orders(3)
    consumer = await started(bus, ledger)
    await caught_up(consumer)
    assert consumer.last_offset == (await database.journal.head(0)).seq
    assert (consumer.processed, consumer.skipped) == (15, 6)
    await trading.fill_orders(2)
    again = await started(bus, ledger)
    assert again.replayed == 9
    await caught_up(again)
    assert await quantity(ledger) == 5000
    entries = [parse_entry(row.text) for row in await ledger.entries(EntryFilter(account_id=ACCOUNT))]
    assert [entry.type for entry in entries] == ["OrderAccepted", "Fill", "Fill"] * 5
    cash = sum(leg.amount for entry in entries for leg in entry.legs if leg.account == "cash")
    assert cash == -5000 * Decimal("150.125")
    assert await bus.source.lag(again.readers[0].claim.position) == 0
    assert await bus.source.lag(Place()) == 25

    new = await SqliteLedger.open(tmp_path / "again.db")
    await rebuild(bus.source, new, await read_events_of(SqlLedgerDump(ledger)))
    found = Differences()
    await check_ledger(SqlLedgerDump(new), found)
    await compare_ledgers(SqlLedgerDump(ledger), SqlLedgerDump(new), found)
    assert found.lines == []
    await new.close()


async def test_books_that_are_older_than_the_journal_continue_from_their_own_place(
    database: Database, tmp_path: Path
) -> None:
    trading, bus = Trading(database.journal), JournalBus(database.journal)
    await trading.fill_orders(1)
    live = await SqliteLedger.open(tmp_path / "backoffice.db")
    await caught_up(await started(bus, live))
    await live.close()
    shutil.copy(tmp_path / "backoffice.db", tmp_path / "backup.db")
    await trading.fill_orders(1)
    await database.journal.open_epoch(0, 0, START)  # after a `db restored` that lost nothing of what was booked
    await trading.fill_orders(1)
    heads = []
    for name in ("backoffice.db", "backup.db"):
        ledger = await SqliteLedger.open(tmp_path / name)
        consumer = await started(bus, ledger)
        await caught_up(consumer)
        assert consumer.problem is None
        assert await quantity(ledger) == 3000
        heads.append(await digest(SqlLedgerDump(ledger)))
        await ledger.close()
    assert heads[0] == heads[1]


async def test_books_of_another_history_stop_before_they_book_anything(
    database: Database, ledger: SqliteLedger
) -> None:
    trading, bus = Trading(database.journal), JournalBus(database.journal)
    await trading.fill_orders(1)
    await caught_up(await started(bus, ledger))
    await trading.fill_orders(1)
    metrics = Metrics()
    bus.source = Shifted(database.journal)
    consumer = await started(bus, ledger, metrics)
    assert consumer.problem is not None
    assert "another history" in consumer.problem
    assert "backoffice adopt-epoch" in consumer.problem
    assert await consumer.run_once() == 0
    assert metrics.registry.get_sample_value("backoffice_halted") == 1
    assert await quantity(ledger) == 1000


async def test_the_bus_rejects_a_place_of_another_history_before_and_at_its_end(journal: Journal) -> None:
    await Trading(journal).fill_orders(1)
    source, head = JournalSource(journal), await journal.head(0)
    for seq in (1, head.seq):
        with pytest.raises(HistoryMismatch, match=r"another history|does not have event"):
            await source.page(Place(head.epoch, seq, "f" * 64), 10)
    with pytest.raises(HistoryMismatch, match="does not have event"):
        await source.page(Place(head.epoch, head.seq + 1, head.hash), 10)
    assert await source.page(Place(head.epoch, head.seq, head.hash), 10) == Page(
        (), Place(head.epoch, head.seq, head.hash)
    )


class Shifted(JournalSource):
    """The source of another journal: its events have the same numbers and other hashes."""

    async def check(self, position: SourcePosition) -> None:
        assert isinstance(position, Place)
        await super().check(Place(position.epoch, position.seq, "f" * 64))


class Lossy:
    """A journal that leaves an event out, as a database does that lost a row."""

    def __init__(self, journal: Journal, lost_seq: int) -> None:
        self._journal = journal
        self._lost_seq = lost_seq

    def __getattr__(self, name: str) -> object:
        return getattr(self._journal, name)

    async def read(self, shard: int, after_seq: int, limit: int) -> object:
        return [event for event in await self._journal.read(shard, after_seq, limit) if event.seq != self._lost_seq]


@pytest.mark.parametrize("lost_seq", [1, 4, 5])
async def test_a_missing_event_stops_the_books_and_nothing_after_it_is_booked(
    database: Database, ledger: SqliteLedger, lost_seq: int
) -> None:
    await Trading(database.journal).fill_orders(2)
    lossy: Journal = Lossy(database.journal, lost_seq)  # type: ignore[assignment]
    consumer = await started(JournalBus(lossy), ledger)
    await caught_up(consumer)
    assert consumer.problem is not None
    assert "missing" in consumer.problem
    assert consumer.last_offset is None


async def test_an_event_that_cannot_be_booked_halts_its_account_and_says_so(
    database: Database, ledger: SqliteLedger
) -> None:
    await Trading(database.journal).fill_orders(1)
    stray = an_accept()
    state = state_after(stray)
    report = a_report(state, exec_id="stray")
    await commit(database.journal, Change(events=apply_report(state, None, report, START).events))
    metrics = Metrics()
    consumer = await started(JournalBus(database.journal), ledger, metrics)
    await caught_up(consumer)
    assert consumer.problem is not None
    why = f"event 6 cannot be booked: the books have not read the acceptance of its order {state.order.order_id}"
    assert f"1 account(s) have halted: {ACCOUNT}: {why}" in consumer.problem
    assert consumer.source_problem is None
    assert metrics.registry.get_sample_value("backoffice_halted_accounts") == 1
    assert consumer.last_offset == 7
    assert await quantity(ledger) == 1000
    # Known also after a restart.
    assert (await started(JournalBus(database.journal), ledger)).problem == consumer.problem


async def test_a_page_whose_answer_was_lost_is_not_booked_twice(
    database: Database, ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    await Trading(database.journal).fill_orders(EVENTS_MAX // 5 + 1)
    consumer = await started(JournalBus(database.journal), ledger)
    post = ledger.post

    async def post_and_fail(claim: SourceClaim, events: list[BusEvent], position: SourcePosition) -> Posted:
        await post(claim, events, position)
        raise LedgerUnavailable("the disk was full for a moment")

    monkeypatch.setattr(ledger, "post", post_and_fail)
    with pytest.raises(LedgerUnavailable):
        await consumer.run_once()
    assert consumer.trouble is not None and "full for a moment" in consumer.trouble
    monkeypatch.undo()
    await caught_up(consumer)
    assert consumer.problem is None
    assert consumer.trouble is None
    assert await quantity(ledger) == 1000 * (EVENTS_MAX // 5 + 1)


class OthersTurn:
    """Another process has the turn."""

    async def is_ours(self) -> bool:
        return False

    async def give_up(self) -> None:
        return


async def test_a_process_that_waits_says_when_the_one_that_reads_is_stuck(
    database: Database, ledger: SqliteLedger
) -> None:
    clock, metrics = ManualClock(), Metrics()
    waiting = Consumer(JournalBus(database.journal, OthersTurn()), ledger, clock=clock, metrics=metrics.backoffice)
    await waiting.open()
    await Trading(database.journal).fill_orders(1)
    await waiting.run_once()
    assert (waiting.trouble, waiting.lag) == (None, 5)
    clock.advance(timedelta(seconds=11))
    await waiting.run_once()
    assert waiting.trouble is not None and "has 5 events left" in waiting.trouble
    await caught_up(await started(JournalBus(database.journal), ledger))
    await waiting.run_once()
    assert waiting.trouble is None
    assert waiting.lag == 0


async def test_the_lag_grows_while_the_books_cannot_be_written(
    journal: Journal, ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics, bus, trading = Metrics(), JournalBus(journal), Trading(journal)
    consumer = await started(bus, ledger, metrics)
    await caught_up(consumer)

    def lag() -> float | None:
        return metrics.registry.get_sample_value("backoffice_lag_events")

    async def fail(*_: object) -> None:
        raise LedgerUnavailable("the books' database does not answer")

    async def no_sources() -> list[Source]:  # the turn is in the books' database as well
        return []

    await trading.fill_orders(2)
    monkeypatch.setattr(ledger, "post", fail)
    with pytest.raises(LedgerUnavailable):
        await consumer.run(Wake())
    assert lag() == 10
    await consumer.assign()  # the supervisor's next start looks at the sources first
    assert lag() == 10
    await trading.fill_orders(1)
    monkeypatch.setattr(ledger, "halted", fail)
    monkeypatch.setattr(bus, "sources", no_sources)
    with pytest.raises(LedgerUnavailable):
        await consumer.run(Wake())
    assert lag() == 15
    monkeypatch.undo()
    await caught_up(consumer)
    assert await quantity(ledger) == 3000
    assert lag() == 0


async def test_what_is_left_is_counted_and_named_while_the_books_keep_a_page_waiting(
    journal: Journal, ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a lock on one of their tables: neither an error nor a page comes for as long as it is held."""
    clock, metrics = ManualClock(), Metrics()
    consumer = Consumer(JournalBus(journal), ledger, clock=clock, metrics=metrics.backoffice)
    await consumer.open()
    post, released = ledger.post, asyncio.Event()

    async def wait_and_post(claim: SourceClaim, events: list[BusEvent], position: SourcePosition) -> Posted:
        await released.wait()
        return await post(claim, events, position)

    monkeypatch.setattr(ledger, "post", wait_and_post)
    await Trading(journal).fill_orders(2)
    running = asyncio.create_task(consumer.run(Wake()))
    clock.advance(timedelta(seconds=1))
    await until(lambda: consumer.lag == 10)
    clock.advance(timedelta(seconds=11))
    await until(lambda: consumer.trouble is not None)
    assert "has 10 events left, and none was booked for more than" in (consumer.trouble or "")
    assert metrics.registry.get_sample_value("backoffice_lag_events") == 10
    released.set()
    clock.advance(timedelta(seconds=1))
    await until(lambda: consumer.lag == 0 and consumer.trouble is None)
    running.cancel()
    assert await quantity(ledger) == 2000


async def test_books_that_were_replaced_by_an_older_copy_are_read_again_though_no_event_comes(
    journal: Journal, ledger: SqliteLedger
) -> None:
    """The position in the books is the only one: what a process remembers of it may be of other books."""
    await Trading(journal).fill_orders(2)
    clock, metrics = ManualClock(), Metrics()
    consumer = Consumer(JournalBus(journal), ledger, clock=clock, metrics=metrics.backoffice)
    await consumer.open()
    await caught_up(consumer)
    await ledger.reset(JOURNAL, Place())  # as in the older copy
    clock.advance(timedelta(seconds=11))
    await consumer.run_once()
    await consumer.run_once()
    assert (metrics.registry.get_sample_value("backoffice_repeats_total") or 0) == 10
    assert await quantity(ledger) == 2000
