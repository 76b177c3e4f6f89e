"""Builds a ledger again from the bus, and checks a ledger: its chain, its sums, and the rows that follow from it.

Reads the bus and a ledger; writes only the new ledger that it is given.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from switchyard.domain.bus import Place
from switchyard.domain.chain import link
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.ledger.books import BalanceKey, Books, HoldingKey
from switchyard.domain.ledger.entries import LedgerEntry, LedgerHead, Unbalanced, check_balanced, parse_entry
from switchyard.ports.bus import Bus
from switchyard.ports.ledger import ENTRIES_MAX, Ledger
from switchyard.ports.ledger_dump import DumpedEntry, LedgerDump

# A broken ledger can differ in every row; the first differences show what happened.
DIFFERENCES_MAX = 100

Row = TypeVar("Row")
Key = TypeVar("Key")
Progress = Callable[[int], None]
"""Called with the number of the event or entry reached."""


class Differences:
    """What does not agree, one line each, the first hundred."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.count = 0

    def add(self, line: str) -> None:
        """Note one difference."""
        self.count += 1
        if len(self.lines) < DIFFERENCES_MAX:
            self.lines.append(line)


async def rebuild(bus: Bus, ledger: Ledger, up_to: Place | None = None, progress: Progress | None = None) -> Place:
    """Book all events into an empty ledger, up to a place or to the end; returns the place reached."""
    place = (await ledger.state()).place
    while up_to is None or place.seq < up_to.seq:
        events = await bus.page(place, ENTRIES_MAX)
        if up_to is not None:
            events = [event for event in events if event.event.seq <= up_to.seq]
        if not events:
            break
        place = (await ledger.post(place, events)).state.place
        if progress is not None:
            progress(place.seq)
    return place


async def check_ledger(
    ledger: Ledger, dump: LedgerDump, found: Differences, progress: Progress | None = None
) -> LedgerHead:
    """Fold all entries again and compare chain, legs, positions and balances; returns the last entry's place."""
    books = Books()
    head = LedgerHead()
    async for dumped in _pages(dump.dumped_entries, 0, lambda entry: entry.stored.number):
        entry = _checked(dumped, head, found)
        if entry is not None:
            books.apply(entry)
        head = LedgerHead(dumped.stored.number, dumped.stored.hash)
        if progress is not None and head.number % ENTRIES_MAX == 0:
            progress(head.number)
    stored = (await ledger.state()).head
    if stored != head:
        found.add(f"the ledger's last entry is {head.number} with hash {head.hash}, its state says {stored}")
    no_holding: HoldingKey = AccountId(""), "", ""
    no_balance: BalanceKey = AccountId(""), "cash", ""
    holdings = {
        (row.account_id, row.symbol, row.currency): row
        async for row in _pages(
            dump.dumped_holdings, no_holding, lambda row: (row.account_id, row.symbol, row.currency)
        )
    }
    balances = {key: amount async for key, amount in _pages(dump.dumped_balances, no_balance, lambda row: row[0])}
    _compare("position", books.holdings, holdings, found)
    _compare("balance", books.balances, balances, found)
    return head


async def compare_ledgers(
    live: tuple[Ledger, LedgerDump], rebuilt: tuple[Ledger, LedgerDump], found: Differences
) -> None:
    """Compare a ledger with one that was built from the same events: chain, place and orders."""
    state, again = await live[0].state(), await rebuilt[0].state()
    if state.place != again.place:
        found.add(f"the books were read up to {state.place}, the journal leads to {again.place}")
    if state.head != again.head:
        found.add(
            f"the journal gives {again.head.number} entries with hash {again.head.hash}, "
            f"the books have {state.head.number} with hash {state.head.hash}"
        )
    pages = [_pages(dump.dumped_orders, OrderId(""), lambda row: row.order_id) for _, dump in (live, rebuilt)]
    while True:
        ours, theirs = [await anext(page, None) for page in pages]
        if ours != theirs:
            # From the first difference on the two lists may be shifted, so that more would say less.
            found.add(f"order: the books have {ours}, the journal gives {theirs}")
            return
        if ours is None:
            return


def _checked(dumped: DumpedEntry, before: LedgerHead, found: Differences) -> LedgerEntry | None:
    """The entry, with every difference noted; none where it cannot be read."""
    number = dumped.stored.number
    if number != before.number + 1:
        found.add(f"entry {number} comes after {before.number}: entries are missing")
    if link(before.hash, dumped.stored.text) != dumped.stored.hash:
        found.add(f"entry {number} does not have the hash of its text and of the entry before it")
    try:
        entry = parse_entry(dumped.stored.text)
        check_balanced(entry.legs)
    except (ValueError, Unbalanced) as error:
        found.add(f"entry {number}: {error}")
        return None
    if (entry.number, entry.entry_id) != (number, dumped.entry_id):
        found.add(f"entry {number} has the id {dumped.entry_id}, its text {entry.number} and {entry.entry_id}")
    if entry.legs != dumped.legs:
        found.add(f"entry {number}: its legs are {dumped.legs}, its text has {entry.legs}")
    return entry


def _compare(name: str, expected: Mapping[Key, Row], actual: Mapping[Key, Row], found: Differences) -> None:
    for key in expected.keys() | actual.keys():
        if expected.get(key) != actual.get(key):
            found.add(f"{name} {key}: the entries give {expected.get(key)}, the table has {actual.get(key)}")


async def _pages(
    page_of: Callable[[Key, int], Awaitable[Sequence[Row]]], start: Key, key_of: Callable[[Row], Key]
) -> AsyncIterator[Row]:
    """All rows of a table, read page by page."""
    after = start
    while page := await page_of(after, ENTRIES_MAX):
        for row in page:
            yield row
        after = key_of(page[-1])
