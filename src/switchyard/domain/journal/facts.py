"""The data of events (`data` of a line), a struct for each kind.

`OrderAccepted` and `RiskRejected` carry the whole order. Every later event of the order carries what it changed
(ADR 15): in the order (`data.order`), in its outbox rows (`data.outbox`) and, for a fill, in the account's position
(`data.position`). A member that is absent is unchanged, or has the default that its struct names. `replay.py` adds
the changes up.
"""

from datetime import date, datetime
from decimal import Decimal
from typing import Literal

import msgspec

from switchyard.domain.ids import AccountId, KillId, VenueClientOrderId, VenueName, WorkerId
from switchyard.domain.orders.amends import Amend
from switchyard.domain.orders.lifecycle import Status
from switchyard.domain.orders.order import OrderType, Side, TimeInForce
from switchyard.domain.orders.outbox import OutboxKind, OutboxStatus
from switchyard.domain.orders.reasons import SendCode
from switchyard.domain.orders.reports import ExecType, ReportStatus
from switchyard.domain.risk.kills import KillMode
from switchyard.domain.values import ONE, ZERO

EpochCause = Literal["restored", "rebuilt", "newest"]
Verdict = Literal["sent", "not-sent"]


class AcceptedOrder(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An order as it was accepted or rejected: nothing filled, version 1, last updated at `accepted_at`.

    Its status is ACCEPTED on `OrderAccepted` and REJECTED on `RiskRejected`. Its ids and its account are those of the
    line.
    """

    client_order_id: str | None = None
    symbol: str
    side: Side
    type: OrderType
    time_in_force: TimeInForce
    qty: Decimal
    price: Decimal | None = None
    stop_price: Decimal | None = None
    venue: VenueName
    strategy: str | None = None
    tags: tuple[str, ...] = ()
    accepted_at: datetime
    trace_id: str | None = None
    requested_at: datetime | None = None
    currency: str | None = None
    """The settlement currency."""
    multiplier: Decimal = ONE
    reserve_price: Decimal | None = None
    """Absent where it is the price, and where no market was known."""
    reducing: bool = False
    expires_at: datetime | None = None
    """Of a DAY order the end of its trading day, of a GTD order when the venue ends it."""
    reduce_only: bool = False
    """Whether it was placed to close a position."""
    post_only: bool = False
    display_qty: Decimal | None = None
    venue_reduce_only: bool = False
    """Whether its client asked for a reduce-only order."""


class TermsFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What an amend may change in an order, all of it.

    Only on events that begin or settle an amend, or that give a close the quantity of one that a restore has lost.
    """

    qty: Decimal
    price: Decimal | None = None
    stop_price: Decimal | None = None
    reserve_price: Decimal | None = None
    """Absent where it is the price, and where no market was known."""
    reducing: bool = False
    amend_qty: Decimal | None = None
    """Of an amend that is not settled, as the next one."""
    amend_reserve_price: Decimal | None = None
    leg_client_order_id: VenueClientOrderId | None = None
    leg_end: Status | None = None


class OrderChange(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An order after an event; an absent member is unchanged.

    `remainingQty` and `avgPrice` follow from the fills. `filledQty` does as well, and is shown as a check of them.
    """

    status: Status
    version: int
    updated_at: datetime | None = None
    filled_qty: Decimal | None = None
    venue_order_id: str | None = None
    reason: str | None = None
    venue: VenueName | None = None
    """Only on `OrderRerouted`."""
    terms: TermsFact | None = None


class OutboxFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An outbox row after an event, without the members that have their default.

    `outboxId` and `retryCount` follow from the others; the status before is that of the row's previous event.
    """

    kind: OutboxKind = "new"
    number: int = 1
    status: OutboxStatus
    attempt: int | None = None
    """Absent where it is unchanged, or 0 on a new row."""
    next_attempt_at: datetime | None = None
    """Absent where it is unchanged, or `updatedAt` on a new row."""
    last_error: SendCode | None = None
    error_detail: str | None = None
    bytes_sent: bool = False
    worker: WorkerId | None = None
    updated_at: datetime | None = None
    """Absent where it is the order's."""
    amend: Amend | None = None
    """Of a new row of an amend: what it asks for."""


class KeyFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The idempotency key of an order or of an amend."""

    operation: str
    key: str
    generation: int = 0
    digest: str
    expires_at: datetime
    version: int = 1
    """Of the key store's row."""
    created_at: datetime | None = None
    """When the request came, by the database's clock; left out where that is the order's `accepted_at`, or for an amend
    its `updated_at`."""


class ResultFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The data of `ResultRecorded`: the answer that every repeat of the order's request gets from now on."""

    http_status: int
    """Below 400 the request has succeeded."""
    response: str
    result_digest: str


class Quote(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The venue's market when an order arrived; recorded then, because slippage cannot be computed without it."""

    bid: Decimal
    ask: Decimal
    at: datetime | None = None
    """When the market was like this, by the clock of the quote's source."""
    bid_size: Decimal | None = None
    ask_size: Decimal | None = None
    """The quantities displayed at bid and ask, where the source shows them."""


class DecisionFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An operator's decision on a row in doubt: the verdict, who decided, and why."""

    verdict: Verdict
    by: str
    reason: str
    resend: bool = False
    """Whether an order that was not sent is to be sent again; otherwise it ends."""


class DoubtFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What is known about a send in doubt; only on `OrderUncertain`."""

    bytes_sent: bool
    """Whether some attempt may have put a byte on the wire."""
    code: SendCode
    detail: str | None = None
    address: str | None = None
    """The address that the request went to, where the adapter knows it."""
    since: datetime
    """When the attempt in doubt began; for a doubt without an attempt, when it arose."""


class RerouteFact(msgspec.Struct, frozen=True, kw_only=True, rename={"from_venue": "from"}):
    """Why an order that was not sent from here went to another venue; only on `OrderRerouted`."""

    from_venue: VenueName
    to: VenueName
    reason: str
    """For people: what was wrong with the venue before."""


class PositionFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The account's position in the order's symbol after a fill; an absent amount is 0.

    All of it follows from the fills: it is shown so that a replay can check its own result. The rest of the position
    follows as well and is not shown.
    """

    version: int
    qty: Decimal = ZERO
    cost_basis: Decimal = ZERO
    realised_pnl: Decimal = ZERO
    updated_at: datetime | None = None
    """Absent where it is the order's."""
    day: date | None = None
    """The trading day of the fill; absent where it is the UTC date of `updated_at`."""


class CandidateFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One venue that an order could have gone to, as it was known when the order arrived."""

    venue: VenueName
    healthy: bool = True
    effective_price: Decimal | None = None
    """What a unit costs or brings, fee included; absent without a quote."""
    fee_percent: Decimal = ZERO
    size: Decimal | None = None
    """The displayed quantity; absent where the venue shows none."""
    reject_rate: float | None = None
    latency_ms: float | None = None
    reason: str
    """Why it is in this place, for people."""


class RouteFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How an order's venue was chosen: the candidates, the best first. Absent where the route names no choice."""

    by: Literal["quality", "preference"]
    candidates: tuple[CandidateFact, ...]


class AcceptedFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The data of `OrderAccepted`; it also makes the order's outbox row, as in `queued_row`."""

    order: AcceptedOrder
    venue_client_order_id: VenueClientOrderId
    idempotency: KeyFact | None = None
    quote: Quote | None = None
    route: RouteFact | None = None


class RejectedFact(AcceptedFact, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The data of `RiskRejected`: the order that was not accepted, and why; it has no outbox row."""

    reason: str
    """A code of `RISK_REASONS` (domain/risk/checks.py)."""
    detail: str


class OrderFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The data of every later event of an order."""

    order: OrderChange
    outbox: tuple[OutboxFact, ...] = ()
    decision: DecisionFact | None = None
    doubt: DoubtFact | None = None
    reroute: RerouteFact | None = None
    position: PositionFact | None = None
    idempotency: KeyFact | None = None
    """Of an `AmendRequested`: the key of its request."""
    account_total: PositionFact | None = None
    """The account's results over all symbols, after a fill that closed a position or a part of one."""


class ReportFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The data of `ExecutionReport` and `ReportUnmatched`: the venue's report.

    On an event of an order the venue and the two order ids are absent where they are those of the order.
    """

    exec_id: str
    venue: VenueName | None = None
    venue_client_order_id: VenueClientOrderId | None = None
    venue_order_id: str | None = None
    status: ReportStatus
    last_qty: Decimal = ZERO
    last_price: Decimal | None = None
    filled_qty_total: Decimal = ZERO
    reason: str | None = None
    at: datetime
    fee: Decimal | None = None
    fee_currency: str | None = None
    exec_type: ExecType | None = None
    ref_exec_id: str | None = None
    leg_client_order_id: VenueClientOrderId | None = None


class Figures(msgspec.Struct, frozen=True):
    """Quantity and price of an execution, as the account's position counts it."""

    qty: Decimal
    price: Decimal


class RevisionFact(ReportFact, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The data of `ExecutionRevised`: the venue's report, and what it changed of the account's position.

    The order keeps its quantities, because it may have ended with them.
    """

    revised: Figures | None = None
    """What the position had of the execution; absent where it had nothing of it and is unchanged."""
    early: bool = False
    """The execution had not been reported yet."""
    late: bool = False
    """A repeat of an early one, after its execution was reported."""
    position: PositionFact | None = None
    account_total: PositionFact | None = None


class SetAsideFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The data of `ReportSetAside`: the report's text, with unusual characters escaped, and the reason."""

    exec_id: str
    """Derived from the text, so that the same report is set aside once."""
    venue: str
    error: str
    text: str
    venue_client_order_id: VenueClientOrderId | None = None
    """The order that the report is about, if that order is not in this database."""


class CutFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The data of `AuditFileCut`: the last number the file should have, and the last one it has."""

    path: str
    expected_seq: int
    found_seq: int


class EpochFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The data of `EpochOpened`: why, the identity of the installation, and who stated it where a person did."""

    cause: EpochCause
    installation: str
    tag: str
    by: str | None = None
    reason: str | None = None


class KillFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The data of `KillSwitchSet`: the scope (everything, where it names nothing), who set it, and why."""

    kill_id: KillId
    account_id: AccountId | None = None
    strategy: str | None = None
    venue: VenueName | None = None
    symbol: str | None = None
    mode: KillMode = "block"
    by: str
    reason: str
    set_at: datetime


class KillClearedFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The data of `KillSwitchCleared`: which kill ended, who ended it, and why."""

    kill_id: KillId
    by: str
    reason: str
    cleared_at: datetime
