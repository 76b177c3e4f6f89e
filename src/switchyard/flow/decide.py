"""Load, decide, commit: optimistic concurrency on versioned rows. On a version conflict: reload and decide again."""

from collections.abc import Awaitable, Callable

import msgspec

from switchyard.domain.changes import Change, Committed, Outcome
from switchyard.domain.ids import OrderId
from switchyard.domain.outbox import OrderState
from switchyard.ports.journal import Journal

Commit = Callable[[Change], Awaitable[Outcome]]
Decision = Callable[[OrderState], Change | None]

# An order has a handful of writers; this many conflicts in a row are a defect, not bad luck.
TRIES_MAX = 32


class Contention(Exception):
    """A version conflict at every try: a defect."""


async def decide(
    journal: Journal, commit: Commit, order_id: OrderId, decision: Decision, state: OrderState | None = None
) -> Change | None:
    """Commit the decision on the order's newest state; returns the change, or none where the decision is none.

    `state` saves the first load where the caller has just read the order.
    """
    for _ in range(TRIES_MAX):
        if state is None:
            state = (await journal.load([order_id]))[order_id]
        change = decision(state)
        if change is None:
            return None
        if isinstance(await commit(change), Committed):
            return change
        state = None
    raise Contention(f"order {order_id} could not be written in {TRIES_MAX} tries")


def after(state: OrderState, change: Change) -> OrderState:
    """The order's state after a committed change."""
    changed = {(row.kind, row.number): row for row in change.outbox}
    rows = tuple(changed.get((row.kind, row.number), row) for row in state.outbox)
    return msgspec.structs.replace(state, order=change.orders[0], outbox=rows)
