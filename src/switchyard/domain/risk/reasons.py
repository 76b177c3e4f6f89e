"""The one table of stable reason codes of risk rejections, and the violation of a rule.

`docs/reference/risk.md` shows the table; a test compares the two.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

import msgspec

from switchyard.domain.orders import Order
from switchyard.domain.reasons import bounded_detail, described, split_reason

RISK_REASONS: Final[Mapping[str, str]] = {
    "RISK_MAX_QTY": "the quantity is above the largest one allowed for the account, or for the account and symbol",
    "KILL_SWITCH": "a kill of mode `block` covers the order",
    "REDUCE_ONLY": "a kill of mode `reduce_only` covers the order, and its venue does not enforce reduce-only orders",
    "RISK_MAX_NOTIONAL": "quantity times price times multiplier is above the largest notional allowed",
    "RISK_MIN_PRICE": "the price is below the lowest one allowed for the account, the symbol or everyone",
    "RISK_MAX_PRICE": "the price is above the highest one allowed for the account, the symbol or everyone",
    "RISK_NO_PRICE": "a notional or price rule applies to a MARKET or BUY STOP order, and the venue has no quote",
    "RISK_SYMBOL_NOT_ALLOWED": "the account may not trade the symbol",
    "RISK_SIDE_NOT_ALLOWED": "the side is not allowed for the account, the symbol or everyone",
    "RISK_TYPE_NOT_ALLOWED": "the order type is not allowed for the account, the symbol or everyone",
    "UNSUPPORTED_BY_VENUE": "the venue does not have the order type or the time in force",
    "RISK_RATE": "the account sends orders faster than its rate; nothing is stored, repeat it after `Retry-After`",
    "RESTRICTED": "the symbol is on the restricted list",
    "MIN_ORDER_SIZE": "the quantity is below the smallest order of the instrument",
    "MAX_ORDER_SIZE": "the quantity is above the largest order of the instrument",
    "COLLAR": "the price is too far from the reference price of the instrument",
    "COLLAR_NO_QUOTE": "the instrument has a price collar, and the venue has no quote",
    "DUPLICATE_CONTENT": "the account placed an equal order within the duplicate window",
    "LIMIT_OPEN_ORDERS": "the account would have too many open orders",
    "LIMIT_OPEN_NOTIONAL": "the open orders of the account would reserve too much money",
    "LIMIT_POSITION": "the position could become too large if all open orders of the side were filled",
    "LIMIT_GROSS_EXPOSURE": "positions at their cost and open orders would together be worth too much",
    "LIMIT_DAILY_LOSS": "the account has realised its largest loss of the trading day",
    "LIMIT_ORDERS_PER_WINDOW": "the account would place too many orders within the window",
    "LIMIT_NO_PRICE": "a limit on money applies to a MARKET or BUY STOP order, and the venue has no quote",
}
"""Reason code → what it means. Codes are never renamed or reused."""

WAIVED_FOR_REDUCING: Final = frozenset({"MIN_ORDER_SIZE"})
"""The reasons from which an order is exempt that can only reduce the account's position."""


class Violation(msgspec.Struct, frozen=True):
    """Why an order is rejected before it is accepted."""

    reason: str
    """One of `RISK_REASONS`."""
    detail: str
    """The text for people: what was asked, and what is allowed."""
    retry_after: timedelta | None = None
    """When the same order may pass; none where time changes nothing."""


def order_reason(violation: Violation) -> str:
    """`Order.reason` of an order that was rejected for the violation; `violation_of` reads it back."""
    assert violation.reason in RISK_REASONS, f"{violation.reason} is not in the table of reasons"
    return described(violation.reason, bounded_detail(violation.detail))


def violation_of(order: Order) -> Violation | None:
    """The violation for which the order was rejected instead of accepted; none for every other order.

    Only such an order is rejected in its first version. A later version shows that the venue has reported on it.
    """
    if order.status != "REJECTED" or order.version != 1 or order.reason is None:
        return None
    code, detail = split_reason(order.reason)
    return Violation(code, detail) if code in RISK_REASONS else None
