"""Runs `switchyard` so that it kills itself at one boundary of a send after a number of sends, or pauses at the first.

The boundaries are calls of the ports `Journal` and `Venue`.
Usage: python -m tests.support.dying kill|stop BOUNDARY ROLE
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from datetime import datetime
from itertools import count

from switchyard.domain.journal.changes import Change, Committed, Outcome
from switchyard.domain.journal.events import EventType
from switchyard.domain.orders.order import Order
from switchyard.ports.venue import Accepted, OnDeparture, SendOutcome, ignore_departure
from tests.support.one_by_one import OneByOne
from tests.support.wrapped import Forwarding, Wrapped, command, run_wrapped

# Some orders are sent before it, and the others are at every stage when the process dies.
PASSES_MAX = 40
# Fewer than a dead sender leaves behind, so that the next process has some left to recover.
RECOVERIES_MAX = 3
# aiohttp reports a departure right before it writes the bytes; after a few turns of the event loop they have left.
# Counted in turns, because on a busy machine a timer of any length may expire before the write.
DEPARTURE_TURNS = 10
BOUNDARY_REACHED = "at the boundary with client order id "

signal_at_boundary = signal.SIGKILL
passes = count(1)


def is_time() -> bool:
    """Whether this is the pass to die at, or the first one, which is the one to pause at."""
    return next(passes) == (PASSES_MAX if signal_at_boundary == signal.SIGKILL else 1)


def die(client_order_id: str) -> None:
    """Log the order in hand, then send this process the signal."""
    os.write(2, f"{BOUNDARY_REACHED}{client_order_id}\n".encode())
    os.kill(os.getpid(), signal_at_boundary)


async def die_later(client_order_id: str) -> None:
    """Die once the bytes of a request that departs now have left."""
    for _ in range(DEPARTURE_TURNS):
        await asyncio.sleep(0)
    die(client_order_id)


def die_if_time(changes: Sequence[Change], kind: EventType) -> None:
    """Count the changes that carry such an event."""
    for change in changes:
        if has_event(change, kind) and is_time():
            die(change.orders[0].venue_client_order_id)


def has_event(change: Change, kind: EventType) -> bool:
    return any(event.type == kind for event in change.events)


class AfterAttempt(Forwarding):
    """A journal: the attempt is committed and no byte of it has left."""

    async def append(self, shard: int, group_id: str, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        outcomes: list[Outcome] = await self.port.append(shard, group_id, changes, now)
        committed = [one for one, outcome in zip(changes, outcomes, strict=True) if isinstance(outcome, Committed)]
        die_if_time(committed, "OrderSending")
        return outcomes


class AfterDeparture(OneByOne, Forwarding):
    """A venue: it has the bytes, and this process has no response yet."""

    async def submit(self, order: Order, on_departure: OnDeparture = ignore_departure) -> SendOutcome:
        dying: list[asyncio.Task[None]] = []

        def departs() -> None:
            on_departure()
            if is_time():
                dying.append(asyncio.create_task(die_later(order.venue_client_order_id)))

        outcome: SendOutcome = await self.port.submit(order, departs)
        await asyncio.gather(*dying)  # withholds a response that came in the meantime
        return outcome


class AfterAnswer(OneByOne, Forwarding):
    """A venue: its response has been read, and nothing of it is in the journal."""

    async def submit(self, order: Order, on_departure: OnDeparture = ignore_departure) -> SendOutcome:
        outcome: SendOutcome = await self.port.submit(order, on_departure)
        # A refused connection is not a response.
        if isinstance(outcome, Accepted) and is_time():
            die(order.venue_client_order_id)
        return outcome


class BeforeOutcome(Forwarding):
    """A journal: the outcome of a send is decided and not committed."""

    async def append(self, shard: int, group_id: str, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        die_if_time(changes, "OrderSent")
        outcomes: list[Outcome] = await self.port.append(shard, group_id, changes, now)
        return outcomes


class InRecovery(Forwarding):
    """A journal: some of the sends that a dead worker left are marked as in doubt, and the others are not."""

    async def append(self, shard: int, group_id: str, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        recovered = [one for one in changes if any(row.last_error == "SENDER_DIED" for row in one.outbox)]
        if recovered:
            await self.port.append(shard, group_id, recovered[:RECOVERIES_MAX], now)
            die(recovered[0].orders[0].venue_client_order_id)
        outcomes: list[Outcome] = await self.port.append(shard, group_id, changes, now)
        return outcomes


BOUNDARIES = {
    "after_the_attempt_is_committed": Wrapped(journal=AfterAttempt),
    "after_the_request_left": Wrapped(venue=AfterDeparture),
    "after_the_answer": Wrapped(venue=AfterAnswer),
    "before_the_outcome_is_written": Wrapped(journal=BeforeOutcome),
    # The first process dies in the middle of its sends, the next ones in the recovery of those.
    "in_the_middle_of_recovery": Wrapped(venue=AfterDeparture, journal=InRecovery),
}


def dying_command(boundary: str) -> list[str]:
    """Runs in place of `switchyard` and dies at the boundary."""
    return command("dying", "kill", boundary)


def pausing_command(boundary: str) -> list[str]:
    """Runs in place of `switchyard` and pauses at the boundary."""
    return command("dying", "stop", boundary)


if __name__ == "__main__":
    signal_at_boundary = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[sys.argv[1]]
    run_wrapped(sys.argv[3], BOUNDARIES[sys.argv[2]])
