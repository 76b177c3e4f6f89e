"""What people decide: the end of a doubt that no venue can settle."""

from switchyard.domain import decisions
from switchyard.domain.changes import Change
from switchyard.domain.errors import InvalidField, NotFound
from switchyard.domain.events import DecisionFact, Verdict
from switchyard.domain.ids import OrderId
from switchyard.domain.orders import LABEL_LENGTH_MAX, check_label
from switchyard.domain.outbox import OrderState, OutboxKind, OutboxRow
from switchyard.flow.decide import Commit, decide
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal

REASON_LENGTH_MAX = 500


def outbox_id(row: OutboxRow) -> str:
    """What people call an outbox row: the order itself by its id, a cancel by the order's id and its number."""
    return row.order_id if row.kind == "new" else f"{row.order_id}:{row.kind}:{row.number}"


def parse_outbox_id(text: str) -> tuple[OrderId, OutboxKind, int]:
    """The row that an id means."""
    order_id, _, rest = text.partition(":")
    kind, _, number = rest.partition(":")
    if not rest:
        return OrderId(order_id), "new", 1
    if kind != "cancel" or not number.isdigit():
        raise InvalidField("ID", "must look like ord_… or ord_…:cancel:1")
    return OrderId(order_id), "cancel", int(number)


async def end_doubt(
    journal: Journal, commit: Commit, clock: Clock, *, row_id: str, verdict: Verdict, by: str, reason: str
) -> OrderState:
    """Record a person's decision about a row in doubt; returns the order as it left it."""
    check_label("by", by, LABEL_LENGTH_MAX)
    check_label("reason", reason, REASON_LENGTH_MAX)
    order_id, kind, number = parse_outbox_id(row_id)
    if order_id not in await journal.load([order_id]):
        raise NotFound
    said = DecisionFact(verdict=verdict, by=by, reason=reason)

    def decision(state: OrderState) -> Change:
        found = [row for row in state.outbox if (row.kind, row.number) == (kind, number)]
        if not found:
            raise NotFound
        return decisions.decide_by_hand(state, found[0], said, clock.now())

    await decide(journal, commit, order_id, decision)
    return (await journal.load([order_id]))[order_id]
