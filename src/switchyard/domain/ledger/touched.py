"""Which rows a page of events may touch, so that a store reads them before it books the page.

Pure.
"""

from collections.abc import Iterable, Mapping
from typing import assert_never

import msgspec
from msgspec.structs import replace

from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.ledger.bookable import NewOrder, ReadEvent, Reported, Rerouted, Revised
from switchyard.domain.ledger.entries import LedgerEntry, fill_entry_id
from switchyard.domain.ledger.fold import BalanceKey
from switchyard.domain.ledger.holdings import WHOLE_ACCOUNT, HoldingKey, keys_of
from switchyard.domain.ledger.orders import BookedOrder, booked_order
from switchyard.domain.ledger.postings import entry_id_of, late_entry_id, revision_entry_id


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
                known.setdefault(
                    fact.order_id, booked_order(fact.order_id, fact.event.account_id, fact.order, fact.event.seq)
                )
            case Rerouted():
                if (order := known.get(fact.order_id)) is not None:
                    known[fact.order_id] = replace(order, venue=fact.venue)
            case Reported():
                if (order := known.get(fact.order_id)) is None:
                    continue  # `take` stops at it
                account, fee_currency = order.account_id, fact.report.fee_currency or order.currency
                entries.add(entry_id_of(order, fact.report))
                holdings.add((account, WHOLE_ACCOUNT, order.symbol, order.currency))
                holdings.add((account, order.strategy or "", order.symbol, order.currency))
                balances |= {(account, name, order.symbol) for name in ("position", "position_clearing")}
                balances |= {(account, name, order.currency) for name in ("cash", "trading")}
                balances |= {(account, name, fee_currency) for name in ("cash", "fees")}
            case Revised():
                if (order := known.get(fact.order_id)) is not None:
                    # Its positions and other balances are those of the entry that it revises: see `touched_by`.
                    entries |= {entry_id_of(order, fact.report), revision_entry_id(order, fact.report)}
                    fee_currency = fact.report.fee_currency or order.currency
                    balances |= {(order.account_id, name, fee_currency) for name in ("cash", "fees")}
            case unreachable:
                assert_never(unreachable)
    return Touched(frozenset(entries), frozenset(holdings), frozenset(balances))


def touched_by(entry: LedgerEntry) -> Touched:
    """The rows that booking the entry touches."""
    balances: set[BalanceKey] = {(entry.account_id, leg.account, leg.unit) for leg in entry.legs}
    return Touched(frozenset({entry.entry_id}), frozenset(keys_of(entry)), frozenset(balances))


class Part(msgspec.Struct, frozen=True):
    """Events that are booked together."""

    events: list[ReadEvent]
    settles: bool = False
    """Whether a revision may wait for a fill that they book: it is carried out before the next event."""


Executions = frozenset[tuple[AccountId, str]]
"""Executions by account and the venue's id."""


def executions(events: Iterable[ReadEvent]) -> Executions:
    """The executions that the events report."""
    facts = (event.fact for event in events)
    return frozenset((fact.event.account_id, fact.report.exec_id) for fact in facts if isinstance(fact, Reported))


def parts_of(events: Iterable[ReadEvent], revised_before: Executions) -> list[Part]:
    """The events in parts, so that the entries do not depend on where a page begins.

    Each revision is one of its own, because what it reverses must be stored before it; and a part ends with a fill that
    was revised before it came. `revised_before` are those of the stored memos.
    """
    parts: list[Part] = []
    together: list[ReadEvent] = []
    revised = set(revised_before)
    for event in events:
        fact = event.fact
        if isinstance(fact, Revised):
            revised.add((fact.event.account_id, fact.report.ref_exec_id or ""))
            parts += [Part(together), Part([event], settles=True)]
            together = []
            continue
        together.append(event)
        if isinstance(fact, Reported) and (fact.event.account_id, fact.report.exec_id) in revised:
            parts.append(Part(together, settles=True))
            together = []
    return [part for part in (*parts, Part(together)) if part.events]


def touched_by_late(target: LedgerEntry, memo: LedgerEntry) -> Touched:
    """The rows that a revision touches which came before its execution; `target` is the entry that it takes back."""
    rows, account = touched_by(target), target.account_id
    ids = {late_entry_id(memo), fill_entry_id(memo.venue, account, memo.exec_id or "")}
    fees: set[BalanceKey] = {(account, name, memo.fee_currency or target.currency) for name in ("cash", "fees")}
    return Touched(rows.entry_ids | ids, rows.holdings, rows.balances | fees)


def revised_entry_id(event: ReadEvent, orders: Mapping[OrderId, BookedOrder]) -> str | None:
    """The entry that a revision refers to; none for another event, or where its order is not known."""
    fact = event.fact
    if not isinstance(fact, Revised) or (order := orders.get(fact.order_id)) is None:
        return None
    report = fact.report
    return fill_entry_id(report.venue or order.venue, order.account_id, report.ref_exec_id or "")
