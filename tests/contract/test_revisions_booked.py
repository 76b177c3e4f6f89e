"""Busts and corrections in the books, and books that follow a restored journal."""

from collections.abc import Callable
from decimal import Decimal
from itertools import permutations
from typing import Any

import pytest

from switchyard.domain.books.entries import Adoption, LedgerEntry, fill_entry_id, parse_entry
from switchyard.domain.books.manual import ManualEntry
from switchyard.domain.errors import InvalidField
from switchyard.domain.ids import AccountId
from switchyard.domain.journal.lines import BusEvent, Offset
from switchyard.flow.backoffice.check import Carried, Differences, compare_ledgers, rebuild
from switchyard.ports.books import EntryFilter, EntryKey, Ledger
from tests.support.ledgers import Ledgers
from tests.support.posting import Posting, differences, digest, post_all
from tests.support.tape import START, Tape, TapeSource

DEMO = AccountId("demo")
NEW_EPOCH = 10**9


async def entries_of(ledger: Ledger) -> list[LedgerEntry]:
    return [parse_entry(row.text) for row in await ledger.entries(EntryFilter(account_id=DEMO))]


async def test_a_bust_takes_a_fill_back_as_if_it_had_never_been_and_a_correction_books_another(
    ledgers: Ledgers,
) -> None:
    tape = Tape()
    tape.accept("ord_1", strategy="trend")
    tape.fill("ord_1", "e1", Decimal(100), last_price=Decimal(10), fee=Decimal(1))
    tape.fill("ord_1", "e2", Decimal(100), last_price=Decimal(20))
    tape.revise("ord_1", "r1", "e1", corrected=(Decimal(50), Decimal(11)))
    tape.revise("ord_1", "r2", "e2")
    tape.revise("ord_1", "r3", "e1")  # the venue names the first execution, which was corrected meanwhile
    books = await ledgers.open()
    await post_all(books.ledger, tape.events)
    entries = await entries_of(books.ledger)
    shown: list[tuple[Any, ...]] = [(entry.type, entry.reason_code, entry.qty, entry.price) for entry in entries[1:]]
    assert shown == [
        ("Fill", None, 100, 10),
        ("Fill", None, 100, 20),
        ("Reversal", "CORRECTION", 100, 10),
        ("Fill", None, 50, 11),
        ("Reversal", "BUST", 100, 20),
        ("Reversal", "BUST", 50, 11),
    ]
    assert [entry.reverses for entry in entries[3:]] == [
        fill_entry_id("sim", "demo", "e1"),
        None,
        fill_entry_id("sim", "demo", "e2"),
        fill_entry_id("sim", "demo", "r1"),
    ]
    # Taking back a fill at 10 out of an average of 15 realises nothing.
    assert {entry.realised_pnl for entry in entries} == {0}
    assert entries[4].fee == 1  # the venue said nothing about the fee
    [holding] = await books.ledger.holdings(DEMO, "", "", 10)
    assert {holding.qty, holding.cost_basis, holding.realised_pnl} == {Decimal(0)}
    assert {row.amount for row in await books.ledger.balances(DEMO, "", 10)} == {0}
    # The strategy's entries, page by page.
    pages, after = [], None
    while page := await books.ledger.strategy_entries(DEMO, "trend", after, 3):
        pages += page
        last = parse_entry(page[-1].text)
        after = EntryKey(last.at, last.number)
    assert [row.number for row in pages] == [entry.number for entry in entries]


async def test_a_revision_of_nothing_is_a_memo_with_a_note(ledgers: Ledgers) -> None:
    tape = Tape()
    tape.accept("ord_1")
    tape.fill("ord_1", "e1", Decimal(100))
    tape.revise("ord_1", "r1", "e1")
    tape.revise("ord_1", "r2", "e1", corrected=(Decimal(1), Decimal(1)))
    tape.revise("ord_1", "r3", "never")
    books = await ledgers.open()
    posted = await post_all(books.ledger, tape.events)
    assert posted.notes == 2
    [again, unknown] = (await entries_of(books.ledger))[-2:]
    assert (again.type, again.legs) == ("RevisionNoted", ())
    assert again.notes == ("ALREADY_REVERSED: the execution e1 was taken back before",)
    assert unknown.notes == ("UNKNOWN_EXECUTION: the books have no execution never",)
    assert await books.ledger.halted(1) == []
    fields: dict[str, Any] = {"account_id": DEMO, "key": "k1", "by": "ann", "reason": "a test"}
    for entry_id in ("ord_1", again.entry_id, fill_entry_id("sim", "demo", "e1"), "none"):
        with pytest.raises(InvalidField, match="reverses"):
            await books.ledger.enter(ManualEntry(type="Reversal", reverses=entry_id, **fields), START)


