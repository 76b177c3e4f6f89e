"""Orders to send to a venue, and a reader of its reports with a deadline."""

import asyncio
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
from msgspec.structs import replace

from switchyard.domain.ids import AccountId, OrderId, VenueClientOrderId, VenueName
from switchyard.domain.orders.order import Order, OrderType, Side, TimeInForce
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.domain.values import ZERO
from switchyard.ports.venue import Accepted, Ambiguous, OrderToFind, SendOutcome, Venue, VenueOrder
from tests.support.polling import DEADLINE_SECONDS

MOMENT = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)


def an_order(
    client_id: str,
    *,
    symbol: str = "USDJPY",
    side: Side = "BUY",
    order_type: OrderType | None = None,
    time_in_force: TimeInForce | None = None,
    qty: str = "1000",
    price: str | Decimal | None = None,
    stop: str | Decimal | None = None,
    accepted_at: datetime = MOMENT,
    **wishes: Any,
) -> Order:
    """A LIMIT GTC order if it has a price, else a MARKET IOC order; `wishes` are fields that only some orders have."""
    return Order(
        order_id=OrderId(f"ord_{client_id}"),
        account_id=AccountId("acct"),
        client_order_id=None,
        venue_client_order_id=VenueClientOrderId(client_id),
        symbol=symbol,
        side=side,
        type=order_type or ("MARKET" if price is None else "LIMIT"),
        time_in_force=time_in_force or ("IOC" if price is None else "GTC"),
        qty=Decimal(qty),
        price=None if price is None else Decimal(price),
        stop_price=None if stop is None else Decimal(stop),
        status="SENDING",
        filled_qty=ZERO,
        filled_notional=ZERO,
        venue=VenueName("sim"),
        venue_order_id=None,
        reason=None,
        strategy=None,
        tags=(),
        accepted_at=accepted_at,
        updated_at=MOMENT,
        version=1,
        **wishes,
    )


def unlocated(outcome: SendOutcome) -> SendOutcome:
    """The outcome without the address that an order in doubt went to, which differs from run to run."""
    return msgspec.structs.replace(outcome, address=None) if isinstance(outcome, Ambiguous) else outcome


async def open_orders(venue: Venue) -> list[VenueOrder]:
    """All pages of the venue's open orders."""
    return [order async for page in venue.open_orders() for order in page]


def bare(outcome: SendOutcome) -> SendOutcome:
    """The outcome without the reports and the time that came with it: not every answer has them."""
    return replace(outcome, reports=(), accepted_at=None) if isinstance(outcome, Accepted) else outcome


def by_id(client_id: str) -> OrderToFind:
    """An order of which nothing but its client order id is known."""
    return OrderToFind(client_order_id=VenueClientOrderId(client_id))


async def read_reports(
    venue: Venue, count: int, *, after: str | None = None, limit: int = 100
) -> list[ExecutionReport]:
    """Read pages until at least `count` reports have arrived; fails at the deadline."""
    reports: list[ExecutionReport] = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        while len(reports) < count:
            page = await venue.reports(after, limit)
            reports += page.reports
            after = page.cursor
    return reports
