"""Keys of a history that a restore has lost: their orders may be at a venue under the same client order ids.

They may be at any venue of their route, under a later id of their key, or under an id that was narrowed for another
route (`domain.ids.narrowed`): the settings may have changed since. The venues' reports and open orders show most
of them before the first send. An order that has ended and whose report was lost shows only in a lookup, so the venues
are asked before the first send, and again before an order in doubt is called absent. If the answers prove nothing, the
order is in doubt and is not sent. Asks venues.
"""

import asyncio
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

from switchyard.domain.ids import (
    IdForm,
    VenueClientOrderId,
    VenueName,
    carries,
    digest_digits,
    generation_of,
    narrowed,
    other_generations,
    tag_of,
    venue_client_order_id,
)
from switchyard.domain.orders.keys import DERIVED_CLOSE, DERIVED_ORDER, DO_ORDER
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OutboxRow, is_first_attempt
from switchyard.domain.orders.reasons import DoubtCode
from switchyard.flow.lost_history import LostHistory
from switchyard.ports.outbox import Due
from switchyard.ports.venue import Venue, VenueOrder, VenueUnavailable, to_find

# Later ids of a key that are asked for. The open orders and reports of a venue show those beyond.
GENERATIONS_ASKED = 3
# The operations whose keys are used again soon; other keys only after their time to live.
_REUSING = (DO_ORDER, DERIVED_ORDER, DERIVED_CLOSE)


class Found(NamedTuple):
    """An order that the lost history has sent."""

    venue: VenueName
    client_id: VenueClientOrderId
    """The order's own id, or a later one of its key."""
    order: VenueOrder


def _no_others(_symbol: str) -> Sequence[VenueName]:
    return ()


def _always(_venue: VenueName) -> bool:
    return True


