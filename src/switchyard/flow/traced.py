"""Spans of what is committed: the commit of a request, and the facts that follow from it later.

Used only where traces are on. Stores the trace of a request with its outbox rows (`OutboxRow.traceparent`).
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from msgspec.structs import replace

from switchyard.domain.errors import Unavailable
from switchyard.domain.ids import OrderId
from switchyard.domain.journal.changes import Change, Committed, Conflict, Outcome
from switchyard.domain.journal.events import EventType
from switchyard.domain.journal.lines import BusEvent
from switchyard.domain.orders.outbox import OrderState
from switchyard.ports.journal import Journal
from switchyard.ports.tracing import Tracer
from switchyard.telemetry.logs import account_hash
from switchyard.telemetry.traces import annotate, child_span, current_traceparent, describe

# What is told of an order apart from its sends; each is a span of no length in the order's trace.
_TOLD: Mapping[EventType, str] = {
    "ExecutionReport": "order.execution",
    "OrderUncertain": "order.uncertain",
}


class TracedCommit:
    """Commits the change of a request in a span of its own, and stores the request's trace with its rows."""

    def __init__(self, commit: Callable[[Change], Awaitable[Outcome]], tracer: Tracer) -> None:
        self._commit = commit
        self._tracer = tracer

    async def __call__(self, change: Change) -> Outcome:
        """Commit the change."""
        traceparent = current_traceparent()
        if traceparent is None:
            return await self._commit(change)
        if change.outbox:
            # A row keeps the trace of the request that made it: the column is written with the first version only.
            rows = [replace(row, traceparent=traceparent) if row.version == 1 else row for row in change.outbox]
            change = replace(change, outbox=tuple(rows))
        if change.orders:
            order = change.orders[0]
            annotate(
                order_id=order.order_id,
                account_hash=account_hash(order.account_id),
                trace_id=order.trace_id,
                idempotency_key=order.idempotency_key,
            )
        with child_span(self._tracer, "journal.commit") as span:
            outcome = await self._commit(change)
            if span is not None:
                describe(
                    span,
                    events=",".join(event.type for event in change.events),
                    outcome="committed" if isinstance(outcome, Committed) else "conflict",
                    seq=outcome.first_seq if isinstance(outcome, Committed) else None,
                )
        if isinstance(outcome, Conflict) and outcome.key is not None:
            annotate(order_id=outcome.key.order_id)  # of an earlier request with the same key
        return outcome


class CommitSpans:
    """Tells the executions and doubts that this process commits to the traces of their orders."""

    def __init__(self, tracer: Tracer, state_of: Callable[[OrderId], OrderState | None]) -> None:
        """`state_of`: an order's state in memory."""
        self._tracer = tracer
        self._state_of = state_of

    def note(self, changes: Sequence[Change]) -> None:
        """Add a span for each fact of committed changes."""
        for change in changes:
            self._note(change)

    def _note(self, change: Change) -> None:
        for event in change.events:
            name = _TOLD.get(event.type)
            if name is None or event.order_id is None:
                continue
            traceparent = self._traceparent(change, event.order_id)
            if traceparent is None:
                continue
            span = self._tracer.child(name, traceparent)
            order = next((each for each in reversed(change.orders) if each.order_id == event.order_id), None)
            if order is not None:
                describe(span, order_id=order.order_id, venue=order.venue, status=order.status)
            span.end()

    def _traceparent(self, change: Change, order_id: OrderId) -> str | None:
        for row in change.outbox:
            if row.order_id == order_id and row.kind == "new":
                return row.traceparent
        state = self._state_of(order_id)
        return None if state is None else traceparent_of(state)


def traceparent_of(state: OrderState) -> str | None:
    """The trace of the request that placed the order."""
    row = state.find("new", 1)
    return None if row is None else row.traceparent


class EventTraces:
    """Gives events the traces of their orders, on the way to the books and to the bus."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def attached(self, events: Sequence[BusEvent]) -> list[BusEvent]:
        """The events, each with the trace of the request that placed its order, where it has one."""
        found = await _traceparents(self._journal, {each.event.order_id for each in events} - {None})
        return [replace(each, traceparent=found.get(each.event.order_id)) for each in events] if found else list(events)


async def _traceparents(journal: Journal, order_ids: Collection[OrderId | None]) -> dict[OrderId | None, str]:
    """The traces of these orders; none of them where the database is away: no event waits for that."""
    try:
        states = await journal.load([order_id for order_id in order_ids if order_id is not None])
    except Unavailable:
        return {}
    found: dict[OrderId | None, str] = {}
    for order_id, state in states.items():
        traceparent = traceparent_of(state)
        if traceparent is not None:
            found[order_id] = traceparent
    return found
