"""Decides the outcomes of one group of commands.

It reads the book and changes nothing: the exchange commits `changed`, `rejections` and `reports`, then applies them.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from switchyard.adapters.venues.paper.book import Book
from switchyard.adapters.venues.paper.matching import (
    ANY_QTY,
    Displayed,
    PaperOrder,
    Rules,
    advanced,
    amend_rejection,
    amended,
    arrived,
    canceled,
    matched,
    rejection,
    triggered,
)
from switchyard.domain.ids import VenueClientOrderId
from switchyard.domain.journal.facts import Quote
from switchyard.domain.market.instruments import Instrument
from switchyard.domain.market.quotes import is_triggered
from switchyard.domain.orders.amends import Amend, Amounts
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.ports.venue import Accepted, Ambiguous, SendOutcome, Unsent, VenueRejected

# The outcome when the exchange is full. The pause is short enough to notice free room, long enough to add little load.
BUSY = Unsent("VENUE_BUSY", retry_after=timedelta(milliseconds=500))


class Settlement:
    """The decisions of one group on top of a book."""

    def __init__(
        self,
        book: Book,
        book_id: str,
        known: Iterable[PaperOrder],
        rejected: Mapping[VenueClientOrderId, str],
        rules: Rules,
        open_orders_max: int,
        now: datetime,
        displayed: Displayed = ANY_QTY,
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
        self._displayed = displayed

    def submit(self, order: Order, instrument: Instrument, quote: Quote | None) -> SendOutcome:
        """Accept or reject an order; a known client order id gets the same outcome as the first time."""
        client_id = order.venue_client_order_id
        known = self._find(client_id)
        if known is not None:
            return Accepted(known.venue_order_id)
        reason = self._rejected.get(client_id) or self.rejections.get(client_id)
        if reason is None:
            reason = rejection(order, instrument, quote, self._rules)
            if reason is not None:
                self.rejections[client_id] = reason
        if reason is not None:
            return VenueRejected("BROKER_REJECTED", reason)
        if self._room <= 0:
            return BUSY
        self._last_order += 1
        venue_order_id = f"{self._book_id}-{self._last_order}"
        accepted = arrived(
            order, self._last_order, venue_order_id, instrument, quote, self._now, self._rules, self._displayed
        )
        stop = accepted.stop_price
        if stop is not None and quote is not None and is_triggered(accepted.side, stop, quote):
            self._face(accepted, quote)
        else:
            self._advance(accepted)
        self._room -= self.changed[client_id].is_open
        return Accepted(venue_order_id)

    def cancel(self, client_id: VenueClientOrderId) -> SendOutcome:
        """Cancel the remainder of an order."""
        known = self._find(client_id)
        if known is None:
            return VenueRejected("UNKNOWN_ORDER")
        if known.is_open:
            self.changed[client_id], report = canceled(known, self._now, self._rules)
            self.reports.append(report)
        elif known.status != "CANCELED":
            return VenueRejected("ORDER_FINAL")
        return Accepted(known.venue_order_id)

    def amend(
        self, amend: Amend, client_id: VenueClientOrderId, instrument: Instrument, quote: Quote | None
    ) -> SendOutcome:
        """Change the amounts of an open order; a repeated amend has no effect."""
        known = self._find(client_id)
        if known is None:
            return VenueRejected("UNKNOWN_ORDER")
        if known.amended_by == amend.client_order_id:
            shown = Amounts(qty=known.qty, price=known.limit_price, stop_price=known.stop_price)
            if shown.differ(amend.qty, amend.price, amend.stop_price):
                return Ambiguous("CONFLICT", "it was carried out with other amounts")
            return Accepted(known.venue_order_id, already_processed=True)
        if not known.is_open:
            return VenueRejected("ORDER_FINAL")
        if amend.orig_client_order_id != (known.amended_by or client_id):
            return VenueRejected("CONFLICT", "STALE_AMEND")
        reason = amend_rejection(known, amend.qty, amend.price, amend.stop_price, instrument, quote)
        if reason is not None:
            return VenueRejected("BROKER_REJECTED", reason)
        self._advance(
            amended(
                known,
                amend.qty,
                amend.price,
                quote,
                self._now,
                self._rules,
                stop_price=amend.stop_price,
                amend_id=amend.client_order_id,
                displayed=self._displayed,
            )
        )
        return Accepted(known.venue_order_id)

    def advance_time(self, due: Iterable[PaperOrder], reached: Iterable[tuple[PaperOrder, Quote]]) -> None:
        """Make the reports that are due, trigger stop orders, and fill the resting orders that became marketable."""
        for order in due:
            self._advance(order)
        for order, quote in reached:
            if order.client_id not in self.changed:
                self._face(order, quote)

    def _find(self, client_id: VenueClientOrderId) -> PaperOrder | None:
        return self.changed.get(client_id) or self._book.find(client_id) or self._known.get(client_id)

    def _face(self, order: PaperOrder, quote: Quote) -> None:
        """Let a resting order meet a quote that reaches its price."""
        if order.expires_at is not None and order.expires_at <= self._now:
            pass  # its session is over, however many orders expire before it
        elif order.is_waiting:
            order, report = triggered(order, quote, self._now, self._rules, self._displayed)
            self.reports.append(report)
        else:
            live = matched(order, quote, self._now, self._rules, self._displayed)
            if live is order:  # nothing is displayed for it any more
                return
            order = live
        self._advance(order)

    def _advance(self, order: PaperOrder) -> None:
        self.changed[order.client_id], reports = advanced(order, self._now, self._rules)
        self.reports += reports
