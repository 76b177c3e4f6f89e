"""Compares a venue's statement and open orders with the books and the gateway's orders. Pure."""

from collections.abc import Iterable
from decimal import Decimal

from switchyard.domain.ids import AccountId, VenueName
from switchyard.domain.ledger.entries import LedgerEntry, fill_entry_id, reversal_entry_id
from switchyard.domain.ledger.holdings import signed_qty
from switchyard.domain.lifecycle import is_final
from switchyard.domain.money import EXACT, ZERO, canonical, plain
from switchyard.domain.orders import Order
from switchyard.domain.reconcile.breaks import BreakClass, Difference, StatementFill
from switchyard.domain.reconcile.ledger import minus
from switchyard.domain.reports import ExecutionIdScope, ExecutionReport, qualified, with_unique_id


def fills_scope(venue: VenueName) -> str:
    """The comparison of a venue's statement with the books."""
    return f"fills:{venue}"


def open_orders_scope(venue: VenueName) -> str:
    """The comparison of a venue's open orders with the gateway's."""
    return f"open_orders:{venue}"


def recorded_ids(venue: VenueName, fill: StatementFill, scope: ExecutionIdScope, order: Order | None) -> list[str]:
    """The execution ids under which the gateway may have recorded the fill, the usual one first."""
    report = ExecutionReport(
        exec_id=fill.exec_id,
        venue=venue,
        venue_client_order_id=fill.venue_client_order_id if order is None else order.venue_client_order_id,
        venue_order_id=fill.venue_order_id,
        status="FILLED",
        at=fill.at,
    )
    unique = with_unique_id(report, scope, None if order is None else order.symbol)
    return [unique.exec_id, qualified(unique).exec_id]


def entry_ids(venue: VenueName, account: AccountId, fill: StatementFill, exec_ids: Iterable[str]) -> list[str]:
    """The ids of the ledger entries that may book the line: of a bust its reversal, of all others the fill."""
    if fill.exec_type == "CANCEL":
        return [reversal_entry_id(venue, account, exec_id) for exec_id in exec_ids]
    return [fill_entry_id(venue, account, exec_id) for exec_id in exec_ids]


def missing_fill(
    venue: VenueName, fill: StatementFill, order: Order | None, account: AccountId | None, *, is_recorded: bool
) -> Difference:
    """A fill, or a revision of one, that the venue has and the books have not."""
    if fill.exec_type in ("CANCEL", "CORRECT"):
        return _missing_revision(venue, fill, order, account)
    # A report that is outstanding changes its order; the sweep of open orders asks for it.
    is_coming = order is not None and not is_recorded and not is_final(order.status)
    units = signed_qty(fill.side, fill.qty)
    return Difference(
        kind="fill",
        class_="timing" if is_coming else "missing_here",
        scope=fills_scope(venue),
        subject=(venue, fill.venue_client_order_id, fill.exec_id),
        account_id=account,
        venue=venue,
        order_id=None if order is None else order.order_id,
        amount=canonical(units),
        unit=fill.symbol,
        here=_missing_text(order, is_recorded=is_recorded),
        there=_fill_text(fill),
        fill=fill,
    )


def _missing_revision(
    venue: VenueName, fill: StatementFill, order: Order | None, account: AccountId | None
) -> Difference:
    is_bust = fill.exec_type == "CANCEL"
    units = signed_qty(fill.side, fill.qty)
    return Difference(
        kind="fill",
        class_="amount",
        scope=fills_scope(venue),
        subject=(venue, fill.venue_client_order_id, fill.exec_id),
        account_id=account,
        venue=venue,
        order_id=None if order is None else order.order_id,
        amount=minus(ZERO, units) if is_bust else canonical(units),
        unit=fill.symbol,
        here=f"{fill.ref_exec_id} is booked as it was",
        there=f"{fill.ref_exec_id} is void" if is_bust else f"{fill.ref_exec_id} is {_fill_text(fill)}",
        fill=fill,
    )


def other_figures(venue: VenueName, fill: StatementFill, entry: LedgerEntry) -> Difference | None:
    """A fill that both have with another symbol, side, quantity, price or fee."""
    if fill.exec_type == "CANCEL":
        return None  # the entry takes the fill back
    there, here = signed_qty(fill.side, fill.qty), signed_qty(entry.side, entry.qty or ZERO)
    amount, unit = minus(there, here), fill.symbol
    if fill.symbol != entry.symbol:
        amount = canonical(there)
    elif not amount and fill.price != entry.price:
        paid = EXACT.multiply(EXACT.subtract(fill.price, entry.price or ZERO), here)
        amount, unit = canonical(EXACT.multiply(paid, entry.multiplier)), entry.currency
    elif not amount:
        amount, unit = minus(fill.fee or ZERO, entry.fee or ZERO), entry.fee_currency or entry.currency
        # Without a name a fee is in the settlement currency.
        if not amount and (fill.fee_currency or entry.currency) != unit and fill.fee:
            amount = fill.fee
    if not amount:
        return None
    return Difference(
        kind="fill",
        class_="amount",
        scope=fills_scope(venue),
        subject=(venue, fill.venue_client_order_id, fill.exec_id),
        account_id=entry.account_id,
        venue=venue,
        order_id=entry.order_id,
        amount=amount,
        unit=unit,
        here=_entry_text(entry),
        there=_fill_text(fill),
        fill=fill,
    )


