"""From events to entries: the memo of an accepted order, the legs of a fill, and the rows that an entry touches.

Pure. The formulas are in `docs/reference/backoffice.md`. An entry gets its number when it is added to a chain.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import assert_never

import msgspec
from msgspec.structs import replace

from switchyard.domain.books.entries import (
    NO_CURRENCY,
    LedgerAccount,
    LedgerEntry,
    Leg,
    ReversalReason,
    fill_entry_id,
    reversal_entry_id,
)
from switchyard.domain.books.fold import BalanceKey
from switchyard.domain.books.holdings import WHOLE_ACCOUNT, HoldingKey, keys_of, signed_qty
from switchyard.domain.ids import AccountId, OrderId, VenueName
from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.journal.facts import AcceptedOrder, ReportFact
from switchyard.domain.journal.lines import (
    BusEvent,
    data_of,
    decode_accepted_fact,
    decode_order_fact,
    decode_rejected_fact,
    decode_report_fact,
)
from switchyard.domain.orders.order import Side
from switchyard.domain.values import EXACT, ONE, ZERO, canonical, plain


class BookedOrder(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An order that a later fill may name, rejected orders included: a venue may fill what we did not send."""

    order_id: OrderId
    account_id: AccountId
    venue: VenueName
    symbol: str
    side: Side
    price: Decimal | None = None
    currency: str
    multiplier: Decimal = ONE
    strategy: str | None = None
    booked_qty: Decimal = ZERO
    """The sum of its booked fills, without the reversed ones."""
    seq: int
    """The event that made it."""


def order_of_memo(entry: LedgerEntry) -> BookedOrder:
    """The order whose memo an entry is, as it was accepted."""
    assert entry.side is not None, "an order has a side"
    return BookedOrder(
        order_id=entry.order_id,
        account_id=entry.account_id,
        venue=entry.venue,
        symbol=entry.symbol,
        side=entry.side,
        price=entry.price,
        currency=entry.currency,
        multiplier=entry.multiplier,
        strategy=entry.strategy,
        seq=entry.seq,
    )


def booked_order(order_id: OrderId, account_id: AccountId, order: AcceptedOrder, seq: int) -> BookedOrder:
    """The terms of a new order."""
    return BookedOrder(
        order_id=order_id,
        account_id=account_id,
        venue=order.venue,
        symbol=order.symbol,
        side=order.side,
        price=order.price,
        currency=order.currency or NO_CURRENCY,
        multiplier=order.multiplier,
        strategy=order.strategy,
        seq=seq,
    )


# The notes on an entry, each followed by its figures.
NO_PRICE = "NO_PRICE"
FILLED_QTY_TOTAL = "FILLED_QTY_TOTAL"


def memo(order: BookedOrder, accepted: AcceptedOrder, *, seq: int, at: datetime) -> LedgerEntry:
    """The memo of an accepted order, under the order's id: it moves nothing."""
    return LedgerEntry(
        number=0,
        entry_id=order.order_id,
        type="OrderAccepted",
        account_id=order.account_id,
        order_id=order.order_id,
        seq=seq,
        at=at,
        venue=order.venue,
        symbol=order.symbol,
        side=order.side,
        qty=accepted.qty,
        price=accepted.price,
        currency=order.currency,
        multiplier=order.multiplier,
        strategy=order.strategy,
        client_order_id=accepted.client_order_id,
    )


def entry_id_of(order: BookedOrder, report: ReportFact) -> str:
    """The id of the entry that books the report."""
    return fill_entry_id(report.venue or order.venue, order.account_id, report.exec_id)


