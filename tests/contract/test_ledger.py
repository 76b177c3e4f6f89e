"""The ledger on its SQLite file: books balance after every page, and any way through the same events ends alike."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import apsw
import pytest

from switchyard.adapters.backoffice import statements
from switchyard.adapters.backoffice.postgres.ledger import PostgresLedger
from switchyard.adapters.backoffice.reads import SqlLedgerDump
from switchyard.adapters.backoffice.sqlite.ledger import SqliteLedger
from switchyard.bootstrap.books import NewSchema
from switchyard.domain.books.entries import fill_entry_id, parse_entry
from switchyard.domain.books.manual import ManualEntry
from switchyard.domain.errors import AlreadyRunning, CannotStart, SchemaMismatch
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.journal.lines import Offset, Place
from switchyard.ports.books import EntryFilter, LedgerBroken, LedgerUnavailable, OwnershipLost
from tests.support.ledgers import Ledgers
from tests.support.memory.clock import START
from tests.support.postgres import PostgresServer
from tests.support.posting import Posting, differences, digest, post_all
from tests.support.tape import Tape

DEMO = AccountId("demo")


async def test_a_posting_of_another_generation_or_position_is_rejected_and_writes_nothing(ledgers: Ledgers) -> None:
    tape = Tape()
    tape.accept("ord_1")
    tape.fill("ord_1", "e1", Decimal(400))
    books = await ledgers.open()
    ledger = books.ledger
    first = await Posting.of(ledger)
    old_claim = first.claim
    await first.post(tape.events[:2])
    with pytest.raises(OwnershipLost, match="read to"):
        await ledger.post(old_claim, tape.events, tape.place)
    second = await Posting.of(ledger)
    assert second.claim.position == tape.events[1].place
    with pytest.raises(OwnershipLost, match="claimed 2 times"):
        await first.post(tape.events[2:])
    [state] = await ledger.sources()
    assert (state.source, state.position, state.generation) == ("journal", tape.events[1].place, 2)
    await second.post(tape.events[2:])
    # A source of its own: it is read from its own start, and what was read before is dropped.
    partition = await Posting.of(ledger, "kafka:T:0", Offset())
    again = await partition.post(tape.events, Offset(7))
    assert (again.entries, again.repeats, partition.claim.position) == (0, 3, Offset(7))
    await ledger.reset("kafka:T:0", Offset())
    with pytest.raises(OwnershipLost, match="claimed 2 times"):
        await partition.post([], Offset(8))
    assert (await Posting.of(ledger, "kafka:T:0", Offset(3))).claim.position == Offset()


async def test_the_same_execution_twice_is_dropped(ledgers: Ledgers) -> None:
    tape = Tape()
    tape.accept("ord_1")
    tape.fill("ord_1", "e1", Decimal(400))
    books = await ledgers.open()
    ledger = books.ledger
    journal = await Posting.of(ledger)
    await journal.post(tape.events)
    before = await digest(books.dump)
    tape.fill("ord_1", "e1", Decimal(400), filled_qty_total=Decimal(400))
    second = await journal.post(tape.events[3:])
    assert (second.entries, second.repeats, await digest(books.dump)) == (0, 1, before)
    [holding] = await ledger.holdings(DEMO, "", "", 10)
    assert holding.qty == 400
    # The same execution id of another venue or account is another execution.
    assert len({fill_entry_id(*names) for names in (("a", "b", "c"), ("ab", "", "c"), ("a", "bc", ""))}) == 3


async def test_a_gap_halts_its_account_alone_until_the_missing_event_comes(ledgers: Ledgers) -> None:
    tape = Tape()
    for order, account in (("ord_1", "demo"), ("ord_2", "other")):
        tape.accept(order, account=account)
        tape.fill(order, f"{order}-e1", Decimal(400), account=account)
    tape.fill("ord_1", "e2", Decimal(100))
    tape.fill("ord_2", "e3", Decimal(100), account="other")
    events = tape.keyed()
    missing = next(each for each in events if each.event.seq == 2)
    books = await ledgers.open()
    ledger = books.ledger
    partition = await Posting.of(ledger, "kafka:T:0", Offset())
    posted = await partition.post([each for each in events if each is not missing], Offset(len(events)))
    assert (posted.halted, posted.entries) == (1, 4)
    [halted] = await ledger.halted(10)
    assert (halted.account_id, halted.seq) == ("demo", 3)
    assert "it follows event 2 of its account, and the books have read event 1" in halted.reason
    assert await ledger.holdings(DEMO, "", "", 10) == []
    [other] = await ledger.holdings(AccountId("other"), "", "", 10)
    assert other.qty == 500
    assert await differences(books.dump) == []
    # Read again from zero, with the event that was missing: nothing twice, nothing left out.
    await ledger.reset("kafka:T:0", Offset())
    posted = await (await Posting.of(ledger, "kafka:T:0", Offset())).post(events, Offset(len(events)))
    assert await ledger.halted(10) == []
    assert posted.entries == 2
    again = await ledgers.open("again")
    await post_all(again.ledger, tape.events)
    assert await digest(books.dump) == await digest(again.dump)


async def test_a_total_that_the_fills_do_not_explain_is_noted_and_not_booked_away(ledgers: Ledgers) -> None:
    tape = Tape()
    tape.accept("ord_1", price=Decimal(149))
    tape.fill("ord_1", "e1", Decimal(400), filled_qty_total=Decimal(700))
    tape.fill("ord_1", "e2", Decimal(300), last_price=None)
    books = await ledgers.open()
    ledger = books.ledger
    posted = await post_all(ledger, tape.events)
    assert posted.notes == 2
    _, missing, unpriced = [parse_entry(row.text) for row in await ledger.entries(EntryFilter(account_id=DEMO))]
    assert missing.notes == ("FILLED_QTY_TOTAL: the venue says 700, 400 is booked",)
    assert missing.qty == 400
    assert unpriced.price == 149
    assert unpriced.notes == ("NO_PRICE: the venue named none, booked at 149",)


async def test_a_fill_after_a_change_of_venue_is_one_of_the_new_venue(ledgers: Ledgers) -> None:
    tape = Tape()
    tape.accept("ord_1")
    tape.reroute("ord_1", "other")
    tape.fill("ord_1", "e1", Decimal(400))
    books = await ledgers.open()
    ledger = books.ledger
    await post_all(ledger, tape.events)
    _, filled = [parse_entry(row.text) for row in await ledger.entries(EntryFilter(account_id=DEMO))]
    assert filled.entry_id == fill_entry_id("other", "demo", "e1")


async def test_an_event_that_cannot_be_booked_halts_its_account_and_no_other(ledgers: Ledgers) -> None:
    tape = Tape()
    tape.accept("ord_1")
    tape.fill("ord_unknown", "e1", Decimal(1))
    tape.fill("ord_1", "e2", Decimal(1))
    tape.accept("ord_2", account="other")
    tape.fill("ord_2", "e3", Decimal(2), account="other")
    books = await ledgers.open()
    ledger = books.ledger
    journal = await Posting.of(ledger)
    await journal.post(tape.events[:2])
    await journal.post(tape.events[2:])
    [halted] = await ledger.halted(10)
    assert (halted.account_id, halted.seq) == ("demo", 2)
    assert "event 2 cannot be booked: the books have not read the acceptance of its order ord_unknown" in halted.reason
    assert await ledger.holdings(DEMO, "", "", 10) == []
    [other] = await ledger.holdings(AccountId("other"), "", "", 10)
    assert other.qty == 2


@pytest.mark.parametrize(
    "statement", ["add_legs", "set_accounts", "set_orders", "set_positions", "set_balances", "MOVE"]
)
async def test_a_page_that_fails_half_way_leaves_nothing_behind(
    tmp_path: Path, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tape = Tape()
    tape.accept("ord_1")
    tape.fill("ord_1", "e1", Decimal(400), fee=Decimal(3))
    ledger = await SqliteLedger.open(tmp_path / "books.db")
    of_dialect = hasattr(ledger.statements, statement)
    monkeypatch.setattr(ledger.statements if of_dialect else statements, statement, "SELECT no_such_function()")
    with pytest.raises(LedgerBroken, match="no_such_function"):
        await post_all(ledger, tape.events)
    monkeypatch.undo()
    await ledger.close()
    again = await SqliteLedger.open(tmp_path / "books.db")
    assert [state.position for state in await again.sources()] == [Place()]
    assert await again.entries(EntryFilter(account_id=DEMO)) == []
    assert await again.balances(DEMO, "", 10) == []
    assert (await post_all(again, tape.events)).entries == 2
    assert await differences(SqlLedgerDump(again)) == []
    await again.close()


async def test_every_change_of_the_file_is_found(tmp_path: Path) -> None:
    tape = Tape()
    tape.accept("ord_1")
    tape.fill("ord_1", "e1", Decimal(400), fee=Decimal(3))
    ledger = await SqliteLedger.open(tmp_path / "books.db")
    await post_all(ledger, tape.events)
    await ledger.close()
    content = (tmp_path / "books.db").read_bytes()
    for sql in (
        "UPDATE entries SET text = replace(text, '\"qty\":400', '\"qty\":401') WHERE number = 2",
        "UPDATE entries SET hash = replace(hash, substr(hash, 1, 1), 'x') WHERE number = 2",
        "UPDATE entries SET entry_id = 'another' WHERE number = 2",
        "DELETE FROM entries WHERE number = 1",
        "DELETE FROM legs WHERE leg = 1",
        "UPDATE legs SET amount = '1' WHERE leg = 1",
        "UPDATE balances SET amount = '1' WHERE account = 'fees'",
        "DELETE FROM positions",
        "UPDATE accounts SET hash = 'x'",
    ):
        (tmp_path / "books.db").write_bytes(content)
        connection = apsw.Connection(str(tmp_path / "books.db"))
        if "entries" in sql or "legs" in sql:
            with pytest.raises(apsw.ConstraintError, match="append-only"):
                connection.execute(sql)
        for trigger in ("entries_stay", "entries_remain", "legs_stay", "legs_remain"):
            connection.execute(f"DROP TRIGGER {trigger}")
        connection.execute(sql)
        connection.close()
        ledger = await SqliteLedger.open(tmp_path / "books.db")
        assert await differences(SqlLedgerDump(ledger)), sql
        await ledger.close()


async def test_the_file_serves_one_process_and_one_version(tmp_path: Path) -> None:
    ledger = await SqliteLedger.open(tmp_path / "books.db")
    with pytest.raises(AlreadyRunning, match="another process keeps the books"):
        await SqliteLedger.open(tmp_path / "books.db")
    await ledger.close()
    connection = apsw.Connection(str(tmp_path / "books.db"))
    connection.pragma("user_version", 99)
    connection.close()
    with pytest.raises(SchemaMismatch, match="schema 99"):
        await SqliteLedger.open(tmp_path / "books.db")
    content = bytearray((tmp_path / "books.db").read_bytes())
    content[100:4000] = b"\xff" * 3900
    (tmp_path / "books.db").write_bytes(content)
    with pytest.raises(CannotStart, match="cannot be read"):
        await SqliteLedger.open(tmp_path / "books.db")


async def test_a_rebuild_does_not_lose_what_people_book_meanwhile(postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database()
    live = await PostgresLedger.open(url)
    new = NewSchema(url)
    deposit = ManualEntry(
        type="Deposit", account_id=DEMO, key="k1", by="ann", reason="a test", currency="JPY", amount=Decimal(1)
    )
    try:
        async with new.empty(keep=True):
            await live.enter(deposit, START)
        with pytest.raises(CannotStart, match="1 entries of people were booked during the rebuild"):
            await new.put_in_place(discard=False)
        assert (await live.enter(deposit, START)).repeated
        assert await new.put_in_place(discard=True) == "backoffice_replaced_1"
        assert not (await live.enter(deposit, START)).repeated
    finally:
        await live.close()


async def test_two_rebuilds_of_one_database_do_not_meet(postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database()
    async with NewSchema(url).empty() as first:
        with pytest.raises(AlreadyRunning, match="another `switchyard backoffice rebuild`, or a check"):
            async with NewSchema(url).empty():
                pass
        assert await first.ledger.count() == 0
    async with NewSchema(url).empty() as second:
        assert await second.ledger.count() == 0


async def test_an_entry_of_a_person_whose_clock_is_ahead_is_rejected(postgres_server: PostgresServer) -> None:
    """It would move the account's later entries to a day to come."""
    ledger = await PostgresLedger.open(postgres_server.create_database())
    deposit = ManualEntry(
        type="Deposit", account_id=DEMO, key="k1", by="ann", reason="a test", currency="JPY", amount=Decimal(1)
    )
    try:
        with pytest.raises(LedgerUnavailable, match=r"clock of this machine is 3[56]\d\d s ahead"):
            await ledger.enter(deposit, datetime.now(UTC) + timedelta(hours=1))
        assert not (await ledger.enter(deposit, datetime.now(UTC) + timedelta(seconds=30))).repeated
    finally:
        await ledger.close()


async def test_a_value_that_no_row_can_have_finds_nothing(ledgers: Ledgers) -> None:
    books = await ledgers.open()
    assert await books.ledger.entries(EntryFilter(account_id=DEMO, order_id=OrderId("\0"))) == []
    assert await books.ledger.holdings(DEMO, "\0", "\0", 10) == []
    assert await books.ledger.balances(DEMO, "\0", 10) == []
