"""The outbox: messages to venues, their status, and the lane that keeps them in order."""

import zlib
from collections.abc import Callable
from datetime import datetime
from typing import Final, Literal

import msgspec

from switchyard.domain.ids import AccountId, OrderId, VenueClientOrderId, VenueName, WorkerId
from switchyard.domain.orders.order import Order, ended_unsent
from switchyard.domain.orders.reasons import SendCode

OutboxKind = Literal["new", "cancel", "amend"]
OutboxStatus = Literal[
    "queued",  # never attempted
    "sending",  # an attempt is committed, its outcome is not
    "sent",
    "failed",  # to be sent again at `next_attempt_at`
    "uncertain",  # in doubt: ends only by evidence or by an operator's decision
    "dead",
]

OutboxKey = tuple[OrderId, OutboxKind, int]
"""The primary key of a row: order, kind, number."""

SETTLED: Final[frozenset[OutboxStatus]] = frozenset({"sent", "dead"})
"""The statuses in which nothing is left to do."""

# Enough for a handful of workers to share the load evenly; the table of lane owners has one row per lane.
LANES: Final = 64


def lane_of(account: AccountId, symbol: str) -> int:
    """The lane of an account's orders in a symbol; it has one owner, so first attempts leave in journal order."""
    return zlib.crc32(f"{account}\n{symbol}".encode()) % LANES


class OutboxRow(msgspec.Struct, frozen=True, kw_only=True):
    """One message to a venue: the order itself, a cancel or an amend of it."""

    order_id: OrderId
    kind: OutboxKind
    number: int
    """Counts the rows of one kind of one order; 1 for the order itself."""
    venue: VenueName
    venue_client_order_id: VenueClientOrderId
    status: OutboxStatus
    attempt: int
    """Attempts begun; an outcome is written only by the attempt it belongs to."""
    next_attempt_at: datetime
    last_error: SendCode | None
    """Why the row was not sent, is in doubt or is dead; kept while the next attempt is under way."""
    worker: WorkerId | None
    """The worker that is sending the row, or that may still be sending a row in doubt."""
    created_at: datetime
    updated_at: datetime
    version: int
    lane: int
    bytes_sent: bool = False
    """Whether some attempt may have put a byte on the wire; never reset."""
    error_detail: str | None = None
    """The text behind `last_error`, for people; no behaviour depends on it."""
    payload: str | None = None
    """Of an amend: what it asks for (`domain.orders.amends.Amend`), as JSON; other requests follow from their order."""
    traceparent: str | None = None
    """The W3C trace context of the request that made the row; no behaviour depends on it, and no event has it."""
    seq: int = 0
    """The journal number of the event that created the row, assigned by the append: the order of departure."""

    @property
    def key(self) -> OutboxKey:
        """The row's primary key."""
        return self.order_id, self.kind, self.number

    @property
    def outbox_id(self) -> str:
        """The row's name in events, logs and commands."""
        return f"{self.order_id}:{self.kind}:{self.number}"

    @property
    def retry_count(self) -> int:
        """Attempts after the first."""
        return max(self.attempt - 1, 0)


MayBeLost = Callable[[Order, OutboxRow], bool]
"""Whether the history that a restore has lost may have sent the row's message, so that the venue may have it."""


def never_lost(_order: Order, _row: OutboxRow) -> bool:
    """For a database that was never restored."""
    return False


def queued_row(
    order: Order,
    kind: OutboxKind,
    number: int,
    now: datetime,
    *,
    client_order_id: VenueClientOrderId | None = None,
    payload: str | None = None,
) -> OutboxRow:
    """A new row of an order, due at once; an amend has an id of its own and a payload."""
    return OutboxRow(
        order_id=order.order_id,
        kind=kind,
        number=number,
        venue=order.venue,
        venue_client_order_id=client_order_id or order.venue_client_order_id,
        status="queued",
        attempt=0,
        next_attempt_at=now,
        last_error=None,
        worker=None,
        created_at=now,
        updated_at=now,
        version=1,
        lane=lane_of(order.account_id, order.symbol),
        payload=payload,
    )


def is_first_attempt(row: OutboxRow) -> bool:
    """Whether the next attempt is the order's first one; a row in retry or in doubt has lost its place in its line."""
    return row.kind == "new" and not row.attempt


class OrderState(msgspec.Struct, frozen=True, kw_only=True):
    """An order with its outbox rows: the input of a decision."""

    order: Order
    outbox: tuple[OutboxRow, ...]

    def row(self, kind: OutboxKind, number: int) -> OutboxRow:
        """One of the order's rows."""
        row = self.find(kind, number)
        if row is None:
            raise LookupError(f"order {self.order.order_id} has no {kind} row {number}")
        return row

    def find(self, kind: OutboxKind, number: int) -> OutboxRow | None:
        """One of the order's rows; none where the order does not have it."""
        for row in self.outbox:
            if row.kind == kind and row.number == number:
                return row
        return None

    def version_of(self, kind: OutboxKind, number: int) -> int | None:
        """The version of one of the order's rows; none where the order does not have it."""
        row = self.find(kind, number)
        return None if row is None else row.version


def is_proven_unsent(state: OrderState) -> bool:
    """Whether the order ended and no attempt of it can have put a byte on the wire.

    Only then may its key start a new generation, which has another client order id: no venue can recognise the two
    orders as one. A proof of absence is not enough, because it settles one client order id only.
    """
    order = state.order
    if not ended_unsent(order) or order.venue_order_id is not None or order.filled_qty:
        return False
    return not any(row.bytes_sent for row in state.outbox if row.kind == "new")
