"""The one list of checks that every new order goes through, for orders and for the dry run."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import msgspec

from switchyard.domain.ids import AccountId, VenueName
from switchyard.domain.order_kinds import ALL_KINDS, OrderKinds
from switchyard.domain.risk import guards, rules
from switchyard.domain.risk.claims import LIMITS_OF
from switchyard.domain.risk.context import OrderContext
from switchyard.domain.risk.limits import RiskLimits
from switchyard.domain.risk.reasons import Violation

Judge = Callable[[OrderContext], Violation | None]


class Check(msgspec.Struct, frozen=True):
    """One check; its name is its main reason code."""

    name: str
    judge: Judge
    of_kind: bool = False
    """Whether the result depends on the order's kind alone (`kind_of`), so that it can be remembered."""


Kind = tuple[AccountId, str, str, str, str | None, VenueName]


def kind_of(subject: OrderContext) -> Kind:
    """Who trades what, how and where: all that the rules about allowed orders look at."""
    order = subject.order
    return subject.account_id, order.symbol, order.side, order.type, order.time_in_force, subject.venue


class CheckResult(msgspec.Struct, frozen=True):
    """A check as the dry run shows it."""

    name: str
    violation: Violation | None
    """None: passed."""


def checks_of(limits: RiskLimits, kinds: Mapping[VenueName, OrderKinds] = MappingProxyType({})) -> list[Check]:
    """The checks that these limits need, in the order in which they are judged; the first violation is the answer.

    `kinds` says which orders each venue takes; a venue that is not named takes every order.
    The smallest size comes last: a reducing order is exempt from it, and must not have broken another rule.
    """
    checks: list[Check] = []
    if limits.restricted_symbols:
        checks.append(Check("RESTRICTED", partial(guards.restricted, limits), of_kind=True))
    if limits.allowed_symbols_by_account:
        checks.append(Check("RISK_SYMBOL_NOT_ALLOWED", partial(rules.symbol_allowed, limits), of_kind=True))
    if limits.allowed_sides is not None or limits.allowed_sides_by_account or limits.allowed_sides_by_symbol:
        checks.append(Check("RISK_SIDE_NOT_ALLOWED", partial(rules.side_allowed, limits), of_kind=True))
    if limits.allowed_types is not None or limits.allowed_types_by_account or limits.allowed_types_by_symbol:
        checks.append(Check("RISK_TYPE_NOT_ALLOWED", partial(rules.type_allowed, limits), of_kind=True))
    restricted_venues = {venue: taken for venue, taken in kinds.items() if taken != ALL_KINDS}
    if restricted_venues:
        checks.append(Check("UNSUPPORTED_BY_VENUE", partial(guards.taken_by_venue, restricted_venues), of_kind=True))
    if limits.max_qty is not None or limits.max_qty_by_account or limits.max_qty_by_account_symbol:
        checks.append(Check("RISK_MAX_QTY", partial(rules.quantity, limits)))
    checks.append(Check("MAX_ORDER_SIZE", guards.largest_size))
    if limits.min_price is not None or limits.min_price_by_account or limits.min_price_by_symbol:
        checks.append(Check("RISK_MIN_PRICE", partial(rules.lowest_price, limits)))
    if limits.max_price is not None or limits.max_price_by_account or limits.max_price_by_symbol:
        checks.append(Check("RISK_MAX_PRICE", partial(rules.highest_price, limits)))
    if limits.max_notional is not None or limits.max_notional_by_account or limits.max_notional_by_account_symbol:
        checks.append(Check("RISK_MAX_NOTIONAL", partial(rules.notional, limits)))
    checks.append(Check("COLLAR", guards.collar))
    checks.append(Check("MIN_ORDER_SIZE", guards.smallest_size))
    return checks


def check_names(
    limits: RiskLimits, kinds: Mapping[VenueName, OrderKinds], account: AccountId, symbol: str
) -> tuple[str, ...]:
    """The names of all checks of an order of the account in the symbol, in the order of the dry run."""
    stateful = limits.stateful.limits_of(account, symbol)
    return (
        "KILL_SWITCH",
        *(("RISK_RATE",) if limits.rate_per_sec is not None else ()),
        *(check.name for check in checks_of(limits, kinds)),
        *(code for code, names in LIMITS_OF.items() if any(getattr(stateful, name) is not None for name in names)),
        *(("DUPLICATE_CONTENT",) if limits.duplicate_window else ()),
    )
