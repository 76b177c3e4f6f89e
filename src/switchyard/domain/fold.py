"""Folds the events of an order: the order after each of them, and the report that clients see.

Pure. Streams fold the few events of an order; `replay.py` folds the whole journal and checks every step.
"""

from datetime import datetime
from decimal import Decimal
from typing import Any

from msgspec.structs import replace

from switchyard.domain.amends import payload_of
from switchyard.domain.facts import AcceptedFact, OrderChange, OutboxFact, RejectedFact, ReportFact, TermsFact
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.money import EXACT, ZERO, canonical
from switchyard.domain.orders import Order
from switchyard.domain.outbox import OutboxRow, queued_row
from switchyard.domain.reasons import described
from switchyard.domain.reports import OrderReport


def accepted(account: AccountId, order_id: OrderId, fact: AcceptedFact) -> Order:
    """The order of an `OrderAccepted` or a `RiskRejected`."""
    shown, key = fact.order, fact.idempotency
    reason = described(fact.reason, fact.detail) if isinstance(fact, RejectedFact) else None
    return Order(
        order_id=order_id,
        account_id=account,
        client_order_id=shown.client_order_id,
        venue_client_order_id=fact.venue_client_order_id,
        symbol=shown.symbol,
        side=shown.side,
        type=shown.type,
        time_in_force=shown.time_in_force,
        qty=shown.qty,
        price=shown.price,
        stop_price=shown.stop_price,
        status="ACCEPTED" if reason is None else "REJECTED",
        filled_qty=ZERO,
        filled_notional=ZERO,
        venue=shown.venue,
        venue_order_id=None,
        reason=reason,
        strategy=shown.strategy,
        tags=shown.tags,
        accepted_at=shown.accepted_at,
        updated_at=shown.accepted_at,
        version=1,
        trace_id=shown.trace_id,
        requested_at=shown.requested_at,
        operation=None if key is None else key.operation,
        idempotency_key=None if key is None else key.key,
        currency=shown.currency,
        multiplier=shown.multiplier,
        reserve_price=shown.price if shown.reserve_price is None else shown.reserve_price,
        reducing=shown.reducing,
        expires_at=shown.expires_at,
        reduce_only=shown.reduce_only,
    )


def changed(order: Order, change: OrderChange, report: ReportFact | None) -> Order:
    """The order after a later event; `report` is the one whose effect the event shows."""
    filled, notional = (order.filled_qty, order.filled_notional) if report is None else with_fill(order, report)
    return replace(
        order,
        status=change.status,
        filled_qty=filled,
        filled_notional=notional,
        venue=order.venue if change.venue is None else change.venue,
        venue_order_id=order.venue_order_id if change.venue_order_id is None else change.venue_order_id,
        reason=order.reason if change.reason is None else change.reason,
        updated_at=order.updated_at if change.updated_at is None else change.updated_at,
        version=change.version,
        **({} if change.terms is None else amended_terms(change.terms)),
    )


def amended_terms(terms: TermsFact) -> dict[str, Any]:
    """The fields of an order that an amend may change."""
    return {
        "qty": terms.qty,
        "price": terms.price,
        "stop_price": terms.stop_price,
        "reserve_price": terms.price if terms.reserve_price is None else terms.reserve_price,
        "reducing": terms.reducing,
        "amend_qty": terms.amend_qty,
        "amend_reserve_price": terms.amend_reserve_price,
        "leg_client_order_id": terms.leg_client_order_id,
        "leg_end": terms.leg_end,
    }


def with_fill(order: Order, report: ReportFact) -> tuple[Decimal, Decimal]:
    """The order's filled quantity and notional after a report."""
    filled, notional = canonical(EXACT.add(order.filled_qty, report.last_qty)), order.filled_notional
    if report.last_price is not None:
        notional = canonical(EXACT.add(notional, EXACT.multiply(report.last_qty, report.last_price)))
    return filled, notional


def venue_order_id(order: Order, report: ReportFact) -> str | None:
    """The venue's id of the order, according to the report; `order` is the order before the report."""
    return order.venue_order_id if report.venue_order_id is None else report.venue_order_id


def reported(order: Order, report: ReportFact) -> OrderReport:
    """A report on the order as clients see it; `order` is the order before the report."""
    client_id = report.venue_client_order_id
    return OrderReport(
        exec_id=report.exec_id,
        venue=order.venue if report.venue is None else report.venue,
        venue_client_order_id=order.venue_client_order_id if client_id is None else client_id,
        venue_order_id=venue_order_id(order, report),
        status=report.status,
        last_qty=report.last_qty,
        last_price=report.last_price,
        filled_qty_total=report.filled_qty_total,
        reason=report.reason,
        at=report.at,
        order_id=order.order_id,
        symbol=order.symbol,
        side=order.side,
        fee=report.fee,
        fee_currency=report.fee_currency,
        exec_type=report.exec_type,
        ref_exec_id=report.ref_exec_id,
    )


def new_row(order: Order, fact: OutboxFact, at: datetime) -> OutboxRow:
    """A new outbox row of the order, as its event shows it."""
    if fact.amend is None:
        return queued_row(order, fact.kind, fact.number, at)
    client_id, payload = fact.amend.client_order_id, payload_of(fact.amend)
    return queued_row(order, fact.kind, fact.number, at, client_order_id=client_id, payload=payload)
