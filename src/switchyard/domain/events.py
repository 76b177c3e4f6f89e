"""Events of the journal, in the past tense, and the JSON line of each.

`OrderAccepted` carries the whole order. Every later event of the order carries what it changed (ADR 15): in the order
(`data.order`), in its outbox rows (`data.outbox`) and, for a fill, in the account's position (`data.position`). A
member that is absent is unchanged, or has the default that its struct names. `fold.py` adds the changes up.
"""

from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Final, Literal

import msgspec

from switchyard.domain.idempotency import KeyEntry
from switchyard.domain.ids import AccountId, OrderId, VenueClientOrderId, VenueName, WorkerId
from switchyard.domain.lifecycle import Status
from switchyard.domain.money import ZERO
from switchyard.domain.orders import Order, OrderType, Side, TimeInForce
from switchyard.domain.outbox import OutboxKind, OutboxRow, OutboxStatus
from switchyard.domain.positions import Position
from switchyard.domain.reasons import SendCode
from switchyard.domain.reports import ExecType, ExecutionReport, ReportStatus

EventType = Literal[
    "OrderAccepted",
    "OrderSending",  # an attempt to send begins
    "OrderSent",  # the venue has the order
    "OrderUpdated",  # the order changed for a reason that has no type of its own
    "OrderUncertain",  # the order, or a cancel of it, came into doubt
    "OperatorDecision",  # an operator ended a doubt
    "ResultRecorded",  # the final answer to a `/do/order` request
    "CancelRequested",
    "CancelSent",
    "ExecutionReport",
    "ReportUnmatched",  # a venue reports on, or shows, an order that is not in this database
    "ReportSetAside",  # a report that cannot be read or stored; an operator has to look at it
    "EpochOpened",  # the database was restored or rebuilt, or an operator stated that it is the newest
    "AuditFileCut",  # the audit file has fewer lines than were written to it
]

ORDER_EVENTS: Final[frozenset[EventType]] = frozenset(
    {
        "OrderAccepted",
        "OrderSending",
        "OrderSent",
        "OrderUpdated",
        "OrderUncertain",
        "OperatorDecision",
        "CancelRequested",
        "CancelSent",
    }
)
"""The events that make a new version of an order."""

EpochCause = Literal["restored", "rebuilt", "newest"]
Verdict = Literal["sent", "not-sent"]

# Every event has an account; this one stands for events of no account (a cut audit file, a new epoch, a stray report).
SYSTEM_ACCOUNT = AccountId("-")


