"""Runs `switchyard` so that it kills itself at one boundary of a send, after a number of sends.

Usage: python -m tests.support.dying BOUNDARY COMMAND …
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from datetime import datetime
from itertools import count
from typing import Any

import aiohttp

from switchyard.adapters.venues.http.venue import HttpVenue
from switchyard.domain.changes import Change
from switchyard.domain.orders import Order
from switchyard.domain.outbox import OrderState, OutboxRow
from switchyard.flow.dispatch import Dispatcher
from switchyard.flow.lanes import Turn
from switchyard.ports.venue import Left, SendOutcome, unheard

# Some orders get through, others are at every stage when death comes.
PASSES = count(1)
PASSES_MAX = 40


def is_time() -> bool:
    """Whether this was the last pass."""
    return next(PASSES) == PASSES_MAX


def perhaps_die() -> None:
    """SIGKILL, as from outside."""
    if is_time():
        os.kill(os.getpid(), signal.SIGKILL)


def after_the_attempt_is_committed() -> None:
    """Before the first byte leaves."""
    send = Dispatcher._send

    async def dying(self: Dispatcher, row: OutboxRow, state: OrderState, turn: Turn | None) -> None:
        perhaps_die()
        await send(self, row, state, turn)

    Dispatcher._send = dying  # type: ignore[method-assign]


def after_the_request_left() -> None:
    """The venue has the bytes, the answer is on its way."""
    start = aiohttp.ClientRequest.send

    async def dying(self: Any, *arguments: Any, **options: Any) -> Any:
        response = await start(self, *arguments, **options)
        if self.method == "POST" and is_time():
            # The writer has its own task; a turn of the loop lets the bytes go, and the venue may be at work on them.
            await asyncio.sleep(0.005)
            os.kill(os.getpid(), signal.SIGKILL)
        return response

    aiohttp.ClientRequest.send = dying  # type: ignore[method-assign]


def after_the_answer() -> None:
    """The venue's answer is in hand and not yet written down."""
    submit = HttpVenue.submit

    async def dying(self: HttpVenue, order: Order, left: Left = unheard) -> SendOutcome:
        outcome = await submit(self, order, left)
        perhaps_die()
        return outcome

    HttpVenue.submit = dying  # type: ignore[method-assign]


def before_the_outcome_is_written() -> None:
    """The decision is made and not yet committed."""
    honest = Dispatcher._outcome_change

    def dying(self: Dispatcher, state: OrderState, row: OutboxRow, outcome: SendOutcome, now: datetime) -> Change:
        change = honest(self, state, row, outcome, now)
        perhaps_die()
        return change

    Dispatcher._outcome_change = dying  # type: ignore[method-assign]


BOUNDARIES: dict[str, Callable[[], None]] = {
    boundary.__name__: boundary
    for boundary in (
        after_the_attempt_is_committed,
        after_the_request_left,
        after_the_answer,
        before_the_outcome_is_written,
    )
}

if __name__ == "__main__":
    from switchyard.entrypoints.cli.main import run

    BOUNDARIES[sys.argv[1]]()
    sys.argv = ["switchyard", *sys.argv[2:]]
    run()
