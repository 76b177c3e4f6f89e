"""Finds what differs: books against the venue's statement, against the gateway's rows, and against their own entries.
Pure.
"""

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Literal

import msgspec

from switchyard.domain.books.entries import IN_UNITS, LedgerEntry, fill_entry_id, reversal_entry_id
from switchyard.domain.books.fold import BalanceKey
from switchyard.domain.books.holdings import Holding, HoldingKey, signed_qty
from switchyard.domain.ids import AccountId, OrderId, VenueName
from switchyard.domain.orders.lifecycle import is_final
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.reports import ExecutionIdScope, ExecutionReport, qualified, with_unique_id
from switchyard.domain.reconcile.breaks import BreakClass, Difference, StatementFill
from switchyard.domain.values import EXACT, ZERO, canonical, plain


def ledger_scope(account: AccountId) -> str:
    """The comparison of an account's tables with its entries."""
    return f"ledger:{account}"


def compare_tables(
    account: AccountId,
    entries: tuple[Mapping[HoldingKey, Holding], Mapping[BalanceKey, Decimal]],
    tables: tuple[Mapping[HoldingKey, Holding], Mapping[BalanceKey, Decimal]],
) -> Iterator[Difference]:
    """Positions and balances of one account: `there` is what the entries give, `here` the tables."""
    scope = ledger_scope(account)
    for key in sorted(entries[0].keys() | tables[0].keys()):
        position, kept = entries[0].get(key), tables[0].get(key)
        if position == kept:
            continue
        amount, unit = _position_amount(position, kept)
        yield Difference(
            kind="ledger_position",
            class_=_class(position, kept),
            scope=scope,
            subject=key,
            account_id=account,
            amount=amount,
            unit=unit,
            here=_position_text(kept),
            there=_position_text(position),
        )
    for balance in sorted(entries[1].keys() | tables[1].keys()):
        given, stored = entries[1].get(balance), tables[1].get(balance)
        if given != stored:
            yield Difference(
                kind="ledger_balance",
                class_=_class(given, stored),
                scope=scope,
                subject=balance,
                account_id=account,
                amount=minus(given or ZERO, stored or ZERO),
                unit=balance[2],
                here="no row" if stored is None else plain(stored),
                there="no entry" if given is None else plain(given),
            )


def compare_sums(account: AccountId, balances: Mapping[BalanceKey, Decimal]) -> Iterator[Difference]:
    """Debits against credits, of the entries: each currency and each symbol sums to zero."""
    sums: dict[tuple[bool, str], Decimal] = {}
    for (_, name, unit), amount in balances.items():
        # A symbol such as BTC can be a currency too: each is summed alone.
        key = name in IN_UNITS, unit
        sums[key] = EXACT.add(sums.get(key, ZERO), amount)
    for (in_units, unit), total in sorted(sums.items()):
        if total:
            yield Difference(
                kind="ledger_sum",
                class_="amount",
                scope=ledger_scope(account),
                subject=(account, "units" if in_units else "money", unit),
                account_id=account,
                amount=canonical(total),
                unit=unit,
                here="debits less credits: 0",
                there=plain(total),
            )


def broken_chain(account: AccountId, number: int, missing: int, problem: str) -> Difference:
    """An entry that does not follow the one before it."""
    return Difference(
        kind="ledger_chain",
        class_="missing_here" if missing else "amount",
        scope=ledger_scope(account),
        subject=(account, str(number)),
        account_id=account,
        amount=Decimal(missing or 1),
        unit="",
        here=problem,
        there="entries without a gap, each with the hash of its text and of the one before it",
    )


def orphan(entry: LedgerEntry) -> Difference:
    """An entry that was booked from an event which the journal no longer has."""
    units = signed_qty(entry.side, entry.qty or ZERO) if entry.legs else ZERO
    return Difference(
        kind="orphan",
        class_="missing_there",
        scope=ledger_scope(entry.account_id),
        subject=(entry.account_id, entry.entry_id),
        account_id=entry.account_id,
        venue=entry.venue or None,
        order_id=entry.order_id or None,
        amount=minus(ZERO, units),
        unit=entry.symbol,
        here=f"entry {entry.number}, {entry.type}, of event {entry.seq}",
        there="the journal was restored and does not have that event",
    )


