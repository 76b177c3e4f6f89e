"""A venue without a market, and quotes with one fixed price, for benchmarks of the rest of the flow."""

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Literal

import msgspec

from switchyard.adapters.venues.paper.book import RecentReports, number_of
from switchyard.domain.ids import VenueClientOrderId, VenueName, ulid
from switchyard.domain.journal.facts import Quote
from switchyard.domain.orders.amends import Amend
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.domain.values import ONE, ZERO
from switchyard.ports.clock import Clock
from switchyard.ports.quotes import TimedQuote
from switchyard.ports.venue import (
    Accepted,
    Capabilities,
    OnDeparture,
    OrderToFind,
    ProbeResult,
    ReportPage,
    SendOutcome,
    VenueFill,
    VenueOrder,
    VenueRejected,
    ignore_departure,
)


class FixedQuotes:
    """ports.quotes.QuoteSource that quotes the same price for every symbol."""

    def __init__(self, clock: Clock, price: Decimal = ONE) -> None:
        self._clock = clock
        self._price = price

    def current(self, symbol: str) -> TimedQuote:
        """Return the price as bid and ask, of this moment."""
        return TimedQuote(Quote(bid=self._price, ask=self._price, at=self._clock.now()), self._clock.monotonic())

    async def ask(self, symbol: str) -> TimedQuote:
        """Return the same."""
        return self.current(symbol)


# Large enough that a sender's page is one call.
BATCH_MAX = 256
# About 100 MB when full; a reader that is further behind loses reports.
KEPT_MAX = 100_000
NULL = VenueName("null")
CAPABILITIES = Capabilities(
    dedupe="permanent", lookup="all", acceptance_window=timedelta(), batch_max=BATCH_MAX, amend="in_place"
)


