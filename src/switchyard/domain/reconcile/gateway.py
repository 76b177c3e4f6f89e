"""Compares the gateway's orders and positions with the books. Pure.

A more specific difference explains a more general one: of an order only the part is reported that its fills do not
explain, of a position only the part that its orders do not explain. One cause is therefore one break.
"""

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal

import msgspec

from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.ledger.holdings import signed_qty
from switchyard.domain.money import EXACT, ZERO, plain
from switchyard.domain.orders import Order
from switchyard.domain.reconcile.breaks import Difference
from switchyard.domain.reconcile.ledger import minus


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
