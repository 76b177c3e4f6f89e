"""The books: entries as a fold over the journal's events, positions and balances as a fold over entries.

Pure. A `Books` holds the rows that a page of events touches; what changed is written in one transaction.
"""

from collections.abc import Iterable, Mapping
from decimal import Decimal, DecimalException
from typing import assert_never

import msgspec

from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.ledger.bookable import Bookable, NewOrder, Reported, Rerouted, Unbookable
from switchyard.domain.ledger.entries import ChainedEntry, LedgerAccount, LedgerEntry, LedgerHead, chained
from switchyard.domain.ledger.holdings import Holding, after_fill
from switchyard.domain.ledger.orders import BookedOrder, booked_order
from switchyard.domain.ledger.postings import entry_id_of, fill, memo
from switchyard.domain.money import EXACT, ZERO, canonical

HoldingKey = tuple[AccountId, str, str]
"""Account, symbol, settlement currency."""
BalanceKey = tuple[AccountId, LedgerAccount, str]
"""Account, ledger account, unit."""


class Books:
    """The rows that the next events touch, and what became of them."""

    def __init__(self, head: LedgerHead | None = None, orders: Iterable[BookedOrder] = ()) -> None:
        self.head = head or LedgerHead()
        self.orders: dict[OrderId, BookedOrder] = {order.order_id: order for order in orders}
        self.booked: set[str] = set()
        """Ids of entries that exist."""
        self.holdings: dict[HoldingKey, Holding] = {}
        self.balances: dict[BalanceKey, Decimal] = {}
        self.entries: list[ChainedEntry] = []
        """The new entries."""
        self.changed_orders: set[OrderId] = set()
        self.changed_holdings: set[HoldingKey] = set()
        self.changed_balances: set[BalanceKey] = set()
        self.repeats = 0
        """Events whose entry existed already."""

    def take(self, fact: Bookable) -> None:
        """Book an event, or drop it where its entry exists; raises Unbookable."""
        try:
            match fact:
                case NewOrder():
                    self._take_order(fact)
                case Rerouted():
                    self._keep(msgspec.structs.replace(self._order(fact), venue=fact.venue))
                case Reported():
                    self._take_report(fact)
                case unreachable:
                    assert_never(unreachable)
        except DecimalException as error:
            raise Unbookable(fact.event.seq, f"an amount is beyond all precision ({error!r})") from error

    def apply(self, entry: LedgerEntry) -> None:
        """Fold an entry into balances and positions."""
        for leg in entry.legs:
            key = entry.account_id, leg.account, leg.unit
            self.balances[key] = canonical(EXACT.add(self.balances.get(key, ZERO), leg.amount))
            self.changed_balances.add(key)
        if entry.type == "Fill" and entry.qty:
            held = entry.account_id, entry.symbol, entry.currency
            self.holdings[held] = after_fill(self.holdings.get(held), entry)
            self.changed_holdings.add(held)

    def _take_order(self, fact: NewOrder) -> None:
        event = fact.event
        order = booked_order(fact.order_id, event.account_id, fact.order)
        if fact.order_id in self.orders:
            self.repeats += 1
            return
        self._keep(order)
        if fact.is_accepted:
            self._add(memo(order, fact.order, number=self.head.number + 1, seq=event.seq, at=event.at))

    def _take_report(self, fact: Reported) -> None:
        event, report = fact.event, fact.report
        order = self._order(fact)
        if entry_id_of(order, report) in self.booked:
            self.repeats += 1
            return
        order = msgspec.structs.replace(order, booked_qty=canonical(EXACT.add(order.booked_qty, report.last_qty)))
        self._add(fill(order, report, number=self.head.number + 1, seq=event.seq, at=event.at))
        self._keep(order)

    def _order(self, fact: Rerouted | Reported) -> BookedOrder:
        order = self.orders.get(fact.order_id)
        if order is None:
            raise Unbookable(fact.event.seq, f"the books have not read the acceptance of its order {fact.order_id}")
        return order

    def _keep(self, order: BookedOrder) -> None:
        self.orders[order.order_id] = order
        self.changed_orders.add(order.order_id)

    def _add(self, entry: LedgerEntry) -> None:
        line = chained(entry, self.head.hash)
        self.apply(entry)
        self.head = LedgerHead(entry.number, line.hash)
        self.booked.add(entry.entry_id)
        self.entries.append(line)


class Touched(msgspec.Struct, frozen=True):
    """The rows beside the orders that a page of events may touch."""

    entry_ids: frozenset[str]
    holdings: frozenset[HoldingKey]
    balances: frozenset[BalanceKey]


def order_ids(facts: Iterable[Bookable]) -> set[OrderId]:
    """The orders that the events are about."""
    return {fact.order_id for fact in facts}


def touched(facts: Iterable[Bookable], orders: Mapping[OrderId, BookedOrder]) -> Touched:
    """The rows that booking these events may touch; `orders` are those known before the first."""
    known = dict(orders)
    entries: set[str] = set()
    holdings: set[HoldingKey] = set()
    balances: set[BalanceKey] = set()
    for fact in facts:
        order = known.get(fact.order_id)
        match fact:
            case NewOrder():
                known.setdefault(fact.order_id, booked_order(fact.order_id, fact.event.account_id, fact.order))
            case Rerouted():
                if order is not None:
                    known[fact.order_id] = msgspec.structs.replace(order, venue=fact.venue)
            case Reported():
                if order is None:
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
