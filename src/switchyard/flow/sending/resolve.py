"""The resolver: asks venues about rows in doubt, adopts the orders they have, requeues those that are proven absent.

Reads rows in doubt and the workers' liveness, asks venues, writes through `Commit`. It never sends an order.
"""

import asyncio
from collections.abc import Mapping
from datetime import datetime

import structlog

from switchyard.domain import decisions
from switchyard.domain.changes import Change
from switchyard.domain.ids import VenueName
from switchyard.domain.outbox import OrderState, OutboxRow
from switchyard.flow.decide import Commit, decide
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.liveness import Liveness
from switchyard.ports.outbox import Due, OutboxQueries
from switchyard.ports.venue import Venue, VenueOrder, VenueUnavailable
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

# Short enough that a doubt ends soon after its acceptance window, long enough not to load a venue in trouble.
PAUSE_SECONDS = 0.5
PAGE = 200
# Lookups at the same time, over all venues: a slow venue must not hold up the others for long.
LOOKUPS_MAX = 16


class Resolver:
    """Asks venues about rows in doubt until each is settled; several resolvers may run at once."""

    def __init__(
        self,
        *,
        journal: Journal,
        queries: OutboxQueries,
        liveness: Liveness,
        commit: Commit,
        venues: Mapping[VenueName, Venue],
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._journal = journal
        self._queries = queries
        self._liveness = liveness
        self._commit = commit
        self._venues = venues
        self._clock = clock
        self._metrics = metrics
        self._lookups = asyncio.Semaphore(LOOKUPS_MAX)

    async def run(self) -> None:
        """Resolve for as long as the process lives."""
        while True:
            await self.run_once()
            await asyncio.sleep(PAUSE_SECONDS)

    async def run_once(self) -> int:
        """Ask once about each row of one page of rows in doubt; returns how many were settled."""
        doubtful = await self._queries.unsettled("uncertain", PAGE)
        settled = await asyncio.gather(*(self._resolve(due) for due in doubtful))
        return sum(settled)

    async def _resolve(self, due: Due) -> bool:
        venue = self._venues.get(due.row.venue)
        if venue is None or venue.capabilities.lookup == "none":
            return False  # the venue has no lookup: only a report or an operator ends the doubt
        try:
            async with self._lookups:
                # "Absent" is true of the time of the question: the order may have arrived since.
                asked_at = self._clock.now()
                found = await venue.find_by_client_order_id(due.row.venue_client_order_id)
        except VenueUnavailable:
            return False
        sender_gone = due.row.worker is None or due.row.worker in await self._liveness.dead([due.row.worker])

        def decision(newest: OrderState) -> Change | None:
            row = newest.row(due.row.kind, due.row.number)
            if row.status != "uncertain" or row.attempt != due.row.attempt:
                return None  # already settled by a report, another resolver or an operator
            return self._verdict(newest, row, found, sender_gone, asked_at)

        change = await decide(self._journal, self._commit, due.row.order_id, decision, due.state)
        if change is None:
            return False
        verdict = "absent" if found is None else "found"
        self._metrics.resolved.labels(verdict).inc()
        log.info("order_resolved", order_id=due.row.order_id, kind=due.row.kind, verdict=verdict)
        return True

    def _verdict(
        self, state: OrderState, row: OutboxRow, found: VenueOrder | None, sender_gone: bool, now: datetime
    ) -> Change | None:
        if found is not None:
            if row.kind == "new":
                return decisions.record_sent(state, row, found.venue_order_id, now)
            return decisions.record_unsent(state, row, "CANCEL_IN_DOUBT", now, now)
        if row.kind == "cancel":
            return None  # the order's own row is settled first
        if row.last_error == "EXECUTED_BEFORE":
            return None  # the venue has reported on it: "absent" then only means that it no longer shows the order
        if not self._is_proven_absent(row, sender_gone, now):
            return None
        return decisions.record_unsent(state, row, "ABSENT_AT_VENUE", now, now)

    def _is_proven_absent(self, row: OutboxRow, sender_gone: bool, now: datetime) -> bool:
        """Whether an order that was absent at this time was never executed and cannot arrive any more."""
        capabilities = self._venues[row.venue].capabilities
        if capabilities.lookup == "open":
            return False  # the order may have been filled: only a report or an operator ends the doubt
        if capabilities.dedupe == "none" or capabilities.acceptance_window is None:
            return False  # the venue does not document when a late copy can no longer be executed
        may_arrive_until = row.updated_at + capabilities.acceptance_window
        if capabilities.request_expiry:
            return now >= may_arrive_until  # the venue itself rejects requests that arrive later
        # A sender that only looks dead may write its last byte this much later, and the window starts then.
        return sender_gone and now >= may_arrive_until + self._liveness.send_lingers
