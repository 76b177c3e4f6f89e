"""An order as the simulator holds it, and its forms on the wire and in the log."""

from datetime import datetime

import msgspec
from msgspec.structs import replace

from switchyard.adapters.venues.paper.matching import PaperOrder
from switchyard.adapters.venues.simulator.log import Entry
from switchyard.adapters.venues.wire import BROKER_STATUS, Fill, OrderResponse, PlaceOrder, Report
from switchyard.domain.ids import AccountId, OrderId, VenueClientOrderId, VenueName
from switchyard.domain.money import ZERO
from switchyard.domain.orders import Order
from switchyard.domain.reports import ExecutionReport
from switchyard.ports.venue import VenueFill


class HeldOrder(msgspec.Struct):
    """An order that was taken on.

    The matching knows it by the venue's own id: where client order ids are not recognised, one of them may name
    several orders.
    """

    client_order_id: str
    accepted_at: datetime
    state: PaperOrder


def as_order(message: PlaceOrder, venue_order_id: str, now: datetime) -> Order:
    """The order as the matching reads it; what the matching does not look at is made up."""
    return Order(
        order_id=OrderId(venue_order_id),
        account_id=AccountId("-"),
        client_order_id=message.client_order_id,
        venue_client_order_id=VenueClientOrderId(venue_order_id),
        symbol=message.symbol,
        side=message.intent,
        type=message.type,
        time_in_force=message.time_in_force,
        qty=message.qty,
        price=message.limit_price,
        stop_price=message.stop_price,
        status="SENDING",
        filled_qty=ZERO,
        filled_notional=ZERO,
        venue=VenueName("-"),
        venue_order_id=venue_order_id,
        reason=None,
        strategy=None,
        tags=(),
        accepted_at=now,
        updated_at=now,
        version=1,
    )


def is_same(held: HeldOrder, message: PlaceOrder) -> bool:
    """Whether a repeated client order id asks for what it asked for the first time."""
    state = held.state
    asked = (message.symbol, message.intent, message.qty, message.limit_price, message.time_in_force)
    return asked == (state.symbol, state.side, state.qty, state.limit_price, state.time_in_force)


def as_answer(held: HeldOrder) -> OrderResponse:
    """The order as the broker shows it."""
    state = held.state
    return OrderResponse(
        broker_order_id=state.venue_order_id,
        accepted_at=held.accepted_at,
        status=BROKER_STATUS[state.status],
        idempotency_key=held.client_order_id,
        client_order_id=held.client_order_id,
        symbol=state.symbol,
        intent=state.side,
        qty=state.qty,
        filled_qty=state.filled_qty,
        fills=tuple(Fill(exec_id=fill.exec_id, qty=fill.qty, price=fill.price, at=fill.at) for fill in state.fills),
    )


def order_entry(held: HeldOrder, message: PlaceOrder) -> Entry:
    """The line of an order that is taken on."""
    state = held.state
    return Entry(
        event="order",
        client_order_id=held.client_order_id,
        venue_order_id=state.venue_order_id,
        exec_id=None,
        qty=state.qty,
        price=state.limit_price,
        at=held.accepted_at,
        type=message.type,
        trace_id=message.trace_id,
        order=state,
    )


def execution_entry(held: HeldOrder, report: ExecutionReport) -> Entry:
    """The line of a fill, a cancel or an expiry."""
    return Entry(
        event="fill" if report.last_qty else "cancel" if report.status == "CANCELED" else "expire",
        client_order_id=held.client_order_id,
        venue_order_id=report.venue_order_id,
        exec_id=report.exec_id,
        qty=report.last_qty,
        price=report.last_price,
        at=report.at,
        status=report.status,
        filled_qty=report.filled_qty_total,
        reason=report.reason,
    )


def amend_entry(held: HeldOrder, now: datetime) -> Entry:
    """The line of an order that was changed."""
    state = held.state
    return Entry(
        event="amend",
        client_order_id=held.client_order_id,
        venue_order_id=state.venue_order_id,
        exec_id=None,
        qty=state.qty,
        price=state.limit_price,
        at=now,
        order=state,
    )


def report_of(entry: Entry) -> Report:
    """What is told of an execution."""
    assert entry.exec_id is not None and entry.status is not None and entry.filled_qty is not None
    return Report(
        exec_id=entry.exec_id,
        client_order_id=entry.client_order_id,
        broker_order_id=entry.venue_order_id,
        status=BROKER_STATUS[entry.status],
        at=entry.at,
        last_qty=entry.qty,
        last_price=entry.price,
        filled_qty=entry.filled_qty,
        reason=entry.reason,
    )


def state_after(state: PaperOrder, entry: Entry) -> PaperOrder:
    """The matching's state after an execution that the log tells of."""
    assert entry.status is not None and entry.filled_qty is not None
    fills = state.fills
    if entry.qty:
        assert entry.exec_id is not None and entry.price is not None
        fills += (VenueFill(exec_id=entry.exec_id, qty=entry.qty, price=entry.price, at=entry.at),)
    after = replace(
        state,
        fills=fills,
        status=entry.status,
        filled_qty=entry.filled_qty,
        fills_left=state.fills_left - 1 if entry.qty else state.fills_left,
        report_count=state.report_count + 1,
    )
    return after if after.is_open else replace(after, due_at=None)
