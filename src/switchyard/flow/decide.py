"""Load, decide, commit: optimistic concurrency on versioned rows. On a version conflict: reload and decide again."""

from collections.abc import Awaitable, Callable, Sequence

from switchyard.domain.changes import Change, Committed, Conflict, Outcome
from switchyard.domain.ids import OrderId
from switchyard.domain.outbox import OrderState
from switchyard.flow.proposals import Answer, Decided, Failed, Proposal
from switchyard.ports.journal import Journal

Commit = Callable[[Change], Awaitable[Outcome]]
Propose = Callable[[Sequence[Proposal]], Awaitable[Sequence[Answer]]]
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


async def decide_all(
    propose: Propose, proposals: Sequence[Proposal], first: Sequence[Answer] | None = None
) -> list[Decided | Failed | None]:
    """Propose until no decision was made on a state that is not the newest; returns the answers, in the same order.

    `first` has the answers where they were proposed once already.
    """
    answers = list(await propose(proposals) if first is None else first)
    for _ in range(TRIES_MAX):
        again = [place for place, answer in enumerate(answers) if isinstance(answer, Conflict)]
        if not again:
            return [answer for answer in answers if not isinstance(answer, Conflict)]
        for place, answer in zip(again, await propose([proposals[place] for place in again]), strict=True):
            answers[place] = answer
    raise Contention(f"order {proposals[again[0]].order_id} could not be written in {TRIES_MAX} tries")
