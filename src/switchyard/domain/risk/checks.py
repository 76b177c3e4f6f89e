"""The one list of checks that every new order goes through, for orders and for the dry run: context, rules, guards,
reasons.

Pure. The stateful limits are in `claims.py`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from functools import partial
from types import MappingProxyType
from typing import Final, Literal

import msgspec

from switchyard.domain.ids import AccountId, VenueName
from switchyard.domain.journal.facts import Quote, RouteFact
from switchyard.domain.market.instruments import Instrument
from switchyard.domain.market.quotes import is_triggered
from switchyard.domain.orders.order import (
    Order,
    OrderRequest,
    OrderType,
    Side,
    TakenOrders,
    lacking,
    takes_every_order,
)
from switchyard.domain.orders.reasons import bounded_detail, described, split_reason
from switchyard.domain.risk.claims import LIMITS_OF, LimitSettings
from switchyard.domain.risk.kills import Kill
from switchyard.domain.values import ONE, ROUNDED, average, canonical, plain

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
    "UNSUPPORTED_BY_VENUE": "the venue does not have the order type, the time in force or another member of the order",
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


Closes = Literal["part", "whole"]
"""How much of a position an order has to close."""

_HALF = Decimal("0.5")


class OrderContext(msgspec.Struct, frozen=True, kw_only=True):
    """A checked and routed order before it is accepted."""

    account_id: AccountId
    order: OrderRequest
    instrument: Instrument
    venue: VenueName
    quote: Quote | None
    """The venue's market when the order arrived, if this process knows it."""
    route: RouteFact | None = None
    """How the venue was chosen, if it was not simply the preferred one."""
    closes: Closes | None = None
    """None for an order that need not reduce a position."""

    @property
    def price(self) -> Decimal | None:
        """The price to judge the order by: its own, or the quote that a MARKET order would meet; none without one.

        A SELL STOP order gets its stop price at most. A BUY STOP order pays at least that, and the market where it has
        passed the stop price already, so it needs a quote as well.
        """
        order = self.order
        if order.price is not None:
            return order.price
        if order.stop_price is not None and order.side == "SELL":
            return order.stop_price
        if self.quote is None:
            return None
        price = self.quote.ask if order.side == "BUY" else self.quote.bid
        if price <= 0:
            return None
        return price if order.stop_price is None else max(price, order.stop_price)

    @property
    def mid(self) -> Decimal | None:
        """The middle of the market; none without a quote."""
        return mid_of(self.quote)

    @property
    def notional(self) -> Decimal | None:
        """Quantity times price times multiplier, in the settlement currency; none without a price."""
        price = self.price
        if price is None:
            return None
        notional = ROUNDED.multiply(self.order.qty, price)
        multiplier = self.instrument.multiplier
        return notional if multiplier is ONE else ROUNDED.multiply(notional, multiplier)


def mid_of(quote: Quote | None) -> Decimal | None:
    """The middle between bid and ask; none without a quote that has both."""
    if quote is None or quote.bid <= 0 or quote.ask <= 0:
        return None
    return ROUNDED.multiply(ROUNDED.add(quote.bid, quote.ask), _HALF)


Pair = tuple[AccountId, str]
"""An account and a symbol."""


