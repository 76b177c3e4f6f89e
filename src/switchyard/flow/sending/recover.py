"""Recovers rows that no live attempt will finish: attempts of dead workers, stuck attempts, orders at closed venues.

Reads the outbox and the workers' liveness; writes doubts and expiries. The dispatcher calls it at start and every few
seconds.
"""

import asyncio
from collections.abc import Awaitable, Callable, Container, Mapping
from datetime import timedelta

from switchyard.domain import decisions
from switchyard.domain.changes import Committed
from switchyard.domain.ids import VenueName, WorkerId
from switchyard.domain.outbox import OutboxRow
from switchyard.flow.decide import Commit
from switchyard.flow.sending.lanes import HeldLanes
from switchyard.flow.sending.outcomes import AttemptOutcome, Ended, OutcomeWriter, SenderDied
from switchyard.flow.sending.sends import Sends
from switchyard.ports.clock import Clock
from switchyard.ports.liveness import Liveness
from switchyard.ports.outbox import OutboxQueries
from switchyard.ports.venue import Unsent, Venue

PAGE = 1_000

WasRead = Callable[[VenueName], Awaitable[bool]]
"""Whether a venue was read since this database was last restored: before that, it may have executed orders that were
never sent from here."""


async def always_read(_venue: VenueName) -> bool:
    """For a database that was never restored."""
    return True


class Recovery:
    """One worker's recovery; several workers may run it at once, since every write expects the row's version."""

    def __init__(
        self,
        *,
        worker: WorkerId,
        queries: OutboxQueries,
        liveness: Liveness,
        lanes: HeldLanes,
        commit: Commit,
        outcomes: OutcomeWriter,
        venues: Mapping[VenueName, Venue],
        clock: Clock,
        stuck_after: timedelta,
        was_read: WasRead,
    ) -> None:
        self._worker = worker
        self._queries = queries
        self._liveness = liveness
        self._lanes = lanes
        self._commit = commit
        self._outcomes = outcomes
        self._venues = venues
        self._clock = clock
        self._stuck_after = stuck_after
        self._was_read = was_read

    async def run_once(self, sends: Sends, open_venues: Container[VenueName]) -> int:
        """Recover one page; returns how many rows there were.

        `sends` are the sends under way in this worker, `open_venues` the venues that it sends to.
        """
        return await self._recover_attempts(sends) + await self._expire_at_closed_venues(open_venues)

    async def _recover_attempts(self, sends: Sends) -> int:
        """Bring attempts without a live sender into doubt, and those that have been under way for too long.

        A row under this worker's own name that it is not sending is one whose claim was committed, but whose answer was
        lost. A stuck row of a live worker keeps that worker as its suspect, so nothing is sent in its place.
        """
        unsure = sends.unsure
        unsettled = await self._queries.unsettled("sending", PAGE)
        others = {due.row.worker for due in unsettled if due.row.worker not in (None, self._worker)}
        dead = await self._liveness.dead([worker for worker in others if worker is not None])
        orphans = [
            due
            for due in unsettled
            if due.row.worker in dead or (due.row.worker == self._worker and due.row.key not in sends)
        ]
        # A row that the database rejects must not be tried again at once: only those that changed count.
        written = await self._outcomes.write([Ended(due.row, self._outcome(due.row, sends)) for due in orphans])
        sends.looked_for(unsure)
        stuck_before = self._clock.now() - self._stuck_after
        stuck = [due for due in unsettled if due not in orphans and due.row.updated_at < stuck_before]
        await asyncio.gather(*(self._outcomes.write_doubt(due, "STUCK", suspect=due.row.worker) for due in stuck))
        return written + len(stuck)

    def _outcome(self, row: OutboxRow, sends: Sends) -> AttemptOutcome:
        """What is known of an attempt without a sender; this worker knows which of its own it did not send."""
        if row.worker == self._worker and sends.has_never_left(row.key):
            return Unsent("ATTEMPT_STALE")
        return SenderDied()

    async def _expire_at_closed_venues(self, open_venues: Container[VenueName]) -> int:
        """End orders whose send deadline passed while their venue could not be reached; returns how many."""
        closed = [name for name in self._venues if name not in open_venues and await self._was_read(name)]
        lanes = self._lanes.filter()
        if not closed or lanes == []:
            return 0
        now = self._clock.now()
        late = [
            due
            for due in await self._queries.due(now, PAGE, closed, lanes)
            if due.row.kind == "new"
            and due.state.order.status == "ACCEPTED"  # not in doubt, and no cancel of it waits
            and decisions.is_past_deadline(due.state.order, now)
            and not due.reported_before  # otherwise the venue may have executed it; that is judged when it opens
        ]
        changes = (decisions.record_expired(due.state, due.row, "BROKER_DOWN", now) for due in late)
        outcomes = await asyncio.gather(*map(self._commit, changes))
        return sum(isinstance(outcome, Committed) for outcome in outcomes)
