"""Operator decisions: end a doubt that no venue can settle. Reads the order, commits an `OperatorDecision`."""

import re

from switchyard.domain import decisions
from switchyard.domain.changes import Change
from switchyard.domain.errors import InvalidField, NotFound
from switchyard.domain.events import DecisionFact, Verdict
from switchyard.domain.ids import OrderId
from switchyard.domain.orders import LABEL_LENGTH_MAX, Order, check_label
from switchyard.domain.outbox import OrderState, OutboxKind, OutboxRow
from switchyard.flow.decide import Commit, decide
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal

REASON_LENGTH_MAX = 500
# Long enough for any order id, and for more cancels than an order can have.
_ROW_ID = re.compile(r"([!-9;-~]{1,64})(?::cancel:([0-9]{1,9}))?")


def outbox_id(row: OutboxRow) -> str:
    """The id of an outbox row for people: the order's id, and for a cancel also its number (`ord_…:cancel:1`)."""
    return row.order_id if row.kind == "new" else f"{row.order_id}:{row.kind}:{row.number}"


def parse_outbox_id(text: str) -> tuple[OrderId, OutboxKind, int]:
    """The row of such an id."""
    matched = _ROW_ID.fullmatch(text)
    if matched is None:
        raise InvalidField("ID", "must look like ord_… or ord_…:cancel:1")
    order_id, number = matched.groups()
    return (OrderId(order_id), "new", 1) if number is None else (OrderId(order_id), "cancel", int(number))


def check_decision(row_id: str, by: str, reason: str) -> None:
    """Raise InvalidField for a malformed decision; needs no database."""
    check_label("by", by, LABEL_LENGTH_MAX)
    check_label("reason", reason, REASON_LENGTH_MAX)
    parse_outbox_id(row_id)


async def end_doubt(
    journal: Journal, commit: Commit, clock: Clock, *, row_id: str, verdict: Verdict, by: str, reason: str
) -> Order:
    """Record an operator's decision about a row in doubt; returns the order after the decision."""
    check_decision(row_id, by, reason)
    order_id, kind, number = parse_outbox_id(row_id)
    if order_id not in await journal.load([order_id]):
        raise NotFound
    fact = DecisionFact(verdict=verdict, by=by, reason=reason)

    def decision(state: OrderState) -> Change:
        row = next((row for row in state.outbox if row.key == (order_id, kind, number)), None)
        if row is None:
            raise NotFound
        return decisions.decide_by_hand(state, row, fact, clock.now())

    change = await decide(journal, commit, order_id, decision)
    assert change is not None, "a decision always changes the row, or raises NotInDoubt"
    return change.orders[0]
