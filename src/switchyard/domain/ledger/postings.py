"""From events to entries: the memo of an accepted order, and the legs of a fill.

Pure. The formulas are in `docs/reference/backoffice.md`. An entry gets its number when it is added to a chain.
"""

from datetime import datetime
from decimal import Decimal

import msgspec
from msgspec.structs import replace

from switchyard.domain.facts import AcceptedOrder, ReportFact
from switchyard.domain.ledger.entries import (
    LedgerAccount,
    LedgerEntry,
    Leg,
    ReversalReason,
    fill_entry_id,
    reversal_entry_id,
)
from switchyard.domain.ledger.holdings import signed_qty
from switchyard.domain.ledger.orders import BookedOrder
from switchyard.domain.money import EXACT, ZERO, canonical, plain
from switchyard.domain.orders import Side

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
