"""Breaks: differences between the books and what the gateway, a venue or the ledger's own entries say; how they are
shown.

Pure. The id of a break is derived from what differs, never from the amount, so the same difference keeps its id and
age.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from switchyard.domain.errors import InvalidField, RequestError
from switchyard.domain.ids import AccountId, OrderId, VenueClientOrderId, VenueName
from switchyard.domain.orders.order import Side
from switchyard.domain.orders.reports import ExecType
from switchyard.domain.values import ZERO

# 'Here' is always the books; 'there' is the gateway, the venue, or the entries that a table of the books follows from.
BreakClass = Literal[
    "timing",  # there, and on its way here: an open order's report that the gateway has not recorded yet
    "missing_here",
    "missing_there",
    "amount",  # on both sides, with other figures
    "duplicate",  # twice there
]
BreakState = Literal[
    "suspected",  # found by one pass; the next one confirms it or closes it
    "open",
    "explained",  # still there, and a person has said why; another amount opens it again
    "closed",  # gone
]
BREAK_CLASSES: Final[tuple[BreakClass, ...]] = ("timing", "missing_here", "missing_there", "amount", "duplicate")
CURRENT_STATES: Final[tuple[BreakState, ...]] = ("suspected", "open", "explained")
"""The states of a difference that is there."""
BREAK_STATES: Final[tuple[BreakState, ...]] = (*CURRENT_STATES, "closed")
Kind = Literal[
    "ledger_chain",  # subject: account, entry number
    "ledger_position",  # account, symbol, currency
    "ledger_balance",  # account, ledger account, unit
    "ledger_sum",  # account, unit: debits less credits
    "orphan",  # account, entry id: booked from an event that the journal no longer has
    "order",  # order id: its filled quantity at the gateway and in the books
    "position",  # account, symbol: at the gateway and in the books
    "fill",  # venue, client order id, execution id
    "fill_repeated",  # the same
    "open_order",  # venue, client order id
]
TEXT_MAX = 500


class StatementFill(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One execution as a venue's statement lists it, with our name of the symbol."""

    exec_id: str
    venue_client_order_id: VenueClientOrderId
    venue_order_id: str
    symbol: str
    side: Side
    qty: Decimal
    price: Decimal
    at: datetime
    fee: Decimal | None = None
    fee_currency: str | None = None
    account_id: AccountId | None = None
    """Our account, where the venue names its own and accounts are mapped."""
    exec_type: ExecType | None = None
    """`CANCEL` and `CORRECT`: the line revises the execution `ref_exec_id` and is not a fill."""
    ref_exec_id: str | None = None


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """What one pass found to differ."""

    kind: Kind
    class_: BreakClass
    scope: str
    """The comparison that found it: the break closes when that comparison no longer finds it."""
    subject: tuple[str, ...]
    """What differs; with the kind it gives the id."""
    amount: Decimal
    """There less here."""
    unit: str
    """The symbol or currency of the amount; empty where neither is known."""
    here: str
    there: str
    account_id: AccountId | None = None
    """None where it cannot be told; only operators see such a break."""
    venue: VenueName | None = None
    order_id: OrderId | None = None
    fill: StatementFill | None = None
    """The venue's execution, for an adoption."""

    @property
    def break_id(self) -> str:
        """The id of its break."""
        return break_id(self.kind, self.subject)


