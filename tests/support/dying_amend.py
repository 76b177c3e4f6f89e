"""Runs `switchyard` so that it kills itself at one boundary of an amend, after a number of amends.

The boundaries are calls of the ports `Journal` and `Venue`.
Usage: python -m tests.support.dying_amend BOUNDARY ROLE
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
from switchyard.domain.orders.amends import Amend
from switchyard.domain.orders.order import Order
from switchyard.ports.venue import Accepted, SendOutcome
from tests.support.wrapped import Forwarding, Wrapped, command, run_wrapped

# Some amends are settled before it, and others are at every stage when the process dies.
PASSES_MAX = 5
# The connection is open and idle by then: the bytes are written within a few turns of the event loop.
DEPARTURE_TURNS = 10

passes = count(1)


def die_if_time() -> None:
    if next(passes) == PASSES_MAX:
        os.kill(os.getpid(), signal.SIGKILL)


def has_amend(change: Change, kind: EventType) -> bool:
    return any(row.kind == "amend" for row in change.outbox) and any(event.type == kind for event in change.events)


class AfterCommit(Forwarding):
    """A journal: something about an amend is committed, and nobody has been told."""

    kind: EventType

    async def append(self, shard: int, group_id: str, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        outcomes: list[Outcome] = await self.port.append(shard, group_id, changes, now)
        for change, outcome in zip(changes, outcomes, strict=True):
            if isinstance(outcome, Committed) and has_amend(change, self.kind):
                die_if_time()
        return outcomes


class AfterRequest(AfterCommit):
    """The request is stored and not acknowledged."""

    kind = "AmendRequested"


class AfterAttempt(AfterCommit):
    """The attempt is committed, and no byte of it has left."""

    kind = "OrderSending"


class AfterDeparture(Forwarding):
    """A venue: it may have the bytes, and this process has no response yet."""

    async def amend(self, order: Order, amend: Amend) -> SendOutcome:
        sending = asyncio.create_task(self.port.amend(order, amend))
        for _ in range(DEPARTURE_TURNS):
            await asyncio.sleep(0)
        die_if_time()
        outcome: SendOutcome = await sending
        return outcome


class AfterAnswer(Forwarding):
    """A venue: its response has been read, and nothing of it is in the journal."""

    async def amend(self, order: Order, amend: Amend) -> SendOutcome:
        outcome: SendOutcome = await self.port.amend(order, amend)
        if isinstance(outcome, Accepted):
            die_if_time()
        return outcome


class BeforeOutcome(Forwarding):
    """A journal: the outcome of an amend is decided and not committed."""

    async def append(self, shard: int, group_id: str, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        for change in changes:
            if has_amend(change, "Amended"):
                die_if_time()
        outcomes: list[Outcome] = await self.port.append(shard, group_id, changes, now)
        return outcomes


BOUNDARIES = {
    "after_the_request_is_committed": Wrapped(journal=AfterRequest),
    "after_the_attempt_is_committed": Wrapped(journal=AfterAttempt),
    "after_the_request_left": Wrapped(venue=AfterDeparture),
    "after_the_answer": Wrapped(venue=AfterAnswer),
    "before_the_outcome_is_written": Wrapped(journal=BeforeOutcome),
}


def dying_command(boundary: str) -> list[str]:
    """Runs in place of `switchyard` and dies at the boundary."""
    return command("dying_amend", boundary)


if __name__ == "__main__":
    run_wrapped(sys.argv[2], BOUNDARIES[sys.argv[1]])
