"""The ledger on its SQLite file: books balance after every page, and any way through the same events ends alike."""

import asyncio
import json
import tempfile
from collections import defaultdict
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchyard.adapters.backoffice import schema
from switchyard.adapters.backoffice.dump import SqliteLedgerDump
from switchyard.adapters.backoffice.ledger import SqliteLedger
from switchyard.domain.bus import BusEvent, Offset, Place
from switchyard.domain.errors import AlreadyRunning, CannotStart, SchemaMismatch
from switchyard.domain.ids import AccountId
from switchyard.domain.ledger.entries import fill_entry_id, parse_entry
from switchyard.domain.orders import Side
from switchyard.flow.backoffice.rebuild import Differences, compare_ledgers
from switchyard.ports.ledger import EntryFilter, LedgerBroken, OwnershipLost
from tests.support import posting
from tests.support.posting import Posting, digest, post_all
from tests.support.tape import Tape

DEMO = AccountId("demo")
# Prices and quantities with up to 8 decimals; small, so that positions are often closed and flipped.
prices = st.decimals("0.00000001", 500, places=8)
quantities = st.one_of(st.integers(1, 5).map(Decimal), st.decimals("0.00000001", 5, places=8))
instruments = st.sampled_from(
    [
        ("USDJPY", "JPY", Decimal(1)),
        ("ES", "USD", Decimal("12.5")),
        ("BTC", "USD", Decimal(1)),
        ("ODD", None, Decimal(3)),
    ]
)
sides: st.SearchStrategy[Side] = st.sampled_from(["BUY", "SELL"])
fees = st.one_of(st.none(), st.tuples(st.decimals("-0.5", 2, places=8), st.sampled_from([None, "BTC", "EUR"])))


@st.composite
def tapes(draw: st.DrawFn) -> Tape:
    """Orders of two accounts, filled in parts and in any order, some reports twice."""
    tape = Tape()
    orders: list[tuple[str, str]] = []
    executions: list[tuple[str, str, dict[str, Any]]] = []
    for number in range(draw(st.integers(1, 25))):
        if not orders or draw(st.booleans()):
            symbol, currency, multiplier = draw(instruments)
            account = draw(st.sampled_from(["demo", "other"]))
            orders.append((f"ord_{number}", account))
            side = draw(sides)
            tape.accept(
                orders[-1][0], account=account, symbol=symbol, side=side, currency=currency, multiplier=multiplier
            )
        order, account = draw(st.sampled_from(orders))
        if executions and draw(st.integers(0, 5)) == 0:  # a journal has none; another bus may
            again, account, changes = draw(st.sampled_from(executions))
            tape.fill(again, account=account, **changes)
            continue
        fee = draw(fees)
        changes = {"exec_id": f'e{number} é"\\\u2028\t', "qty": draw(quantities), "last_price": draw(prices)}
        if fee is not None:
            changes |= {"fee": fee[0], "fee_currency": fee[1]}
        executions.append((order, account, changes))
        tape.fill(order, account=account, **changes)
    return tape


class PlainBooks:
    """The same books, as simply as possible, in fractions: no rounding at all."""

    def __init__(self, events: list[BusEvent]) -> None:
        self.cash: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
        self.fees: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
        self.qty: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
        self.cost: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
        self.realised: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
        orders: dict[str, Any] = {}
        seen: set[tuple[str, str]] = set()
        for taken in events:
            line = _json(taken)
            if line["type"] == "OrderAccepted":
                orders[line["orderId"]] = line["data"]["order"]
            if line["type"] != "ExecutionReport" or (line["accountId"], line["data"]["execId"]) in seen:
                continue
            seen.add((line["accountId"], line["data"]["execId"]))
            self._fill(line["accountId"], orders[line["orderId"]], line["data"])

    def _fill(self, account: str, order: dict[str, Any], report: dict[str, Any]) -> None:
        currency = order.get("currency") or "XXX"
        qty = Fraction(report["lastQty"]) * (1 if order["side"] == "BUY" else -1)
        price = Fraction(report["lastPrice"]) * Fraction(order.get("multiplier", 1))
        self.cash[account, currency] -= qty * price
        if fee := Fraction(report.get("fee") or 0):
            self.cash[account, report.get("feeCurrency") or currency] -= fee
            self.fees[account, report.get("feeCurrency") or currency] += fee
        key = account, order["symbol"]
        held = self.qty[key]
        closing = Fraction(0)
        if held * qty < 0:
            closing = qty if abs(qty) <= abs(held) else -held
            released = self.cost[key] * -closing / held
            self.realised[key] += -closing * price - released
            self.cost[key] -= released
        self.cost[key] += (qty - closing) * price
        self.qty[key] += qty


