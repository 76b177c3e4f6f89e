"""Checks a ledger: its chains, its sums, and the rows that follow from its entries; compares two, and rebuilds one.

A rebuild writes to an empty ledger only. Unrealised results are computed here from quotes.
"""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from switchyard.domain.books.books import Books
from switchyard.domain.books.entries import (
    Adoption,
    BookedAccount,
    HeadsDigest,
    LedgerEntry,
    LedgerHead,
    Unbalanced,
    check_balanced,
    parse_entry,
)
from switchyard.domain.books.fold import BalanceKey
from switchyard.domain.books.holdings import Holding, HoldingKey, ResultKey, key_of
from switchyard.domain.books.postings import BookedOrder
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.journal.lines import BusEvent, link
from switchyard.domain.market.routing import Router
from switchyard.domain.values import EXACT, canonical
from switchyard.ports.books import ENTRIES_MAX, DumpedEntry, Ledger, LedgerDump, ManualLedger, StoredEntry
from switchyard.ports.bus import Source
from switchyard.ports.quotes import QuoteLookup

# A broken ledger can differ in every row; the first differences show what happened.
DIFFERENCES_MAX = 100

Row = TypeVar("Row")
Key = TypeVar("Key")
Progress = Callable[[int, int], None]
"""Called with the number of events or entries read, and with how many there are, about."""


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


async def check_ledger(dump: LedgerDump, found: Differences) -> LedgerDigest:
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
                try:
                    books.apply(entry)
                except (Unbalanced, ArithmeticError) as error:
                    found.add(f"entry {entry.number} of account {account.account_id}: {error}")
            head = LedgerHead(dumped.stored.number, dumped.stored.hash)
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
    no_holding: HoldingKey = account, "", "", ""
    no_balance: BalanceKey = account, "cash", ""
    holdings = {key_of(row): row async for row in pages(dump.dumped_holdings, no_holding, key_of)}
    balances = {key: amount async for key, amount in pages(dump.dumped_balances, no_balance, lambda row: row[0])}
    _compare("position", books.holdings, holdings, found)
    _compare("balance", books.balances, balances, found)
    no_result: ResultKey = account, date.min, "", "", ""
    results = {key: row async for key, row in pages(dump.dumped_results, no_result, lambda row: row[0])}
    _compare("result", books.results, results, found)
    no_day = no_balance, date.min
    by_day = {key: amount async for key, amount in pages(dump.dumped_day_balances, no_day, lambda row: row[0])}
    _compare("balance at the end of", books.day_balances, by_day, found)


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


async def compare_ledgers(
    live: LedgerDump, rebuilt: LedgerDump, found: Differences, adoptions: Sequence[Adoption] = ()
) -> None:
    """Compare a ledger with one that was built from the same events: accounts with their heads, and orders.

    Orders of a lost part of the journal are not compared: not all of them have an entry that a rebuild can carry over.
    """
    await _compare_pages("account", _running_accounts(live), _running_accounts(rebuilt), found)
    await _compare_pages("order", _orders(live, adoptions), _orders(rebuilt, adoptions), found)


async def _orders(dump: LedgerDump, adoptions: Sequence[Adoption]) -> AsyncIterator[BookedOrder]:
    async for row in pages(dump.dumped_orders, OrderId(""), lambda row: row.order_id):
        if not any(each.after_seq < row.seq < each.first_seq for each in adoptions):
            yield row


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


NO_QUOTES = "NO_QUOTES"
"""This process has no market data."""
NO_QUOTE = "NO_QUOTE"
"""The venue has no quote for the symbol, or only a stale one."""


class Price(msgspec.Struct, frozen=True):
    """The mid price of a symbol, or why it is not known."""

    mid: Decimal | None
    reason: str | None = None


