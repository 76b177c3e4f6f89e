"""An operator decides a doubt that no venue can settle."""

from datetime import datetime
from typing import assert_never

import msgspec

from switchyard.domain.changes import Change
from switchyard.domain.decisions.amend import record_amend_refused
from switchyard.domain.decisions.at_venue import is_at_venue
from switchyard.domain.decisions.attempts import record_sent, record_unsent
from switchyard.domain.decisions.deadlines import is_past_deadline
from switchyard.domain.decisions.rows import (
    closed_rows,
    ended_attempt,
    has_pending_cancel,
    order_change,
    row_facts,
    stepped,
)
from switchyard.domain.errors import ContradictsEvidence, NotInDoubt
from switchyard.domain.events import change_of, event
from switchyard.domain.facts import DecisionFact, OrderFact
from switchyard.domain.outbox import OrderState, OutboxRow


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
