"""An operator decides a doubt that no venue can settle."""

from datetime import datetime
from typing import assert_never

import msgspec

from switchyard.domain.changes import Change
from switchyard.domain.decisions.attempts import record_sent, record_unsent
from switchyard.domain.errors import NotInDoubt
from switchyard.domain.events import DecisionFact, OrderFact, event, outbox_fact
from switchyard.domain.orders import snapshot
from switchyard.domain.outbox import OrderState, OutboxRow


def decide_by_hand(state: OrderState, row: OutboxRow, decision: DecisionFact, now: datetime) -> Change:
    """End a doubt by an operator's verdict: `sent` settles the row as sent, `not-sent` lets it be sent again."""
    if row.status != "uncertain":
        raise NotInDoubt(row.status)
    match decision.verdict:
        case "sent":
            settled = record_sent(state, row, state.order.venue_order_id, now)
        case "not-sent":
            settled = record_unsent(state, row, "NOT_SENT_BY_DECISION", now, now)
        case unreachable:
            assert_never(unreachable)
    order = settled.orders[0]
    fact = OrderFact(
        order=snapshot(order), outbox=tuple(outbox_fact(changed) for changed in settled.outbox), decision=decision
    )
    decided = event("OperatorDecision", order.account_id, order.order_id, fact)
    return msgspec.structs.replace(settled, events=(decided,))