def _of_entry(
    entry: LedgerEntry, order_id: OrderId | None, class_: BreakClass, amount: Decimal, here: str, there: str
) -> Difference:
    """A difference about a fill of the books."""
    assert entry.exec_id is not None
    return Difference(
        kind="fill",
        class_=class_,
        scope=fills_scope(entry.venue),
        subject=(entry.venue, entry.order_id, entry.exec_id),
        account_id=entry.account_id,
        venue=entry.venue,
        order_id=order_id,
        amount=amount,
        unit=entry.symbol,
        here=here,
        there=there,
    )


def _of_fill(
    venue: VenueName,
    fill: StatementFill,
    found: Order | LedgerEntry | None,
    account: AccountId | None,
    *,
    class_: BreakClass,
    amount: Decimal,
    here: str,
    there: str,
    kind: Literal["fill", "fill_repeated"] = "fill",
    unit: str | None = None,
) -> Difference:
    """A difference about a line of a venue's statement; `found`: its order or entry, `unit`: its symbol if none."""
    return Difference(
        kind=kind,
        class_=class_,
        scope=fills_scope(venue),
        subject=(venue, fill.venue_client_order_id, fill.exec_id),
        account_id=account,
        venue=venue,
        order_id=None if found is None else found.order_id,
        amount=amount,
        unit=fill.symbol if unit is None else unit,
        here=here,
        there=there,
        fill=fill,
    )


def minus(there: Decimal, here: Decimal) -> Decimal:
    """There less here, exactly."""
    return canonical(EXACT.subtract(there, here))


def _class(there: object, here: object) -> BreakClass:
    if here is None:
        return "missing_here"
    return "missing_there" if there is None else "amount"


def _position_amount(there: Holding | None, here: Holding | None) -> tuple[Decimal, str]:
    """The difference in units, or in money where the units agree."""
    one = there or here
    assert one is not None
    units = minus(ZERO if there is None else there.qty, ZERO if here is None else here.qty)
    if units or there is None or here is None:
        return units, one.symbol
    cost = minus(there.cost_basis, here.cost_basis)
    return cost or minus(there.realised_pnl, here.realised_pnl), one.currency


def _position_text(holding: Holding | None) -> str:
    if holding is None:
        return "no row"
    return f"{plain(holding.qty)}, cost {plain(holding.cost_basis)}, realised {plain(holding.realised_pnl)}"


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
    return _of_fill(
        venue,
        fill,
        order,
        account,
        class_="timing" if is_coming else "missing_here",
        amount=canonical(signed_qty(fill.side, fill.qty)),
        here=_missing_text(order, is_recorded=is_recorded),
        there=_fill_text(fill),
    )


def _missing_revision(
    venue: VenueName, fill: StatementFill, order: Order | None, account: AccountId | None
) -> Difference:
    is_bust = fill.exec_type == "CANCEL"
    units = signed_qty(fill.side, fill.qty)
    return _of_fill(
        venue,
        fill,
        order,
        account,
        class_="amount",
        amount=minus(ZERO, units) if is_bust else canonical(units),
        here=f"{fill.ref_exec_id} is booked as it was",
        there=f"{fill.ref_exec_id} is void" if is_bust else f"{fill.ref_exec_id} is {_fill_text(fill)}",
    )


def other_figures(venue: VenueName, fill: StatementFill, entry: LedgerEntry) -> Difference | None:
    """A fill that both have with another symbol, side, quantity, price or fee."""
    if fill.exec_type == "CANCEL":
        return None  # the entry takes the fill back
    listed, booked = signed_qty(fill.side, fill.qty), signed_qty(entry.side, entry.qty or ZERO)
    amount, unit = minus(listed, booked), fill.symbol
    if fill.symbol != entry.symbol:
        amount = canonical(listed)
    elif not amount and fill.price != entry.price:
        paid = EXACT.multiply(EXACT.subtract(fill.price, entry.price or ZERO), booked)
        amount, unit = canonical(EXACT.multiply(paid, entry.multiplier)), entry.currency
    elif not amount:
        amount, unit = minus(fill.fee or ZERO, entry.fee or ZERO), entry.fee_currency or entry.currency
        # Without a name a fee is in the settlement currency.
        if not amount and (fill.fee_currency or entry.currency) != unit and fill.fee:
            amount = fill.fee
    if not amount:
        return None
    here, there = _entry_text(entry), _fill_text(fill)
    return _of_fill(
        venue, fill, entry, entry.account_id, class_="amount", amount=amount, unit=unit, here=here, there=there
    )