def fill(order: BookedOrder, report: ReportFact, *, seq: int, at: datetime) -> LedgerEntry:
    """The entry of an execution; `order` is the order with this fill counted."""
    notes = []
    price = report.last_price
    if price is None and report.last_qty:
        # As the gateway's positions have it: the quantity is real, so it counts at the order's price.
        price = ZERO if order.price is None else order.price
        notes.append(f"{NO_PRICE}: the venue named none, booked at {plain(price)}")
    # Under the id of an amend a venue may count from that amend on.
    counts_all = report.last_qty and report.leg_client_order_id is None
    if counts_all and report.filled_qty_total != order.booked_qty:
        notes.append(
            f"{FILLED_QTY_TOTAL}: the venue says {plain(report.filled_qty_total)}, {plain(order.booked_qty)} is booked"
        )
    fee_currency = None
    if report.fee:
        fee_currency = report.fee_currency or order.currency
    return LedgerEntry(
        number=0,
        entry_id=entry_id_of(order, report),
        type="Fill",
        account_id=order.account_id,
        order_id=order.order_id,
        seq=seq,
        at=at,
        venue=report.venue or order.venue,
        symbol=order.symbol,
        side=order.side,
        qty=report.last_qty,
        price=price,
        currency=order.currency,
        multiplier=order.multiplier,
        strategy=order.strategy,
        exec_id=report.exec_id,
        effective_at=report.at,
        filled_qty_total=report.filled_qty_total,
        fee=report.fee or None,
        fee_currency=fee_currency,
        notes=tuple(notes),
        legs=(
            *trade_legs(
                order.symbol, order.side, report.last_qty, price or ZERO, order.multiplier, order.currency, "cash"
            ),
            *fee_legs(report.fee or ZERO, fee_currency or order.currency),
        ),
    )


def revised_fill(order: BookedOrder, report: ReportFact, *, seq: int, at: datetime) -> LedgerEntry:
    """The new fill of a correction; `order` is the order with this fill counted."""
    made = fill(order, report, seq=seq, at=at)
    # The venue's total of a correction may be that of before or after it.
    return replace(made, notes=tuple(note for note in made.notes if not note.startswith(FILLED_QTY_TOTAL)))


class PositionChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What a reversal changes of cost basis and realised P&L: of the account's position and of the strategy's."""

    cost: Decimal = ZERO
    realised: Decimal = ZERO
    strategy_cost: Decimal = ZERO
    strategy_realised: Decimal = ZERO


def reversal_of(
    reversed_entry: LedgerEntry,
    *,
    entry_id: str,
    reason_code: ReversalReason,
    seq: int,
    at: datetime,
    effective_at: datetime | None,
    changes: PositionChanges,
) -> LedgerEntry:
    """The entry that takes another one back: its legs with the opposite signs."""
    return replace(
        reversed_entry,
        number=0,
        entry_id=entry_id,
        type="Reversal",
        seq=seq,
        at=at,
        effective_at=effective_at,
        filled_qty_total=None,
        realised_pnl=changes.realised,
        strategy_pnl=changes.strategy_realised,
        cost_change=changes.cost,
        strategy_cost_change=changes.strategy_cost,
        reverses=reversed_entry.entry_id,
        reason_code=reason_code,
        by=None,
        reason=None,
        key=None,
        digest=None,
        notes=(),
        legs=tuple(Leg(leg.account, leg.unit, _minus(leg.amount)) for leg in reversed_entry.legs),
    )


def noted_revision(
    order: BookedOrder, report: ReportFact, note: str, *, seq: int, at: datetime, waits: bool = False
) -> LedgerEntry:
    """The memo of a revision that changes nothing, for a person to look at; `waits`: until its execution comes."""
    return LedgerEntry(
        number=0,
        entry_id=revision_entry_id(order, report),
        type="RevisionNoted",
        account_id=order.account_id,
        order_id=order.order_id,
        seq=seq,
        at=at,
        venue=report.venue or order.venue,
        symbol=order.symbol,
        side=order.side,
        qty=report.last_qty,
        price=report.last_price,
        currency=order.currency,
        multiplier=order.multiplier,
        strategy=order.strategy,
        exec_id=report.exec_id,
        effective_at=report.at,
        filled_qty_total=report.filled_qty_total if waits else None,
        fee=report.fee if waits else None,
        fee_currency=report.fee_currency if waits else None,
        waits_for=report.ref_exec_id if waits else None,
        reason_code=reason_of(report),
        notes=(note,),
    )


def waiting_report(memo: LedgerEntry) -> ReportFact:
    """The revision that came before its execution, from its memo."""
    assert memo.exec_id is not None and memo.effective_at is not None, "a revision has both"
    return ReportFact(
        exec_id=memo.exec_id,
        venue=memo.venue,
        status="PARTIALLY_FILLED",
        last_qty=memo.qty or ZERO,
        last_price=memo.price,
        filled_qty_total=memo.filled_qty_total or ZERO,
        at=memo.effective_at,
        fee=memo.fee,
        fee_currency=memo.fee_currency,
        exec_type="CANCEL" if memo.reason_code == "BUST" else "CORRECT",
        ref_exec_id=memo.waits_for,
    )


def late_entry_id(memo: LedgerEntry) -> str:
    """The id of the reversal by a revision that came before its execution; the memo has the revision's own id."""
    return reversal_entry_id(memo.venue, memo.account_id, memo.exec_id or "", "late")


