"""Events of the journal, in the past tense, and the JSON line of each.

An event that changed an order carries the order after the change (`data.order`) and the outbox rows that changed
(`data.outbox`); a fill also carries the account's position (`data.position`). Streams, the bus and a rebuild therefore
need nothing but the line.
"""

from datetime import datetime
from decimal import Decimal
from typing import Literal

import msgspec

from switchyard.domain.idempotency import KeyEntry, KeyStatus
from switchyard.domain.ids import AccountId, OrderId, VenueClientOrderId, WorkerId
from switchyard.domain.orders import Order, OrderSnapshot, Side
from switchyard.domain.outbox import OrderState, OutboxKind, OutboxRow, OutboxStatus
from switchyard.domain.positions import Position
from switchyard.domain.reasons import SendCode
from switchyard.domain.reports import ExecutionReport

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

EpochCause = Literal["restored", "rebuilt", "newest"]
Verdict = Literal["sent", "not-sent"]

# Every event has an account; this one stands for events of no account (a cut audit file, a new epoch, a stray report).
SYSTEM_ACCOUNT = AccountId("-")


class OutboxFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An outbox row after the event, with the status that it had before; none for a new row.

    Lines of the first version do not have the fields with a default.
    """

    outbox_id: str = ""
    kind: OutboxKind
    number: int
    status_from: OutboxStatus | None = None
    status: OutboxStatus
    attempt: int
    retry_count: int = 0
    next_attempt_at: datetime
    last_error: SendCode | None
    error_detail: str | None
    bytes_sent: bool
    worker: WorkerId | None
    updated_at: datetime


class KeyFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The idempotency key an order was accepted under."""

    operation: str
    key: str
    generation: int
    digest: str
    expires_at: datetime
    version: int
    """Of the key store's row."""
    created_at: datetime | None = None
    """When the request came, by the database's clock; left out where that is the order's `accepted_at`."""


class ResultFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The data of `ResultRecorded`: the answer that every repeat of the request gets from now on."""

    operation: str
    key: str
    status: KeyStatus
    http_status: int
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


class DoubtFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is known about a send in doubt; only on `OrderUncertain`."""

    bytes_sent: bool
    """Whether some attempt may have put a byte on the wire."""
    code: SendCode
    detail: str | None
    address: str | None
    """The address that the request went to, where the adapter knows it."""
    since: datetime
    """When the attempt in doubt began; for a doubt without an attempt, when it arose."""


class PositionFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The account's position in the order's symbol after a fill."""

    qty: Decimal
    cost_basis: Decimal
    avg_price: Decimal | None
    realised_pnl: Decimal
    trade_result: Decimal
    consecutive_losses: int
    high_water_mark: Decimal
    updated_at: datetime
    version: int


class OrderFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The data of every event that changed an order."""

    order: OrderSnapshot
    outbox: tuple[OutboxFact, ...] = ()
    venue_client_order_id: VenueClientOrderId | None = None
    idempotency: KeyFact | None = None
    quote: Quote | None = None
    decision: DecisionFact | None = None
    doubt: DoubtFact | None = None
    position: PositionFact | None = None
    account_total: PositionFact | None = None
    """The account's results over all symbols, after a fill that closed a position or a part of one."""


class ReportFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The data of `ExecutionReport` and `ReportUnmatched`: the venue's report, and the order it is about."""

    exec_id: str
    venue: str
    venue_client_order_id: VenueClientOrderId
    venue_order_id: str
    status: str
    last_qty: Decimal
    last_price: Decimal | None
    filled_qty_total: Decimal
    reason: str | None
    at: datetime
    order_id: OrderId | None
    symbol: str | None
    side: Side | None
    fee: Decimal | None = None
    fee_currency: str | None = None
    exec_type: str | None = None
    ref_exec_id: str | None = None


class SetAsideFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The data of `ReportSetAside`: the report's text, with unusual characters escaped, and the reason."""

    exec_id: str
    """Derived from the text, so that the same report is set aside once."""
    venue: str
    error: str
    text: str
    venue_client_order_id: VenueClientOrderId | None
    """The order that the report is about, if that order is not in this database."""


class CutFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The data of `AuditFileCut`: the last number the file should have, and the last one it has."""

    path: str
    expected_seq: int
    found_seq: int


class EpochFact(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The data of `EpochOpened`: why, the identity of the installation, and who stated it where a person did."""

    cause: EpochCause
    installation: str
    tag: str
    by: str | None
    reason: str | None


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


def event(kind: EventType, account: AccountId, order: OrderId | None, data: msgspec.Struct) -> Event:
    """An event with the part of its line that does not depend on the journal."""
    account_json = encode(account).decode()
    order_json = f'"{order}"' if order else "null"
    tail = f'"type":"{kind}","accountId":{account_json},"orderId":{order_json},"data":{encode(data).decode()}'
    return Event(kind, account, order, tail)


def outbox_fact(row: OutboxRow, before: OrderState | None = None) -> OutboxFact:
    """An outbox row as events show it; `before` is the order's state that it changed in, none for a new order."""
    return OutboxFact(
        outbox_id=row.outbox_id,
        kind=row.kind,
        number=row.number,
        status_from=None if before is None else before.status_of(row.kind, row.number),
        status=row.status,
        attempt=row.attempt,
        retry_count=row.retry_count,
        next_attempt_at=row.next_attempt_at,
        last_error=row.last_error,
        error_detail=row.error_detail,
        bytes_sent=row.bytes_sent,
        worker=row.worker,
        updated_at=row.updated_at,
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


def position_fact(position: Position) -> PositionFact:
    """A position as events show it."""
    return PositionFact(
        qty=position.qty,
        cost_basis=position.cost_basis,
        avg_price=position.average_price,
        realised_pnl=position.realised_pnl,
        trade_result=position.trade_result,
        consecutive_losses=position.consecutive_losses,
        high_water_mark=position.high_water_mark,
        updated_at=position.updated_at,
        version=position.version,
    )


def report_fact(report: ExecutionReport, order: Order | None) -> ReportFact:
    """A report as events show it, with its order's id, symbol and side; `order` is none for an unmatched report."""
    return ReportFact(
        exec_id=report.exec_id,
        venue=report.venue,
        venue_client_order_id=report.venue_client_order_id,
        venue_order_id=report.venue_order_id,
        status=report.status,
        last_qty=report.last_qty,
        last_price=report.last_price,
        filled_qty_total=report.filled_qty_total,
        reason=report.reason,
        at=report.at,
        order_id=None if order is None else order.order_id,
        symbol=None if order is None else order.symbol,
        side=None if order is None else order.side,
        fee=report.fee,
        fee_currency=report.fee_currency,
        exec_type=report.exec_type,
        ref_exec_id=report.ref_exec_id,
    )