def repeated_fill(venue: VenueName, fill: StatementFill, entry: LedgerEntry) -> Difference:
    """A fill that the venue's statement has more than once."""
    return _of_fill(
        venue,
        fill,
        entry,
        entry.account_id,
        kind="fill_repeated",
        class_="duplicate",
        amount=canonical(signed_qty(fill.side, fill.qty)),
        here=f"entry {entry.number}, once",
        there=f"again: {_fill_text(fill)}",
    )


def unknown_fill(entry: LedgerEntry) -> Difference:
    """A fill that the books have and the venue's statement has not."""
    amount = minus(ZERO, signed_qty(entry.side, entry.qty or ZERO))
    return _of_entry(entry, entry.order_id, "missing_there", amount, _entry_text(entry), "not in the statement")


def void_fill(reversal: LedgerEntry) -> Difference:
    """A fill that the venue has, and that a person has taken back in the books."""
    amount = canonical(signed_qty(reversal.side, reversal.qty or ZERO))
    here = f"reversed by {reversal.by} with entry {reversal.number}"
    return _of_entry(
        reversal, reversal.order_id or None, "missing_here", amount, here, _entry_text(reversal).partition(": ")[2]
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


def gateway_scope(account: AccountId) -> str:
    """The comparison of an account's orders and positions at the gateway with the books."""
    return f"gateway:{account}"


class BookedFills(msgspec.Struct):
    """What the ledger's entries have of one order."""

    symbol: str
    units: Decimal = ZERO
    """Bought less sold."""
    has_memo: bool = False


def order_difference(
    order_id: OrderId, account: AccountId, order: Order | None, booked: BookedFills | None
) -> Difference | None:
    """The filled quantity of an order at the gateway less the one in the books."""
    assert order is not None or booked is not None
    filled = ZERO if order is None else signed_qty(order.side, order.filled_qty)
    units = ZERO if booked is None else booked.units
    amount = minus(filled, units)
    has_entry = booked is not None and (booked.has_memo or bool(booked.units))
    if not amount and order is not None and has_entry:
        return None
    is_less = abs(units) < abs(filled) or not has_entry
    return Difference(
        kind="order",
        class_="missing_here" if is_less else "missing_there",
        scope=gateway_scope(account),
        subject=(order_id,),
        account_id=account,
        venue=None if order is None else order.venue,
        order_id=order_id,
        amount=amount,
        unit=order.symbol if order is not None else booked.symbol if booked is not None else "",
        here=f"{plain(units)} booked" if has_entry else "no entry",
        there="no such order" if order is None else f"{order.status}, {plain(filled)} filled",
    )


def unexplained(difference: Difference, fills: Iterable[tuple[Difference, bool]]) -> Difference | None:
    """The part of an order's difference that its own fills do not explain; with each fill whether the gateway has it.

    A fill that the venue has and the books lack explains it if the gateway has recorded the fill; one that only the
    books have, if it has not.
    """
    rest, revised = difference.amount, ZERO
    for fill, is_recorded in fills:
        if fill.class_ == "amount":
            revised = EXACT.add(revised, fill.amount) if fill.unit == difference.unit else revised
        elif fill.class_ != "duplicate" and is_recorded == (fill.class_ != "missing_there"):
            rest = EXACT.subtract(rest, fill.amount)
    rest = minus(rest, ZERO)
    if not rest or rest == revised:
        return None if difference.amount else difference
    return msgspec.structs.replace(difference, amount=rest)


def compare_positions(
    account: AccountId,
    gateway: Mapping[str, Decimal],
    books: Mapping[str, Decimal],
    orders: Iterable[Difference],
) -> Iterator[Difference]:
    """Positions by symbol, less the part that the differences of orders explain."""
    explained: dict[str, Decimal] = {}
    for one in orders:
        explained[one.unit] = EXACT.add(explained.get(one.unit, ZERO), one.amount)
    for symbol in sorted(gateway.keys() | books.keys()):
        there, here = gateway.get(symbol, ZERO), books.get(symbol, ZERO)
        whole = minus(there, here)
        amount = minus(whole, explained.get(symbol, ZERO))
        if whole and amount:
            yield Difference(
                kind="position",
                class_="amount" if here and there else "missing_there" if here else "missing_here",
                scope=gateway_scope(account),
                subject=(account, symbol),
                account_id=account,
                amount=amount,
                unit=symbol,
                here=plain(here),
                there=plain(there),
            )
