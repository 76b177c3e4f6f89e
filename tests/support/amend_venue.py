"""A venue with a market, which amends orders in place or by replacing them; for the fuzz of amends."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec

from switchyard.domain.ids import VenueClientOrderId, VenueName
from switchyard.domain.orders.amends import Amend, current_id
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.reports import ExecutionReport, ReportStatus
from switchyard.domain.values import ZERO
from switchyard.ports.venue import (
    Accepted,
    Ambiguous,
    Capabilities,
    OrderToFind,
    SendOutcome,
    Unsent,
    VenueFill,
    VenueOrder,
    VenueRejected,
)
from tests.support.sending_faults import FaultyVenue, VenueOfWorker

# Within the acceptance window that the venue declares.
LATE_SECONDS = 0.8


class Leg(msgspec.Struct):
    """An order as the venue has it."""

    root: VenueClientOrderId
    client_id: VenueClientOrderId
    venue_order_id: str
    qty: Decimal
    price: Decimal | None
    filled: Decimal = ZERO
    status: ReportStatus = "WORKING"
    last_id: VenueClientOrderId | None = None
    replaced_by: VenueClientOrderId | None = None
    fills: list[VenueFill] = []

    @property
    def is_open(self) -> bool:
        return self.status in ("WORKING", "PARTIALLY_FILLED")


class AmendingVenue(FaultyVenue):
    """Orders rest until the market fills them, in parts."""

    def __init__(self, name: VenueName, capabilities: Capabilities, detects_departure: bool) -> None:
        super().__init__(name, capabilities, detects_departure)
        self.legs: dict[VenueClientOrderId, Leg] = {}
        """By client order id; an order that was amended in place also by the ids of its amends."""
        self.newest: dict[VenueClientOrderId, Leg] = {}
        """The leg of each order that is there now."""
        self.amends: Counter[VenueClientOrderId] = Counter()
        self.on_change: Callable[[Leg], None] = lambda leg: None

    def execute(self, order: Order, now: datetime, random: random.Random) -> bool:
        client_id = order.venue_client_order_id
        if client_id in self.executed and self.capabilities.dedupe in ("permanent", "ttl"):
            return False
        self.executed[client_id] = self.executed.get(client_id, 0) + 1
        self.orders[client_id] = order
        leg = Leg(client_id, client_id, f"v-{client_id}", order.qty, order.price, last_id=client_id, fills=[])
        self.legs[client_id] = self.newest[client_id] = leg
        if order.time_in_force == "IOC":
            self.fill(leg, leg.qty, now)
        return True

    def trade(self, chance: random.Random, now: datetime) -> None:
        """Fill a part of some open order, or all of it."""
        resting = [leg for leg in self.newest.values() if leg.is_open]
        if resting:
            leg = chance.choice(resting)
            rest = leg.qty - leg.filled
            self.fill(leg, rest if chance.random() < 0.3 else max(Decimal(1), rest // 3), now)
        if len(self.reports) > 1 and chance.random() < 0.1:
            self.reports.append(chance.choice(self.reports))  # comes again

    def fill(self, leg: Leg, qty: Decimal, now: datetime) -> None:
        leg.filled += qty
        leg.status = "FILLED" if leg.filled >= leg.qty else "PARTIALLY_FILLED"
        report = self._report(leg, now, qty)
        leg.fills.append(VenueFill(exec_id=report.exec_id, qty=qty, price=report.last_price or ZERO, at=now))

    def cancel(self, client_id: VenueClientOrderId, now: datetime) -> SendOutcome:
        leg = self.legs.get(client_id)
        if leg is None:
            return VenueRejected("UNKNOWN_ORDER")
        if leg.replaced_by is not None:
            return Unsent("REPLACED", bytes_sent=True)
        if leg.is_open:
            leg.status = "CANCELED"
            self._report(leg, now)
        return Accepted(leg.venue_order_id) if leg.status == "CANCELED" else VenueRejected("ORDER_FINAL")

    def amend(self, amend: Amend, now: datetime) -> SendOutcome:
        """Carry an amend out, unless it was before."""
        done = self.legs.get(amend.client_order_id)
        if done is not None:
            return Accepted(done.venue_order_id, already_processed=True)
        leg = self.legs.get(amend.orig_client_order_id)
        if leg is None:
            return VenueRejected("UNKNOWN_ORDER")
        if not leg.is_open:
            return VenueRejected("ORDER_FINAL")
        if leg.last_id != amend.orig_client_order_id:
            return VenueRejected("CONFLICT", "STALE_AMEND")
        if amend.qty <= leg.filled:
            return VenueRejected("BAD_REQUEST", "QTY_FILLED")
        self.amends[amend.client_order_id] += 1
        if self.capabilities.amend == "cancel_replace":
            leg.replaced_by = amend.client_order_id
            leg.status = "CANCELED"
            self._report(leg, now)
            leg = Leg(leg.root, amend.client_order_id, f"v-{amend.client_order_id}", leg.qty, leg.price, leg.filled)
            leg.status = "PARTIALLY_FILLED" if leg.filled else "WORKING"
            leg.fills = list(self.newest[leg.root].fills)
            self.newest[leg.root] = leg
        leg.qty, leg.price, leg.last_id = amend.qty, amend.price, amend.client_order_id
        self.legs[amend.client_order_id] = leg
        self.on_change(leg)
        return Accepted(leg.venue_order_id)

    def _report(self, leg: Leg, now: datetime, qty: Decimal = ZERO) -> ExecutionReport:
        report = ExecutionReport(
            exec_id=f"exec-{len(self.reports)}-{leg.client_id}",
            venue=self.name,
            venue_client_order_id=leg.client_id,
            venue_order_id=leg.venue_order_id,
            status=leg.status,
            last_qty=qty,
            last_price=leg.price if qty else None,
            filled_qty_total=leg.filled,
            at=now,
        )
        self.reports.append(report)
        return report


class AmendingAdapter(VenueOfWorker):
    """One worker's adapter of it; answers are lost, and requests arrive late."""

    _venue: Any

    async def cancel(self, order: Order) -> SendOutcome:
        return await self._sent(lambda: self._venue.cancel(current_id(order), self._now()))

    async def amend(self, order: Order, amend: Amend) -> SendOutcome:
        return await self._sent(lambda: self._venue.amend(amend, self._now()))

    async def _sent(self, request: Callable[[], SendOutcome]) -> SendOutcome:
        site, plan = self._site, self._site.plan
        await site.passes()
        if site.happens(plan.refused):
            return Unsent("BROKER_DOWN")
        if site.happens(plan.limited):
            return Unsent("RATE_LIMITED", bytes_sent=True)
        if site.happens(plan.ambiguous):
            fate = site.random.random()
            if fate < 0.4:
                asyncio.get_running_loop().call_later(site.random.uniform(0, LATE_SECONDS), request)
            elif fate < 0.7:
                request()
            return Ambiguous("NETWORK_TIMEOUT")
        outcome = request()
        await site.passes(0.02)
        return outcome

    async def find(self, order: OrderToFind) -> VenueOrder | None:
        await self._site.passes()
        leg = self._venue.legs.get(order.client_order_id)
        while leg is not None and leg.replaced_by is not None:
            leg = self._venue.legs.get(leg.replaced_by)
        if leg is None:
            return None
        return VenueOrder(
            venue_client_order_id=leg.client_id,
            venue_order_id=leg.venue_order_id,
            status=leg.status,
            filled_qty=leg.filled,
            fills=tuple(leg.fills),
        )
