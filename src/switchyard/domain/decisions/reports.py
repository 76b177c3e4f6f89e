"""Execution reports: what a venue's report changes in the order, its cancels and the account's position."""

import hashlib
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import assert_never

import msgspec

from switchyard.domain import positions
from switchyard.domain.amends import current_id
from switchyard.domain.changes import Change, Execution
from switchyard.domain.decisions.amend import may_be_replaced, possible_qty, shown_terms
from switchyard.domain.decisions.at_venue import contradicted_rows, is_at_venue, proven_rows
from switchyard.domain.decisions.rows import (
    closed_rows,
    evidence_step,
    released,
    results_of,
    row_facts,
    stepped,
)
from switchyard.domain.events import SYSTEM_ACCOUNT, change_of, event, position_fact, report_fact
from switchyard.domain.facts import OrderFact, SetAsideFact
from switchyard.domain.ids import OrderId, VenueClientOrderId, VenueName
from switchyard.domain.lifecycle import Step, is_final
from switchyard.domain.money import EXACT, canonical
from switchyard.domain.orders import Order
from switchyard.domain.outbox import OrderState
from switchyard.domain.positions import Position
from switchyard.domain.reasons import described
from switchyard.domain.reports import ExecutionReport, escaped

_ENDS: frozenset[Step] = frozenset({"canceled", "reject", "expire", "reject_part_filled"})
# Reports that show an order at work, and the steps of an order that had ended.
_REOPENING: Mapping[Step, Step] = MappingProxyType({"acknowledge": "reopen", "part_fill": "reopen_part_filled"})


def apply_report(
    state: OrderState,
    position: Position | None,
    report: ExecutionReport,
    now: datetime,
    *,
    total: Position | None = None,
    day: date | None = None,
) -> Change:
    """Apply a report: quantities add up by execution, in whatever order the reports arrive.

    `position` is the account's position in the symbol; every fill moves it, also a late one and an overfill. `total`
    has the account's results over all symbols; without it they are not kept. `day` is the trading day, the UTC date
    where it is not given. The report proves that the venue has the
    order, so the order's own row is settled, and a cancel that waited for it may be sent. An order that ended by an
    answer, a lookup or a decision here, and never by a report, is open again if the venue reports it at work.
    """
    before = state.order
    filled = canonical(EXACT.add(before.filled_qty, report.last_qty))
    EXACT.subtract(before.qty, filled)  # raises where the rest would be beyond all precision
    present, amended = shown_terms(state, report, filled, now)
    notional = before.filled_notional
    if report.last_price is not None:
        notional = canonical(EXACT.add(notional, EXACT.multiply(report.last_qty, report.last_price)))
    step = _report_step(present, report, filled, possible_qty(state, present))
    ends = step in _ENDS and not is_final(before.status)
    is_of_present_leg = (report.leg_client_order_id or before.venue_client_order_id) == current_id(present)
    if ends and not is_of_present_leg:
        step, ends = _progress(report), False  # the end of what an amend has replaced
    elif ends and present.amend_qty is not None and may_be_replaced(state):
        # Either the order has ended, or its amend was carried out: the outcome of the amend tells.
        present = msgspec.structs.replace(present, leg_end=report.status)
        step, ends = _progress(report), False
    reopens = step in _REOPENING and is_final(before.status) and not is_at_venue(before)
    order = stepped(
        present,
        _REOPENING[step] if reopens else evidence_step(state, step),
        now,
        filled_qty=filled,
        filled_notional=notional,
        venue_order_id=report.venue_order_id if is_of_present_leg else before.venue_order_id or report.venue_order_id,
        reason=described("CONTRADICTED", before.reason) if reopens else (ends and report.reason) or before.reason,
    )
    closed = closed_rows(state, now, but=amended) if is_final(order.status) else ()
    contradicted = contradicted_rows(state, now) if reopens else ()
    rows = (*proven_rows(state, now), *contradicted, *(() if amended is None else (amended,)), *closed)
    order = released(order, state, rows)
    after = positions.apply_report(position, before, report.last_qty, report.last_price, now, day)
    changed = () if after is None or after is position else (after,)
    result = positions.add_result(total, position, after) if total is not None and after is not None else total
    totals = () if result is None or result is total else (result,)
    fact = OrderFact(
        order=change_of(order, before),
        outbox=row_facts(rows, state, order),
        position=position_fact(changed[0], order) if changed else None,
        account_total=position_fact(totals[0], order) if totals else None,
    )
    return Change(
        events=(
            event("ExecutionReport", order.account_id, order.order_id, report_fact(report, before)),
            event("OrderUpdated", order.account_id, order.order_id, fact),
        ),
        orders=(order,),
        outbox=rows,
        positions=(*changed, *totals),
        executions=(Execution(report.venue, report.exec_id, order.order_id),),
        results=results_of(order, rows),
    )


def unmatched_report(report: ExecutionReport) -> Change:
    """Record a report on an order that is not in this database, so that it is recognised if it comes again."""
    return Change(
        events=(event("ReportUnmatched", SYSTEM_ACCOUNT, None, report_fact(report, None)),),
        executions=(Execution(report.venue, report.exec_id, OrderId(""), report.venue_client_order_id),),
    )


def set_aside_report(
    venue: VenueName, text: str, error: str, stray_client_order_id: VenueClientOrderId | None
) -> Change:
    """Record a report that cannot be read or stored, so that it does not hold up the others.

    `stray_client_order_id` names its order where that is not in this database: an order that is accepted under it later
    may have been executed before.
    """
    exec_id = f"set-aside:{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()}"
    fact = SetAsideFact(
        exec_id=exec_id,
        venue=venue,
        error=escaped(error),
        text=escaped(text),
        venue_client_order_id=stray_client_order_id,
    )
    return Change(
        events=(event("ReportSetAside", SYSTEM_ACCOUNT, None, fact),),
        executions=(Execution(venue, exec_id, OrderId(""), stray_client_order_id),),
    )


def _report_step(order: Order, report: ExecutionReport, filled: Decimal, possible_qty: Decimal) -> Step:
    # An amend that is not settled may have raised the quantity; where the venue calls the order filled, it has not.
    if filled >= (order.qty if report.status == "FILLED" else possible_qty):
        return "fill"
    match report.status:
        case "CANCELED":
            return "canceled"
        case "REJECTED":
            return "reject_part_filled" if filled else "reject"
        case "EXPIRED":
            return "expire"
        case "WORKING" | "PARTIALLY_FILLED" | "FILLED":
            return _progress(report)
        case unreachable:
            assert_never(unreachable)


def _progress(report: ExecutionReport) -> Step:
    return "part_fill" if report.last_qty else "acknowledge"
