"""Settle what is in doubt by evidence: ask the venue, adopt what it has, send again only what it certainly has not."""

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

# Often enough that a doubt ends with its acceptance window, seldom enough not to be a load on a venue in trouble.
PAUSE_SECONDS = 0.5
PAGE = 200
# A venue that is slow to answer must not hold up the others for long.
QUESTIONS_MAX = 16


class Resolver:
    """Asks venues about orders in doubt until each is settled; two of them at once are harmless."""

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
        self._questions = asyncio.Semaphore(QUESTIONS_MAX)

    async def run(self) -> None:
        """Resolve for as long as the process lives."""
        while True:
            await self.run_once()
            await asyncio.sleep(PAUSE_SECONDS)

    async def run_once(self) -> int:
        """Ask once about each order in doubt, a page of them; returns how many were settled."""
        doubtful = await self._queries.unsettled("uncertain", PAGE)
        settled = await asyncio.gather(*(self._resolve(due) for due in doubtful))
        return sum(settled)

    async def _resolve(self, due: Due) -> bool:
        venue = self._venues.get(due.row.venue)
        if venue is None or venue.capabilities.lookup == "none":
            return False  # nobody can be asked: a person decides
        try:
            async with self._questions:
                # Absent means absent when we asked: an order may have turned up while the answer was under way.
                asked_at = self._clock.now()
                found = await venue.find_by_client_order_id(due.row.venue_client_order_id)
        except VenueUnavailable:
            return False
        sender_gone = due.row.worker is None or due.row.worker in await self._liveness.dead([due.row.worker])

        def decision(newest: OrderState) -> Change | None:
            row = newest.row(due.row.kind, due.row.number)
            if row.status != "uncertain" or row.attempt != due.row.attempt:
                return None  # a report, another recoverer or a person was faster
            return self._verdict(newest, row, found, sender_gone, asked_at)

        change = await decide(self._journal, self._commit, due.row.order_id, decision, due.state)
        if change is None:
            return False
        verdict = "absent" if found is None else "found"
        self._metrics.resolved.labels(verdict).inc()
        log.info("doubt settled", order_id=due.row.order_id, kind=due.row.kind, verdict=verdict)
        return True

    def _verdict(
        self, state: OrderState, row: OutboxRow, found: VenueOrder | None, sender_gone: bool, now: datetime
    ) -> Change | None:
        if found is not None:
            if row.kind == "new":
                return decisions.record_sent(state, row, found.venue_order_id, now)
            return decisions.record_unsent(state, row, "CANCEL_IN_DOUBT", now, now)  # a repeated cancel is harmless
        if row.kind == "cancel":
            return None  # an order that is not there cannot be cancelled; its own row is settled first
        if row.last_error == decisions.EXECUTED_BEFORE:
            return None  # the venue had it once, whether or not it still remembers
        if not self._is_never_to_come(row, sender_gone, now):
            return None
        return decisions.record_unsent(state, row, "ABSENT_AT_VENUE", now, now)

    def _is_never_to_come(self, row: OutboxRow, sender_gone: bool, now: datetime) -> bool:
        """Whether an order that was absent at this time was never executed and cannot turn up any more."""
        venue = self._venues[row.venue].capabilities
        if venue.lookup == "open":
            return False  # it may have been filled and forgotten: a report or a person must tell
        may_turn_up_until = row.updated_at + venue.acceptance_window
        if venue.request_expiry:
            return now >= may_turn_up_until  # whoever still sends it is turned away by the venue
        # A sender that only looks dead writes its last byte this much later, and the window begins with that.
        return sender_gone and now >= may_turn_up_until + self._liveness.send_lingers