def _json(event: BusEvent) -> Any:
    return json.loads(event.event.line, parse_float=Decimal)


async def opened(folder: str | Path, name: str) -> SqliteLedger:
    return await SqliteLedger.open(Path(folder) / name)


async def differences(ledger: SqliteLedger) -> list[str]:
    return await posting.differences(SqliteLedgerDump(ledger))


@settings(max_examples=30, deadline=None)
@given(tape=tapes(), data=st.data())
def test_the_books_are_those_of_a_plain_model_after_every_page(tape: Tape, data: st.DataObject) -> None:
    async def check() -> None:
        with tempfile.TemporaryDirectory() as folder:
            ledger = await opened(folder, "books.db")
            journal = await Posting.of(ledger)
            done = 0
            while done < len(tape.events):
                count = data.draw(st.integers(1, len(tape.events) - done))
                await journal.post(tape.events[done : done + count])
                done += count
                await agree(ledger, PlainBooks(tape.events[:done]))
            assert await differences(ledger) == []
            # Read again from zero, in one page: the same chain and the same rows.
            again = await opened(folder, "again.db")
            await post_all(again, tape.events)
            found = Differences()
            await compare_ledgers(SqliteLedgerDump(ledger), SqliteLedgerDump(again), found)
            assert await digest(SqliteLedgerDump(ledger)) == await digest(SqliteLedgerDump(again))
            assert found.lines + await differences(again) == []
            await ledger.close()
            await again.close()

    asyncio.run(check())


async def agree(ledger: SqliteLedger, plain: PlainBooks) -> None:
    """Money and units agree to the last digit, results of partly closed positions to the rounding of each close."""
    for account in ("demo", "other"):
        balances = {(row.account, row.unit): row.amount for row in await ledger.balances(AccountId(account), "", 500)}
        units = {unit for _, unit in balances}
        for unit in units:
            sums = {name: balances.get((name, unit), Decimal(0)) for name in ("cash", "trading", "fees")}
            assert sum(sums.values()) == 0
            assert Fraction(sums["cash"]) == plain.cash[account, unit]
            assert Fraction(sums["fees"]) == plain.fees[account, unit]
        assert {unit for (owner, unit), cash in plain.cash.items() if owner == account and cash} <= units
        holdings = await ledger.holdings(AccountId(account), "", "", 500)
        by_currency: dict[str, Fraction] = defaultdict(Fraction)
        for holding in holdings:
            key = account, holding.symbol
            assert Fraction(holding.qty) == plain.qty[key]
            tolerance = Fraction(holding.fills, 10**8)
            assert abs(Fraction(holding.cost_basis) - plain.cost[key]) <= tolerance
            assert abs(Fraction(holding.realised_pnl) - plain.realised[key]) <= tolerance
            by_currency[holding.currency] += Fraction(holding.cost_basis) - Fraction(holding.realised_pnl)
            assert holding.qty or not holding.cost_basis
        # No cash is lost to the rounding of positions.
        for unit, amount in by_currency.items():
            assert amount == Fraction(balances.get(("trading", unit), Decimal(0)))