class Break(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A difference over time."""

    break_id: str
    kind: Kind
    class_: BreakClass = msgspec.field(name="class")
    state: BreakState
    scope: str
    subject: tuple[str, ...]
    account_id: AccountId | None = None
    venue: VenueName | None = None
    order_id: OrderId | None = None
    amount: Decimal
    unit: str
    here: str
    there: str
    first_seen_at: datetime
    """Of this appearance: a break that was closed and comes again is as young as its return."""
    last_seen_at: datetime
    changed_at: datetime
    """When class, state or amount last changed."""
    version: int = 1
    """Counts these changes; each version is kept in the history."""
    by: str | None = None
    """With the reason: who explained or adopted it."""
    reason: str | None = None
    adopted_account: AccountId | None = None
    """The account to which the foreign fill was booked."""
    fill: StatementFill | None = None


class BreakChanged(RequestError):
    """The break is not in a state for this decision."""

    reason = "BREAK_STATE"


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one pass."""

    differences: Mapping[str, Difference]
    """By break id."""
    compared: frozenset[str]
    """The scopes that were compared to the end."""
    left: frozenset[str] = frozenset()
    """Break ids of what was active just now; the next pass decides."""
    not_compared: Mapping[str, str] = {}
    """The scopes that could not be compared, with the reason."""


def break_id(kind: Kind, subject: Iterable[str]) -> str:
    """The id of the break of this kind about this subject."""
    # A JSON array, so that no two subjects have the same text.
    text = msgspec.json.encode([kind, *subject])
    return f"brk_{hashlib.sha256(text).hexdigest()[:24]}"


def settled(
    known: Collection[Break], closed: Iterable[Break], findings: Findings, now: datetime, confirm_after: timedelta
) -> list[Break]:
    """The breaks that the pass changes or sees again; `known` are all current ones, `closed` former ones that return.

    A break that was only seen again has its old version. A pass confirms a suspicion that is at least `confirm_after`
    old: two passes may follow each other at once, and the cause may just need a moment.
    """
    after: list[Break] = []
    current = {one.break_id for one in known}
    for one in known:
        difference = findings.differences.get(one.break_id)
        if difference is not None:
            after.append(_seen_again(one, difference, now, confirm_after))
        elif one.scope in findings.compared and one.break_id not in findings.left:
            after.append(_changed(one, now, state="closed"))
    former = {one.break_id: one for one in closed}
    for found_id, difference in findings.differences.items():
        if found_id not in current:
            after.append(_appeared(difference, former.get(found_id), now))
    return after


def explained(one: Break, by: str, reason: str, now: datetime) -> Break:
    """The break with a person's reason; raises BreakChanged where there is nothing to explain."""
    check_decision(by, reason)
    if one.state not in ("open", "explained"):
        raise BreakChanged(
            f"{one.break_id} is {one.state}: only an open break can be explained; "
            + ("the next pass confirms or closes it" if one.state == "suspected" else "the difference is gone")
        )
    return replace(_changed(one, now, state="explained"), by=by, reason=reason)


def adopted(one: Break, account: AccountId, by: str, reason: str, now: datetime) -> Break:
    """The break of a foreign fill that was booked to an account; the next pass closes it."""
    return replace(explained(one, by, reason, now), adopted_account=account)


def check_decision(by: str, reason: str) -> None:
    """Raise InvalidField unless both are given and fit."""
    for name, text in (("by", by), ("reason", reason)):
        if not text.strip() or len(text) > TEXT_MAX or not text.isprintable():
            raise InvalidField(name, f"required, at most {TEXT_MAX} printable characters on one line")


def counted(breaks: Iterable[Break]) -> dict[tuple[BreakClass, BreakState], int]:
    """How many breaks there are by class and state."""
    counts: dict[tuple[BreakClass, BreakState], int] = {}
    for one in breaks:
        counts[one.class_, one.state] = counts.get((one.class_, one.state), 0) + 1
    return counts


def _appeared(found: Difference, former: Break | None, now: datetime) -> Break:
    shared = {name: getattr(found, name) for name in Difference.__struct_fields__}
    version = 1 if former is None else former.version + 1
    return Break(
        **shared,
        break_id=found.break_id,
        state="suspected",
        first_seen_at=now,
        last_seen_at=now,
        changed_at=now,
        version=version,
    )


def _seen_again(one: Break, found: Difference, now: datetime, confirm_after: timedelta) -> Break:
    seen = replace(
        one,
        last_seen_at=now,
        account_id=found.account_id,
        order_id=found.order_id,
        here=found.here,
        there=found.there,
        fill=found.fill,
    )
    has_other_figures = (found.amount, found.unit, found.class_) != (one.amount, one.unit, one.class_)
    # Also where the clock was set back meanwhile: a break must not stay a suspicion until the clock has caught up.
    is_confirmed = one.state == "suspected" and abs(now - one.first_seen_at) >= confirm_after
    is_other = one.state == "explained" and (found.amount, found.unit) != (one.amount, one.unit)
    state: BreakState = "open" if is_confirmed or is_other else one.state
    if state == one.state and not has_other_figures:
        return seen
    after = _changed(seen, now, state=state)
    after = replace(after, class_=found.class_, amount=found.amount, unit=found.unit)
    # The reason was given for other figures.
    return replace(after, by=None, reason=None) if one.state == "explained" and state == "open" else after


def _changed(one: Break, now: datetime, *, state: BreakState) -> Break:
    return replace(one, state=state, changed_at=now, version=one.version + 1)


def needed_former(known: Iterable[Break], findings: Findings) -> list[str]:
    """The ids of differences that have no current break: they may have had one before."""
    current = {one.break_id for one in known}
    return [found_id for found_id in findings.differences if found_id not in current]


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

    qty: Decimal = ZERO
    gateway_qty: Decimal
    currency: str | None = None
    cost_basis: Decimal = ZERO
    realised_pnl: Decimal = ZERO
    value_in_quote_ccy: Decimal | None = None
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
    return BreakView(**{name: getattr(one, name) for name in BreakView.__struct_fields__})


def told(not_compared: Mapping[str, str]) -> tuple[NotCompared, ...]:
    """The comparisons that were not made."""
    return tuple(NotCompared(scope, reason) for scope, reason in not_compared.items())
