"""Builds a ledger again from the bus, and checks a ledger: its chain, its sums, and the rows that follow from it.

Reads the bus and a ledger; writes only the new ledger that it is given.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from switchyard.domain.chain import link
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.ledger.accounts import BookedAccount, HeadsDigest
from switchyard.domain.ledger.books import BalanceKey, Books, HoldingKey
from switchyard.domain.ledger.entries import LedgerEntry, LedgerHead, Unbalanced, check_balanced, parse_entry
from switchyard.domain.ledger.orders import BookedOrder
from switchyard.ports.ledger import ENTRIES_MAX, Ledger
from switchyard.ports.ledger_dump import DumpedEntry, LedgerDump
from switchyard.ports.source import Source

# A broken ledger can differ in every row; the first differences show what happened.
DIFFERENCES_MAX = 100

Row = TypeVar("Row")
Key = TypeVar("Key")
Progress = Callable[[int], None]
"""Called with the number of the event or entry reached."""


class LedgerDigest(msgspec.Struct, frozen=True):
    """The number of entries of all accounts, and one hash over the heads of their chains."""

    entries: int
    hash: str


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


async def rebuild(
    source: Source,
    ledger: Ledger,
    up_to: Mapping[AccountId, int] | None = None,
    progress: Progress | None = None,
) -> None:
    """Book all events of a source into an empty ledger, to the end or, in each account, up to the event given."""
    claim = await ledger.claim(source.name, source.start)
    last = None if up_to is None else max(up_to.values(), default=0)
    while True:
        page = await source.page(claim.position, ENTRIES_MAX)
        if not page.events or (last is not None and page.events[0].event.seq > last):
            return
        events = page.events
        if up_to is not None:
            events = tuple(each for each in events if each.event.seq <= up_to.get(each.event.account_id, 0))
        claim = (await ledger.post(claim, events, page.position)).claim
        if progress is not None:
            progress(page.events[-1].event.seq)


async def check_ledger(dump: LedgerDump, found: Differences, progress: Progress | None = None) -> LedgerDigest:
    """Fold all entries again, account by account, and compare chain, legs, positions and balances."""
    digest = HeadsDigest()
    async for account in pages(dump.dumped_accounts, AccountId(""), lambda row: row.account_id):
        books = Books()
        head = LedgerHead()

        def entries_of(
            after: int, limit: int, owner: AccountId = account.account_id
        ) -> Awaitable[Sequence[DumpedEntry]]:
            return dump.dumped_entries(owner, after, limit)

        async for dumped in pages(entries_of, 0, lambda entry: entry.stored.number):
            entry = _checked(account.account_id, dumped, head, found)
            if entry is not None:
                books.apply(entry)
            head = LedgerHead(dumped.stored.number, dumped.stored.hash)
            if progress is not None and head.number % ENTRIES_MAX == 0:
                progress(digest.entries + head.number)
        if account.head != head:
            found.add(
                f"account {account.account_id}: its last entry is {head.number} with hash {head.hash}, its row says "
                f"{account.head}"
            )
        await _check_rows(dump, account.account_id, books, found)
        digest.add(account.account_id, head)
    return LedgerDigest(digest.entries, digest.hash)


async def _check_rows(dump: LedgerDump, account: AccountId, books: Books, found: Differences) -> None:
    """Compare an account's positions and balances with those that its entries give."""
    no_holding: HoldingKey = account, "", ""
    no_balance: BalanceKey = account, "cash", ""
    holdings = {
        (row.account_id, row.symbol, row.currency): row
        async for row in pages(dump.dumped_holdings, no_holding, lambda row: (row.account_id, row.symbol, row.currency))
    }
    balances = {key: amount async for key, amount in pages(dump.dumped_balances, no_balance, lambda row: row[0])}
    _compare("position", books.holdings, holdings, found)
    _compare("balance", books.balances, balances, found)


async def ledger_digest(dump: LedgerDump) -> LedgerDigest:
    """One value over the heads of all accounts."""
    digest = HeadsDigest()
    async for row in pages(dump.dumped_accounts, AccountId(""), lambda row: row.account_id):
        digest.add(row.account_id, row.head)
    return LedgerDigest(digest.entries, digest.hash)


async def read_events_of(dump: LedgerDump) -> dict[AccountId, int]:
    """The last event that the books have read of each account."""
    rows = pages(dump.dumped_accounts, AccountId(""), lambda row: row.account_id)
    return {row.account_id: row.seq async for row in rows}


async def compare_ledgers(live: LedgerDump, rebuilt: LedgerDump, found: Differences) -> None:
    """Compare a ledger with one that was built from the same events: accounts with their heads, and orders."""
    await _compare_pages("account", _running_accounts(live), _running_accounts(rebuilt), found)
    await _compare_pages("order", _orders(live), _orders(rebuilt), found)


def _orders(dump: LedgerDump) -> AsyncIterator[BookedOrder]:
    return pages(dump.dumped_orders, OrderId(""), lambda row: row.order_id)


async def _running_accounts(dump: LedgerDump) -> AsyncIterator[BookedAccount]:
    """The accounts, without the halts: those are no function of the events that were booked."""
    async for row in pages(dump.dumped_accounts, AccountId(""), lambda row: row.account_id):
        if row.seq:
            yield replace(row, halted_seq=None, halted=None)


async def _compare_pages(name: str, live: AsyncIterator[Row], rebuilt: AsyncIterator[Row], found: Differences) -> None:
    while True:
        ours, theirs = await anext(live, None), await anext(rebuilt, None)
        if ours != theirs:
            # From the first difference on the two lists may be shifted, so that more would say less.
            found.add(f"{name}: the books have {ours}, the journal gives {theirs}")
            return
        if ours is None:
            return


def _checked(account: AccountId, dumped: DumpedEntry, before: LedgerHead, found: Differences) -> LedgerEntry | None:
    """The entry, with every difference noted; none where it cannot be read."""
    number = f"{dumped.stored.number} of account {account}"
    if dumped.stored.number != before.number + 1:
        found.add(f"entry {number} comes after {before.number}: entries are missing")
    if link(before.hash, dumped.stored.text) != dumped.stored.hash:
        found.add(f"entry {number} does not have the hash of its text and of the entry before it")
    try:
        entry = parse_entry(dumped.stored.text)
        check_balanced(entry.legs)
    except (ValueError, Unbalanced) as error:
        found.add(f"entry {number}: {error}")
        return None
    if (entry.account_id, entry.number, entry.entry_id) != (account, dumped.stored.number, dumped.entry_id):
        found.add(
            f"entry {number} has the id {dumped.entry_id}, its text has entry {entry.number} of account "
            f"{entry.account_id} with the id {entry.entry_id}"
        )
    if entry.legs != dumped.legs:
        found.add(f"entry {number}: its legs are {dumped.legs}, its text has {entry.legs}")
    return entry


def _compare(name: str, expected: Mapping[Key, Row], actual: Mapping[Key, Row], found: Differences) -> None:
    for key in expected.keys() | actual.keys():
        if expected.get(key) != actual.get(key):
            found.add(f"{name} {key}: the entries give {expected.get(key)}, the table has {actual.get(key)}")


async def pages(
    page_of: Callable[[Key, int], Awaitable[Sequence[Row]]], start: Key, key_of: Callable[[Row], Key]
) -> AsyncIterator[Row]:
    """All rows of a table, read page by page."""
    after = start
    while page := await page_of(after, ENTRIES_MAX):
        for row in page:
            yield row
        after = key_of(page[-1])