class Marks:
    """Prices for open positions; without quotes, none."""

    def __init__(self, quotes: QuoteLookup | None, router: Router) -> None:
        self._quotes = quotes
        self._router = router

    async def price(self, symbol: str) -> Price:
        """The mid price at the venue that the symbol's orders go to."""
        if self._quotes is None:
            return Price(None, NO_QUOTES)
        [quote] = await self._quotes.look_up([(self._router.venue_for(symbol), symbol)], waits=True)
        if quote is None:
            return Price(None, NO_QUOTE)
        return Price(canonical(EXACT.divide(EXACT.add(quote.bid, quote.ask), Decimal(2))))


def unrealised(holding: Holding, mid: Decimal) -> Decimal:
    """What the position would realise at the price."""
    value = EXACT.multiply(EXACT.multiply(holding.qty, mid), holding.multiplier)
    return canonical(EXACT.subtract(value, holding.cost_basis))


async def rebuild(
    source: Source,
    ledger: Ledger,
    up_to: Mapping[AccountId, int] | None = None,
    progress: Progress | None = None,
    carried: "Carried | None" = None,
) -> None:
    """Book all events of the journal into an empty ledger, to the end or, in each account, up to the event given.

    Entries that the journal does not give are carried over to the same places of their accounts' chains.
    """
    claim = await ledger.claim(source.name, source.start)
    last = None if up_to is None else max(up_to.values(), default=0)
    total, done = await source.lag(source.start), 0
    while True:
        page = await source.page(claim.position, ENTRIES_MAX)
        if not page.events or (last is not None and page.events[0].event.seq > last):
            break
        done += len(page.events)
        part: list[BusEvent] = []
        for taken in page.events:
            event = taken.event
            if up_to is not None and event.seq > up_to.get(event.account_id, 0):
                continue
            if carried is not None and carried.is_before(event.account_id, event.seq):
                if part:
                    claim = (await ledger.post(claim, part, part[-1].place)).claim
                    part = []
                await carried.carry(event.account_id, event.seq)
            part.append(taken)
        if part or page.position != claim.position:
            claim = (await ledger.post(claim, part, page.position)).claim
        if progress is not None:
            progress(done, total)
    if carried is not None:
        await carried.carry_rest()


class Carried:
    """The entries of former books that the journal does not give: people's, and orphans of an adopted epoch."""

    def __init__(self, ledger: ManualLedger, entries: Mapping[AccountId, Sequence[LedgerEntry]]) -> None:
        self._ledger = ledger
        self._waiting = {account: deque(found) for account, found in entries.items() if found}

    @classmethod
    async def from_books(cls, old: ManualLedger, dump: LedgerDump, new: ManualLedger, source: Source) -> "Carried":
        """Read them all, and have the new ledger follow the same epochs."""
        for adoption in await old.adoptions():
            await new.adopt(adoption, source.name, source.start)
        found: dict[AccountId, list[LedgerEntry]] = {}
        async for row in pages(dump.dumped_accounts, AccountId(""), lambda row: row.account_id):
            account = row.account_id

            def carried_of(after: int, limit: int, owner: AccountId = account) -> Awaitable[Sequence[StoredEntry]]:
                return old.carried(owner, after, limit)

            found[account] = [parse_entry(each.text) async for each in pages(carried_of, 0, lambda each: each.number)]
        return cls(new, found)

    @property
    def count(self) -> int:
        """How many are not carried over yet."""
        return sum(map(len, self._waiting.values()))

    def is_before(self, account: AccountId, seq: int) -> bool:
        """Whether one of the account's has its place before this event."""
        waiting = self._waiting.get(account)
        return bool(waiting) and waiting[0].seq < seq  # type: ignore[index]

    async def carry(self, account: AccountId, before_seq: int) -> None:
        """Carry over those that have their places before this event."""
        while self.is_before(account, before_seq):
            await self._ledger.carry(self._waiting[account].popleft())

    async def carry_rest(self) -> None:
        """Carry over those after the last event."""
        for waiting in self._waiting.values():
            while waiting:
                await self._ledger.carry(waiting.popleft())
