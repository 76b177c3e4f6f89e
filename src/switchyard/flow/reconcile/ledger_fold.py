"""Folds the ledger's entries again, each once, and keeps what the comparisons need of them.

Reads the ledger page by page from where the last pass ended; writes nothing.
"""

from collections.abc import Awaitable, Callable
from datetime import datetime
from decimal import Decimal
from typing import Final

from switchyard.domain.books.entries import LedgerEntry, LedgerHead, Unbalanced, parse_entry
from switchyard.domain.books.fold import Fold
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.journal.lines import link
from switchyard.domain.reconcile.breaks import Difference
from switchyard.domain.reconcile.matching import BookedFills, broken_chain
from switchyard.domain.values import EXACT, ZERO
from switchyard.ports.books import ENTRIES_MAX, DumpedEntry, LedgerDump, StoredEntry

OnEntry = Callable[[LedgerEntry], None]
# Orders that a fold keeps before it asks which of them agree and have ended; more only where more are open.
ORDERS_MAX: Final = 20_000


class AccountFold:
    """One account's entries up to `head`."""

    def __init__(self, account: AccountId) -> None:
        self.account = account
        self.head = LedgerHead()
        self.books = Fold()
        self.chain: list[Difference] = []
        """Entries that do not follow the one before them."""
        self.missing = 0
        """Numbers that the chain leaves out."""
        self.units: dict[str, Decimal] = {}
        """By symbol: what the gateway's orders have bought less sold."""
        self.fills: dict[str, int] = {}
        """By symbol: how many fills that were."""
        self.orders: dict[OrderId, BookedFills | None] = {}
        """The orders that are not yet known to agree and to have ended; none: to be read whole from the ledger."""
        self.orders_max = ORDERS_MAX
        self.taken_back: set[str] = set()
        """Ids of the entries that people have reversed."""

    def take(self, dumped: DumpedEntry) -> LedgerEntry | None:
        """Fold the next entry; returns none where it cannot be read."""
        stored, before = dumped.stored, self.head
        self.head = LedgerHead(stored.number, stored.hash)
        missing = stored.number - before.number - 1
        if missing:
            self._note(stored.number, missing, f"{missing} entries are missing before entry {stored.number}")
        elif link(before.hash, stored.text) != stored.hash:
            self._note(stored.number, 0, f"entry {stored.number} does not have its hash")
        try:
            entry = parse_entry(stored.text)
        except ValueError as error:
            self._note(stored.number, 0, f"entry {stored.number}: {error}")
            return None
        if (entry.number, entry.entry_id, entry.legs) != (stored.number, dumped.entry_id, dumped.legs):
            self._note(stored.number, 0, f"the rows of entry {stored.number} differ from its text")
        try:
            self.books.apply(entry)
        except (Unbalanced, ArithmeticError) as error:
            # After a missing entry, the results of the later ones cannot be what they say.
            if not self.chain:
                self._note(stored.number, 0, f"entry {stored.number}: {error}")
        if is_of_the_journal(entry):
            self._count(entry)
        if is_reversed_by_a_person(entry):
            self.taken_back.add(entry.reverses or "")
        return entry

    def forget_days(self) -> None:
        """Drop what the fold keeps by day, which no comparison needs."""
        books = self.books
        for part in (books.results, books.day_balances, books.day_holdings):
            part.clear()
        for changed in (books.changed_holdings, books.changed_balances, books.changed_accounts):
            changed.clear()

    def _note(self, number: int, missing: int, problem: str) -> None:
        self.missing += missing
        self.chain.append(broken_chain(self.account, number, missing, problem))

    def _count(self, entry: LedgerEntry) -> None:
        order = self.orders.get(entry.order_id)
        if entry.type == "OrderAccepted":
            self.orders[entry.order_id] = BookedFills(entry.symbol, has_memo=True)
        elif order is None:
            # Its first entries were folded and dropped before, or it has no memo.
            self.orders[entry.order_id] = None
        else:
            order.units = EXACT.add(order.units, units_of(entry))
        self.units[entry.symbol] = EXACT.add(self.units.get(entry.symbol, ZERO), units_of(entry))
        if entry.type == "Fill" and entry.qty:
            self.fills[entry.symbol] = self.fills.get(entry.symbol, 0) + 1


class LedgerFold:
    """All accounts."""

    def __init__(self, dump: LedgerDump, drop_agreeing: Callable[[AccountFold], Awaitable[None]]) -> None:
        self._dump = dump
        self._drop_agreeing = drop_agreeing
        self.accounts: dict[AccountId, AccountFold] = {}

    def account(self, account: AccountId) -> AccountFold:
        """The fold of an account, new ones included."""
        return self.accounts.setdefault(account, AccountFold(account))

    async def advance(
        self, account: AccountId, on_entry: OnEntry, *, up_to: int | None = None, until: datetime | None = None
    ) -> AccountFold:
        """Fold the account's next entries: up to a number, or about until one is later than a time."""
        fold = self.account(account)
        while True:
            limit = ENTRIES_MAX if up_to is None else min(ENTRIES_MAX, up_to - fold.head.number)
            page = await self._dump.dumped_entries(account, fold.head.number, limit) if limit > 0 else []
            if up_to is not None:
                # Where numbers are missing, a page reaches further than its length.
                page = [dumped for dumped in page if dumped.stored.number <= up_to]
            if not page:
                return fold
            last: LedgerEntry | None = None
            for dumped in page:
                last = fold.take(dumped)
                if last is not None:
                    on_entry(last)
            fold.forget_days()
            if len(fold.orders) > fold.orders_max:
                await self._drop_agreeing(fold)
                fold.orders_max = max(ORDERS_MAX, 2 * len(fold.orders))
            if until is not None and (len(page) < limit or (last is not None and last.at > until)):
                return fold


def readable(stored: StoredEntry) -> LedgerEntry | None:
    """The entry, or none where its text cannot be read: the fold reports it, and it books nothing."""
    try:
        return parse_entry(stored.text)
    except ValueError:
        return None


def is_of_the_journal(entry: LedgerEntry) -> bool:
    """Whether the gateway has a counterpart of the entry: people's entries have none."""
    return bool(entry.order_id) and entry.by is None


def is_reversed_by_a_person(entry: LedgerEntry) -> bool:
    """Whether the entry takes another one back because a person said so, not the venue."""
    return entry.type == "Reversal" and entry.by is not None


def units_of(entry: LedgerEntry) -> Decimal:
    """The units that the entry adds to the position."""
    total = ZERO
    for leg in entry.legs:
        if leg.account == "position":
            total = EXACT.add(total, leg.amount)
    return total