class RiskLimits(msgspec.Struct, frozen=True, kw_only=True):
    """One field for each setting, named like it; `settings/risk.py` describes them."""

    max_qty: Decimal | None = None
    max_qty_by_account: Mapping[AccountId, Decimal] = {}
    max_qty_by_account_symbol: Mapping[Pair, Decimal] = {}
    max_notional: Decimal | None = None
    max_notional_by_account: Mapping[AccountId, Decimal] = {}
    max_notional_by_account_symbol: Mapping[Pair, Decimal] = {}
    min_price: Decimal | None = None
    min_price_by_account: Mapping[AccountId, Decimal] = {}
    min_price_by_symbol: Mapping[str, Decimal] = {}
    max_price: Decimal | None = None
    max_price_by_account: Mapping[AccountId, Decimal] = {}
    max_price_by_symbol: Mapping[str, Decimal] = {}
    allowed_symbols_by_account: Mapping[AccountId, frozenset[str]] = {}
    allowed_sides: frozenset[Side] | None = None
    allowed_sides_by_account: Mapping[AccountId, frozenset[Side]] = {}
    allowed_sides_by_symbol: Mapping[str, frozenset[Side]] = {}
    allowed_types: frozenset[OrderType] | None = None
    allowed_types_by_account: Mapping[AccountId, frozenset[OrderType]] = {}
    allowed_types_by_symbol: Mapping[str, frozenset[OrderType]] = {}
    restricted_symbols: frozenset[str] = frozenset()
    rate_per_sec: Decimal | None = None
    rate_burst: int | None = None
    duplicate_window: timedelta = timedelta()
    """Zero: equal orders are not compared."""
    stateful: LimitSettings = LimitSettings()
    """The limits over open orders, positions, results and time; their settings are in the same section."""

    strategy_fills_max: int | None = None
    strategy_fills_window: timedelta = timedelta(seconds=60)

    @property
    def burst(self) -> int:
        """The size of an account's bucket; without a setting the orders of one second."""
        if self.rate_burst is not None or self.rate_per_sec is None:
            return self.rate_burst or 1
        return max(math.ceil(self.rate_per_sec), 1)

    def symbols(self) -> frozenset[str]:
        """Every symbol that a rule names."""
        named: set[str] = set(self.restricted_symbols)
        for by_pair in (self.max_qty_by_account_symbol, self.max_notional_by_account_symbol):
            named.update(symbol for _, symbol in by_pair)
        named.update(self.min_price_by_symbol, self.max_price_by_symbol)
        named.update(self.allowed_sides_by_symbol, self.allowed_types_by_symbol)
        named.update(*self.allowed_symbols_by_account.values())
        named.update(self.stateful.symbols())
        return frozenset(named)


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


_HUNDRED = Decimal(100)
# Enough to see how far off a price is.
_SHOWN = Decimal("0.01")


def restricted(limits: RiskLimits, subject: OrderContext) -> Violation | None:
    """Check that the symbol is not on the restricted list."""
    symbol = subject.order.symbol
    if symbol not in limits.restricted_symbols:
        return None
    return Violation("RESTRICTED", f"symbol {symbol} is on the restricted list (RISK_RESTRICTED_SYMBOLS)")


def taken_by_venue(taken: Mapping[VenueName, TakenOrders], subject: OrderContext) -> Violation | None:
    """Check that the venue has what the order asks for; a venue that is not named takes every order."""
    of_venue = taken.get(subject.venue)
    missing = None if of_venue is None else lacking(of_venue, subject.order)
    if missing is None:
        return None
    instead = f": it takes {', '.join(missing.taken)}" if missing.taken else ""
    setting = f"{missing.setting}{subject.venue.upper()}"
    return Violation("UNSUPPORTED_BY_VENUE", f"{subject.venue} does not take {missing.value}{instead} ({setting})")


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


Judge = Callable[[OrderContext], Violation | None]


class Check(msgspec.Struct, frozen=True):
    """One check; its name is its main reason code."""

    name: str
    judge: Judge
    of_kind: bool = False
    """Whether the result depends on the order's kind alone (`kind_of`), so that it can be remembered."""


Kind = tuple[AccountId, str, str, str, str | None, VenueName, bool, bool, bool]


def kind_of(subject: OrderContext) -> Kind:
    """Who trades what, how and where: all that the rules about allowed orders look at."""
    order = subject.order
    return (
        subject.account_id,
        order.symbol,
        order.side,
        order.type,
        order.time_in_force,
        subject.venue,
        order.post_only,
        order.reduce_only,
        order.display_qty is not None,
    )


class CheckResult(msgspec.Struct, frozen=True):
    """A check as the dry run shows it."""

    name: str
    violation: Violation | None
    """None: passed."""