@pytest.mark.parametrize("named", ["e1", "c1"])
async def test_fill_correction_and_bust_end_alike_in_every_order_of_arrival(ledgers: Ledgers, named: str) -> None:
    steps: dict[str, Callable[[Tape], None]] = {
        "fill": lambda tape: tape.fill("ord_1", "e1", Decimal(100), last_price=Decimal(10), fee=Decimal(2)),
        "correct": lambda tape: tape.revise(
            "ord_1", "c1", "e1", corrected=(Decimal(70), Decimal(11)), fee=Decimal(3), fee_currency="BTC"
        ),
        "bust": lambda tape: tape.revise("ord_1", "b1", named),
    }
    orders = [*permutations(steps), *permutations(("fill", "correct"))]
    for number, order in enumerate(orders):
        tape = Tape()
        tape.accept("ord_1", strategy="trend")
        tape.fill("ord_1", "e0", Decimal(5), last_price=Decimal(20), fee=Decimal(1), fee_currency="BTC")
        for name in order:
            steps[name](tape)
            tape.fill("ord_1", f"after {name}", Decimal(1), last_price=Decimal(30))
        books = await ledgers.open(f"books_{number}")
        await post_all(books.ledger, tape.events)
        assert await differences(books.dump) == [], order
        [holding] = await books.ledger.holdings(DEMO, "", "", 10)
        balances = {(row.account, row.unit): row.amount for row in await books.ledger.balances(DEMO, "", 10)}
        rest = 5 * 20 + 30 * len(order)
        found: tuple[Any, ...] = holding.qty, holding.cost_basis, balances["cash", "JPY"], balances["cash", "BTC"]
        if "bust" in order:
            assert found == (5 + len(order), rest, -rest, -1), order
        else:
            assert found == (75 + len(order), rest + 770, -rest - 770, -4), order
        assert holding.realised_pnl == 0, order
        # The entries do not depend on where a page begins.
        again = await ledgers.open(f"again_{number}")
        for each in tape.events:
            await post_all(again.ledger, [each])
        assert await digest(books.dump) == await digest(again.dump), order


async def test_a_bust_before_its_fill_leaves_evidence_of_both(ledgers: Ledgers) -> None:
    tape = Tape()
    tape.accept("ord_1")
    tape.revise("ord_1", "b1", "e1")
    tape.fill("ord_1", "e1", Decimal(100))
    books = await ledgers.open()
    await post_all(books.ledger, [*tape.events, *tape.events])
    memo, fill, reversal = (await entries_of(books.ledger))[1:]
    assert (memo.type, memo.waits_for, memo.notes) == (
        "RevisionNoted",
        "e1",
        ("UNKNOWN_EXECUTION: the books have no execution e1",),
    )
    assert fill.type == "Fill" and fill.qty == 100
    assert (reversal.type, reversal.reverses, reversal.seq) == ("Reversal", fill.entry_id, fill.seq)
    assert reversal.notes == (f"CAME_BEFORE_ITS_EXECUTION: the entry {memo.entry_id}",)


def restored(tape: Tape, kept: int) -> Tape:
    """A tape that was restored to its first events and goes on in a new epoch."""
    later = Tape()
    later.events = list(tape.events[:kept])
    later.epoch, later.skipped = 2, NEW_EPOCH
    return later


async def test_books_follow_a_restored_journal_and_list_what_it_has_lost(ledgers: Ledgers) -> None:
    before = Tape()
    before.accept("ord_1")
    before.fill("ord_1", "e1", Decimal(100))
    kept = len(before.events)
    before.fill("ord_1", "e2", Decimal(10))
    before.accept("ord_2")
    before.fill("ord_2", "e3", Decimal(1))
    books = await ledgers.open()
    await post_all(books.ledger, before.events)
    after = restored(before, kept)
    after.fill("ord_1", "e2", Decimal(10))  # the venue reports it again
    after.fill("ord_1", "e4", Decimal(5))

    # From a keyed topic, the account halts: its event before the new one is not that of the books.
    topic = await Posting.of(books.ledger, "kafka:T:0", Offset())
    keyed = [BusEvent(each.epoch, each.event, kept) for each in after.events[kept : kept + 1]]
    await topic.post(keyed, Offset(1))
    [halted] = await books.ledger.halted(1)
    assert "adopt-epoch" in halted.reason
    adoption = Adoption(
        epoch=2, after_seq=kept, first_seq=after.events[kept].event.seq, by="ann", reason="restored", at=START
    )
    assert await books.ledger.adopt(adoption, "journal", after.events[kept - 1].place) == 3
    journal = await Posting.of(books.ledger)
    assert journal.claim.position == after.events[kept - 1].place
    posted = await journal.post(after.events[kept:])
    assert (posted.entries, posted.repeats, await books.ledger.halted(1)) == (1, 1, [])
    orphans = [parse_entry(row.text) for row in await books.ledger.orphans((AccountId(""), 0), 10)]
    assert [(entry.type, entry.order_id) for entry in orphans] == [("OrderAccepted", "ord_2"), ("Fill", "ord_2")]
    [holding] = await books.ledger.holdings(DEMO, "", "", 10)
    assert holding.qty == 116
    # A rebuild carries the orphans over; a person takes one back.
    fields: dict[str, Any] = {"account_id": DEMO, "key": "k1", "by": "ann", "reason": "the venue does not have it"}
    await books.ledger.enter(ManualEntry(type="Reversal", reverses=orphans[1].entry_id, **fields), START)
    again = await ledgers.open("again")
    source = TapeSource(after)
    carried = await Carried.from_books(books.ledger, books.dump, again.ledger, source)
    await rebuild(source, again.ledger, None, None, carried)
    found = Differences()
    await compare_ledgers(books.dump, again.dump, found, await books.ledger.adoptions())
    assert found.lines + await differences(again.dump) == []
    assert await digest(books.dump) == await digest(again.dump)
    ours, theirs = [await each.ledger.orphans((AccountId(""), 0), 10) for each in (books, again)]
    assert ours == theirs