def repeated_fill(venue: VenueName, fill: StatementFill, entry: LedgerEntry) -> Difference:
    """A fill that the venue's statement has more than once."""
    return Difference(
        kind="fill_repeated",
        class_="duplicate",
        scope=fills_scope(venue),
        subject=(venue, fill.venue_client_order_id, fill.exec_id),
        account_id=entry.account_id,
        venue=venue,
        order_id=entry.order_id,
        amount=canonical(signed_qty(fill.side, fill.qty)),
        unit=fill.symbol,
        here=f"entry {entry.number}, once",
        there=f"again: {_fill_text(fill)}",
        fill=fill,
    )


def unknown_fill(venue: VenueName, entry: LedgerEntry) -> Difference:
    """A fill that the books have and the venue's statement has not."""
    assert entry.exec_id is not None
    return Difference(
        kind="fill",
        class_="missing_there",
        scope=fills_scope(venue),
        subject=(venue, entry.order_id, entry.exec_id),
        account_id=entry.account_id,
        venue=venue,
        order_id=entry.order_id,
        amount=minus(ZERO, signed_qty(entry.side, entry.qty or ZERO)),
        unit=entry.symbol,
        here=_entry_text(entry),
        there="not in the statement",
    )


def void_fill(venue: VenueName, reversal: LedgerEntry) -> Difference:
    """A fill that the venue has, and that a person has taken back in the books."""
    assert reversal.exec_id is not None
    return Difference(
        kind="fill",
        class_="missing_here",
        scope=fills_scope(venue),
        subject=(venue, reversal.order_id, reversal.exec_id),
        account_id=reversal.account_id,
        venue=venue,
        order_id=reversal.order_id or None,
        amount=canonical(signed_qty(reversal.side, reversal.qty or ZERO)),
        unit=reversal.symbol,
        here=f"reversed by {reversal.by} with entry {reversal.number}",
        there=_entry_text(reversal).partition(": ")[2],
    )


def open_order_difference(
    venue: VenueName, client_order_id: str, ours: Order | None, theirs: "OpenThere | None", *, times: int = 1
) -> Difference | None:
    """An order that is open on one side only, or on both with other quantities, or twice at the venue."""
    here = ZERO if ours is None or is_final(ours.status) else _leaves(ours.qty, ours.filled_qty)
    there = ZERO if theirs is None else _leaves(theirs[0] or (ZERO if ours is None else ours.qty), theirs[1])
    class_: BreakClass
    if times > 1:
        class_ = "duplicate"
    elif theirs is None:
        assert ours is not None
        class_ = "missing_there"
    elif ours is None or is_final(ours.status):
        class_ = "missing_here"
    elif ours.status not in ("WORKING", "PARTIALLY_FILLED", "CANCEL_REQUESTED"):
        class_ = "timing"  # in doubt, or its answer is outstanding
    elif there != here and theirs[0] != ours.amend_qty:
        class_ = "amount"
    else:
        return None
    side = "BUY" if ours is None else ours.side
    return Difference(
        kind="open_order",
        class_=class_,
        scope=open_orders_scope(venue),
        subject=(venue, client_order_id),
        account_id=None if ours is None else ours.account_id,
        venue=venue,
        order_id=None if ours is None else ours.order_id,
        amount=canonical(signed_qty(side, minus(there, here) if times == 1 else EXACT.multiply(there, times - 1))),
        unit=ours.symbol if ours is not None else (theirs[2] or "") if theirs is not None else "",
        here="no such order" if ours is None else f"{ours.status}, {plain(ours.filled_qty)} of {plain(ours.qty)}",
        there="not open" if theirs is None else _open_text(theirs, times),
    )


OpenThere = tuple[Decimal | None, Decimal, str | None]
"""Quantity, filled quantity and symbol of an order that is open at a venue, where it shows them."""


def _leaves(qty: Decimal, filled: Decimal) -> Decimal:
    return EXACT.subtract(qty, filled)


def _open_text(theirs: OpenThere, times: int) -> str:
    qty = "" if theirs[0] is None else f" of {plain(theirs[0])}"
    return f"open, {plain(theirs[1])}{qty} filled" + ("" if times == 1 else f", {times} times")


def _missing_text(order: Order | None, *, is_recorded: bool) -> str:
    if order is None:
        return "no order with this client order id"
    return f"not booked; the gateway has {'recorded it' if is_recorded else 'no report of it'}, order {order.status}"


def _fill_text(fill: StatementFill) -> str:
    fee = "" if not fill.fee else f", fee {plain(fill.fee)} {fill.fee_currency or ''}".rstrip()
    return f"{fill.side} {plain(fill.qty)} {fill.symbol} at {plain(fill.price)}{fee}"


def _entry_text(entry: LedgerEntry) -> str:
    price = "no price" if entry.price is None else plain(entry.price)
    fee = "" if not entry.fee else f", fee {plain(entry.fee)} {entry.fee_currency or ''}".rstrip()
    return f"entry {entry.number}: {entry.side} {plain(entry.qty or ZERO)} {entry.symbol} at {price}{fee}"
