"""The simulator's order type, and its conversions to wire messages and log entries."""

from datetime import datetime
from typing import Literal

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from switchyard.adapters.venues.paper.matching import PaperOrder
from switchyard.adapters.venues.simulator.log import Entry
from switchyard.adapters.venues.wire import BROKER_STATUS, Fill, OrderResponse, PlaceOrder, Report
from switchyard.domain.ids import AccountId, OrderId, VenueClientOrderId, VenueName
from switchyard.domain.orders.order import RESTING, Order
from switchyard.domain.orders.reports import ExecutionReport, revises_execution
from switchyard.domain.values import EXACT, ZERO
from switchyard.ports.venue import VenueFill


class BrokerOrder(msgspec.Struct):
    """An order that the simulator accepted.

    The matching code identifies it by the venue order id: without deduplication, several orders may share one client
    order id.
    """

    client_order_id: str
    accepted_at: datetime
    state: PaperOrder
    amended_at: datetime | None = None
    replaced_by: str | None = None
    """The client order id of the order that an amend has put in the place of this one."""
    account: str | None = None
    """As the order named it."""


def matching_order(message: PlaceOrder, venue_order_id: str, now: datetime) -> Order:
    """The order for the matching code; fields that it does not read have placeholder values."""
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
        expires_at=None if message.good_till is UNSET else message.good_till,
        post_only=message.post_only is True,
        display_qty=None if message.display_qty is UNSET else message.display_qty,
    )


def is_same_order(order: BrokerOrder, message: PlaceOrder) -> bool:
    """Whether a request with a known client order id has the same terms as the first one."""
    state = order.state
    prices = (message.limit_price, message.stop_price)
    requested = (message.symbol, message.intent, message.qty, *prices, message.time_in_force, message.post_only is True)
    terms = (state.symbol, state.side, state.qty, state.limit_price, state.stop_price, state.time_in_force)
    return requested == (*terms, state.post_only)


def order_response(order: BrokerOrder) -> OrderResponse:
    """The wire message that shows an order."""
    state = order.state
    return OrderResponse(
        broker_order_id=state.venue_order_id,
        accepted_at=order.accepted_at,
        status=BROKER_STATUS[state.status],
        idempotency_key=order.client_order_id,
        client_order_id=order.client_order_id,
        symbol=state.symbol,
        intent=state.side,
        qty=state.qty,
        limit_price=state.limit_price,
        stop_price=state.stop_price,
        filled_qty=state.filled_qty,
        fills=tuple(
            Fill(
                exec_id=fill.exec_id,
                qty=fill.qty,
                price=fill.price,
                at=fill.at,
                fee=fill.fee,
                fee_currency=fill.fee_currency,
            )
            for fill in state.fills
        ),
        amended_by=state.amended_by,
        replaced_by=order.replaced_by,
    )


def order_entry(order: BrokerOrder, message: PlaceOrder) -> Entry:
    """The log entry of an accepted order."""
    state = order.state
    return Entry(
        event="order",
        client_order_id=order.client_order_id,
        venue_order_id=state.venue_order_id,
        exec_id=None,
        qty=state.qty,
        price=state.limit_price,
        at=order.accepted_at,
        type=message.type,
        trace_id=message.trace_id,
        account=None if message.account is UNSET else message.account,
        order=state,
    )


def execution_entry(order: BrokerOrder, report: ExecutionReport) -> Entry:
    """The log entry of a fill, a revision of one, a trigger, a cancel or an expiry."""
    event = _event(report)
    return Entry(
        event=event,
        client_order_id=order.client_order_id,
        venue_order_id=report.venue_order_id,
        exec_id=report.exec_id,
        qty=report.last_qty,
        price=report.last_price,
        at=report.at,
        status=report.status,
        filled_qty=report.filled_qty_total,
        reason=report.reason,
        fee=report.fee,
        fee_currency=report.fee_currency,
        exec_type=report.exec_type,
        ref_exec_id=report.ref_exec_id,
        order=order.state if event == "trigger" else None,
    )


def _event(report: ExecutionReport) -> Literal["fill", "cancel", "expire", "revise", "trigger"]:
    if revises_execution(report):
        return "revise"
    if report.exec_type == "TRIGGERED":
        return "trigger"
    if report.last_qty:
        return "fill"
    return "cancel" if report.status == "CANCELED" else "expire"


def amend_entry(order: BrokerOrder, now: datetime, replaced: BrokerOrder | None = None) -> Entry:
    """The log entry of an amended order, or of the order that an amend has put in the place of another one."""
    state = order.state
    return Entry(
        event="amend",
        amend_id=state.amended_by,
        replaces=None if replaced is None else replaced.state.venue_order_id,
        client_order_id=order.client_order_id,
        venue_order_id=state.venue_order_id,
        exec_id=None,
        qty=state.qty,
        price=state.limit_price,
        at=now,
        order=state,
    )


def repeat_entry(order: BrokerOrder, now: datetime) -> Entry:
    """The log entry of an amend that was carried out before; a restart needs nothing of it."""
    return replace(amend_entry(order, now), event="repeat", order=None)


def report_of(entry: Entry) -> Report:
    """The report of a fill, revision, trigger, cancel or expiry entry."""
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
        fee=entry.fee,
        fee_currency=entry.fee_currency,
        exec_type=entry.exec_type,
        ref_exec_id=entry.ref_exec_id,
    )


def state_after(state: PaperOrder, entry: Entry) -> PaperOrder:
    """The order state after an execution entry, for a restart."""
    assert entry.status is not None and entry.filled_qty is not None
    fills = state.fills
    if entry.qty:
        assert entry.exec_id is not None and entry.price is not None
        fills += (
            VenueFill(
                exec_id=entry.exec_id,
                qty=entry.qty,
                price=entry.price,
                at=entry.at,
                fee=entry.fee,
                fee_currency=entry.fee_currency,
            ),
        )
    after = replace(
        state,
        fills=fills,
        status=entry.status,
        filled_qty=entry.filled_qty,
        fills_left=max(state.fills_left - 1, 0) if entry.qty else state.fills_left,
        match_qty=None if state.match_qty is None else EXACT.subtract(state.match_qty, entry.qty),
        report_count=state.report_count + 1,
    )
    if not after.is_open:
        return replace(after, due_at=None, match_qty=None)
    if after.fills_left:
        return after
    # All that was matched is filled: the rest of an IOC order expires, any other order rests.
    rests = after.time_in_force in RESTING
    return replace(after, fill_price=None, match_qty=None, due_at=None if rests else after.due_at)
