"""Guards as pure functions: the restricted list, the kinds of orders of a venue, order sizes and the price collar."""

from collections.abc import Mapping
from decimal import Decimal

from switchyard.domain.facts import Quote
from switchyard.domain.ids import VenueName
from switchyard.domain.instruments import Instrument
from switchyard.domain.money import ROUNDED, plain
from switchyard.domain.order_kinds import OrderKinds, lacking
from switchyard.domain.orders import Order, OrderRequest
from switchyard.domain.risk.context import OrderContext, mid_of
from switchyard.domain.risk.limits import RiskLimits
from switchyard.domain.risk.reasons import Violation
from switchyard.domain.stops import is_triggered

_HUNDRED = Decimal(100)
# Enough to see how far off a price is.
_SHOWN = Decimal("0.01")


def restricted(limits: RiskLimits, subject: OrderContext) -> Violation | None:
    """Check that the symbol is not on the restricted list."""
    symbol = subject.order.symbol
    if symbol not in limits.restricted_symbols:
        return None
    return Violation("RESTRICTED", f"symbol {symbol} is on the restricted list (RISK_RESTRICTED_SYMBOLS)")


def taken_by_venue(kinds: Mapping[VenueName, OrderKinds], subject: OrderContext) -> Violation | None:
    """Check that the venue has the order type and the time in force; a venue that is not named takes every order."""
    of_venue = kinds.get(subject.venue)
    missing = None if of_venue is None else lacking(of_venue, subject.order)
    if missing is None:
        return None
    return Violation(
        "UNSUPPORTED_BY_VENUE",
        f"{subject.venue} does not take {missing.value}: it takes {', '.join(missing.taken)} "
        f"({missing.setting}{subject.venue.upper()})",
    )


def smallest_size(subject: OrderContext) -> Violation | None:
    """Check the quantity against the instrument's smallest order."""
    qty, smallest = subject.order.qty, subject.instrument.min_qty
    if smallest is None or qty >= smallest:
        return None
    return Violation("MIN_ORDER_SIZE", f"qty {plain(qty)} is below {plain(smallest)}, the smallest {_order(subject)}")


def largest_size(subject: OrderContext) -> Violation | None:
    """Check the quantity against the instrument's largest order."""
    qty, largest = subject.order.qty, subject.instrument.max_qty
    if largest is None or qty <= largest:
        return None
    return Violation("MAX_ORDER_SIZE", f"qty {plain(qty)} is above {plain(largest)}, the largest {_order(subject)}")


def collar(subject: OrderContext) -> Violation | None:
    """Check the price of an order against the collar of its instrument."""
    if subject.instrument.collar_percent is None:
        return None
    return order_collar(subject.order, subject.instrument, subject.quote)


def order_collar(order: Order | OrderRequest, instrument: Instrument, quote: Quote | None) -> Violation | None:
    """Check an order against the collar of its instrument.

    A stop order that would be triggered at once must have a stop price near the market: it is late, or on the wrong
    side. One that waits may be far from it; its limit price is judged by its stop price, the market of that moment.
    """
    mid, stop = mid_of(quote), order.stop_price
    if stop is None or quote is None or mid is None:
        return collar_violation(order.price, instrument, mid)
    if not is_triggered(order.side, stop, quote):
        return collar_violation(order.price, instrument, stop)
    return collar_violation(stop, instrument, mid, "stopPrice") or collar_violation(order.price, instrument, mid)


def collar_violation(
    price: Decimal | None, instrument: Instrument, reference: Decimal | None, field: str = "price"
) -> Violation | None:
    """Check a price, none for a MARKET order, against the collar around the reference price."""
    percent = instrument.collar_percent
    if percent is None:
        return None
    if reference is None:
        return Violation(
            "COLLAR_NO_QUOTE", f"there is no quote for {instrument.symbol}, so its price collar cannot be checked"
        )
    if price is None:
        return None  # it trades at the market
    off = ROUNDED.multiply(abs(ROUNDED.subtract(price, reference)), _HUNDRED)
    if off <= ROUNDED.multiply(reference, percent):
        return None
    shown = plain(ROUNDED.quantize(ROUNDED.divide(off, reference), _SHOWN))
    return Violation(
        "COLLAR",
        f"{field} {plain(price)} is {shown} % away from the reference price {plain(reference)}, "
        f"allowed are {plain(percent)} %",
    )


def _order(subject: OrderContext) -> str:
    return f"order of {subject.instrument.symbol}"
