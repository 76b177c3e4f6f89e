"""Guards by instrument as pure functions: the restricted list, the sizes of an order and the price collar."""

from decimal import Decimal

from switchyard.domain.instruments import Instrument
from switchyard.domain.money import ROUNDED, plain
from switchyard.domain.risk.limits import RiskLimits
from switchyard.domain.risk.reasons import Violation
from switchyard.domain.risk.subject import Subject

_HUNDRED = Decimal(100)
# Enough to see how far off a price is.
_SHOWN = Decimal("0.01")


def restricted(limits: RiskLimits, subject: Subject) -> Violation | None:
    """Check that the symbol is not on the restricted list."""
    symbol = subject.order.symbol
    if symbol not in limits.restricted_symbols:
        return None
    return Violation("RESTRICTED", f"symbol {symbol} is on the restricted list (RISK_RESTRICTED_SYMBOLS)")


def smallest_size(subject: Subject) -> Violation | None:
    """Check the quantity against the instrument's smallest order."""
    qty, smallest = subject.order.qty, subject.instrument.min_qty
    if smallest is None or qty >= smallest:
        return None
    return Violation("MIN_ORDER_SIZE", f"qty {plain(qty)} is below {plain(smallest)}, the smallest {_order(subject)}")


def largest_size(subject: Subject) -> Violation | None:
    """Check the quantity against the instrument's largest order."""
    qty, largest = subject.order.qty, subject.instrument.max_qty
    if largest is None or qty <= largest:
        return None
    return Violation("MAX_ORDER_SIZE", f"qty {plain(qty)} is above {plain(largest)}, the largest {_order(subject)}")


def collar(subject: Subject) -> Violation | None:
    """Check the price of an order against the collar of its instrument."""
    if subject.instrument.collar_percent is None:
        return None
    return collar_violation(subject.order.price, subject.instrument, subject.mid)


def collar_violation(price: Decimal | None, instrument: Instrument, reference: Decimal | None) -> Violation | None:
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
        f"price {plain(price)} is {shown} % away from the reference price {plain(reference)}, "
        f"allowed are {plain(percent)} %",
    )


def _order(subject: Subject) -> str:
    return f"order of {subject.instrument.symbol}"
