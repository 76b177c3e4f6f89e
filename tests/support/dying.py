"""Runs `switchyard` so that it kills itself at one boundary of a send, after a number of sends, or pauses at the first.

Usage: python -m tests.support.dying kill|stop BOUNDARY COMMAND …
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
from switchyard.adapters.venues.wire import IDEMPOTENCY_HEADER
from switchyard.domain.changes import Change
from switchyard.domain.orders import Order
from switchyard.domain.outbox import OrderState, OutboxRow
from switchyard.flow.sending.dispatch import Dispatcher
from switchyard.flow.sending.lanes import Turn
from switchyard.flow.sending.outcomes import AttemptOutcome, OutcomeWriter, SenderDied
from switchyard.ports.venue import Accepted, OnDeparture, SendOutcome, ignore_departure

# Some orders get through, others are at every stage when death comes.
PASSES_MAX = 40
# A recovery has fewer to go through than that, and some of them must be left for the next one.
RECOVERIES_MAX = 3
LAST_WORDS = "at the boundary with client order id "

how = signal.SIGKILL
passes = count(1)
recoveries = count(1)


def is_time() -> bool:
    """Whether this pass is the last one, or the one to pause at."""
    return next(passes) == (PASSES_MAX if how == signal.SIGKILL else 1)


def perhaps_die(client_id: str) -> None:
    if is_time():
        die(client_id)


def die(client_id: str) -> None:
    """The signal, as from outside; the log tells with which order in hand."""
    os.write(2, f"{LAST_WORDS}{client_id}\n".encode())
    os.kill(os.getpid(), how)


def dying_command(boundary: str) -> list[str]:
    """What to run in place of `switchyard` to have it die there."""
    return [sys.executable, "-m", "tests.support.dying", "kill", boundary]


def pausing_command(boundary: str) -> list[str]:
    """What to run in place of `switchyard` to have it pause there."""
    return [sys.executable, "-m", "tests.support.dying", "stop", boundary]


def after_the_attempt_is_committed() -> None:
    """Before the first byte leaves."""
    send = Dispatcher._send

    async def dying(self: Dispatcher, row: OutboxRow, state: OrderState, turn: Turn | None, begun_at: float) -> None:
        perhaps_die(row.venue_client_order_id)
        await send(self, row, state, turn, begun_at)

    Dispatcher._send = dying  # type: ignore[method-assign]


def after_the_request_left() -> None:
    """The venue has the bytes, the answer is on its way."""
    start = aiohttp.ClientRequest.send

    async def dying(self: Any, *arguments: Any, **options: Any) -> Any:
        response = await start(self, *arguments, **options)
        if self.method == "POST" and is_time():
            # The writer has its own task; a turn of the loop lets the bytes go, and the venue may be at work on them.
            await asyncio.sleep(0.005)
            die(self.headers[IDEMPOTENCY_HEADER])
        return response

    aiohttp.ClientRequest.send = dying  # type: ignore[method-assign]


def after_the_answer() -> None:
    """The venue's answer is in hand and not yet written down."""
    submit = HttpVenue.submit

    async def dying(self: HttpVenue, order: Order, on_departure: OnDeparture = ignore_departure) -> SendOutcome:
        outcome = await submit(self, order, on_departure)
        if isinstance(outcome, Accepted):  # a refused connection is no answer
            perhaps_die(order.venue_client_order_id)
        return outcome

    HttpVenue.submit = dying  # type: ignore[method-assign]


def before_the_outcome_is_written() -> None:
    """The decision is made and not yet committed."""
    honest = OutcomeWriter._outcome_change

    def dying(self: OutcomeWriter, state: OrderState, row: OutboxRow, outcome: AttemptOutcome, now: datetime) -> Change:
        change = honest(self, state, row, outcome, now)
        if isinstance(outcome, Accepted):  # and not while it recovers what another one left
            perhaps_die(row.venue_client_order_id)
        return change

    OutcomeWriter._outcome_change = dying  # type: ignore[method-assign]


def in_the_middle_of_recovery() -> None:
    """The first life ends in mid-send; the next ones while they bring into doubt what it left."""
    after_the_request_left()
    settle = OutcomeWriter.write

    async def dying(self: OutcomeWriter, row: OutboxRow, outcome: AttemptOutcome, state: OrderState) -> None:
        await settle(self, row, outcome, state)
        if isinstance(outcome, SenderDied) and next(recoveries) == RECOVERIES_MAX:
            die(row.venue_client_order_id)

    OutcomeWriter.write = dying  # type: ignore[method-assign]


BOUNDARIES: dict[str, Callable[[], None]] = {
    boundary.__name__: boundary
    for boundary in (
        after_the_attempt_is_committed,
        after_the_request_left,
        after_the_answer,
        before_the_outcome_is_written,
        in_the_middle_of_recovery,
    )
}

if __name__ == "__main__":
    from switchyard.entrypoints.cli.main import run

    how = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[sys.argv[1]]
    BOUNDARIES[sys.argv[2]]()
    sys.argv = ["switchyard", *sys.argv[3:]]
    run()
