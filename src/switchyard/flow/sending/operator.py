"""Operator decisions: end a doubt that no venue can settle. Reads the order, commits an `OperatorDecision`."""

import re
from collections.abc import Awaitable, Callable

from switchyard.domain import decisions
from switchyard.domain.errors import InvalidField, LookupPending, NotFound, NotInDoubt
from switchyard.domain.ids import OrderId, VenueName
from switchyard.domain.journal.changes import Change
from switchyard.domain.journal.facts import DecisionFact
from switchyard.domain.journal.lines import data_of, decode_order_fact
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OrderState, OutboxKind, OutboxRow
from switchyard.domain.values import check_label
from switchyard.flow.commit.sequencer import Commit, decide
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.queries import Queries

REASON_LENGTH_MAX = 500
# The events of an order in which an earlier decision is searched; it is one of the last.
EVENTS_MAX = 50
# Long enough for any order id, and for more rows than an order can have.
_ROW_ID = re.compile(r"([!-9;-~]{1,64})(?::new:1|:(cancel|amend):([0-9]{1,9}))?")


def outbox_id(row: OutboxRow) -> str:
    """The id of an outbox row for people: the order's id, and for a cancel or an amend its kind and number as well."""
    return row.order_id if row.kind == "new" else f"{row.order_id}:{row.kind}:{row.number}"


def parse_outbox_id(text: str) -> tuple[OrderId, OutboxKind, int]:
    """The row of such an id."""
    matched = _ROW_ID.fullmatch(text)
    if matched is None:
        raise InvalidField("ID", "must look like ord_…, ord_…:cancel:1 or ord_…:amend:1")
    order_id, kind, number = matched.groups()
    if number is None:
        return OrderId(order_id), "new", 1
    return OrderId(order_id), "cancel" if kind == "cancel" else "amend", int(number)


def no_such_row(row_id: str) -> NotFound:
    """The error for an id that no outbox row has."""
    return NotFound(f"the outbox row {row_id} was not found; `switchyard outbox list` shows the ids")


def check_decision(row_id: str, decision: DecisionFact) -> None:
    """Raise InvalidField for a malformed decision; needs no database."""
    check_label("by", decision.by)
    check_label("reason", decision.reason, REASON_LENGTH_MAX)
    parse_outbox_id(row_id)
    if decision.resend and decision.verdict != "not-sent":
        raise InvalidField("resend", "goes together with `--as not-sent` only")


async def end_doubt(
    journal: Journal,
    queries: Queries,
    commit: Commit,
    clock: Clock,
    *,
    row_id: str,
    decision: DecisionFact,
    lookup_decides: Callable[[VenueName], Awaitable[bool]],
) -> Order:
    """Record an operator's decision about a row in doubt; returns the order after the decision.

    `lookup_decides` tells whether a venue's own lookup settles such a doubt: a person may then not decide `not-sent`.
    """
    fact = decision
    check_decision(row_id, fact)
    order_id, kind, number = parse_outbox_id(row_id)
    state = (await journal.load([order_id])).get(order_id)
    if state is None:
        raise no_such_row(row_id)
    is_pending = fact.verdict == "not-sent" and kind != "cancel" and await lookup_decides(state.order.venue)

    def decide_newest(state: OrderState) -> Change:
        row = next((row for row in state.outbox if row.key == (order_id, kind, number)), None)
        if row is None:
            raise no_such_row(row_id)
        change = decisions.decide_by_hand(state, row, fact, clock.now())
        if is_pending and row.last_error != "EXECUTED_BEFORE":
            raise LookupPending(
                f"{row.venue} can still be asked about this order, and its answer decides; only `--as sent` is "
                f"possible. If {row.venue} is gone for good, start a worker with VENUE_LOOKUP_{row.venue.upper()}=none"
            )
        return change

    try:
        change = await decide(journal, commit, order_id, decide_newest)
    except NotInDoubt as error:
        raise await _with_decider(error, queries, order_id) from None
    assert change is not None, "a decision always changes the row, or raises NotInDoubt"
    return change.orders[0]


async def _with_decider(error: NotInDoubt, queries: Queries, order_id: OrderId) -> NotInDoubt:
    """The error, naming the operator who decided before, if one did."""
    for event in reversed(await queries.last_events(order_id=order_id, limit=EVENTS_MAX)):
        if event.type == "OperatorDecision":
            earlier = decode_order_fact(data_of(event)).decision
            if earlier is not None:
                return NotInDoubt(
                    error.status, f"{earlier.by} decided {earlier.verdict} at {event.at:%Y-%m-%d %H:%M:%S}Z"
                )
    return error
