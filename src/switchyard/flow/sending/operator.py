"""What people decide: the end of a doubt that no venue can settle."""

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
# Room for any order id, and for more cancels than an order can have.
_ROW_ID = re.compile(r"([!-9;-~]{1,64})(?::cancel:([0-9]{1,9}))?")


def outbox_id(row: OutboxRow) -> str:
    """What people call an outbox row: the order itself by its id, a cancel by the order's id and its number."""
    return row.order_id if row.kind == "new" else f"{row.order_id}:{row.kind}:{row.number}"


def parse_outbox_id(text: str) -> tuple[OrderId, OutboxKind, int]:
    """The row that an id means."""
    found = _ROW_ID.fullmatch(text)
    if found is None:
        raise InvalidField("ID", "must look like ord_… or ord_…:cancel:1")
    order_id, number = found.groups()
    return (OrderId(order_id), "new", 1) if number is None else (OrderId(order_id), "cancel", int(number))


def check_decision(row_id: str, by: str, reason: str) -> None:
    """Raise InvalidField for what nobody can have meant, before any database is asked."""
    check_label("by", by, LABEL_LENGTH_MAX)
    check_label("reason", reason, REASON_LENGTH_MAX)
    parse_outbox_id(row_id)


async def end_doubt(
    journal: Journal, commit: Commit, clock: Clock, *, row_id: str, verdict: Verdict, by: str, reason: str
) -> Order:
    """Record a person's decision about a row in doubt; returns the order as it left it."""
    check_decision(row_id, by, reason)
    order_id, kind, number = parse_outbox_id(row_id)
    if order_id not in await journal.load([order_id]):
        raise NotFound
    said = DecisionFact(verdict=verdict, by=by, reason=reason)

    def decision(state: OrderState) -> Change:
        found = [row for row in state.outbox if (row.kind, row.number) == (kind, number)]
        if not found:
            raise NotFound
        return decisions.decide_by_hand(state, found[0], said, clock.now())

    change = await decide(journal, commit, order_id, decision)
    assert change is not None, "a decision that changes nothing is rejected"
    return change.orders[0]
