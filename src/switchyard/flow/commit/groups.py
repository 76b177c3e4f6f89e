"""Which of the waiting decisions are committed together.

Makes the decisions on the states in memory; reads and writes nothing else. Decisions that build on each other's rows
become one unit, which is committed or rejected as a whole. No two units of a group write the same row.
"""

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from operator import attrgetter
from typing import NamedTuple

from switchyard.domain.accounts.positions import Position, PositionKey
from switchyard.domain.ids import OrderId
from switchyard.domain.journal.changes import ORDER_KEY, Change, Committed, Conflict
from switchyard.domain.orders.outbox import OrderState
from switchyard.flow.commit.states import OrderStateCache, after

_REQUEST_KEY = attrgetter("account_id", "operation", "idempotency_key")
_EXECUTION_KEY = attrgetter("venue", "exec_id")

Positions = Mapping[PositionKey, Position | None]
Decide = Callable[[OrderState, Positions], Change | None]
"""Returns the change of one order, with each row once, or None if nothing is to be done."""


class Decided(NamedTuple):
    """The decision was made on `before`, and its change is committed."""

    before: OrderState
    change: Change


class Failed(NamedTuple):
    """The decision could not be made, or not be committed."""

    error: Exception


Answer = Decided | Committed | Conflict | Failed | None
"""What became of a decision; None if nothing was to be done. After a conflict it may be made again."""


class Decision:
    """A wish to change state, of a request, a venue's answer, a report or an operator.

    Either `decide` on an order, which is called when its group is gathered, on the newest state that this process has,
    and again after a conflict; or a `change` that its caller has decided on rows that it has read.
    """

    __slots__ = ("change", "decide", "done", "followers", "may_begin", "order_id", "positions", "rows", "was_read")

    done: Callable[[Answer], None]
    """Told once what became of it."""

    def __init__(
        self, order_id: OrderId | None, decide: Decide | None, positions: tuple[PositionKey, ...] = ()
    ) -> None:
        """`positions` are those that the decision needs."""
        self.order_id = order_id
        self.decide = decide
        self.positions = positions
        self.change: Change | None = None
        self.rows: list[Hashable] = []
        """The rows that it builds on: they must not be part of a change that is not committed yet."""
        self.was_read = False
        """Whether the order was read from the journal for this decision.

        Otherwise a decision to do nothing, which no commit checks, is not believed.
        """
        self.may_begin = True
        """Whether a first attempt may begin with the change."""
        self.followers: list[Decision] | None = None
        """Others with the same idempotency key, which the outcome of this one answers."""

    @property
    def is_fixed(self) -> bool:
        """Whether its caller has decided the change."""
        return self.change is not None


def of_order(decision: Decision, done: Callable[[Answer], None], *, was_read: bool) -> Decision:
    """Return the decision, ready to be gathered, perhaps once more."""
    decision.done, decision.was_read = done, was_read
    decision.rows = [decision.order_id]
    if decision.positions:
        decision.rows += [("position", *key) for key in decision.positions]
    return decision


def of_change(change: Change, done: Callable[[Answer], None]) -> Decision:
    """Return the decision to commit a change as it is."""
    decision = Decision(None, None)
    decision.change, decision.done = change, done
    rows: list[Hashable] = [*map(ORDER_KEY, change.orders), *map(_REQUEST_KEY, change.keys)]
    decision.rows = rows
    if change.results:
        rows += map(_REQUEST_KEY, change.results)
    if change.executions:
        rows += map(_EXECUTION_KEY, change.executions)
    if change.positions:
        rows += {("position", *position.key) for position in change.positions}
    if change.cursors:
        rows += [("cursor", cursor.name) for cursor in change.cursors]
    return decision


class Unit:
    """Decisions that build on each other's rows: committed together, or rejected together."""

    __slots__ = ("changes", "fixed", "members", "positions", "states")

    def __init__(self, fixed: Decision | None = None) -> None:
        self.fixed = fixed
        """The only decision, if its caller has decided the change."""
        self.members: list[tuple[Decision, Decided | None]] = []
        self.changes: list[Change] = []
        self.states: dict[OrderId, OrderState] = {}
        """After its decisions."""
        self.positions: dict[PositionKey, Position] = {}

    def answer(self, answer: Answer) -> None:
        """Give every decision the same answer."""
        for decision, _ in self.members:
            decision.done(answer)

    def absorb(self, other: "Unit") -> None:
        """Take over the decisions of another unit."""
        self.members += other.members
        self.changes += other.changes
        self.states |= other.states
        self.positions |= other.positions


