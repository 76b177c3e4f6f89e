"""Keys of a history that a restore has lost: their orders may be at the venue under the same client order ids.

The venue's reports and open orders show most of them before the first send. An order that has ended and whose report
was lost shows only in a lookup, so the dispatcher asks before it sends. Pure; the dispatcher asks the venue.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from switchyard.domain.ids import VenueName
from switchyard.domain.outbox import is_first_attempt
from switchyard.ports.outbox import Due
from switchyard.ports.venue import Venue


class LostKeys:
    """Which orders may repeat a key of the lost history."""

    def __init__(self, restored_at: datetime, key_ttl: timedelta, venues: Mapping[VenueName, Venue]) -> None:
        self._from = restored_at
        self._until = restored_at + key_ttl
        self._venues = venues

    def may_include(self, due: Due, now: datetime) -> bool:
        """Whether the venue must be asked before the order's first send.

        One 'absent' is enough: the venue was opened only after no request of the lost history could still arrive. A
        venue that deduplicates permanently recognises the order itself.
        """
        capabilities = self._venues[due.row.venue].capabilities
        if capabilities.dedupe == "permanent" or capabilities.lookup == "none":
            return False
        is_new = is_first_attempt(due.row) and due.state.order.accepted_at >= self._from
        return is_new and now < self._until and due.row.last_error != "NOT_SENT_BY_DECISION"
