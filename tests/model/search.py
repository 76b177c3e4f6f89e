"""Breadth-first search over all states of the send-protocol model: finds the shortest way to a second execution."""

from collections import deque
from typing import NamedTuple

from tests.model.protocol import Protocol
from tests.model.state import Assumptions, Budget, Rules, State

# A search beyond this is a mistake in the model's bounds: it would take minutes.
STATES_MAX = 2_000_000


class Found(NamedTuple):
    """The result of a search: how many states were visited, and the actions that led to a second execution."""

    states: int
    trace: tuple[str, ...] | None

    def __str__(self) -> str:
        if self.trace is None:
            return f"{self.states} states, no second execution"
        lines = (f"  {number}. {action}" for number, action in enumerate(self.trace, 1))
        return "\n".join((f"executed twice, after {self.states} states:", *lines))


def search(rules: Rules, assumptions: Assumptions, budget: Budget | None = None) -> Found:
    """Visit every reachable state, nearest first; stop at the first one with two executions of the intent."""
    protocol = Protocol(rules, assumptions)
    first = State(budget=budget or Budget())
    came_from: dict[State, tuple[State, str] | None] = {first: None}
    waiting = deque([first])
    while waiting:
        state = waiting.popleft()
        for action, following in protocol.successors(state):
            if following in came_from:
                continue
            came_from[following] = (state, action)
            if len(following.orders) > 1:
                return Found(len(came_from), _trace(came_from, following))
            waiting.append(following)
        if len(came_from) > STATES_MAX:
            raise RuntimeError(f"more than {STATES_MAX} states: tighten the budget")
    return Found(len(came_from), None)


def _trace(came_from: dict[State, tuple[State, str] | None], last: State) -> tuple[str, ...]:
    actions: list[str] = []
    step = came_from[last]
    while step is not None:
        state, action = step
        actions.append(action)
        step = came_from[state]
    return tuple(reversed(actions))
