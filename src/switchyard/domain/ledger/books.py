"""The books: entries as a fold over the bus's events, positions and balances as a fold over entries.

Pure. A `Books` holds the rows that a page of events touches; what changed is written in one transaction.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal, DecimalException
from typing import assert_never

import msgspec
from msgspec.structs import replace

from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.ledger.accounts import Adoption, BookedAccount, Unbookable, check_continues, is_held, is_repeat
from switchyard.domain.ledger.bookable import Bookable, NewOrder, ReadEvent, Reported, Rerouted
from switchyard.domain.ledger.entries import ChainedEntry, LedgerAccount, LedgerEntry, LedgerHead, chained
from switchyard.domain.ledger.holdings import Holding, after_fill
from switchyard.domain.ledger.orders import BookedOrder, booked_order
from switchyard.domain.ledger.postings import entry_id_of, fill, memo
from switchyard.domain.money import EXACT, ZERO, canonical

HoldingKey = tuple[AccountId, str, str]
"""Account, symbol, settlement currency."""
BalanceKey = tuple[AccountId, LedgerAccount, str]
"""Account, ledger account, unit."""


class NewEntry(msgspec.Struct, frozen=True):
    """An entry that was added to its account's chain."""

    line: ChainedEntry
    reached_at: datetime
    """The latest time of an entry of the account up to this one: unlike `at` it never decreases with the number."""

    @property
    def entry(self) -> LedgerEntry:
        """The entry itself."""
        return self.line.entry


class Books:
    """The rows that the next events touch, and what became of them."""

    def __init__(
        self,
        accounts: Iterable[BookedAccount] = (),
        orders: Iterable[BookedOrder] = (),
        adoptions: Iterable[Adoption] = (),
    ) -> None:
        self.accounts: dict[AccountId, BookedAccount] = {account.account_id: account for account in accounts}
        self.orders: dict[OrderId, BookedOrder] = {order.order_id: order for order in orders}
        self.booked: set[str] = set()
        """Ids of entries that exist."""
        self.holdings: dict[HoldingKey, Holding] = {}
        self.balances: dict[BalanceKey, Decimal] = {}
        self.entries: list[NewEntry] = []
        """The new entries."""
        self.changed_orders: set[OrderId] = set()
        self.changed_holdings: set[HoldingKey] = set()
        self.changed_balances: set[BalanceKey] = set()
        self.changed_accounts: set[AccountId] = set()
        self.repeats = 0
        """Events that were read before, or whose entry exists."""
        self.skipped = 0
        """Events that made no entry."""
        self.halted = 0
        """Accounts that have halted, or that go on, at one of the events."""
        self._adoptions = tuple(adoptions)

    def read(self, event: ReadEvent) -> None:
        """Take the next event of its account: book it, drop it, or halt the account."""
        taken, before = event.taken, len(self.entries)
        account_id, seq = taken.event.account_id, taken.event.seq
        account = self.account(account_id)
        if is_repeat(account, taken):
            self.repeats += 1
        elif not is_held(account, taken):
            try:
                check_continues(account, taken, self._adoptions)
                if event.problem is not None:
                    raise Unbookable(seq, event.problem)
                if event.fact is not None:
                    self.take(event.fact)
                if account.halted_seq is not None:
                    self.halted += 1
                self._set(replace(self.account(account_id), epoch=taken.epoch, seq=seq, halted_seq=None, halted=None))
            except Unbookable as error:
                self.halted += 1
                self._set(replace(account, halted_seq=seq, halted=str(error)))
        if len(self.entries) == before:
            self.skipped += 1

    def take(self, fact: Bookable) -> None:
        """Book an event, or drop it where its entry exists; raises Unbookable, with nothing changed."""
        try:
            match fact:
                case NewOrder():
                    self._take_order(fact)
                case Rerouted():
                    self._keep(replace(self._order(fact), venue=fact.venue))
                case Reported():
                    self._take_report(fact)
                case unreachable:
                    assert_never(unreachable)
        except DecimalException as error:
            raise Unbookable(fact.event.seq, f"an amount is beyond all precision ({error!r})") from error

    def apply(self, entry: LedgerEntry) -> None:
        """Fold an entry into balances and positions; nothing is changed where an amount is beyond all precision."""
        balances: dict[BalanceKey, Decimal] = {}
        for leg in entry.legs:
            key = entry.account_id, leg.account, leg.unit
            before = balances.get(key, self.balances.get(key, ZERO))
            balances[key] = canonical(EXACT.add(before, leg.amount))
        if entry.type == "Fill" and entry.qty:
            held = entry.account_id, entry.symbol, entry.currency
            self.holdings[held] = after_fill(self.holdings.get(held), entry)
            self.changed_holdings.add(held)
        self.balances |= balances
        self.changed_balances |= balances.keys()

    def account(self, account_id: AccountId) -> BookedAccount:
        """The account's row; a new one before its first event."""
        return self.accounts.get(account_id) or BookedAccount(account_id=account_id)

    def _take_order(self, fact: NewOrder) -> None:
        event = fact.event
        order = booked_order(fact.order_id, event.account_id, fact.order)
        if fact.order_id in self.orders:
            self.repeats += 1
            return
        if fact.is_accepted:
            self._add(memo(order, fact.order, number=self._next_number(order), seq=event.seq, at=event.at))
        self._keep(order)

    def _take_report(self, fact: Reported) -> None:
        event, report = fact.event, fact.report
        order = self._order(fact)
        if entry_id_of(order, report) in self.booked:
            self.repeats += 1
            return
        order = replace(order, booked_qty=canonical(EXACT.add(order.booked_qty, report.last_qty)))
        self._add(fill(order, report, number=self._next_number(order), seq=event.seq, at=event.at))
        self._keep(order)

    def _order(self, fact: Rerouted | Reported) -> BookedOrder:
        order = self.orders.get(fact.order_id)
        if order is None or order.account_id != fact.event.account_id:
            raise Unbookable(fact.event.seq, f"the books have not read the acceptance of its order {fact.order_id}")
        return order

    def _next_number(self, order: BookedOrder) -> int:
        return self.account(order.account_id).head.number + 1

    def _keep(self, order: BookedOrder) -> None:
        self.orders[order.order_id] = order
        self.changed_orders.add(order.order_id)

    def _set(self, account: BookedAccount) -> None:
        self.accounts[account.account_id] = account
        self.changed_accounts.add(account.account_id)

    def _add(self, entry: LedgerEntry) -> None:
        account = self.account(entry.account_id)
        line = chained(entry, account.head.hash)
        self.apply(entry)
        reached_at = entry.at if account.reached_at is None else max(entry.at, account.reached_at)
        self._set(replace(account, head=LedgerHead(entry.number, line.hash), reached_at=reached_at))
        self.booked.add(entry.entry_id)
        self.entries.append(NewEntry(line, reached_at))


