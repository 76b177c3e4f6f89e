"""Whether an order in doubt may be sent again without a lookup: decided by the venue's deduplication. In memory.

Used by the dispatcher before it sends, and by the outcome writer before it plans a resend.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import assert_never

from switchyard.domain.ids import VenueName
from switchyard.domain.orders.outbox import OutboxKey, OutboxRow
from switchyard.ports.clock import Clock
from switchyard.ports.venue import SEND_LIMIT, TURN_LIMIT, Capabilities, Venue

# The share of `dedupe_ttl` that is not used, and its minimum: clocks of venue and sender run at different speeds, and
# venues round the time.
TTL_MARGIN = 0.1
TTL_MARGIN_MIN = timedelta(seconds=1)
# Rows whose first send is remembered; of the others a resend needs a proof of absence.
FIRST_SENDS_MAX = 10_000


def ttl_for_resends(capabilities: Capabilities) -> timedelta:
    """How long after the first attempt began a resend may begin, to arrive while the venue remembers the id."""
    ttl = capabilities.dedupe_ttl
    if ttl is None:
        return timedelta()
    margin = max(ttl * TTL_MARGIN, TTL_MARGIN_MIN)
    # A resend that begins now may wait for its turn, take the whole send limit and be held by a proxy.
    return ttl - margin - TURN_LIMIT - SEND_LIMIT - capabilities.hop_hold


class FirstSends:
    """When this process first sent each row that is not settled, on the monotonic clock.

    A venue with a time to live remembers a client order id from the first copy that arrived, which is not before the
    first attempt. Another process, and this one after a restart, knows no such time and must prove absence.
    """

    def __init__(self, venues: Mapping[VenueName, Venue], clock: Clock) -> None:
        self._venues = venues
        self._clock = clock
        self._begun_at: dict[OutboxKey, float] = {}

    def begin(self, row: OutboxRow, begun_at: float, *, in_doubt: bool) -> None:
        """An attempt begins; `in_doubt` if an earlier copy may be at the venue, whose time then counts."""
        if in_doubt or self._venues[row.venue].capabilities.dedupe != "ttl":
            return
        if row.key in self._begun_at or len(self._begun_at) < FIRST_SENDS_MAX:
            self._begun_at[row.key] = begun_at

    def settle(self, row: OutboxRow) -> None:
        """The row will not be resent without a proof of absence."""
        if self._begun_at:
            self._begun_at.pop(row.key, None)

    def may_resend(self, row: OutboxRow) -> bool:
        """Whether the venue still recognises the client order id if the order is sent again now."""
        capabilities = self._venues[row.venue].capabilities
        match capabilities.dedupe:
            case "permanent":
                return True
            case "ttl":
                begun_at = self._begun_at.get(row.key)
                if begun_at is None:
                    return False
                elapsed = self._clock.monotonic() - begun_at
                return elapsed < ttl_for_resends(capabilities).total_seconds()
            case "while_open" | "none":
                return False
            case unreachable:
                assert_never(unreachable)
