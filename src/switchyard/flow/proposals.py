"""Proposals: decisions on orders that the sequencer makes when it gathers a group, and how they compose.

Evaluates the decisions on the states in memory; reads and writes nothing else.
"""

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

from switchyard.domain.changes import Change, Conflict, merged
from switchyard.domain.ids import OrderId
from switchyard.domain.outbox import OrderState
from switchyard.domain.positions import Position, PositionKey
from switchyard.flow.states import HotStates, after

Positions = Mapping[PositionKey, Position | None]


class Proposal(NamedTuple):
    """A decision on one order; made on its newest state, and again where that turns out not to be the newest."""

    order_id: OrderId
    decide: Callable[[OrderState, Positions], Change | None]
    """Returns the change of this order, with each row once, or none where nothing is to be done."""
    positions: tuple[PositionKey, ...] = ()
    """The positions that the decision needs."""


class Decided(NamedTuple):
    """The decision was made on `before`, and its change is committed."""

    before: OrderState
    change: Change


class Failed(NamedTuple):
    """The decision could not be made, or not be committed."""

    error: Exception


Answer = Decided | Conflict | Failed | None
"""What became of a proposal; none where nothing was to be done. After a conflict it may be proposed again."""


class Page:
    """Proposals whose caller waits for the answers to all of them."""

    __slots__ = ("_missing", "answers", "future")

    def __init__(self, size: int) -> None:
        self.answers: list[Answer] = [None] * size
        self._missing = size
        self.future: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()

    def answer(self, place: int, answer: Answer) -> None:
        """Note one answer; each place is answered once."""
        self.answers[place] = answer
        self._missing -= 1
        # The caller may have been cancelled; its decisions are committed all the same.
        if not self._missing and not self.future.done():
            self.future.set_result(self.answers)


class Proposed:
    """One proposal of a page."""

    __slots__ = ("_page", "_place", "keys", "proposal", "was_read")

    def __init__(self, proposal: Proposal, was_read: bool, page: Page, place: int) -> None:
        self.proposal = proposal
        self.keys: list[Hashable] = [proposal.order_id, *[("position", *key) for key in proposal.positions]]
        """The rows that it builds on: they must not be part of a change that is not committed yet."""
        self.was_read = was_read
        """Whether the order was read from the journal for this proposal.

        Otherwise a decision to do nothing, which no commit checks, is not believed.
        """
        self._page = page
        self._place = place

    def answer(self, answer: Answer) -> None:
        """Answer the proposal."""
        self._page.answer(self._place, answer)


class Unit:
    """Decisions that build on each other's rows: committed together, or rejected together."""

    __slots__ = ("changes", "members", "positions", "states")

    def __init__(self) -> None:
        self.members: list[tuple[Proposed, Decided | None]] = []
        self.changes: list[Change] = []
        self.states: dict[OrderId, OrderState] = {}
        """After its decisions."""
        self.positions: dict[PositionKey, Position] = {}

    def add(self, other: "Unit") -> None:
        """Take over the decisions of another unit."""
        self.members += other.members
        self.changes += other.changes
        self.states |= other.states
        self.positions |= other.positions

    @property
    def change(self) -> Change:
        """All decisions as one change."""
        return merged(self.changes)

    def answer(self, answer: Conflict | Failed) -> None:
        """Give every proposal the same answer."""
        for proposed, _ in self.members:
            proposed.answer(answer)

    def answer_committed(self) -> None:
        """Give every proposal its decision."""
        for proposed, decided in self.members:
            proposed.answer(decided)


class Composition:
    """The decisions of one group: each is made on the states in memory and on what the ones before it decided."""

    def __init__(self, states: HotStates) -> None:
        self._states = states
        self._by_order: dict[OrderId, Unit] = {}
        self._by_position: dict[PositionKey, Unit] = {}
        self.executions: set[Hashable] = set()
        """(venue, execution id) of the reports that the group records."""

    @property
    def units(self) -> list[Unit]:
        """The units, each once, in the order of their first decisions."""
        return list(dict.fromkeys(self._by_order.values()))

    def add(self, proposed: Proposed) -> None:
        """Make the decision; it is answered at once where it changes nothing, and otherwise with its unit."""
        proposal = proposed.proposal
        order_id = proposal.order_id
        unit = self._by_order.get(order_id)
        state = self._states.order(order_id) if unit is None else unit.states[order_id]
        if state is None or (proposal.positions and not all(map(self._states.has_position, proposal.positions))):
            proposed.answer(Conflict())  # it left the memory since it was loaded
            return
        try:
            held = {key: self._position(key) for key in proposal.positions} if proposal.positions else {}
            change = proposal.decide(state, held)
        except Exception as error:  # amounts beyond all precision, or a defect: the others must not suffer from it
            proposed.answer(Failed(error))
            return
        if change is None:
            self._add_nothing(proposed, unit)
            return
        if change.executions:
            executions = [(execution.venue, execution.exec_id) for execution in change.executions]
            if not self.executions.isdisjoint(executions):
                proposed.answer(Conflict())  # reported twice within the group
                return
            self.executions.update(executions)
        unit = self._joined(order_id, proposal.positions)
        unit.members.append((proposed, Decided(state, change)))
        unit.changes.append(change)
        unit.states[order_id] = after(state, change.orders[-1] if change.orders else state.order, change)
        for position in change.positions:
            unit.positions[position.key] = position
            self._by_position[position.key] = unit

    def _add_nothing(self, proposed: Proposed, unit: Unit | None) -> None:
        if unit is not None:
            unit.members.append((proposed, None))  # it follows from what the unit's commit will check
        elif proposed.was_read:
            proposed.answer(None)
        else:
            self._states.forget_order(proposed.proposal.order_id)
            proposed.answer(Conflict())

    def _joined(self, order_id: OrderId, positions: Sequence[PositionKey]) -> Unit:
        """The unit that decides on the order, together with those that have moved one of the positions."""
        earlier = [self._by_order[order_id]] if order_id in self._by_order else []
        if positions:
            earlier += [self._by_position[key] for key in positions if key in self._by_position]
        unit = earlier[0] if earlier else Unit()
        for other in dict.fromkeys(earlier[1:]):
            if other is not unit:
                unit.add(other)
                self._by_order.update(dict.fromkeys(other.states, unit))
                self._by_position.update(dict.fromkeys(other.positions, unit))
        self._by_order[order_id] = unit
        return unit

    def _position(self, key: PositionKey) -> Position | None:
        unit = self._by_position.get(key)
        return self._states.position(key) if unit is None else unit.positions[key]
