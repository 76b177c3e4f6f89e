"""Keys of a history that a restore has lost: their orders may be at the venue under the same client order ids.

The venue's reports and open orders show most of them before the first send. An order that has ended and whose report
was lost shows only in a lookup, so the venues are asked before the first send. Asks venues.
"""

import asyncio
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence

from switchyard.domain.ids import VenueName
from switchyard.domain.orders import Order
from switchyard.domain.outbox import OutboxRow, is_first_attempt
from switchyard.flow.lost_history import LostHistory
from switchyard.ports.outbox import Due
from switchyard.ports.venue import Venue, VenueUnavailable


def _no_others(_symbol: str) -> Sequence[VenueName]:
    return ()


class LostKeys:
    """Which orders may repeat a key of the lost history."""

    def __init__(
        self,
        history: LostHistory,
        venues: Mapping[VenueName, Venue],
        venues_of: Callable[[str], Sequence[VenueName]] = _no_others,
    ) -> None:
        """`venues_of`: the venues that a symbol may go to."""
        self.history = history
        self._venues = venues
        self._venues_of = venues_of

    def must_ask(self, order: Order, row: OutboxRow) -> bool:
        """Whether a venue must be asked before the order's first send."""
        return bool(self._to_ask(order, row))

    def is_unasked(self, order: Order, row: OutboxRow) -> bool:
        """Whether a claimed row may be at its venue, because that is not asked before the claim."""
        was_asked = row.kind == "new" and self.history.is_asked_first(row.venue)
        return not was_asked and self.history.may_have_sent(order, row)

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
        """The venues to ask before the order's first send.

        One 'absent' is enough: a venue is opened only after no request of the lost history can still arrive.
        """
        if not is_first_attempt(row) or not self.history.may_have_sent(order, row):
            return []
        others = (venue for venue in self._venues_of(order.symbol) if venue != row.venue)
        asked = [row.venue] if self.history.is_asked_first(row.venue) else []
        return asked + [venue for venue in others if self._venues[venue].capabilities.lookup != "none"]


def is_stray(due: Due) -> bool:
    """Whether the venue reported on the order before its first attempt, and no operator has decided about it since.

    It may have been executed from a database that was lost, so it must not be sent.
    """
    return due.reported_before and is_first_attempt(due.row) and due.row.last_error != "NOT_SENT_BY_DECISION"
