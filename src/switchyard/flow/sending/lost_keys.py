"""Keys of a history that a restore has lost: their orders may be at the venue under the same client order ids.

The venue's reports and open orders show most of them before the first send. An order that has ended and whose report
was lost shows only in a lookup, so the dispatcher asks before it sends. Reads the clock; the dispatcher asks.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from switchyard.domain.idempotency import is_lost_key_alive
from switchyard.domain.ids import VenueName
from switchyard.domain.orders import Order
from switchyard.domain.outbox import OutboxRow, is_first_attempt
from switchyard.ports.clock import Clock
from switchyard.ports.venue import Venue


class LostKeys:
    """Which orders may repeat a key of the lost history."""

    def __init__(
        self, restored_at: datetime | None, key_ttl: timedelta, venues: Mapping[VenueName, Venue], clock: Clock
    ) -> None:
        """`restored_at`: the last restore; none if there was none."""
        self._restored_at = restored_at
        self._key_ttl = key_ttl
        self._venues = venues
        self._clock = clock

    def may_include(self, order: Order, row: OutboxRow) -> bool:
        """Whether the venue must be asked before the order's first send.

        One 'absent' is enough: the venue was opened only after no request of the lost history could still arrive. A
        venue that deduplicates permanently recognises the order itself.
        """
        if self._restored_at is None or not is_first_attempt(row):
            return False
        capabilities = self._venues[row.venue].capabilities
        if capabilities.dedupe == "permanent" or capabilities.lookup == "none":
            return False
        if order.accepted_at < self._restored_at or row.last_error == "NOT_SENT_BY_DECISION":
            return False
        return is_lost_key_alive(self._restored_at, self._key_ttl, self._clock.now(), self._clock.jumped_at)