async def test_a_posting_of_another_generation_or_position_is_rejected_and_writes_nothing(tmp_path: Path) -> None:
    tape = Tape()
    tape.accept("ord_1")
    tape.fill("ord_1", "e1", Decimal(400))
    ledger = await opened(tmp_path, "books.db")
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
    await ledger.close()


async def test_the_same_execution_twice_is_dropped(tmp_path: Path) -> None:
    tape = Tape()
    tape.accept("ord_1")
    tape.fill("ord_1", "e1", Decimal(400))
    ledger = await opened(tmp_path, "books.db")
    journal = await Posting.of(ledger)
    await journal.post(tape.events)
    before = await digest(SqliteLedgerDump(ledger))
    tape.fill("ord_1", "e1", Decimal(400), filled_qty_total=Decimal(400))
    second = await journal.post(tape.events[3:])
    assert (second.entries, second.repeats, await digest(SqliteLedgerDump(ledger))) == (0, 1, before)
    [holding] = await ledger.holdings(DEMO, "", "", 10)
    assert holding.qty == 400
    # The same execution id of another venue or account is another execution.
    assert len({fill_entry_id(*names) for names in (("a", "b", "c"), ("ab", "", "c"), ("a", "bc", ""))}) == 3
    await ledger.close()


async def test_a_gap_halts_its_account_alone_until_the_missing_event_comes(tmp_path: Path) -> None:
    tape = Tape()
    for order, account in (("ord_1", "demo"), ("ord_2", "other")):
        tape.accept(order, account=account)
        tape.fill(order, f"{order}-e1", Decimal(400), account=account)
    tape.fill("ord_1", "e2", Decimal(100))
    tape.fill("ord_2", "e3", Decimal(100), account="other")
    events = tape.keyed()
    missing = next(each for each in events if each.event.seq == 2)
    ledger = await opened(tmp_path, "books.db")
    partition = await Posting.of(ledger, "kafka:T:0", Offset())
    posted = await partition.post([each for each in events if each is not missing], Offset(len(events)))
    assert (posted.halted, posted.entries) == (1, 4)
    [halted] = await ledger.halted(10)
    assert (halted.account_id, halted.seq) == ("demo", 3)
    assert "it follows event 2 of its account, and the books have read event 1" in halted.reason
    assert await ledger.holdings(DEMO, "", "", 10) == []
    [other] = await ledger.holdings(AccountId("other"), "", "", 10)
    assert other.qty == 500
    assert await differences(ledger) == []
    # Read again from zero, with the event that was missing: nothing twice, nothing left out.
    await ledger.reset("kafka:T:0", Offset())
    posted = await (await Posting.of(ledger, "kafka:T:0", Offset())).post(events, Offset(len(events)))
    assert await ledger.halted(10) == []
    assert posted.entries == 2
    again = await opened(tmp_path, "again.db")
    await post_all(again, tape.events)
    assert await digest(SqliteLedgerDump(ledger)) == await digest(SqliteLedgerDump(again))
    await ledger.close()
    await again.close()


async def test_a_total_that_the_fills_do_not_explain_is_noted_and_not_booked_away(tmp_path: Path) -> None:
    tape = Tape()
    tape.accept("ord_1", price=Decimal(149))
    tape.fill("ord_1", "e1", Decimal(400), filled_qty_total=Decimal(700))
    tape.fill("ord_1", "e2", Decimal(300), last_price=None)
    ledger = await opened(tmp_path, "books.db")
    posted = await post_all(ledger, tape.events)
    assert posted.notes == 2
    _, missing, unpriced = [parse_entry(row.text) for row in await ledger.entries(EntryFilter(account_id=DEMO))]
    assert missing.notes == ("FILLED_QTY_TOTAL: the venue says 700, 400 is booked",)
    assert missing.qty == 400
    assert unpriced.price == 149
    assert unpriced.notes == ("NO_PRICE: the venue named none, booked at 149",)
    await ledger.close()


