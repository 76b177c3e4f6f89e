"""When a stop order is triggered."""

from decimal import Decimal

from switchyard.domain.facts import Quote
from switchyard.domain.orders import Side


def is_triggered(side: Side, stop_price: Decimal, quote: Quote) -> bool:
    """Whether the quote triggers a stop order: the price that it would get is at the stop price or beyond it."""
    return quote.ask >= stop_price if side == "BUY" else quote.bid <= stop_price