class Touched(msgspec.Struct, frozen=True):
    """The rows beside accounts and orders that a page of events may touch."""

    entry_ids: frozenset[str]
    holdings: frozenset[HoldingKey]
    balances: frozenset[BalanceKey]


def account_ids(events: Iterable[ReadEvent]) -> set[AccountId]:
    """The accounts that the events are about."""
    return {event.taken.event.account_id for event in events}


def order_ids(events: Iterable[ReadEvent]) -> set[OrderId]:
    """The orders that the events are about."""
    return {event.fact.order_id for event in events if event.fact is not None}


def touched(events: Iterable[ReadEvent], orders: Mapping[OrderId, BookedOrder]) -> Touched:
    """The rows that booking these events may touch; `orders` are those known before the first."""
    known = dict(orders)
    entries: set[str] = set()
    holdings: set[HoldingKey] = set()
    balances: set[BalanceKey] = set()
    for fact in (event.fact for event in events):
        match fact:
            case None:
                continue
            case NewOrder():
                known.setdefault(fact.order_id, booked_order(fact.order_id, fact.event.account_id, fact.order))
            case Rerouted():
                if (order := known.get(fact.order_id)) is not None:
                    known[fact.order_id] = replace(order, venue=fact.venue)
            case Reported():
                if (order := known.get(fact.order_id)) is None:
                    continue  # `take` stops at it
                account, fee_currency = order.account_id, fact.report.fee_currency or order.currency
                entries.add(entry_id_of(order, fact.report))
                holdings.add((account, order.symbol, order.currency))
                balances |= {(account, name, order.symbol) for name in ("position", "position_clearing")}
                balances |= {(account, name, order.currency) for name in ("cash", "trading")}
                balances |= {(account, name, fee_currency) for name in ("cash", "fees")}
            case unreachable:
                assert_never(unreachable)
    return Touched(frozenset(entries), frozenset(holdings), frozenset(balances))