async def test_a_fill_after_a_change_of_venue_is_one_of_the_new_venue(tmp_path: Path) -> None:
    tape = Tape()
    tape.accept("ord_1")
    tape.reroute("ord_1", "other")
    tape.fill("ord_1", "e1", Decimal(400))
    ledger = await opened(tmp_path, "books.db")
    await post_all(ledger, tape.events)
    _, filled = [parse_entry(row.text) for row in await ledger.entries(EntryFilter(account_id=DEMO))]
    assert filled.entry_id == fill_entry_id("other", "demo", "e1")
    await ledger.close()


async def test_an_event_that_cannot_be_booked_halts_its_account_and_no_other(tmp_path: Path) -> None:
    tape = Tape()
    tape.accept("ord_1")
    tape.fill("ord_unknown", "e1", Decimal(1))
    tape.fill("ord_1", "e2", Decimal(1))
    tape.accept("ord_2", account="other")
    tape.fill("ord_2", "e3", Decimal(2), account="other")
    ledger = await opened(tmp_path, "books.db")
    journal = await Posting.of(ledger)
    await journal.post(tape.events[:2])
    await journal.post(tape.events[2:])
    [halted] = await ledger.halted(10)
    assert (halted.account_id, halted.seq) == ("demo", 2)
    assert "event 2 cannot be booked: the books have not read the acceptance of its order ord_unknown" in halted.reason
    assert await ledger.holdings(DEMO, "", "", 10) == []
    [other] = await ledger.holdings(AccountId("other"), "", "", 10)
    assert other.qty == 2
    await ledger.close()


@pytest.mark.parametrize(
    "statement", ["ADD_LEGS", "SET_ACCOUNTS", "SET_ORDERS", "SET_POSITIONS", "SET_BALANCES", "MOVE"]
)
async def test_a_page_that_fails_half_way_leaves_nothing_behind(
    tmp_path: Path, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tape = Tape()
    tape.accept("ord_1")
    tape.fill("ord_1", "e1", Decimal(400), fee=Decimal(3))
    ledger = await opened(tmp_path, "books.db")
    monkeypatch.setattr(schema, statement, "SELECT no_such_function()")
    with pytest.raises(LedgerBroken, match="no_such_function"):
        await post_all(ledger, tape.events)
    monkeypatch.undo()
    await ledger.close()
    again = await opened(tmp_path, "books.db")
    assert [state.position for state in await again.sources()] == [Place()]
    assert await again.entries(EntryFilter(account_id=DEMO)) == []
    assert await again.balances(DEMO, "", 10) == []
    assert (await post_all(again, tape.events)).entries == 2
    assert await differences(again) == []
    await again.close()


async def test_every_change_of_the_file_is_found(tmp_path: Path) -> None:
    tape = Tape()
    tape.accept("ord_1")
    tape.fill("ord_1", "e1", Decimal(400), fee=Decimal(3))
    ledger = await opened(tmp_path, "books.db")
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
        ledger = await opened(tmp_path, "books.db")
        assert await differences(ledger), sql
        await ledger.close()


async def test_the_file_serves_one_process_and_one_version(tmp_path: Path) -> None:
    ledger = await opened(tmp_path, "books.db")
    with pytest.raises(AlreadyRunning, match="another process keeps the books"):
        await opened(tmp_path, "books.db")
    await ledger.close()
    connection = apsw.Connection(str(tmp_path / "books.db"))
    connection.pragma("user_version", 99)
    connection.close()
    with pytest.raises(SchemaMismatch, match="schema 99"):
        await opened(tmp_path, "books.db")
    content = bytearray((tmp_path / "books.db").read_bytes())
    content[100:4000] = b"\xff" * 3900
    (tmp_path / "books.db").write_bytes(content)
    with pytest.raises(CannotStart, match="cannot be read"):
        await opened(tmp_path, "books.db")