class Group:
    """Units to commit together."""

    def __init__(self, states: OrderStateCache) -> None:
        self._states = states
        self._fixed: list[Unit] = []
        self._by_order: dict[OrderId, Unit] = {}
        self._by_position: dict[PositionKey, Unit] = {}
        self._executions: set[Hashable] = set()
        """(venue, execution id) of the reports that the group records."""
        self._changed: dict[Hashable, Decision] = {}
        """The rows of changes that their callers have decided."""
        self._decided: set[Hashable] = set()
        """The rows that other decisions build on."""
        self.size = 0
        """How many decisions were taken; some may have been answered already."""
        self.proposals = 0
        """How many of them were made here."""
        self.deferred = 0
        """How many have to wait for what is being committed, or for this group."""

    @property
    def rows(self) -> set[Hashable]:
        """The rows that the group touches."""
        return self._decided.union(self._changed)

    @property
    def units(self) -> list[Unit]:
        """The units, each once, in the order of their first decisions."""
        return [*self._fixed, *dict.fromkeys(self._by_order.values())]

    def add(self, decision: Decision) -> None:
        """Take a decision and make it; it is answered at once if it changes nothing, and otherwise with its unit."""
        self.size += 1
        if decision.decide is None:
            self._add_change(decision)
            return
        self.proposals += 1
        self._decided.update(decision.rows)
        order_id = decision.order_id
        assert order_id is not None, "a decision is about an order"
        unit = self._by_order.get(order_id)
        state = self._states.orders.get(order_id) if unit is None else unit.states[order_id]
        if state is None:
            decision.done(Conflict())  # it left the memory since it was loaded
            return
        held: dict[PositionKey, Position | None] = {}
        for key in decision.positions:
            owner = self._by_position.get(key)
            if owner is not None:
                held[key] = owner.positions[key]
            elif key in self._states.positions:
                held[key] = self._states.positions[key]
            else:
                decision.done(Conflict())
                return
        try:
            change = decision.decide(state, held)
        except Exception as error:  # amounts beyond all precision, or a defect: the others must not suffer from it
            decision.done(Failed(error))
            return
        if change is None:
            self._add_nothing(decision, unit)
            return
        if change.executions:
            executions = list(map(_EXECUTION_KEY, change.executions))
            if not self._executions.isdisjoint(executions):
                decision.done(Conflict())  # reported twice within the group
                return
            self._executions.update(executions)
        if unit is None or decision.positions:
            unit = self._joined(order_id, unit, decision.positions)
        unit.members.append((decision, Decided(state, change)))
        unit.changes.append(change)
        unit.states[order_id] = after(state, change.orders[-1] if change.orders else state.order, change)
        for position in change.positions:
            key = position.account_id, position.symbol
            unit.positions[key] = position
            self._by_position[key] = unit

    def _add_change(self, decision: Decision) -> None:
        change = decision.change
        assert change is not None, "a decision has a change or decides one"
        unit = Unit(decision)
        unit.members.append((decision, None))
        unit.changes.append(change)
        self._fixed.append(unit)
        self._changed.update(dict.fromkeys(decision.rows, decision))
        if change.executions:
            self._executions.update(map(_EXECUTION_KEY, change.executions))

    def is_taken(self, decision: Decision) -> bool:
        """Whether the group touches a row of the decision in a way that it cannot build on."""
        rows = decision.rows
        if not self._changed.keys().isdisjoint(rows):
            return True
        if decision.decide is not None:
            return False
        return not (self._decided.isdisjoint(rows) and self._executions.isdisjoint(rows))

    def leader_of(self, decision: Decision) -> Decision | None:
        """Return the decision of this group that has the same idempotency key; None if there is none."""
        leaders = {self._changed[key] for key in decision.rows if key in self._changed}
        if len(leaders) != 1 or not self._decided.isdisjoint(decision.rows):
            return None
        [leader] = leaders
        return leader if _has_same_key(leader.change, decision.change) else None

    def _add_nothing(self, decision: Decision, unit: Unit | None) -> None:
        if unit is not None:
            unit.members.append((decision, None))  # it follows from what the unit's commit will check
        elif decision.was_read:
            decision.done(None)
        else:
            assert decision.order_id is not None, "a decision is about an order"
            self._states.forget_order(decision.order_id)
            decision.done(Conflict())

    def _joined(self, order_id: OrderId, unit: Unit | None, positions: Sequence[PositionKey]) -> Unit:
        """Return the unit that decides on the order, together with those that have moved one of the positions."""
        for key in positions:
            other = self._by_position.get(key)
            if other is None or other is unit:
                continue
            if unit is None:
                unit = other
                continue
            unit.absorb(other)
            self._by_order.update(dict.fromkeys(other.states, unit))
            self._by_position.update(dict.fromkeys(other.positions, unit))
        if unit is None:
            unit = Unit()
        self._by_order[order_id] = unit
        return unit


def gather(
    pending: deque[Decision], states: OrderStateCache, in_flight: Sequence[Set[Hashable]], size_max: int
) -> Group:
    """Take the next group from `pending`, in the order of arrival; what must wait stays at its front, changes last.

    `in_flight` are the rows of the groups that are being committed.
    """
    group = Group(states)
    blocked, deferred = set[Hashable](), list[Decision]()
    while pending and group.size < size_max:
        decision = pending.popleft()
        change = decision.change
        if change is not None and change.kills:
            if group.size:
                pending.appendleft(decision)
            else:
                group.add(decision)
            break  # a kill is committed alone, so that the changes after it are judged with it
        must_wait = group.size > 0 and group.is_taken(decision)
        if must_wait and change is not None and (leader := group.leader_of(decision)) is not None:
            # The same idempotency key twice: the first change's outcome answers the second one.
            leader.followers = [*(leader.followers or ()), decision, *(decision.followers or ())]
            decision.followers = None
            continue
        if blocked and not must_wait:
            must_wait = not blocked.isdisjoint(decision.rows)
        if change is None and not must_wait:
            # It builds on states in memory, which have what is being committed only afterwards.
            for rows in in_flight:
                must_wait = must_wait or not rows.isdisjoint(decision.rows)
        if must_wait:
            deferred.append(decision)
            blocked.update(decision.rows)
        else:
            group.add(decision)
    # First what is decided when it is taken: a stage waits for its whole page, with the orders of all accounts, while a
    # change that its caller has decided is stale as soon as another one of its rows is committed.
    deferred.sort(key=attrgetter("is_fixed"))
    pending.extendleft(reversed(deferred))
    group.deferred = len(deferred)
    return group


def _has_same_key(change: Change | None, other: Change | None) -> bool:
    """Whether both have the same idempotency key; two amends of one order share the order alone."""
    if change is None or other is None:
        return False
    return not set(map(_REQUEST_KEY, change.keys)).isdisjoint(map(_REQUEST_KEY, other.keys))
