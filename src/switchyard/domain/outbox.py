"""What has to be sent to a venue, and how far that has come."""

import zlib
from datetime import datetime
from typing import Final, Literal

import msgspec

from switchyard.domain.ids import AccountId, OrderId, VenueClientOrderId, VenueName, WorkerId
from switchyard.domain.orders import Order

OutboxKind = Literal["new", "cancel"]
OutboxStatus = Literal[
    "queued",
    "sending",  # an attempt is committed, its outcome is not
    "sent",
    "failed",  # to be tried again at `next_attempt_at`
    "uncertain",  # only evidence or a person ends this
    "dead",
]

# Enough that a handful of workers share the load evenly; the table of their owners has a row for each.
LANES: Final = 64


def lane_of(account: AccountId, symbol: str) -> int:
    """The lane of an account's orders in a symbol: their first attempts leave in the order of acceptance."""
    return zlib.crc32(f"{account}\n{symbol}".encode()) % LANES


class OutboxRow(msgspec.Struct, frozen=True, kw_only=True):
    """One message to a venue: the order itself, or a cancel of it."""

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
    last_error: str | None
    worker: WorkerId | None
    """Who is sending; tells an orphan from a row in good hands."""
    created_at: datetime
    updated_at: datetime
    version: int
    lane: int
    error_detail: str | None = None
    """The text behind `last_error`, for people; nothing is decided by it."""


class OrderState(msgspec.Struct, frozen=True, kw_only=True):
    """An order with its outbox rows: what a decision looks at."""

    order: Order
    outbox: tuple[OutboxRow, ...]

    def row(self, kind: OutboxKind, number: int) -> OutboxRow:
        """The row that was loaded with the order."""
        for row in self.outbox:
            if row.kind == kind and row.number == number:
                return row
        raise LookupError(f"order {self.order.order_id} has no {kind} row {number}")
