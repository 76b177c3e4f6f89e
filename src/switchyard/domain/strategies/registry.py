"""Registered strategies: their names, metrics and thresholds, and the tenants that they belong to. Pure."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Literal, NewType, get_args

import msgspec

from switchyard.domain.errors import InvalidField
from switchyard.domain.ids import AccountId
from switchyard.domain.values import AMOUNT_LIMIT, STRATEGY, check_label, converted, positive_amount, signed_amount

MetricName = Literal[
    "sharpe",
    "sortino",
    "max_drawdown",  # a positive ratio of the capital: 0.1 is a loss of ten per cent from the highest point
    "win_rate",
    "profit_factor",
    "turnover",
    "exposure",
    "fees",
    "slippage",
    "reject_rate",
    "unknown_rate",
    "fill_latency",
]

METRICS: Final[tuple[MetricName, ...]] = get_args(MetricName)
HIGHER_IS_BETTER: Final[frozenset[MetricName]] = frozenset({"sharpe", "sortino", "win_rate", "profit_factor"})
"""A threshold on one of these is crossed from above, on any other from below."""


Health = Literal["healthy", "degraded", "unhealthy", "unknown"]
HEALTHS: Final[tuple[Health, ...]] = get_args(Health)

Tenant = NewType("Tenant", str)
"""Whose a strategy is: `account:<id>`, or `client:<id>` for a client of the PDCA API whose token names no accounts."""
Tenants = frozenset[Tenant] | None
"""Whose strategies, rechecks and artifacts a caller may see and change; None: those of all."""

# Of one tenant. Every order may name a new strategy: without a bound, a broken client would fill the registry. A bound
# over all tenants would let one of them keep the others out.
STRATEGIES_MAX = 1_000
TAGS_MAX = 16
OWNER_LENGTH_MAX = 64
# A comma separates the tags of a filter, so that no tag may contain one.
TAG = re.compile(r"[a-z0-9._-]{1,64}")
_CURRENCY = re.compile(r"[A-Z0-9]{2,12}")


def tenant_of_account(account: AccountId) -> Tenant:
    """Return the tenant of an account, whose orders count in the metrics of its strategies."""
    return Tenant(f"account:{account}")


def tenant_of_client(client_id: str) -> Tenant:
    """Return the tenant of a client whose token names no accounts; no orders count in its strategies."""
    return Tenant(f"client:{client_id}")


def tenants_digest(tenants: Tenants) -> str:
    """Return a short text that is equal for equal tenants, in whatever order a token lists them."""
    return "*" if tenants is None else hashlib.sha256(msgspec.json.encode(sorted(tenants))).hexdigest()


class StrategyKey(msgspec.Struct, frozen=True):
    """What identifies a strategy: each tenant has names of its own."""

    tenant: Tenant
    strategy_id: str

    @property
    def account_id(self) -> AccountId | None:
        """The account that it trades for; None for a strategy of a client."""
        kind, _, name = self.tenant.partition(":")
        return AccountId(name) if kind == "account" else None


class MetricValue(msgspec.Struct, frozen=True, kw_only=True):
    """One metric; a value that is not defined is none, and `reason` says why."""

    value: Decimal | None
    unit: str | None = None
    """A currency, `ratio`, `ms`, …; none for a plain number."""
    reason: str | None = None


class Threshold(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a metric makes its strategy degraded, and where unhealthy; the value itself is still good."""

    degraded: Decimal | None = None
    unhealthy: Decimal | None = None


