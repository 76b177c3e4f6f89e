"""The rules of seed 001 as pure functions: each looks at an order and returns the violation, or none.

An account's own limit goes before the global one. Of the limits of an account and of an account and symbol the stricter
one holds, as does the strictest of all price bounds. Allowed sets intersect.
"""

from collections.abc import Mapping
from decimal import Decimal

from switchyard.domain.ids import AccountId
from switchyard.domain.money import plain
from switchyard.domain.risk.context import OrderContext
from switchyard.domain.risk.limits import Pair, RiskLimits
from switchyard.domain.risk.reasons import Violation

Bound = tuple[Decimal, str]
"""A limit, and the end of the name of its setting."""


def symbol_allowed(limits: RiskLimits, subject: OrderContext) -> Violation | None:
    """Check that the account may trade the symbol."""
    allowed = limits.allowed_symbols_by_account.get(subject.account_id)
    if allowed is None or subject.order.symbol in allowed:
        return None
    return Violation(
        "RISK_SYMBOL_NOT_ALLOWED",
        f"symbol {subject.order.symbol} is not allowed: {_listed(allowed)} (RISK_ALLOWED_SYMBOLS_BY_ACCOUNT)",
    )


def side_allowed(limits: RiskLimits, subject: OrderContext) -> Violation | None:
    """Check the side against the sets of the installation, the account and the symbol."""
    side = subject.order.side
    for allowed, setting in (
        (limits.allowed_sides, "RISK_ALLOWED_SIDES"),
        (limits.allowed_sides_by_account.get(subject.account_id), "RISK_ALLOWED_SIDES_BY_ACCOUNT"),
        (limits.allowed_sides_by_symbol.get(subject.order.symbol), "RISK_ALLOWED_SIDES_BY_SYMBOL"),
    ):
        if allowed is not None and side not in allowed:
            return Violation("RISK_SIDE_NOT_ALLOWED", f"side {side} is not allowed: {_listed(allowed)} ({setting})")
    return None


def type_allowed(limits: RiskLimits, subject: OrderContext) -> Violation | None:
    """Check the order type against the sets of the installation, the account and the symbol."""
    kind = subject.order.type
    for allowed, setting in (
        (limits.allowed_types, "RISK_ALLOWED_TYPES"),
        (limits.allowed_types_by_account.get(subject.account_id), "RISK_ALLOWED_TYPES_BY_ACCOUNT"),
        (limits.allowed_types_by_symbol.get(subject.order.symbol), "RISK_ALLOWED_TYPES_BY_SYMBOL"),
    ):
        if allowed is not None and kind not in allowed:
            return Violation("RISK_TYPE_NOT_ALLOWED", f"type {kind} is not allowed: {_listed(allowed)} ({setting})")
    return None


def quantity(limits: RiskLimits, subject: OrderContext) -> Violation | None:
    """Check the quantity against the largest one."""
    bound = _largest(limits.max_qty, limits.max_qty_by_account, limits.max_qty_by_account_symbol, subject)
    qty = subject.order.qty
    if bound is None or qty <= bound[0]:
        return None
    return Violation("RISK_MAX_QTY", f"qty {plain(qty)} is above {plain(bound[0])} (RISK_MAX_QTY{bound[1]})")


def notional(limits: RiskLimits, subject: OrderContext) -> Violation | None:
    """Check quantity times price times multiplier against the largest notional."""
    bound = _largest(
        limits.max_notional, limits.max_notional_by_account, limits.max_notional_by_account_symbol, subject
    )
    if bound is None:
        return None
    amount = subject.notional
    if amount is None:
        return _no_price(subject, f"RISK_MAX_NOTIONAL{bound[1]}")
    if amount <= bound[0]:
        return None
    currency = subject.instrument.settlement
    shown = f"{plain(amount)} {currency}" if currency else plain(amount)
    return Violation("RISK_MAX_NOTIONAL", f"notional {shown} is above {plain(bound[0])} (RISK_MAX_NOTIONAL{bound[1]})")


def lowest_price(limits: RiskLimits, subject: OrderContext) -> Violation | None:
    """Check the prices of the order against the strictest lower bound."""
    bound, setting = limits.min_price, "RISK_MIN_PRICE"
    own = limits.min_price_by_account.get(subject.account_id)
    if own is not None and (bound is None or own > bound):
        bound, setting = own, "RISK_MIN_PRICE_BY_ACCOUNT"
    own = limits.min_price_by_symbol.get(subject.order.symbol)
    if own is not None and (bound is None or own > bound):
        bound, setting = own, "RISK_MIN_PRICE_BY_SYMBOL"
    if bound is None:
        return None
    prices = _prices(subject)
    if not prices:
        return _no_price(subject, setting)
    for field, price in prices:
        if price < bound:
            return Violation("RISK_MIN_PRICE", f"{field} {plain(price)} is below {plain(bound)} ({setting})")
    return None


def highest_price(limits: RiskLimits, subject: OrderContext) -> Violation | None:
    """Check the prices of the order against the strictest upper bound."""
    bound, setting = limits.max_price, "RISK_MAX_PRICE"
    own = limits.max_price_by_account.get(subject.account_id)
    if own is not None and (bound is None or own < bound):
        bound, setting = own, "RISK_MAX_PRICE_BY_ACCOUNT"
    own = limits.max_price_by_symbol.get(subject.order.symbol)
    if own is not None and (bound is None or own < bound):
        bound, setting = own, "RISK_MAX_PRICE_BY_SYMBOL"
    if bound is None:
        return None
    prices = _prices(subject)
    if not prices:
        return _no_price(subject, setting)
    for field, price in prices:
        if price > bound:
            return Violation("RISK_MAX_PRICE", f"{field} {plain(price)} is above {plain(bound)} ({setting})")
    return None


def _largest(
    everywhere: Decimal | None,
    by_account: Mapping[AccountId, Decimal],
    by_pair: Mapping[Pair, Decimal],
    subject: OrderContext,
) -> Bound | None:
    """The account's limit, else the global one; or the stricter one of the account and symbol."""
    limit, scope = by_account.get(subject.account_id), "_BY_ACCOUNT"
    if limit is None:
        limit, scope = everywhere, ""
    pair = by_pair.get((subject.account_id, subject.order.symbol)) if by_pair else None
    if pair is not None and (limit is None or pair < limit):
        return pair, "_BY_ACCOUNT_SYMBOL"
    return None if limit is None else (limit, scope)


def _prices(subject: OrderContext) -> list[tuple[str, Decimal]]:
    """The prices of the order by field; of a MARKET order the quote that it would meet. Empty without one."""
    order = subject.order
    if order.stop_price is None:
        return [] if subject.price is None else [("price", subject.price)]
    stop = ("stopPrice", order.stop_price)
    return [stop] if order.price is None else [("price", order.price), stop]


def _no_price(subject: OrderContext, setting: str) -> Violation:
    """A rule that cannot be checked rejects: an order must not pass because the market is not known."""
    return Violation(
        "RISK_NO_PRICE",
        f"{subject.venue} has no quote for {subject.order.symbol}, so a {subject.order.type} order cannot be checked "
        f"({setting}): send an order with a price, or repeat it later",
    )


def _listed(allowed: frozenset[str]) -> str:
    return "allowed are " + ", ".join(sorted(allowed)) if allowed else "none is allowed"
