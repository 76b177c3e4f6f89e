"""The history that the last restore has lost: which messages of this database it may have sent under the same ids.

Client order ids and amend ids are derived from keys, so a client that repeats a key after the restore gets the ids of
before. Such a message may be at its venue, although nothing was sent from here. Reads the clock.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from switchyard.domain.ids import VenueName
from switchyard.domain.orders.keys import is_lost_key_alive
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OutboxRow, is_first_attempt
from switchyard.ports.clock import Clock
from switchyard.ports.venue import Capabilities

# The ends of a doubt after which nothing of the lost history is at the venue.
_NOT_THERE = ("ABSENT_AT_VENUE", "NOT_SENT_BY_DECISION")


class LostHistory:
    """Tells what the lost history may have sent."""

    def __init__(
        self,
        restored_at: datetime | None,
        key_ttl: timedelta,
        capabilities: Mapping[VenueName, Capabilities],
        clock: Clock,
    ) -> None:
        """`restored_at`: the last restore, none if there was none; `key_ttl`: of the keys that live longest."""
        self._restored_at = restored_at
        self._key_ttl = key_ttl
        self._capabilities = capabilities
        self._clock = clock

    def may_have_sent(self, order: Order, row: OutboxRow) -> bool:
        """Whether the order, or the amend, of this row may be at the venue although no attempt from here says so.

        Rows of before the restore are in doubt since. Where the venue is asked before the first attempt, an order that
        was attempted was absent.
        """
        if row.kind == "cancel" or row.last_error in _NOT_THERE or not self._may_repeat(row.created_at):
            return False
        if row.kind == "amend":
            return True
        return order.idempotency_key is not None and (is_first_attempt(row) or not self.is_asked_first(row.venue))

    def may_have_placed(self, order: Order) -> bool:
        """Whether the order's key may be one of the lost history, at any venue."""
        return order.idempotency_key is not None and self._may_repeat(order.accepted_at)

    def is_asked_first(self, venue: VenueName) -> bool:
        """Whether the venue is asked before the first attempt of an order that may be there.

        One that deduplicates permanently recognises the order itself, and one without a lookup cannot be asked.
        """
        capabilities = self._capabilities.get(venue)
        return capabilities is not None and capabilities.dedupe != "permanent" and capabilities.lookup != "none"

    def _may_repeat(self, requested_at: datetime) -> bool:
        """Whether a request of that time may repeat a key of the lost history."""
        restored_at = self._restored_at
        if restored_at is None or requested_at < restored_at:
            return False
        return is_lost_key_alive(restored_at, self._key_ttl, requested_at, self._clock.jumped_at)