class LostKeys:
    """Which orders may repeat a key of the lost history."""

    def __init__(
        self,
        history: LostHistory,
        venues: Mapping[VenueName, Venue],
        venues_of: Callable[[str], Sequence[VenueName]] = _no_others,
        is_read: Callable[[VenueName], bool] = _always,
        id_forms: Mapping[VenueName, IdForm] = MappingProxyType({}),
    ) -> None:
        """`venues_of`: the venues that a symbol may go to; `is_read`: whether no lost request can arrive at one;
        `id_forms`: the forms of client order ids that routes of the lost history may have had.
        """
        self.history = history
        self._venues = venues
        self._venues_of = venues_of
        self._is_read = is_read
        self._id_forms = id_forms
        widest_first = sorted(id_forms.values(), key=digest_digits, reverse=True)
        # One form for each length of digests; with one length, no id was ever narrowed in another way.
        self._lengths = list({digest_digits(form): form for form in widest_first}.values())

    def must_ask(self, order: Order, row: OutboxRow) -> bool:
        """Whether a venue must be asked, or another one of the route read, before the order's first send."""
        return self._may_repeat(order, row) and bool(self._others(order) or self._to_ask(order, row))

    def must_wait(self, order: Order, row: OutboxRow) -> bool:
        """Whether the order's first send must not begin with its acceptance."""
        return self._may_repeat(order, row) and bool(
            self._others(order) or self._to_ask(order, row) or not self._can_tell(order)
        )

    def is_unasked(self, order: Order, row: OutboxRow) -> bool:
        """Whether a claimed row may be at its venue, because that is not asked before the claim."""
        was_asked = row.kind == "new" and self.history.is_asked_first(row.venue)
        return not was_asked and self.history.may_have_sent(order, row)

    async def absent(
        self, page: Sequence[Due], synced: Container[VenueName], note_doubt: Callable[[Due, DoubtCode], Awaitable[None]]
    ) -> list[Due]:
        """The rows that may be claimed: no venue has them from the lost history; `note_doubt` gets the others.

        `synced`: the venues at which no request of the lost history can still arrive. Where a venue cannot be asked, a
        row is in neither, and is asked about with its next claim.
        """
        if not any(self.must_wait(due.state.order, due.row) for due in page):
            return list(page)
        answers = await asyncio.gather(*(self._doubt_about(due, synced) for due in page))
        answered = list(zip(page, answers, strict=True))
        doubts = [note_doubt(due, code) for due, code in answered if code is not None and code != "LATER"]
        await asyncio.gather(*doubts)
        return [due for due, code in answered if code is None]

    async def _doubt_about(self, due: Due, synced: Container[VenueName]) -> DoubtCode | Literal["LATER"] | None:
        """Why the row must not be sent: a venue has it, or may have it, from the lost history; none if no venue has it.

        `LATER`: that is not known yet.
        """
        order = due.state.order
        if not self._may_repeat(order, due.row):
            return None
        to_ask = self._to_ask(order, due.row)
        # Also one without a lookup: its reports are all that shows the order.
        if any(venue not in synced for venue in (*self._others(order), *(venue for venue, _ in to_ask))):
            return "LATER"
        try:
            found = await self._first_of(order, to_ask)
        except VenueUnavailable:
            return "LATER"
        if found is not None:
            return "EXECUTED_BEFORE"
        return None if self._can_tell(order) else "RESTORED"

    async def find(self, order: Order) -> Found | None:
        """Return the order of the lost history, wherever it is, for an order in doubt that was not sent from here.

        Its own venue and id come first, then the latest id. Raises VenueUnavailable if another venue of its route
        cannot be asked, cannot prove that it lacks the order, or may still get requests of the lost history; also if
        its own venue cannot prove that it lacks the later ids of a key that is used again soon.
        """
        own, *others = self._ids_at(order, [order.venue, *self._others(order)], with_own=True)
        if (found := await self._first_of(order, [own])) is not None:
            return found
        for venue in self._others(order):
            if not self._is_read(venue):
                raise VenueUnavailable(f"{venue} was not read yet")
        if (found := await self._first_of(order, others)) is not None:
            return found
        for venue in [*self._others(order), *([order.venue] if self._has_other_ids(order) else [])]:
            if not self._proves_absence(venue):
                raise VenueUnavailable(f"{venue} cannot prove that it lacks the order")
        return None

    async def _first_of(self, order: Order, to_ask: Sequence[tuple[VenueName, VenueClientOrderId]]) -> Found | None:
        shown = await asyncio.gather(
            *(self._venues[venue].find(to_find(order, client_id)) for venue, client_id in to_ask)
        )
        found = (Found(*asked, each) for asked, each in zip(to_ask, shown, strict=True) if each is not None)
        return next(found, None)

    def _to_ask(self, order: Order, row: OutboxRow) -> list[tuple[VenueName, VenueClientOrderId]]:
        """The venues, each with an id, to ask before the order's first send.

        One 'absent' is enough: a venue is opened only after no request of the lost history can still arrive. A close
        may have another quantity at a venue that recognises its id.
        """
        with_own = order.reduce_only or self.history.is_asked_first(row.venue)
        return self._ids_at(order, [row.venue, *self._others(order)], with_own=with_own)

    def _can_tell(self, order: Order) -> bool:
        """Whether a second copy of the order does no harm, or the venues prove that they do not have the first one.

        A lookup of open orders never proves that: the order may have been filled. A venue recognises the order's own
        id, and not the later ids of a key that is used again soon, or one that was narrowed for another route.
        """
        is_recognised = self._venues[order.venue].capabilities.dedupe == "permanent" and not self._has_other_ids(order)
        asked = self._others(order) if is_recognised else [order.venue, *self._others(order)]
        return all(map(self._proves_absence, asked)) and self._remember(asked)

    def _proves_absence(self, venue: VenueName) -> bool:
        return venue in self._venues and self._venues[venue].capabilities.proves_absence

    def are_remembering(self, order: Order) -> bool:
        """Whether the venues would still show the order of the lost history that this one may repeat."""
        return self._remember([order.venue, *self._others(order)])

    def _remember(self, venues: Sequence[VenueName]) -> bool:
        since, clock = self.history.sent_since, self.history.clock
        now, jumped_at = clock.now(), clock.jumped_at
        return since is None or all(
            self._venues[venue].capabilities.remembers(since, now, jumped_at)
            for venue in venues
            if venue in self._venues
        )

    def _may_repeat(self, order: Order, row: OutboxRow) -> bool:
        return is_first_attempt(row) and self.history.may_have_sent(order, row)

    def _others(self, order: Order) -> list[VenueName]:
        return [venue for venue in self._venues_of(order.symbol) if venue != order.venue]

    def _ids_at(
        self, order: Order, venues: Sequence[VenueName], *, with_own: bool
    ) -> list[tuple[VenueName, VenueClientOrderId]]:
        """Each venue that can be asked with each id; `with_own`: the order's own id at its own venue as well."""
        own_id = order.venue_client_order_id
        count = GENERATIONS_ASKED if order.operation in _REUSING else 0
        firsts = [own_id, *self._narrowed_otherwise(order)]
        latest = [client_id for first in firsts for client_id in reversed(other_generations(first, count))]
        ids = [*firsts, *latest]
        able = [
            venue for venue in venues if venue in self._venues and self._venues[venue].capabilities.lookup != "none"
        ]
        pairs = [(venue, client_id) for client_id in ids for venue in able if self._carries(venue, client_id)]
        return [pair for pair in pairs if with_own or pair != (order.venue, own_id)]

    def _has_other_ids(self, order: Order) -> bool:
        """Whether the lost history may have sent the order under another id than its own."""
        return order.operation in _REUSING or bool(self._narrowed_otherwise(order))

    def _narrowed_otherwise(self, order: Order) -> list[VenueClientOrderId]:
        """The ids that the order has if its route is, or was, another one."""
        own_id, tag = order.venue_client_order_id, tag_of(order.venue_client_order_id)
        if len(self._lengths) < 2 or tag is None or order.operation is None:
            return []
        whole = venue_client_order_id(
            tag, order.account_id, order.operation, order.idempotency_key, generation_of(own_id), order.order_id
        )
        return [one for form in self._lengths if (one := narrowed(whole, form)) != own_id]

    def _carries(self, venue: VenueName, client_id: VenueClientOrderId) -> bool:
        form = self._id_forms.get(venue)
        return form is None or carries(form, client_id)


def is_stray(due: Due) -> bool:
    """Whether the venue reported on the order before its first attempt, and no operator has decided about it since.

    It may have been executed from a database that was lost, so it must not be sent.
    """
    return due.reported_before and is_first_attempt(due.row) and due.row.last_error != "NOT_SENT_BY_DECISION"
