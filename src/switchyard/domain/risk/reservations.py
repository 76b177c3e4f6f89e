"""What an open order reserves: a pure function of its row, so that no second record of it can differ."""

from decimal import ROUND_CEILING, Context, Decimal, DivisionByZero, Inexact, InvalidOperation, Overflow

import msgspec

from switchyard.domain.facts import Quote
from switchyard.domain.instruments import Instrument
from switchyard.domain.lifecycle import is_final
from switchyard.domain.money import DECIMALS_MAX, ONE, ZERO, canonical
from switchyard.domain.orders import Order, OrderRequest, Side

# Quantity times price times multiplier has at most 69 digits, a sum of a million of them 75.
SUMS = Context(prec=100, traps=[Inexact, InvalidOperation, DivisionByZero, Overflow])
_UPWARD = Context(prec=60, rounding=ROUND_CEILING, traps=[InvalidOperation, DivisionByZero, Overflow])
_HUNDRED = Decimal(100)
_SMALLEST = Decimal(1).scaleb(-DECIMALS_MAX)


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """How an order is reserved while it is open; decided when it is accepted, and part of its row from then on."""

    currency: str | None = None
    """The settlement currency; sums are never made across currencies."""
    multiplier: Decimal = ONE
    price: Decimal | None = None
    """The worst price that is assumed for the rest of the order; none where no market was known."""
    reducing: bool = False
    """Whether it can only make the account's position smaller, whatever else is filled before it."""
    reduce_only: bool = False
    """Whether it closes a position, so that it is never accepted as anything but reducing."""


NO_TERMS = Terms()


class Reserved(msgspec.Struct, frozen=True, gc=False):
    """What one order reserves."""

    qty: Decimal
    notional: Decimal
    """In the settlement currency; zero where the order has no reserve price."""


def terms_of(request: OrderRequest, instrument: Instrument, quote: Quote | None) -> Terms:
    """The terms of a new order, before it is known whether it is reducing."""
    return Terms(
        currency=instrument.settlement or None,
        multiplier=instrument.multiplier,
        price=reserve_price(request, quote, instrument.collar_percent),
    )


def reserve_price(request: OrderRequest, quote: Quote | None, collar_percent: Decimal | None) -> Decimal | None:
    """The limit price, or the market price of the order's side plus the collar; none without a market.

    A limit price is the least that a SELL gets: one below the bid is filled at the market.
    """
    if request.stop_price is not None:
        return _stop_reserve_price(request, request.stop_price, quote, collar_percent)
    if quote is None:
        return request.price
    if request.price is not None and (request.side == "BUY" or request.price >= quote.bid):
        return request.price
    return _with_collar(quote.ask if request.side == "BUY" else quote.bid, collar_percent)


def _stop_reserve_price(
    request: OrderRequest, stop_price: Decimal, quote: Quote | None, collar_percent: Decimal | None
) -> Decimal | None:
    """The stop price plus the collar, or the limit price where that is worse or the most that a BUY can pay.

    A BUY STOP order pays the market where it has passed the stop price already; none if that is not known.
    """
    if request.side == "SELL":  # it is filled at the stop price or below, or at its limit price above
        worst = _with_collar(stop_price, collar_percent)
        return worst if request.price is None else max(worst, request.price)
    if request.price is not None:
        return request.price
    return None if quote is None else _with_collar(max(stop_price, quote.ask), collar_percent)


def _with_collar(price: Decimal, collar_percent: Decimal | None) -> Decimal:
    if not collar_percent:
        return price
    factor = _UPWARD.add(ONE, _UPWARD.divide(collar_percent, _HUNDRED))
    return canonical(_UPWARD.quantize(_UPWARD.multiply(price, factor), _SMALLEST))


def reserved(order: Order) -> Reserved | None:
    """What the order reserves; none when it has ended. An order in doubt reserves all that may still be filled.

    While an amend is not settled, the venue may have either amounts: the larger quantity and the larger notional count.
    """
    if is_final(order.status):
        return None
    held = _rest(order, order.qty, order.reserve_price)
    if order.amend_qty is None:
        return held
    amended = _rest(order, order.amend_qty, order.amend_reserve_price)
    return Reserved(max(held.qty, amended.qty), max(held.notional, amended.notional))


def _rest(order: Order, qty: Decimal, price: Decimal | None) -> Reserved:
    """The rest of an order with this quantity and price."""
    rest = max(SUMS.subtract(qty, order.filled_qty), ZERO) if order.filled_qty else qty
    if price is None:
        return Reserved(rest, ZERO)
    notional = SUMS.multiply(rest, price)
    return Reserved(rest, notional if order.multiplier is ONE else SUMS.multiply(notional, order.multiplier))


def worst_position(position: Decimal, open_qty: Decimal, side: Side, qty: Decimal) -> Decimal:
    """The position if all open orders of the side and this quantity are filled, and no order of the other side."""
    moved = SUMS.add(open_qty, qty)
    return SUMS.add(position, moved) if side == "BUY" else SUMS.subtract(position, moved)


def is_reducing(position: Decimal, open_qty: Decimal, side: Side, qty: Decimal) -> bool:
    """Whether an order can only make the position smaller: it does not cross zero in the worst case of its side."""
    if not position or (position > 0) == (side == "BUY"):
        return False
    worst = worst_position(position, open_qty, side, qty)
    return worst >= 0 if position > 0 else worst <= 0
