"""One group of commands and what the exchange makes of it, before any of it is durable."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from switchyard.adapters.venues.paper.book import Book
from switchyard.adapters.venues.paper.matching import (
    PaperOrder,
    Rules,
    advanced,
    arrived,
    canceled,
    matched,
    rejection,
)
from switchyard.domain.events import Quote
from switchyard.domain.ids import VenueClientOrderId
from switchyard.domain.instruments import Instrument
from switchyard.domain.orders import Order
from switchyard.domain.reports import ExecutionReport
from switchyard.ports.venue import Accepted, SendOutcome, Unsent, VenueRejected

# What a caller is told when the exchange is full: soon enough to notice room, rare enough not to add to the load.
BUSY = Unsent("VENUE_BUSY", retry_after=timedelta(milliseconds=500))


class Settlement:
    """Decisions on top of a book; the book itself changes only when they have been written."""

    def __init__(
        self,
        book: Book,
        book_id: str,
        known: Iterable[PaperOrder],
        rejected: Mapping[VenueClientOrderId, str],
        rules: Rules,
        open_orders_max: int,
        now: datetime,
    ) -> None:
        self.changed: dict[VenueClientOrderId, PaperOrder] = {}
        self.rejections: dict[VenueClientOrderId, str] = {}
        self.reports: list[ExecutionReport] = []
        self._book = book
        self._book_id = book_id
        self._known = {order.client_id: order for order in known}
        self._rejected = rejected
        self._rules = rules
        self._room = open_orders_max - book.open_count
        self._last_order = book.last_order
        self._now = now

    def submit(self, order: Order, instrument: Instrument, quote: Quote) -> SendOutcome:
        """Take an order, unless its id has been here before: then the answer is what it was."""
        client_id = order.venue_client_order_id
        found = self._find(client_id)
        if found is not None:
            return Accepted(found.venue_order_id)
        reason = self._rejected.get(client_id) or self.rejections.get(client_id)
        if reason is None:
            reason = rejection(order, instrument, self._rules)
            if reason is not None:
                self.rejections[client_id] = reason
        if reason is not None:
            return VenueRejected("BROKER_REJECTED", reason)
        if self._room <= 0:
            return BUSY
        self._last_order += 1
        venue_order_id = f"{self._book_id}-{self._last_order}"
        taken = arrived(order, self._last_order, venue_order_id, instrument, quote, self._now, self._rules)
        self._advance(taken)
        self._room -= self.changed[client_id].is_open
        return Accepted(venue_order_id)

    def cancel(self, client_id: VenueClientOrderId) -> SendOutcome:
        """Drop what is left of an order."""
        found = self._find(client_id)
        if found is None:
            return VenueRejected("UNKNOWN_ORDER")
        if found.is_open:
            self.changed[client_id], report = canceled(found, self._now, self._rules)
            self.reports.append(report)
        elif found.status != "CANCELED":
            return VenueRejected("ORDER_FINAL")
        return Accepted(found.venue_order_id)

    def let_time_pass(self, due: Iterable[PaperOrder], reached: Iterable[PaperOrder]) -> None:
        """Make the reports that are due, and match the resting orders that the market has come to."""
        for order in due:
            self._advance(order)
        for order in reached:
            self._advance(matched(order, self._now, self._rules))

    def _find(self, client_id: VenueClientOrderId) -> PaperOrder | None:
        return self.changed.get(client_id) or self._book.find(client_id) or self._known.get(client_id)

    def _advance(self, order: PaperOrder) -> None:
        self.changed[order.client_id], reports = advanced(order, self._now, self._rules)
        self.reports += reports
