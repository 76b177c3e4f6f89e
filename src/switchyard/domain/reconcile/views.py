"""Breaks and reconciled accounts as people see them."""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal

import msgspec

from switchyard.domain.ids import AccountId, OrderId, VenueName
from switchyard.domain.money import ZERO
from switchyard.domain.reconcile.breaks import Break, BreakClass, BreakState, Kind


class BreakView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A break as people see it."""

    break_id: str
    kind: Kind
    class_: BreakClass = msgspec.field(name="class")
    state: BreakState
    account_id: AccountId | None
    venue: VenueName | None
    order_id: OrderId | None
    subject: tuple[str, ...]
    amount: Decimal
    """There less here, in `unit`."""
    unit: str
    here: str
    """What the books have."""
    there: str
    """What the gateway, the venue or the ledger's own entries have."""
    first_seen_at: datetime
    last_seen_at: datetime
    changed_at: datetime
    version: int
    by: str | None
    reason: str | None


class BreakPage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A page of breaks, sorted by id."""

    breaks: tuple[BreakView, ...]
    next_cursor: str | None


class BreakHistory(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A break and its newest versions, the newest first."""

    break_: BreakView = msgspec.field(name="break")
    history: tuple[BreakView, ...]


class NotCompared(msgspec.Struct, frozen=True):
    """A comparison that the last pass could not make."""

    scope: str
    reason: str


class PassView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a pass did."""

    compared_at: datetime
    accounts: int
    differences: int
    not_compared: tuple[NotCompared, ...]


class ExplainRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a difference is as it should be."""

    reason: str


class AdoptRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Why a foreign fill is booked, and to which account where the venue does not say it."""

    reason: str
    account_id: AccountId | None = None


class ReconciledBalance(msgspec.Struct, kw_only=True, rename="camel"):
    """The money of an account in one currency; without the last member it sums to zero."""

    cash: Decimal = ZERO
    trading: Decimal = ZERO
    fees: Decimal = ZERO
    capital: Decimal = ZERO
    adjustments: Decimal = ZERO
    conversion: Decimal = ZERO
    rounding: Decimal = ZERO
    cash_in_quote_ccy: Decimal | None = None
    """None where no rate is known."""


class ReconciledPosition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A position in the books, beside that of the gateway."""

    qty: Decimal
    gateway_qty: Decimal
    currency: str | None
    cost_basis: Decimal
    realised_pnl: Decimal
    value_in_quote_ccy: Decimal | None
    """The quantity at the present market; none where no quote or no rate is known."""


class ReconcileView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One account's books, and how they differ from what others say."""

    account_id: AccountId
    quote_ccy: str
    balances: Mapping[str, ReconciledBalance]
    positions: Mapping[str, ReconciledPosition]
    unvalued: tuple[str, ...]
    """The currencies and symbols that could not be valued."""
    breaks: tuple[BreakView, ...]
    truncated: bool
    """Whether `limit` left balances, positions or breaks out."""
    compared_at: datetime | None
    not_compared: tuple[NotCompared, ...]


def shown(one: Break) -> BreakView:
    """The break as people see it."""
    return BreakView(
        break_id=one.break_id,
        kind=one.kind,
        class_=one.class_,
        state=one.state,
        account_id=one.account_id,
        venue=one.venue,
        order_id=one.order_id,
        subject=one.subject,
        amount=one.amount,
        unit=one.unit,
        here=one.here,
        there=one.there,
        first_seen_at=one.first_seen_at,
        last_seen_at=one.last_seen_at,
        changed_at=one.changed_at,
        version=one.version,
        by=one.by,
        reason=one.reason,
    )


def told(not_compared: Mapping[str, str]) -> tuple[NotCompared, ...]:
    """The comparisons that were not made."""
    return tuple(NotCompared(scope, reason) for scope, reason in not_compared.items())
