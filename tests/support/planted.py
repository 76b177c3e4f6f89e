"""Runs `switchyard` with a bug planted in it: a harness that does not fail then proves nothing.

Usage: python -m tests.support.planted BUG COMMAND …
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import apsw
import msgspec

from switchyard.adapters.postgres.liveness import PostgresLiveness
from switchyard.adapters.sqlite import expectations
from switchyard.adapters.venues.http.venue import HttpVenue
from switchyard.domain import decisions
from switchyard.domain.changes import Change, Conflict
from switchyard.domain.ids import WorkerId
from switchyard.domain.outbox import OrderState, OutboxRow
from switchyard.flow.sending.dispatch import Dispatcher
from switchyard.flow.sending.lanes import Turn
from switchyard.flow.sending.outcomes import AttemptOutcome, OutcomeWriter
from switchyard.ports.venue import Capabilities


def blind_requeue() -> None:
    """What is in doubt is simply sent again, whatever the venue promises."""

    def capabilities(venue: HttpVenue) -> Capabilities:
        return msgspec.structs.replace(venue._capabilities, dedupe="permanent")

    HttpVenue.capabilities = property(capabilities)  # type: ignore[assignment]


def sent_before_sending() -> None:
    """The row is marked as sent first, and the bytes leave afterwards."""
    send = Dispatcher._send

    async def marked_first(
        self: Dispatcher, row: OutboxRow, state: OrderState, turn: Turn | None, begun_at: float
    ) -> None:
        await self._commit(decisions.record_sent(state, row, "venue", self._clock.now()))
        await send(self, row, state, turn, begun_at)

    Dispatcher._send = marked_first  # type: ignore[method-assign]


def doubt_is_rejection() -> None:
    """A lost answer is taken for a no."""
    honest = OutcomeWriter._outcome_change

    def guessing(self: OutcomeWriter, state: OrderState, row: OutboxRow, outcome: AttemptOutcome, now: Any) -> Change:
        change = honest(self, state, row, outcome, now)
        if change.orders[0].status == "UNKNOWN":
            return decisions.record_rejected(state, row, "BROKER_REJECTED", now)
        return change

    OutcomeWriter._outcome_change = guessing  # type: ignore[method-assign]


def keys_are_not_looked_up() -> None:
    """The append on SQLite no longer asks whether a key is taken; see dropped_index for PostgreSQL."""

    def taken_keys(connection: apsw.Connection, changes: Sequence[Change]) -> dict[int, Conflict]:
        return {}

    expectations._taken_keys = taken_keys


def fence_removed() -> None:
    """An outcome is written by whoever has one, whether or not the attempt is still theirs."""

    async def unfenced(self: OutcomeWriter, row: OutboxRow, outcome: AttemptOutcome, state: OrderState) -> None:
        def decision(newest: OrderState) -> Change:
            return self._outcome_change(newest, newest.row(row.kind, row.number), outcome, self._clock.now())

        await self._record(row, decision, None)

    OutcomeWriter.write = unfenced  # type: ignore[method-assign]


def the_living_are_dead() -> None:
    """Whoever does not come back is taken for dead, as a lease on a wall clock would."""

    async def dead(self: PostgresLiveness, workers: Sequence[WorkerId]) -> frozenset[WorkerId]:
        return frozenset(workers) - self._held.keys()

    PostgresLiveness.dead = dead  # type: ignore[method-assign]


def planted_command(bug: str) -> list[str]:
    """What to run in place of `switchyard` to have the bug in it."""
    return [sys.executable, "-m", "tests.support.planted", bug]


BUGS: dict[str, Callable[[], None]] = {
    bug.__name__: bug
    for bug in (
        blind_requeue,
        sent_before_sending,
        doubt_is_rejection,
        keys_are_not_looked_up,
        fence_removed,
        the_living_are_dead,
    )
}

if __name__ == "__main__":
    from switchyard.entrypoints.cli.main import run

    BUGS[sys.argv[1]]()
    sys.argv = ["switchyard", *sys.argv[2:]]
    run()
