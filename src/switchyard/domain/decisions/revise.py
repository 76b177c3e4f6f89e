"""Corrections and busts: what they change of the account's position. The order keeps its quantities."""

from datetime import date, datetime

from msgspec.structs import replace

from switchyard.domain.changes import Change, Execution
from switchyard.domain.events import event, position_fact
from switchyard.domain.executed import figures_of
from switchyard.domain.facts import RevisionFact
from switchyard.domain.orders import Order
from switchyard.domain.positions import Position
from switchyard.domain.revised_positions import revised_position, revised_total


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