class Capital(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the returns of a strategy are measured against."""

    amount: Decimal
    currency: str


class StrategyBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `PUT /pdca/strategies/{id}`: everything that a person decides; what is left out is removed."""

    owner: str | None = None
    tags: tuple[str, ...] = ()
    capital: Capital | None = None
    thresholds: dict[MetricName, Threshold] = {}


class Strategy(msgspec.Struct, frozen=True, kw_only=True):
    """A strategy of the registry."""

    tenant: Tenant
    strategy_id: str
    registered: bool = False
    """Whether a person or a client has registered it; otherwise only an order has named it."""
    owner: str | None = None
    tags: tuple[str, ...] = ()
    capital: Capital | None = None
    thresholds: dict[MetricName, Threshold] = {}
    health: Health = "unknown"
    health_reasons: tuple[str, ...] = ()
    """Why it has this health: thresholds crossed, or what is missing."""
    last_checked_at: datetime | None = None
    """When the last recheck that was not a dry run ended."""
    last_request_id: str | None = None
    """That recheck."""
    last_requested_at: datetime | None = None
    """When that recheck was accepted: one accepted earlier, which ends later, does not replace its findings."""
    metrics: dict[MetricName, MetricValue] = {}
    created_at: datetime
    updated_at: datetime

    @property
    def key(self) -> StrategyKey:
        """What identifies it."""
        return StrategyKey(self.tenant, self.strategy_id)

    @property
    def account_id(self) -> AccountId | None:
        """The account that it trades for."""
        return self.key.account_id


def checked_strategy(body: Mapping[str, Any]) -> StrategyBody:
    """The body of a PUT with its amounts in canonical form; raises InvalidField for the first wrong field."""
    thresholds = body.get("thresholds")
    for name in thresholds if isinstance(thresholds, Mapping) else ():
        if name not in METRICS:
            raise InvalidField("thresholds", f"{name!r} is not a metric: must be one of {', '.join(METRICS)}")
    _require_numbers(body)
    stated = converted(body, StrategyBody)
    if stated.owner is not None:
        check_label("owner", stated.owner, OWNER_LENGTH_MAX)
    check_tags("tags", stated.tags)
    return msgspec.structs.replace(
        stated,
        capital=None if stated.capital is None else _checked_capital(stated.capital),
        thresholds={name: _checked_threshold(name, limits) for name, limits in stated.thresholds.items()},
    )


def check_tags(field: str, tags: Sequence[str]) -> None:
    """Raise InvalidField unless these can be the tags of one strategy."""
    if len(tags) > TAGS_MAX:
        raise InvalidField(field, f"at most {TAGS_MAX} tags, got {len(tags)}")
    for tag in tags:
        if not TAG.fullmatch(tag):
            raise InvalidField(field, f"each tag must match {TAG.pattern}")
    if len(set(tags)) != len(tags):
        raise InvalidField(field, "must not name a tag twice")


def check_strategy_id(field: str, text: str) -> None:
    """Raise InvalidField unless the text can be the id of a strategy."""
    if not STRATEGY.fullmatch(text):
        raise InvalidField(field, f"must match {STRATEGY.pattern}")


def _require_numbers(body: Mapping[str, Any]) -> None:
    """Raise InvalidField for an amount in quotes, which the conversion would accept."""
    capital = body.get("capital")
    places = [("capital.amount", capital.get("amount"))] if isinstance(capital, Mapping) else []
    thresholds = body.get("thresholds")
    for name, limits in thresholds.items() if isinstance(thresholds, Mapping) else ():
        if isinstance(limits, Mapping):
            places += [(f"thresholds.{name}.{level}", limits.get(level)) for level in ("degraded", "unhealthy")]
    for field, value in places:
        if isinstance(value, bool) or not isinstance(value, int | Decimal | None):
            raise InvalidField(field, "must be a number")


def _checked_capital(capital: Capital) -> Capital:
    if not _CURRENCY.fullmatch(capital.currency):
        raise InvalidField("capital.currency", f"must match {_CURRENCY.pattern}")
    return Capital(amount=positive_amount(capital.amount, "capital.amount"), currency=capital.currency)


def _checked_threshold(name: MetricName, limits: Threshold) -> Threshold:
    field = f"thresholds.{name}"
    for value in (limits.degraded, limits.unhealthy):
        if value is not None and not (value.is_finite() and abs(value) < AMOUNT_LIMIT):
            raise InvalidField(field, f"must be a finite number between -{AMOUNT_LIMIT:f} and {AMOUNT_LIMIT:f}")
    degraded = None if limits.degraded is None else signed_amount(limits.degraded, f"{field}.degraded")
    unhealthy = None if limits.unhealthy is None else signed_amount(limits.unhealthy, f"{field}.unhealthy")
    if degraded is None and unhealthy is None:
        raise InvalidField(field, "must have degraded, unhealthy or both")
    if degraded is not None and unhealthy is not None:
        is_in_order = unhealthy <= degraded if name in HIGHER_IS_BETTER else degraded <= unhealthy
        if not is_in_order:
            raise InvalidField(
                field, f"unhealthy must be {'at most' if name in HIGHER_IS_BETTER else 'at least'} degraded"
            )
    return Threshold(degraded=degraded, unhealthy=unhealthy)
