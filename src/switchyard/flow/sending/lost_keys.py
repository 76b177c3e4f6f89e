"""Keys of a history that a restore has lost: their orders may be at the venue under the same client order ids.

The venue's reports and open orders show most of them before the first send. An order that has ended and whose report
was lost shows only in a lookup, so the venues are asked before the first send. Reads the clock and asks venues.
"""

import asyncio
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from datetime import datetime, timedelta

from switchyard.domain.idempotency import is_lost_key_alive
from switchyard.domain.ids import VenueName
from switchyard.domain.orders import Order
from switchyard.domain.outbox import OutboxRow, is_first_attempt
from switchyard.ports.clock import Clock
from switchyard.ports.outbox import Due
from switchyard.ports.venue import Venue, VenueUnavailable


def _no_others(_symbol: str) -> Sequence[VenueName]:
    return ()


class LostKeys:
    """Which orders may repeat a key of the lost history."""

    def __init__(
        self,
        restored_at: datetime | None,
        key_ttl: timedelta,
        venues: Mapping[VenueName, Venue],
        clock: Clock,
        venues_of: Callable[[str], Sequence[VenueName]] = _no_others,
    ) -> None:
        """`restored_at`: the last restore, none if there was none; `venues_of`: the venues that a symbol may go to."""
        self._restored_at = restored_at
        self._key_ttl = key_ttl
        self._venues = venues
        self._clock = clock
        self._venues_of = venues_of

    def must_ask(self, order: Order, row: OutboxRow) -> bool:
        """Whether a venue must be asked before the order's first send."""
        return self._restored_at is not None and bool(self._to_ask(order, row))

    def may_be_anywhere(self, order: Order) -> bool:
        """Whether the lost history may have sent the order's key, perhaps to another venue: it keeps its venue."""
        if self._restored_at is None or order.idempotency_key is None or order.accepted_at < self._restored_at:
            return False
        return is_lost_key_alive(self._restored_at, self._key_ttl, self._clock.now(), self._clock.jumped_at)

    async def absent(
        self, page: Sequence[Due], synced: Container[VenueName], note_found: Callable[[Due], Awaitable[None]]
    ) -> list[Due]:
        """The rows that may be claimed: no venue has them from the lost history; `note_found` gets the others.

        `synced`: the venues at which no request of the lost history can still arrive. Where a venue cannot be asked, a
        row is in neither, and is asked about with its next claim.
        """
        if not any(self.must_ask(due.state.order, due.row) for due in page):
            return list(page)
        answers = await asyncio.gather(*(self._is_absent(due, synced) for due in page))
        answered = list(zip(page, answers, strict=True))
        await asyncio.gather(*(note_found(due) for due, is_absent in answered if is_absent is False))
        return [due for due, is_absent in answered if is_absent]

    async def _is_absent(self, due: Due, synced: Container[VenueName]) -> bool | None:
        """Whether no venue has the order from the lost history; none where that is not known yet."""
        to_ask = self._to_ask(due.state.order, due.row)
        if any(venue not in synced for venue in to_ask):
            return None
        client_id = due.row.venue_client_order_id
        try:
            found = await asyncio.gather(*(self._venues[venue].find_by_client_order_id(client_id) for venue in to_ask))
        except VenueUnavailable:
            return None
        return all(order is None for order in found)

    def _to_ask(self, order: Order, row: OutboxRow) -> list[VenueName]:
        asked = [row.venue] if self.may_include(order, row) else []
        if not is_first_attempt(row) or row.last_error == "NOT_SENT_BY_DECISION" or not self.may_be_anywhere(order):
            return asked
        others = (venue for venue in self._venues_of(order.symbol) if venue != row.venue)
        return asked + [venue for venue in others if self._venues[venue].capabilities.lookup != "none"]

    def may_include(self, order: Order, row: OutboxRow) -> bool:
        """Whether the order's own venue must be asked before its first send.

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


def is_stray(due: Due) -> bool:
    """Whether the venue reported on the order before its first attempt, and no operator has decided about it since.

    It may have been executed from a database that was lost, so it must not be sent.
    """
    return due.reported_before and is_first_attempt(due.row) and due.row.last_error != "NOT_SENT_BY_DECISION"
