"""Why the exchange rejects an order: a switch of its own, or an order that is not valid."""

from decimal import Decimal, Inexact

from switchyard.adapters.venues.paper.matching import PaperOrder, Rules
from switchyard.domain.market.instruments import Instrument
from switchyard.domain.orders.order import LIMITED, RESTING, STOPS, Order
from switchyard.domain.values import AMOUNT_LIMIT, ZERO, is_multiple


def rejection(order: Order, instrument: Instrument, rules: Rules) -> str | None:
    """The reason for which the exchange rejects this order, or None."""
    if rules.reject_all:
        return "REJECTED_BY_VENUE"
    if (order.price is not None) != (order.type in LIMITED):
        return "INVALID_PRICE"
    if (order.stop_price is not None) != (order.type in STOPS):
        return "INVALID_STOP_PRICE"
    if order.type in STOPS and order.time_in_force not in RESTING:
        return "INVALID_TIME_IN_FORCE"
    return amount_rejection(order.qty, order.price, instrument, order.stop_price)


def amount_rejection(
    qty: Decimal, price: Decimal | None, instrument: Instrument, stop_price: Decimal | None = None
) -> str | None:
    """The reason for which these amounts are invalid, or None."""
    if not _is_tradable(qty, instrument.step):
        return "INVALID_QTY"
    if price is not None and not _is_tradable(price, instrument.tick):
        return "INVALID_PRICE"
    if stop_price is not None and not _is_tradable(stop_price, instrument.tick):
        return "INVALID_STOP_PRICE"
    return None


def amend_rejection(
    order: PaperOrder, qty: Decimal, limit_price: Decimal | None, stop_price: Decimal | None, instrument: Instrument
) -> str | None:
    """The reason for which an open order cannot have these amounts, or None."""
    if qty <= order.filled_qty:
        return "QTY_FILLED"
    if (limit_price is None) != (order.limit_price is None) or (limit_price is None and not order.is_waiting):
        return "INVALID_PRICE"
    if (stop_price is None) != (order.stop_price is None):
        return "INVALID_STOP_PRICE"
    if stop_price != order.stop_price and not order.is_waiting:
        return "STOP_TRIGGERED"
    return amount_rejection(qty, limit_price, instrument, stop_price)


def _is_tradable(amount: Decimal, step: Decimal) -> bool:
    """Whether it is a positive amount in whole steps; no step has more decimals than an amount may have."""
    try:
        return amount.is_finite() and ZERO < amount < AMOUNT_LIMIT and is_multiple(amount, step)
    except Inexact:  # more digits than the context has, so no multiple of a step
        return False
