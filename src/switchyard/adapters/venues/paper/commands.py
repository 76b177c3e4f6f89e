"""The requests that wait for the paper exchange, and how their callers get the outcomes."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from switchyard.domain.orders import Order
from switchyard.ports.venue import SendOutcome


class Command(NamedTuple):
    """A request for one or more orders, and the future of their outcomes that its caller awaits."""

    kind: Literal["submit", "cancel"]
    orders: Sequence[Order]
    outcomes: asyncio.Future[list[SendOutcome]]


def resolve(commands: Iterable[Command], outcomes: Sequence[SendOutcome]) -> None:
    """Give each command the outcomes of its orders."""
    start = 0
    for command in commands:
        end = start + len(command.orders)
        # Done if the caller was cancelled; its orders remain in the book.
        if not command.outcomes.done():
            command.outcomes.set_result(list(outcomes[start:end]))
        start = end
    assert start == len(outcomes)
