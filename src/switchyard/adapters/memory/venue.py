"""A venue without a market, for tests and benchmarks of everything around it."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Literal

import msgspec

from switchyard.adapters.venues.paper.recent import RecentReports
from switchyard.domain.events import Quote
from switchyard.domain.ids import VenueClientOrderId, VenueName, ulid
from switchyard.domain.money import ONE, ZERO
from switchyard.domain.orders import Order
from switchyard.domain.reports import ExecutionReport
from switchyard.ports.clock import Clock
from switchyard.ports.venue import (
    Accepted,
    Capabilities,
    OnDeparture,
    ReportPage,
    SendOutcome,
    VenueFill,
    VenueOrder,
    VenueRejected,
    ignore_departure,
)

# Some 100 MB when full; a reader further behind than this has lost reports.
KEPT_MAX = 100_000
NULL = VenueName("null")


class NullVenue:
    """Accepts everything and fills it at once (at its limit, or at one fixed price), or lets it rest until a cancel.

    It keeps the newest `kept_max` orders and reports in memory and forgets the others, so within that window a
    repeated client order id is recognised and the reports have no gap.
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
        # Execution ids must not repeat over restarts, and this venue remembers nothing over one.
        self._prefix = f"{name}-{ulid(int(clock.now().timestamp() * 1000), 0)[:10]}"
        self._clock = clock
        self._price = price
        self._fills = fills
        self._kept_max = kept_max
        self._orders: dict[VenueClientOrderId, VenueOrder] = {}
        self._recent = RecentReports(kept_max)
        self._order_count = 0
        self._report_count = 0

    @property
    def name(self) -> VenueName:
        """What the router and the settings call it."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """Those of a venue that remembers: the window outlasts every test."""
        return Capabilities(dedupe="forever", lookup="all")

    async def submit(self, order: Order, on_departure: OnDeparture = ignore_departure) -> SendOutcome:
        """Take the order, once."""
        known = self._orders.get(order.venue_client_order_id)
        if known is not None:
            return Accepted(known.venue_order_id)
        self._order_count += 1
        venue_order_id = f"{self._prefix}-{self._order_count}"
        if len(self._orders) >= self._kept_max:
            del self._orders[next(iter(self._orders))]
        taken = VenueOrder(
            venue_client_order_id=order.venue_client_order_id,
            venue_order_id=venue_order_id,
            status="WORKING",
            filled_qty=ZERO,
        )
        if self._fills:
            price = self._price if order.price is None else order.price
            report = self._report(taken, "FILLED", order.qty, price)
            fill = VenueFill(exec_id=report.exec_id, qty=order.qty, price=price, at=report.at)
            taken = msgspec.structs.replace(taken, status="FILLED", filled_qty=order.qty, fills=(fill,))
        self._orders[order.venue_client_order_id] = taken
        return Accepted(venue_order_id)

    async def cancel(self, order: Order) -> SendOutcome:
        """Drop an order that rests; a repeated cancel is harmless."""
        known = self._orders.get(order.venue_client_order_id)
        if known is None:
            return VenueRejected("UNKNOWN_ORDER")
        if known.status == "FILLED":
            return VenueRejected("ORDER_FINAL")
        if known.status == "WORKING":
            self._orders[order.venue_client_order_id] = msgspec.structs.replace(known, status="CANCELED")
            self._report(known, "CANCELED")
        return Accepted(known.venue_order_id)

    async def find_by_client_order_id(self, client_id: VenueClientOrderId) -> VenueOrder | None:
        """The order, if it is still remembered."""
        return self._orders.get(client_id)

    async def open_orders(self) -> Sequence[VenueOrder]:
        """Those that rest."""
        return [order for order in self._orders.values() if order.status == "WORKING"]

    async def reports(self, after: int, limit: int) -> ReportPage:
        """The next reports; a reader that fell out of the window continues at its beginning."""
        await self._recent.wait(after)
        page = self._recent.page(after, limit) or self._recent.page(self._report_count - self._kept_max, limit)
        assert page is not None
        return page

    def quote(self, symbol: str) -> Quote | None:
        """The fixed price, without a spread."""
        return Quote(bid=self._price, ask=self._price)

    async def ask_quote(self, symbol: str) -> Quote | None:
        """The market right now, or none where the venue has none; raises VenueUnavailable."""
        return self.quote(symbol)

    def _report(
        self,
        order: VenueOrder,
        status: Literal["FILLED", "CANCELED"],
        qty: Decimal = ZERO,
        price: Decimal | None = None,
    ) -> ExecutionReport:
        self._report_count += 1
        report = ExecutionReport(
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
        self._recent.publish([report], self._report_count)
        return report
