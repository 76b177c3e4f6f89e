"""Groups: which of the waiting changes and proposals are committed together.

Pure, except that it makes the decisions of the proposals. No two entries of a group write the same row.
"""

import asyncio
from collections import deque
from collections.abc import Container, Hashable, Sequence
from typing import NamedTuple

from switchyard.domain.changes import Change, Outcome
from switchyard.domain.errors import SwitchyardError
from switchyard.flow.proposals import Composition, Proposed, Unit
from switchyard.flow.states import HotStates


class Waiting:
    """A change whose caller waits for its outcome."""

    __slots__ = ("change", "followers", "future", "may_begin")

    def __init__(self, change: Change, future: "asyncio.Future[Outcome]") -> None:
        self.change = change
        self.future = future
        self.followers: list[Waiting] | None = None
        self.may_begin = True
        """Whether a first attempt may begin with the change."""

    def answer(self, outcome: Outcome) -> None:
        """Tell the caller what became of the change."""
        # The caller may have been cancelled; its change is committed all the same.
        if not self.future.done():
            self.future.set_result(outcome)

    def fail(self, error: SwitchyardError) -> None:
        """Tell the caller why it is not known, or that nothing was written."""
        if not self.future.done():
            self.future.set_exception(error)


Rows = dict[Hashable, Waiting | None]
"""The rows that a group touches, each with the change that touches it; none for a proposal."""


class Group(NamedTuple):
    """Changes, and units of proposals, to commit together."""

    entries: list[Waiting | Unit]
    rows: Rows
    size: int
    """How many changes and proposals were taken; some may have been answered already."""
    proposals: int
    """How many of them are proposals."""
    deferred: int
    """How many have to wait for what is being committed, or for this group."""


def gather(pending: deque[Waiting | Proposed], states: HotStates, in_flight: Sequence[Rows], size_max: int) -> Group:
    """Take the next group from `pending`, in the order of arrival; what must wait stays at its front."""
    group: list[Waiting] = []
    composition = Composition(states)
    rows: Rows = {}
    size, blocked, deferred = 0, set[Hashable](), list[Waiting | Proposed]()
    while pending and size < size_max:
        item = pending.popleft()
        if isinstance(item, Waiting) and item.change.kills:
            if size:
                pending.appendleft(item)
            else:
                group.append(item)
                size = 1
            break  # a kill is committed alone, so that the changes after it are judged with it
        if isinstance(item, Proposed):
            keys = item.keys
            if _must_wait(keys, blocked, rows, in_flight):
                deferred.append(item)
                blocked.update(keys)
                continue
            composition.add(item)
            rows.update(dict.fromkeys(keys))
        else:
            keys = _keys(item.change)
            earlier = {rows[key] for key in keys if key in rows}
            if not earlier and blocked.isdisjoint(keys) and composition.executions.isdisjoint(keys):
                group.append(item)
                rows.update(dict.fromkeys(keys, item))
                composition.executions.update(_execution_keys(item.change))
            elif len(earlier) == 1 and (leader := next(iter(earlier))) and _is_same_request(leader.change, item.change):
                # The same idempotency key twice: the first change's outcome answers the second one.
                if leader.followers is None:
                    leader.followers = []
                leader.followers += [item, *(item.followers or ())]
                item.followers = None
                continue
            else:
                deferred.append(item)
                blocked.update(keys)
                continue
        size += 1
    pending.extendleft(reversed(deferred))
    return Group([*group, *composition.units], rows, size, size - len(group), len(deferred))


def _keys(change: Change) -> list[Hashable]:
    """The rows that a change may touch: no two changes of a group share one."""
    keys: list[Hashable] = [order.order_id for order in change.orders]
    keys += [(entry.account_id, entry.operation, entry.idempotency_key) for entry in change.keys]
    keys += [(result.account_id, result.operation, result.idempotency_key) for result in change.results]
    keys += _execution_keys(change)
    keys += {("position", *position.key) for position in change.positions}
    keys += [("cursor", cursor.name) for cursor in change.cursors]
    return keys


def _is_same_request(change: Change, other: Change) -> bool:
    """Whether both have the same idempotency key; two amends of one order share the order alone."""
    keys = {(entry.account_id, entry.operation, entry.idempotency_key) for entry in change.keys}
    return any((entry.account_id, entry.operation, entry.idempotency_key) in keys for entry in other.keys)


def _execution_keys(change: Change) -> list[Hashable]:
    return [(execution.venue, execution.exec_id) for execution in change.executions]


def _must_wait(keys: Sequence[Hashable], blocked: Container[Hashable], rows: Rows, in_flight: Sequence[Rows]) -> bool:
    """Whether one of the rows is part of a change: in this group, in one being committed, or in one that waits too."""
    for key in keys:
        if key in blocked or rows.get(key) is not None:
            return True
        for other in in_flight:
            if key in other:
                return True
    return False