class NullVenue:
    """ports.venue.Venue that accepts every order and fills it at once, or with `fills=False` keeps it open.

    The fill price is the order's limit, or `price` for a market order. The venue keeps the last `kept_max` orders and
    reports; among those it recognises repeated client order ids, and the reports have no gap.
    """

    def __init__(
        self,
        name: VenueName = NULL,
        *,
        clock: Clock,
        price: Decimal = ONE,
        fills: bool = True,
        kept_max: int = KEPT_MAX,
    ) -> None:
        self._name = name
        # Nothing is stored across restarts, so the start time makes execution ids unique.
        self._prefix = f"{name}-{ulid(int(clock.now().timestamp() * 1000), 0)[:10]}"
        self._clock = clock
        self._price = price
        self._fills = fills
        self._kept_max = kept_max
        self._orders: dict[VenueClientOrderId, VenueOrder] = {}
        self._amends: dict[VenueClientOrderId, VenueClientOrderId] = {}
        """The last amend of each order that has one."""
        self._amended: dict[VenueClientOrderId, VenueClientOrderId] = {}
        """The order of each amend."""
        self._recent = RecentReports(kept_max)
        self._order_count = 0
        self._report_count = 0

    @property
    def name(self) -> VenueName:
        """The name in routes and settings."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """Permanent deduplication and full lookup, which hold for the last `kept_max` orders."""
        return CAPABILITIES

    async def submit(self, order: Order, on_departure: OnDeparture = ignore_departure) -> SendOutcome:
        """Accept the order; a repeated client order id returns the same venue order id."""
        [outcome] = await self.submit_many([order], on_departure)
        return outcome

    async def submit_many(
        self, orders: Sequence[Order], on_departure: OnDeparture = ignore_departure
    ) -> list[SendOutcome]:
        """Accept the orders and publish their reports together."""
        on_departure()
        reports: list[ExecutionReport] = []
        outcomes: list[SendOutcome] = [self._accept(order, reports) for order in orders]
        self._publish(reports)
        return outcomes

    async def cancel(self, order: Order) -> SendOutcome:
        """Cancel an open order; a repeated cancel is accepted again."""
        known = self._orders.get(order.venue_client_order_id)
        if known is None:
            return VenueRejected("UNKNOWN_ORDER")
        if known.status == "FILLED":
            return VenueRejected("ORDER_FINAL")
        if known.status == "WORKING":
            self._orders[order.venue_client_order_id] = msgspec.structs.replace(known, status="CANCELED")
            self._publish([self._report(known, "CANCELED")])
        return Accepted(known.venue_order_id)

    async def amend(self, order: Order, amend: Amend) -> SendOutcome:
        """Amend an open order."""
        client_id = order.venue_client_order_id
        known = self._orders.get(client_id)
        if known is None:
            return VenueRejected("UNKNOWN_ORDER")
        last = self._amends.get(client_id, client_id)
        if last == amend.client_order_id:
            return Accepted(known.venue_order_id, already_processed=True)
        if known.status != "WORKING":
            return VenueRejected("ORDER_FINAL")
        if last != amend.orig_client_order_id:
            return VenueRejected("CONFLICT", "STALE_AMEND")
        self._amends[client_id] = amend.client_order_id
        self._amended[amend.client_order_id] = client_id
        return Accepted(known.venue_order_id)

    async def find(self, order: OrderToFind) -> VenueOrder | None:
        """Return the order if it is among the last `kept_max`."""
        return self._orders.get(self._amended.get(order.client_order_id, order.client_order_id))

    async def open_orders(self) -> AsyncIterator[Sequence[VenueOrder]]:
        """Yield the orders that are neither filled nor cancelled, in one page."""
        yield [order for order in self._orders.values() if order.status == "WORKING"]

    async def reports(self, after: str | None, limit: int) -> ReportPage:
        """Return the next reports; a reader that is too far behind continues at the oldest report kept."""
        last = number_of(after)
        await self._recent.wait(last)
        page = self._recent.page(last, limit) or self._recent.page(self._report_count - self._kept_max, limit)
        assert page is not None
        return page

    async def probe(self) -> ProbeResult:
        """The venue runs in this process."""
        return "answered"

    def _accept(self, order: Order, reports: list[ExecutionReport]) -> Accepted:
        known = self._orders.get(order.venue_client_order_id)
        if known is not None:
            return Accepted(known.venue_order_id)
        self._order_count += 1
        venue_order_id = f"{self._prefix}-{self._order_count}"
        if len(self._orders) >= self._kept_max:
            self._forget(next(iter(self._orders)))
        accepted = VenueOrder(
            venue_client_order_id=order.venue_client_order_id,
            venue_order_id=venue_order_id,
            status="WORKING",
            filled_qty=ZERO,
        )
        if self._fills:
            price = self._price if order.price is None else order.price
            report = self._report(accepted, "FILLED", order.qty, price)
            reports.append(report)
            fill = VenueFill(exec_id=report.exec_id, qty=order.qty, price=price, at=report.at)
            accepted = msgspec.structs.replace(accepted, status="FILLED", filled_qty=order.qty, fills=(fill,))
        self._orders[order.venue_client_order_id] = accepted
        return Accepted(venue_order_id, reports=tuple(reports[-1:]) if self._fills else ())

    def _forget(self, client_id: VenueClientOrderId) -> None:
        del self._orders[client_id]
        if self._amends.pop(client_id, None) is not None:
            self._amended = {amend: order for amend, order in self._amended.items() if order != client_id}

    def _report(
        self,
        order: VenueOrder,
        status: Literal["FILLED", "CANCELED"],
        qty: Decimal = ZERO,
        price: Decimal | None = None,
    ) -> ExecutionReport:
        return ExecutionReport(
            exec_id=f"{order.venue_order_id}-1",
            venue=self._name,
            venue_client_order_id=order.venue_client_order_id,
            venue_order_id=order.venue_order_id,
            status=status,
            last_qty=qty,
            last_price=price,
            filled_qty_total=qty,
            at=self._clock.now(),
        )

    def _publish(self, reports: Sequence[ExecutionReport]) -> None:
        self._report_count += len(reports)
        self._recent.publish(reports, self._report_count)
