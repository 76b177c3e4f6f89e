"""Recovers rows that no live attempt will finish: attempts of dead workers, stuck attempts, orders at closed venues.

Reads the outbox and the workers' liveness; writes doubts, expiries and the ends of orders that waited too long. The
dispatcher calls it at start and every few seconds.
"""

import asyncio
from collections.abc import Awaitable, Callable, Container, Mapping
from datetime import datetime, timedelta

from switchyard.domain import decisions
from switchyard.domain.ids import VenueName, WorkerId
from switchyard.domain.journal.changes import Change, Committed
from switchyard.domain.orders.outbox import MayBeLost, OutboxRow
from switchyard.flow.commit.sequencer import Commit
from switchyard.flow.sending.lanes import HeldLanes
from switchyard.flow.sending.moved import log_moved
from switchyard.flow.sending.outcomes import AttemptOutcome, Ended, OutcomeWriter, SenderDied
from switchyard.flow.sending.sends import Sends
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Liveness
from switchyard.ports.outbox import Due, OutboxQueries
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
        retries: decisions.RetryLimits,
        was_read: WasRead,
        may_be_lost: MayBeLost,
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
        self._retries = retries
        self._was_read = was_read
        self._may_be_lost = may_be_lost
        self._after = 0
        """The journal number behind which the next page begins: orders that may wait do not hide those behind."""

    async def run_once(self, sends: Sends, open_venues: Container[VenueName], locked: Container[VenueName]) -> int:
        """Recover one page; returns how many rows there were.

        `sends` are the sends under way in this worker, `open_venues` the venues that it sends to. At a `locked` venue
        an order that was never sent from here may have been sent from a lost history.
        """
        return await self._recover_attempts(sends) + await self._end_at_closed_venues(open_venues, locked)

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

    async def _end_at_closed_venues(self, open_venues: Container[VenueName], locked: Container[VenueName]) -> int:
        """End one page of orders whose deadline or waiting time passed while their venue got none; returns how many."""
        closed = [name for name in self._venues if name not in open_venues and await self._was_read(name)]
        lanes = self._lanes.filter()
        if not closed or lanes == []:
            self._after = 0
            return 0
        now = self._clock.now()
        page = await self._queries.due(now, PAGE, closed, lanes, kind="new", after=self._after)
        self._after = page[-1].row.seq if len(page) == PAGE else 0
        # One that the venue has reported on, or whose key it may know, may have been executed: that is judged when the
        # venue opens.
        unsent = [
            due
            for due in page
            if due.state.order.status == "ACCEPTED"
            and not due.reported_before
            and not self._may_be_lost(due.state.order, due.row)
        ]
        ends = [(due, end) for due in unsent if (end := self._end(due, locked, now)) is not None]
        outcomes = await asyncio.gather(*(self._commit(end) for _, end in ends))
        ended = [end for end, outcome in zip(ends, outcomes, strict=True) if isinstance(outcome, Committed)]
        for due, end in ended:
            log_moved(due.row, end.outbox[0], end.orders[0])
        return len(ended)

    def _end(self, due: Due, locked: Container[VenueName], now: datetime) -> Change | None:
        """The end of an order that was not sent in time; none while it may wait."""
        order, row = due.state.order, due.row
        if decisions.is_past_deadline(order, now):
            return decisions.record_expired(due.state, row, "BROKER_DOWN", now)
        if row.venue not in locked and self._retries.is_too_old(order, row, now):
            return decisions.end_too_old(due.state, row, self._retries, now)
        return None