def checks_of(limits: RiskLimits, taken: Mapping[VenueName, TakenOrders] = MappingProxyType({})) -> list[Check]:
    """The checks that these limits need, in the order in which they are judged; the first violation is the answer.

    `taken` says which orders each venue takes; a venue that is not named takes every order.
    The smallest size comes last: a reducing order is exempt from it, and must not have broken another rule.
    """
    checks: list[Check] = []
    if limits.restricted_symbols:
        checks.append(Check("RESTRICTED", partial(restricted, limits), of_kind=True))
    if limits.allowed_symbols_by_account:
        checks.append(Check("RISK_SYMBOL_NOT_ALLOWED", partial(symbol_allowed, limits), of_kind=True))
    if limits.allowed_sides is not None or limits.allowed_sides_by_account or limits.allowed_sides_by_symbol:
        checks.append(Check("RISK_SIDE_NOT_ALLOWED", partial(side_allowed, limits), of_kind=True))
    if limits.allowed_types is not None or limits.allowed_types_by_account or limits.allowed_types_by_symbol:
        checks.append(Check("RISK_TYPE_NOT_ALLOWED", partial(type_allowed, limits), of_kind=True))
    restricted_venues = {venue: orders for venue, orders in taken.items() if not takes_every_order(orders)}
    if restricted_venues:
        checks.append(Check("UNSUPPORTED_BY_VENUE", partial(taken_by_venue, restricted_venues), of_kind=True))
    if limits.max_qty is not None or limits.max_qty_by_account or limits.max_qty_by_account_symbol:
        checks.append(Check("RISK_MAX_QTY", partial(quantity, limits)))
    checks.append(Check("MAX_ORDER_SIZE", largest_size))
    if limits.min_price is not None or limits.min_price_by_account or limits.min_price_by_symbol:
        checks.append(Check("RISK_MIN_PRICE", partial(lowest_price, limits)))
    if limits.max_price is not None or limits.max_price_by_account or limits.max_price_by_symbol:
        checks.append(Check("RISK_MAX_PRICE", partial(highest_price, limits)))
    if limits.max_notional is not None or limits.max_notional_by_account or limits.max_notional_by_account_symbol:
        checks.append(Check("RISK_MAX_NOTIONAL", partial(notional, limits)))
    checks.append(Check("COLLAR", collar))
    checks.append(Check("MIN_ORDER_SIZE", smallest_size))
    return checks


def check_names(
    limits: RiskLimits, taken: Mapping[VenueName, TakenOrders], account: AccountId, symbol: str
) -> tuple[str, ...]:
    """The names of all checks of an order of the account in the symbol, in the order of the dry run."""
    stateful = limits.stateful.limits_of(account, symbol)
    return (
        "KILL_SWITCH",
        *(("RISK_RATE",) if limits.rate_per_sec is not None else ()),
        *(check.name for check in checks_of(limits, taken)),
        *(code for code, names in LIMITS_OF.items() if any(getattr(stateful, name) is not None for name in names)),
        *(("DUPLICATE_CONTENT",) if limits.duplicate_window else ()),
    )


class DryRunCheck(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One check; reason and detail only where it failed."""

    check: str
    passed: bool
    reason: str | None = None
    detail: str | None = None


class DryRun(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The body of `POST /orders?dryRun=true`."""

    dry_run: bool = True
    accepted: bool
    """Whether every check passed."""
    venue: VenueName
    price: Decimal | None
    """The order's own price, the worst one of a STOP order, or the quote that a MARKET order would meet, or none."""
    notional: Decimal | None
    """Quantity times price times multiplier."""
    currency: str | None
    """The settlement currency of the instrument, in which notional and fee are."""
    fee: Decimal | None
    """The expected fee of a complete fill."""
    checks: tuple[DryRunCheck, ...]


def dry_run_of(subject: OrderContext, results: Sequence[CheckResult]) -> DryRun:
    """The answer for these results."""
    notional = subject.notional
    return DryRun(
        accepted=all(result.violation is None for result in results),
        venue=subject.venue,
        price=subject.price,
        notional=None if notional is None else canonical(notional),
        currency=subject.instrument.settlement or None,
        fee=None if notional is None else average(ROUNDED.multiply(notional, subject.instrument.fee_percent), _HUNDRED),
        checks=tuple(_check(result) for result in results),
    )


def _check(result: CheckResult) -> DryRunCheck:
    violation = result.violation
    if violation is None:
        return DryRunCheck(check=result.name, passed=True)
    return DryRunCheck(check=result.name, passed=False, reason=violation.reason, detail=violation.detail)


def killed(kill: Kill) -> Violation:
    """Why the order is rejected; the operator's name and reason are not for the account that sent it."""
    return Violation(kill.block_reason, f"the kill switch is on for {kill.described_scope} ({kill.kill_id})")