def revision_entry_id(order: BookedOrder, report: ReportFact) -> str:
    """The id of the reversal that a correction or a bust makes, or of the memo."""
    return reversal_entry_id(report.venue or order.venue, order.account_id, report.exec_id)


def reason_of(report: ReportFact) -> ReversalReason:
    """Why a revision reverses an execution."""
    return "BUST" if report.exec_type == "CANCEL" else "CORRECTION"


def trade_legs(
    symbol: str, side: Side, qty: Decimal, price: Decimal, multiplier: Decimal, currency: str, paid: LedgerAccount
) -> tuple[Leg, ...]:
    """The legs of units that come in or go out, paid from a ledger account at a price."""
    if not qty:
        return ()
    units = canonical(signed_qty(side, qty))
    money = canonical(EXACT.multiply(EXACT.multiply(units, price), multiplier))
    return (
        Leg("position", symbol, units),
        Leg("position_clearing", symbol, _minus(units)),
        Leg(paid, currency, _minus(money)),
        Leg("trading", currency, money),
    )


def fee_legs(fee: Decimal, currency: str) -> tuple[Leg, ...]:
    """The legs of a fee; of a rebate where it is below zero."""
    if not fee:
        return ()
    return Leg("cash", currency, _minus(fee)), Leg("fees", currency, canonical(fee))


def _minus(amount: Decimal) -> Decimal:
    return canonical(EXACT.minus(amount))


class NewOrder(msgspec.Struct, frozen=True):
    """An order that was accepted or rejected."""

    event: JournalEvent
    order_id: OrderId
    order: AcceptedOrder
    is_accepted: bool


class Rerouted(msgspec.Struct, frozen=True):
    """An order that was never sent has another venue."""

    event: JournalEvent
    order_id: OrderId
    venue: VenueName


class Reported(msgspec.Struct, frozen=True):
    """A report that moves units or money."""

    event: JournalEvent
    order_id: OrderId
    report: ReportFact


class Revised(msgspec.Struct, frozen=True):
    """A correction or a bust of an earlier execution."""

    event: JournalEvent
    order_id: OrderId
    report: ReportFact


Bookable = NewOrder | Rerouted | Reported | Revised


class ReadEvent(msgspec.Struct, frozen=True):
    """An event of the bus with what it means for the books."""

    taken: BusEvent
    fact: Bookable | None
    """None where it only moves the account's place."""
    problem: str | None = None
    """Why it cannot be read."""


def read_events(events: Iterable[BusEvent]) -> list[ReadEvent]:
    """The events, decoded, in order."""
    return [_read(taken) for taken in events]


def _read(taken: BusEvent) -> ReadEvent:
    try:
        return ReadEvent(taken, _decoded(taken.event))
    except msgspec.DecodeError as error:
        return ReadEvent(taken, None, f"its data cannot be read: {error}")


def _decoded(event: JournalEvent) -> Bookable | None:
    order_id = event.order_id
    if order_id is None:
        return None
    match event.type:
        case "OrderAccepted":
            return NewOrder(event, order_id, decode_accepted_fact(data_of(event)).order, True)
        case "RiskRejected":
            return NewOrder(event, order_id, decode_rejected_fact(data_of(event)).order, False)
        case "OrderRerouted":
            venue = decode_order_fact(data_of(event)).order.venue
            return None if venue is None else Rerouted(event, order_id, venue)
        case "ExecutionReport":
            report = decode_report_fact(data_of(event))
            return Reported(event, order_id, report) if report.last_qty or report.fee else None
        case "ExecutionRevised":
            return Revised(event, order_id, decode_report_fact(data_of(event)))
        case _:
            return None


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
                balances.add((account, "position", order.symbol))
                balances.add((account, "position_clearing", order.symbol))
                balances.add((account, "cash", order.currency))
                balances.add((account, "trading", order.currency))
                balances.add((account, "cash", fee_currency))
                balances.add((account, "fees", fee_currency))
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
