"""From events to entries: the memo of an accepted order, and the legs of a fill.

Pure. The formulas are in `docs/reference/backoffice.md`.
"""

from datetime import datetime
from decimal import Decimal

from switchyard.domain.facts import AcceptedOrder, ReportFact
from switchyard.domain.ledger.entries import LedgerEntry, Leg, fill_entry_id
from switchyard.domain.ledger.orders import BookedOrder
from switchyard.domain.money import EXACT, ZERO, canonical, plain
from switchyard.domain.orders import Side

# The notes on an entry, each followed by its figures.
NO_PRICE = "NO_PRICE"
FILLED_QTY_TOTAL = "FILLED_QTY_TOTAL"


def memo(order: BookedOrder, accepted: AcceptedOrder, *, number: int, seq: int, at: datetime) -> LedgerEntry:
    """The memo of an accepted order, under the order's id: it moves nothing."""
    return LedgerEntry(
        number=number,
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


def fill(order: BookedOrder, report: ReportFact, *, number: int, seq: int, at: datetime) -> LedgerEntry:
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
        number=number,
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
            *_trade_legs(order, report.last_qty, price or ZERO),
            *_fee_legs(report.fee or ZERO, fee_currency or order.currency),
        ),
    )


def signed_qty(side: Side, qty: Decimal) -> Decimal:
    """The units that a fill adds to the position; below zero for a sale."""
    return qty if side == "BUY" else EXACT.minus(qty)


def _trade_legs(order: BookedOrder, qty: Decimal, price: Decimal) -> tuple[Leg, ...]:
    if not qty:
        return ()
    units = canonical(signed_qty(order.side, qty))
    money = canonical(EXACT.multiply(EXACT.multiply(units, price), order.multiplier))
    return (
        Leg("position", order.symbol, units),
        Leg("position_clearing", order.symbol, _minus(units)),
        Leg("cash", order.currency, _minus(money)),
        Leg("trading", order.currency, money),
    )


def _fee_legs(fee: Decimal, currency: str) -> tuple[Leg, ...]:
    if not fee:
        return ()
    return Leg("cash", currency, _minus(fee)), Leg("fees", currency, canonical(fee))


def _minus(amount: Decimal) -> Decimal:
    return canonical(EXACT.minus(amount))
