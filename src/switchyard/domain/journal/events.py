"""Events of the journal, in the past tense, and the JSON line of each; `facts.py` has the structs of their data."""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from switchyard.domain.accounts.positions import Position
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.journal.facts import (
    AcceptedOrder,
    KeyFact,
    OrderChange,
    OutboxFact,
    PositionFact,
    ReportFact,
    TermsFact,
)
from switchyard.domain.orders.amends import amend_of
from switchyard.domain.orders.keys import KeyEntry
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OutboxRow
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.domain.values import ONE, ZERO

EventType = Literal[
    "OrderAccepted",
    "RiskRejected",  # a pre-trade check rejected a new order: it is stored as REJECTED and never sent
    "OrderSending",  # an attempt to send begins
    "OrderSent",  # the venue has the order
    "OrderUpdated",  # the order changed for a reason that has no type of its own
    "OrderUncertain",  # the order, or a cancel of it, came into doubt
    "OrderRerouted",  # the order, never sent from here, goes to another venue, or is found there after a restore
    "OperatorDecision",  # an operator ended a doubt
    "ResultRecorded",  # the final answer to a `/do/order` request
    "CancelRequested",
    "CancelSent",
    "AmendRequested",
    "Amended",  # the order has its new quantity and prices
    "AmendRefused",  # an amend ended without effect
    "ExecutionReport",
    "ExecutionRevised",  # a venue corrected or voided an execution; position and books take it back, the order stays
    "ReportUnmatched",  # a venue reports on, or shows, an order that is not in this database
    "ReportSetAside",  # a report that cannot be read or stored; an operator has to look at it
    "EpochOpened",  # the database was restored or rebuilt, or an operator stated that it is the newest
    "AuditFileCut",  # the audit file has fewer lines than were written to it
    "KillSwitchSet",  # from this line on no covered order is accepted or sent
    "KillSwitchCleared",  # a person ended a kill
]

NEW_ORDER_EVENTS: Final[frozenset[EventType]] = frozenset({"OrderAccepted", "RiskRejected"})
"""The events that make the first version of an order; each carries the whole order."""

ORDER_EVENTS: Final[frozenset[EventType]] = NEW_ORDER_EVENTS | frozenset(
    {
        "OrderSending",
        "OrderSent",
        "OrderUpdated",
        "OrderUncertain",
        "OrderRerouted",
        "OperatorDecision",
        "CancelRequested",
        "CancelSent",
        "AmendRequested",
        "Amended",
        "AmendRefused",
    }
)
"""The events that make a new version of an order."""

# Every event has an account; this one stands for events of no account (a cut audit file, a new epoch, a stray report).
SYSTEM_ACCOUNT = AccountId("-")


class Event(msgspec.Struct, frozen=True):
    """An event that is not in the journal yet: it has no number, no time and no hash."""

    type: EventType
    account_id: AccountId
    order_id: OrderId | None
    data: str
    """As JSON; encoded here, so that every engine hashes the same bytes."""

    @property
    def tail(self) -> str:
        """The line from `"type"` on, without the closing brace."""
        return members_text(self.type, self.account_id, self.order_id) + self.data


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


def members_text(kind: str, account: AccountId, order: OrderId | None) -> str:
    """The members of a line between its time and its data; the engines that store no lines build the same."""
    order_json = f'"{order}"' if order else "null"
    return f'"type":"{kind}","accountId":{_text(account)},"orderId":{order_json},"data":'


def event(kind: EventType, account: AccountId, order: OrderId | None, data: msgspec.Struct) -> Event:
    """An event with its data as JSON."""
    return Event(kind, account, order, _number_encoder.encode(data).decode())


def accepted_order(order: Order) -> AcceptedOrder:
    """A new order as its `OrderAccepted` or `RiskRejected` shows it."""
    accepted = AcceptedOrder(
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
        currency=order.currency,
        multiplier=ONE if order.multiplier == ONE else order.multiplier,
        reserve_price=None if order.reserve_price == order.price else order.reserve_price,
    )
    # Apart, because for more than 15 keywords Python builds a dictionary; most orders have none of these.
    is_plain = order.trace_id is None and order.requested_at is None and order.expires_at is None
    is_plain = is_plain and not order.post_only and order.display_qty is None and not order.venue_reduce_only
    if is_plain and not order.reducing and not order.reduce_only:
        return accepted
    return replace(
        accepted,
        trace_id=order.trace_id,
        requested_at=order.requested_at,
        reducing=order.reducing,
        expires_at=order.expires_at,
        reduce_only=order.reduce_only,
        post_only=order.post_only,
        display_qty=order.display_qty,
        venue_reduce_only=order.venue_reduce_only,
    )


def change_of(order: Order, before: Order) -> OrderChange:
    """An order as an event shows it that made it out of `before`."""
    assert order.venue_order_id is not None or before.venue_order_id is None, "a venue order id is never removed"
    assert order.reason is not None or before.reason is None, "a reason is never removed"
    return OrderChange(
        status=order.status,
        version=order.version,
        updated_at=None if order.updated_at == before.updated_at else order.updated_at,
        filled_qty=None if order.filled_qty == before.filled_qty else order.filled_qty,
        venue_order_id=None if order.venue_order_id == before.venue_order_id else order.venue_order_id,
        reason=None if order.reason == before.reason else order.reason,
        venue=None if order.venue == before.venue else order.venue,
        terms=None if _has_same_terms(order, before) else terms_fact(order),
    )


def _has_same_terms(order: Order, before: Order) -> bool:
    """Whether no amend has changed the order; by identity, because almost none has and a step keeps what it has."""
    return (
        order.amend_qty is before.amend_qty
        and order.qty is before.qty
        and order.price is before.price
        and order.stop_price is before.stop_price
        and order.leg_client_order_id is before.leg_client_order_id
        and order.leg_end is before.leg_end
        and order.reducing is before.reducing
    )


def terms_fact(order: Order) -> TermsFact:
    """What an amend may change in an order."""
    return TermsFact(
        qty=order.qty,
        price=order.price,
        stop_price=order.stop_price,
        reserve_price=None if order.reserve_price == order.price else order.reserve_price,
        reducing=order.reducing,
        amend_qty=order.amend_qty,
        amend_reserve_price=order.amend_reserve_price,
        leg_client_order_id=order.leg_client_order_id,
        leg_end=order.leg_end,
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
        amend=amend_of(row) if before is None and row.kind == "amend" else None,
    )


def key_fact(entry: KeyEntry, accepted_at: datetime) -> KeyFact:
    """A key as the event of its request shows it, which is dated `accepted_at`."""
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
        day=None if position.day == position.updated_at.astimezone(UTC).date() else position.day,
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
        leg_client_order_id=report.leg_client_order_id,
    )
