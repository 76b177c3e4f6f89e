"""Evidence from outside: execution reports, corrections and busts, and the decision of an operator. Pure."""

import hashlib
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import assert_never

import msgspec
from msgspec.structs import replace

from switchyard.domain.accounts import positions
from switchyard.domain.accounts.positions import Position, revised_position, revised_total
from switchyard.domain.decisions.amend import may_be_replaced, possible_qty, record_amend_refused, shown_terms
from switchyard.domain.decisions.attempts import record_sent, record_unsent
from switchyard.domain.decisions.rows import (
    closed_rows,
    contradicted_rows,
    ended_attempt,
    evidence_step,
    has_pending_cancel,
    is_at_venue,
    is_past_deadline,
    order_change,
    proven_rows,
    released,
    results_of,
    row_facts,
    stepped,
)
from switchyard.domain.errors import ContradictsEvidence, NotInDoubt
from switchyard.domain.ids import OrderId, VenueClientOrderId, VenueName
from switchyard.domain.journal.changes import Change, Execution
from switchyard.domain.journal.events import SYSTEM_ACCOUNT, change_of, event, position_fact, report_fact
from switchyard.domain.journal.executed import figures_of
from switchyard.domain.journal.facts import DecisionFact, OrderFact, RevisionFact, SetAsideFact
from switchyard.domain.orders.amends import current_id
from switchyard.domain.orders.lifecycle import Step, is_final
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OrderState, OutboxRow
from switchyard.domain.orders.reasons import described
from switchyard.domain.orders.reports import ExecutionReport, escaped
from switchyard.domain.values import EXACT, canonical

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


def early_mark(exec_id: str) -> str:
    """The id under which it is recorded that the execution was revised before it was reported."""
    return f"revised:{exec_id}"


def recorded_ids(fact: RevisionFact) -> tuple[str, ...]:
    """The execution ids under which a revision is recorded; the mark only where it is not recorded yet."""
    if fact.late:
        return (f"late:{fact.exec_id}",)
    return (fact.exec_id, early_mark(fact.ref_exec_id)) if fact.early and fact.ref_exec_id else (fact.exec_id,)


def revise_execution(
    order: Order,
    position: Position | None,
    total: Position | None,
    fact: RevisionFact,
    now: datetime,
    *,
    is_marked: bool = False,
    day: date | None = None,
) -> Change:
    """Record a revision and, where the position has its execution (`fact.revised`), revise the position.

    `is_marked`: whether an earlier revision has marked the execution already. The order stays: it may have ended with
    its quantities. The books fold the account's other fills again.
    """
    moved: tuple[Position, ...] = ()
    if fact.revised is not None and position is not None:
        after = revised(order, position, fact, now, day)
        moved = (after,)
        result = None if total is None else revised_total(total, position, after)
        fact = replace(fact, position=position_fact(after, order))
        if result is not None and result is not total:
            moved = (after, result)
            fact = replace(fact, account_total=position_fact(result, order))
    else:
        fact = replace(fact, revised=None)
    venue = fact.venue or order.venue
    ids = recorded_ids(fact)[:1] if is_marked else recorded_ids(fact)
    return Change(
        events=(event("ExecutionRevised", order.account_id, order.order_id, fact),),
        positions=moved,
        executions=tuple(Execution(venue, exec_id, order.order_id) for exec_id in ids),
    )


def revised(order: Order, position: Position, fact: RevisionFact, now: datetime, day: date | None) -> Position:
    """The position after the revision."""
    assert fact.revised is not None, "it has nothing of the execution"
    instead = figures_of(order, fact) if fact.exec_type == "CORRECT" and fact.last_qty else None
    return revised_position(position, order.side, fact.revised, instead, now, day)


def decide_by_hand(state: OrderState, row: OutboxRow, decision: DecisionFact, now: datetime) -> Change:
    """End a doubt by an operator's verdict: `sent` settles the row as sent, `not-sent` ends the order.

    `not-sent` with `resend` sends the order again under the same id. A cancel that was not sent is always sent again,
    an amend that was not carried out ends without effect.
    Raises NotInDoubt, and ContradictsEvidence for `not-sent` on an order that the venue has shown to have.
    """
    if row.status != "uncertain":
        raise NotInDoubt(row.status)
    match decision.verdict:
        case "sent":
            settled = record_sent(state, row, state.order.venue_order_id, now)
        case "not-sent":
            settled = _not_sent(state, row, decision, now)
        case unreachable:
            assert_never(unreachable)
    order = settled.orders[0]
    fact = OrderFact(
        order=change_of(order, state.order),
        outbox=row_facts(settled.outbox, state, order),
        decision=decision,
    )
    decided = event("OperatorDecision", order.account_id, order.order_id, fact)
    return msgspec.structs.replace(settled, events=(decided,))


def _not_sent(state: OrderState, row: OutboxRow, decision: DecisionFact, now: datetime) -> Change:
    order = state.order
    if row.kind == "amend":
        return record_amend_refused(state, row, "NOT_SENT_BY_DECISION", now)
    if row.kind == "cancel":
        return record_unsent(state, row, "NOT_SENT_BY_DECISION", now, now)
    if is_at_venue(order):
        raise ContradictsEvidence(
            f"the venue has the order (venue order id {order.venue_order_id}, filled {order.filled_qty}): "
            "decide `--as sent`, or wait for its reports"
        )
    if decision.resend and row.last_error == "EXECUTED_BEFORE":
        raise ContradictsEvidence(
            "the venue has reported on this client order id before: a resend could execute it twice; "
            "decide `--as sent`, or `--as not-sent` without `--resend`"
        )
    if decision.resend and not has_pending_cancel(state) and not is_past_deadline(order, now):
        return record_unsent(state, row, "NOT_SENT_BY_DECISION", now, now)
    dead = ended_attempt(row, now, "dead", "NOT_SENT_BY_DECISION", None)
    ended = stepped(order, "canceled", now, reason="NOT_SENT_BY_DECISION")
    return order_change("OrderUpdated", state, ended, (dead, *closed_rows(state, now)))