class AcceptedOrder(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An order as it was accepted: status ACCEPTED, nothing filled, version 1, last updated at `accepted_at`.

    Its ids and its account are those of the line.
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


class OrderChange(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An order after an event; an absent member is unchanged.

    `remainingQty` and `avgPrice` follow from the fills. `filledQty` does as well, and is shown as a check of them.
    """

    status: Status
    version: int
    updated_at: datetime
    filled_qty: Decimal | None = None
    venue_order_id: str | None = None
    reason: str | None = None


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


class KeyFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The idempotency key an order was accepted under."""

    operation: str
    key: str
    generation: int = 0
    digest: str
    expires_at: datetime
    version: int = 1
    """Of the key store's row."""
    created_at: datetime | None = None
    """When the request came, by the database's clock; left out where that is the order's `accepted_at`."""


class ResultFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The data of `ResultRecorded`: the answer that every repeat of the order's request gets from now on."""

    http_status: int
    """Below 400 the request has succeeded."""
    response: str
    result_digest: str


class Quote(msgspec.Struct, frozen=True, kw_only=True):
    """The venue's market when an order arrived; recorded then, because slippage cannot be computed without it."""

    bid: Decimal
    ask: Decimal


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


class AcceptedFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The data of `OrderAccepted`; it also makes the order's outbox row, as in `queued_row`."""

    order: AcceptedOrder
    venue_client_order_id: VenueClientOrderId
    idempotency: KeyFact | None = None
    quote: Quote | None = None


class OrderFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The data of every later event of an order."""

    order: OrderChange
    outbox: tuple[OutboxFact, ...] = ()
    decision: DecisionFact | None = None
    doubt: DoubtFact | None = None
    position: PositionFact | None = None
    account_total: PositionFact | None = None
    """The account's results over all symbols, after a fill that closed a position or a part of one."""


class ReportFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The data of `ExecutionReport` and `ReportUnmatched`: the venue's report.

    On an `ExecutionReport` the venue and the two order ids are absent where they are those of the order.
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


class Event(msgspec.Struct, frozen=True):
    """An event that is not in the journal yet: it has no number, no time and no hash."""

    type: EventType
    account_id: AccountId
    order_id: OrderId | None
    tail: str
    """The line from `"type"` on, without the closing brace; built here, so that every engine hashes the same bytes."""


class JournalEvent(msgspec.Struct, frozen=True):
    """An event with its place in the journal."""

    seq: int
    at: datetime
    type: EventType
    account_id: AccountId
    order_id: OrderId | None
    text: str
    """The line up to its hash: exactly the hashed bytes."""
    hash: str

    @property
    def line(self) -> str:
        """The whole line, as in the audit file and in the API."""
        return f'{self.text},"hash":"{self.hash}"}}'


_number_encoder = msgspec.json.Encoder(decimal_format="number")


def encode(value: object) -> bytes:
    """JSON with decimals as numbers, as in every HTTP answer and event."""
    return _number_encoder.encode(value)


@lru_cache(maxsize=4_096)  # the same few accounts in every event
def _text(value: str) -> str:
    return encode(value).decode()


def event(kind: EventType, account: AccountId, order: OrderId | None, data: msgspec.Struct) -> Event:
    """An event with the part of its line that does not depend on the journal."""
    order_json = f'"{order}"' if order else "null"
    tail = f'"type":"{kind}","accountId":{_text(account)},"orderId":{order_json},"data":{encode(data).decode()}'
    return Event(kind, account, order, tail)


def accepted_order(order: Order) -> AcceptedOrder:
    """A new order as its `OrderAccepted` shows it."""
    return AcceptedOrder(
        client_order_id=order.client_order_id,
        symbol=order.symbol,
        side=order.side,
        type=order.type,
        time_in_force=order.time_in_force,
        qty=order.qty,
        price=order.price,
        stop_price=order.stop_price,
        venue=order.venue,
        strategy=order.strategy,
        tags=order.tags,
        accepted_at=order.accepted_at,
        trace_id=order.trace_id,
        requested_at=order.requested_at,
    )


def change_of(order: Order, before: Order) -> OrderChange:
    """An order as an event shows it that made it out of `before`."""
    assert order.venue_order_id is not None or before.venue_order_id is None, "a venue order id is never removed"
    assert order.reason is not None or before.reason is None, "a reason is never removed"
    return OrderChange(
        status=order.status,
        version=order.version,
        updated_at=order.updated_at,
        filled_qty=None if order.filled_qty == before.filled_qty else order.filled_qty,
        venue_order_id=None if order.venue_order_id == before.venue_order_id else order.venue_order_id,
        reason=None if order.reason == before.reason else order.reason,
    )


def outbox_fact(row: OutboxRow, before: OutboxRow | None, order: Order) -> OutboxFact:
    """An outbox row as an event shows it; `before` is the row before the event, none for a new row of the order."""
    if before is None:
        assert row.version == 1 and not row.attempt and row.next_attempt_at == row.updated_at, "not a new row"
    else:
        assert row.version == before.version + 1, "the change of another version of the row"
    return OutboxFact(
        kind="new" if row.kind == "new" else row.kind,  # left out only if it is the constant, not an equal text
        number=row.number,
        status=row.status,
        attempt=None if before is None or row.attempt == before.attempt else row.attempt,
        next_attempt_at=(
            None if before is None or row.next_attempt_at == before.next_attempt_at else row.next_attempt_at
        ),
        last_error=row.last_error,
        error_detail=row.error_detail,
        bytes_sent=row.bytes_sent,
        worker=row.worker,
        updated_at=None if row.updated_at == order.updated_at else row.updated_at,
    )


def key_fact(entry: KeyEntry, accepted_at: datetime) -> KeyFact:
    """A key as the `OrderAccepted` of its order shows it."""
    return KeyFact(
        operation=entry.operation,
        key=entry.idempotency_key,
        generation=entry.generation,
        digest=entry.request_digest,
        expires_at=entry.expires_at,
        created_at=None if entry.created_at == accepted_at else entry.created_at,
        version=entry.version,
    )


def position_fact(position: Position, order: Order) -> PositionFact:
    """A position as the event of a fill of the order shows it."""
    return PositionFact(
        version=position.version,
        qty=position.qty or ZERO,  # left out only if it is the constant, not another zero
        cost_basis=position.cost_basis or ZERO,
        realised_pnl=position.realised_pnl or ZERO,
        updated_at=None if position.updated_at == order.updated_at else position.updated_at,
    )


def report_fact(report: ExecutionReport, order: Order | None) -> ReportFact:
    """A report as events show it; `order` is the order before the report, none for an unmatched report."""
    venue, client_id, venue_id = report.venue, report.venue_client_order_id, report.venue_order_id
    return ReportFact(
        exec_id=report.exec_id,
        venue=None if order is not None and order.venue == venue else venue,
        venue_client_order_id=None if order is not None and order.venue_client_order_id == client_id else client_id,
        venue_order_id=None if order is not None and order.venue_order_id == venue_id else venue_id,
        status=report.status,
        last_qty=report.last_qty or ZERO,
        last_price=report.last_price,
        filled_qty_total=report.filled_qty_total or ZERO,
        reason=report.reason,
        at=report.at,
        fee=report.fee,
        fee_currency=report.fee_currency,
        exec_type=report.exec_type,
        ref_exec_id=report.ref_exec_id,
    )
