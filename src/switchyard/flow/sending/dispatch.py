"""The dispatcher: claims due outbox rows, commits each attempt, sends it, and has the outcome recorded, page by page.

Reads the outbox; proposes attempts to the sequencer and writes outcomes through `OutcomeWriter`; calls venues outside
of any transaction.
"""

import asyncio
import contextlib
from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime, timedelta

import structlog

from switchyard.domain import decisions
from switchyard.domain.changes import Change, Conflict
from switchyard.domain.ids import VenueName, WorkerId
from switchyard.domain.outbox import OrderState, OutboxKey, is_first_attempt
from switchyard.domain.risk.reasons import Violation
from switchyard.flow.active_kills import ActiveKills
from switchyard.flow.decide import decide_all
from switchyard.flow.proposals import Answer, Decided, Failed, Positions, Proposal
from switchyard.flow.sending.collars import Guard
from switchyard.flow.sending.express import Express
from switchyard.flow.sending.instead import Instead
from switchyard.flow.sending.lanes import HeldLanes
from switchyard.flow.sending.lost_keys import LostKeys
from switchyard.flow.sending.outcomes import FirstReports, OutcomeWriter
from switchyard.flow.sending.recover import Recovery, WasRead, always_read
from switchyard.flow.sending.resend import FirstSends
from switchyard.flow.sending.sends import Send, Sends, line_of
from switchyard.flow.sending.sent_ids import SentIds
from switchyard.flow.sending.waiting import WaitingLanes
from switchyard.flow.sequencer import Sequencer
from switchyard.flow.states import after
from switchyard.flow.wake import Wake
from switchyard.ports.clock import Clock
from switchyard.ports.liveness import Liveness
from switchyard.ports.outbox import Due, OutboxQueries
from switchyard.ports.randomness import Randomness
from switchyard.ports.venue import (
    Venue,
    VenueUnavailable,
)
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

# Orphans come from crashes: a few seconds more do not matter, a query in every turn of the loop would.
RECOVERY_SECONDS = 5.0


class Dispatcher:
    """One worker: claims rows for its free slots and sends them."""

    def __init__(
        self,
        *,
        worker: WorkerId,
        sequencer: Sequencer,
        queries: OutboxQueries,
        liveness: Liveness,
        lanes: HeldLanes,
        venues: Mapping[VenueName, Venue],
        clock: Clock,
        randomness: Randomness,
        metrics: Metrics,
        batch_size: int,
        parallelism: int,
        retry_max: int,
        idle_seconds: float,
        stuck_after: timedelta,
        kills: ActiveKills,
        was_read: WasRead = always_read,
        lost_keys: LostKeys | None = None,
        waiting: WaitingLanes,
        sent_ids: SentIds | None = None,
        guard: Guard | None = None,
        first_reports: Mapping[VenueName, FirstReports] | None = None,
    ) -> None:
        self._worker = worker
        self._queries = queries
        self._liveness = liveness
        self._lanes = lanes
        self._sequencer = sequencer
        self._venues = venues
        self._clock = clock
        self._randomness = randomness
        self._metrics = metrics
        self._dequeued = {result: metrics.dequeued.labels(result) for result in ("success", "empty")}
        self._idle_seconds = idle_seconds
        self._kills = kills
        self._guard = guard
        self._lost_keys = lost_keys
        self._claiming: asyncio.Task[int] | None = None
        self._open: set[VenueName] = set()
        self._waiting = waiting
        self._first_sends = FirstSends(venues, clock)
        self._instead = Instead(self._first_sends, kills)
        self._outcomes = OutcomeWriter(
            worker=worker,
            sequencer=sequencer,
            venues=venues,
            clock=clock,
            randomness=randomness,
            metrics=metrics,
            retry_max=retry_max,
            first_sends=self._first_sends,
            first_reports={} if first_reports is None else first_reports,
        )
        self._sends = Sends(
            slots=batch_size * parallelism,
            venues=venues,
            lanes=lanes,
            outcomes=self._outcomes,
            first_sends=self._first_sends,
            newest=sequencer.states.order,
            kills=kills,
            clock=clock,
            metrics=metrics,
            sent_ids=sent_ids,
        )
        self.express = Express(
            worker=worker,
            sends=self._sends,
            lanes=lanes,
            waiting=waiting,
            venues=venues,
            open_venues=self._open,
            lost_keys=lost_keys,
            clock=clock,
        )
        sequencer.begin_first_attempts(self.express)
        self._recovery = Recovery(
            worker=worker,
            queries=queries,
            liveness=liveness,
            lanes=lanes,
            commit=sequencer.commit,
            outcomes=self._outcomes,
            venues=venues,
            clock=clock,
            stuck_after=stuck_after,
            was_read=was_read,
        )

    async def run(self, wake: Wake) -> None:
        """Send for as long as the process lives."""
        await self._liveness.hold(self._worker)
        self.express.start()
        recovered_at = float("-inf")
        while True:
            # Also before the next claim, where an attempt may have to go back into the queue before those behind it.
            if self._sends.unsure or self._clock.monotonic() - recovered_at >= RECOVERY_SECONDS:
                while await self.recover_once():
                    pass
                recovered_at = self._clock.monotonic()
            if await self.run_once():
                continue
            if self._sends.free <= 0 or self._sends.is_holding_back:
                await self._sends.slot_freed()
            else:
                await wake.wait(self._idle_seconds * (1 + self._randomness.jitter() / 10))

    async def run_once(self) -> int:
        """Claim rows for the free slots and begin to send them; returns how many."""
        free, lanes = self._sends.free_by_venue(self._open), self._lanes.filter()
        if not free or lanes == []:
            return 0
        limit, known = min(self._sends.free, sum(free.values())), self._sequencer.states.order
        self._waiting.begin_read()
        self._sends.begin_read()
        page = await self._queries.due(self._clock.now(), limit, list(free), lanes, known=known)
        is_complete = len(page) < limit and len(free) == len(self._open)
        self._waiting.note_read((due.row.lane for due in page if due.row.kind == "new"), is_complete=is_complete)
        self._dequeued["success" if page else "empty"].inc()
        if not page:
            return 0
        strays = [due for due in page if _is_stray(due)]
        if strays:
            await asyncio.gather(*(self._outcomes.write_doubt(due, "EXECUTED_BEFORE") for due in strays))
            return len(strays)
        claims = self._fitting(page)
        for due in claims:
            self._sends.register(due.row)
        # Shielded from cancellation: an attempt that is committed but not sent would bring its order into doubt.
        self._claiming = asyncio.create_task(self._claim(claims))
        return await asyncio.shield(self._claiming)

    def _fitting(self, page: Sequence[Due]) -> list[Due]:
        """The rows of a page that may still be sent from here.

        While it was read, slots were given to first attempts, and lanes may have been given to another worker.
        """
        slots, free, usable = self._sends.free, self._sends.free_by_venue(self._open), self._lanes.usable()
        claims: list[Due] = []
        for due in page:
            if due.row.key in self._sends:
                continue  # the batch of its last attempt is still being recorded
            if due.row.kind == "new" and self._sends.must_wait(line_of(due.state.order), due.row.lane):
                continue  # it would be held back, attempt after attempt, until the ones before it are recorded
            if len(claims) < slots and free.get(due.row.venue, 0) and due.row.lane in usable:
                free[due.row.venue] -= 1
                claims.append(due)
        return claims

    async def recover_once(self) -> int:
        """Recover one page of rows that no live attempt will finish; returns how many there were."""
        return await self._recovery.run_once(self._sends, self._open)

    def open_venue(self, venue: VenueName) -> None:
        """Send to this venue from now on; called once its open orders and reports have been read."""
        self._open.add(venue)

    def close_venue(self, venue: VenueName) -> None:
        """Begin no more attempts at this venue; those under way end by themselves."""
        self._open.discard(venue)

    def owns(self, lane: int) -> bool:
        """Whether this worker sends the orders of the lane; while it holds no lane yet, it may be any."""
        usable = self._lanes.usable()
        return not usable or lane in usable

    def begins_at_once(self, venue: VenueName) -> bool:
        """Whether first attempts at this venue begin in the commits that accept their orders."""
        return self.express.serves(venue)

    def at_venue(self, venue: VenueName) -> int:
        """How many requests the venue has not answered yet."""
        return self._sends.at_venue(venue)

    def waits_for_venue(self, venue: VenueName) -> bool:
        """Whether the venue limits the sending: it is closed, or no slot is free and it holds most of those in use."""
        if venue not in self._open:
            return True
        return not self._sends.free_by_venue([venue]) and self._sends.holds_most(venue)

    async def drain(self, seconds_max: float) -> None:
        """Wait for the sends under way, for a limited time; recovery settles the rest after the next start."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                self.express.stop()
                if self._claiming is not None:
                    await asyncio.wait({self._claiming})
                await self._sends.drain()

    async def _claim(self, page: Sequence[Due]) -> int:
        """Commit an attempt for each row, or what is to be done instead; begin to send; returns how many changed."""
        unsure: set[OutboxKey] = set()
        try:
            return await self._begin(await self._without_lost_keys(page), unsure)
        finally:
            self._waiting.note_started(due.row.lane for due in page)
            for due in page:
                self._sends.release(due.row, never_left=due.row.key in unsure)

    async def _begin(self, page: Sequence[Due], unsure: set[OutboxKey]) -> int:
        """`unsure` gets those of which it is not known whether their attempts are committed."""
        if not self._kills.is_empty:
            # An order that was accepted after a kill was cleared must not end because of it.
            await self._kills.refresh()
        breaches = {} if self._guard is None else await self._guard.breaches(page)
        begun_at, now = self._clock.monotonic(), self._clock.now()
        page = [due for due in page if not _waits_for_a_quote(due, breaches, now)]
        self._sequencer.states.remember(due.state for due in page)
        unsure.update(due.row.key for due in page)
        answers = await decide_all(self._propose, [self._proposal(due, breaches, now) for due in page])
        unsure.intersection_update(
            due.row.key for due, answer in zip(page, answers, strict=True) if isinstance(answer, Failed)
        )
        failed_lines: set[Hashable] = set()
        sends: list[Send] = []
        for due, answer in zip(page, answers, strict=True):
            match answer:
                case Decided(before, change) if change.outbox[0].status == "sending":
                    send = Send(change.outbox[0], after(before, change.orders[0], change), begun_at)
                    sends.append(send._replace(would_pass=send.is_first and send.line in failed_lines))
                case Failed(_) if due.row.kind == "new":
                    failed_lines.add(line_of(due.state.order))
        self._sends.start(sends)
        for answer in answers:
            if isinstance(answer, Failed):
                raise answer.error
        # The others were claimed by another worker or have changed.
        return sum(answer is not None for answer in answers)

    async def _propose(self, proposals: Sequence[Proposal]) -> list[Answer]:
        """Propose, and note the kills that have rejected an attempt: decided again, their orders end."""
        answers = await self._sequencer.propose(proposals)
        for answer in answers:
            if isinstance(answer, Conflict) and answer.kill is not None:
                self._kills.note(answer.kill)
                self._metrics.kills.blocked.labels("attempt").inc()
        return answers

    async def _without_lost_keys(self, page: Sequence[Due]) -> list[Due]:
        """The rows that may be claimed: the venue does not have them from a history that was lost.

        Where it has one, that order comes into doubt; where it does not answer, it is asked with the next claim.
        """
        if not any(map(self._may_be_lost, page)):
            return list(page)
        may_claim = await asyncio.gather(*map(self._is_absent, page))
        return [due for due, may in zip(page, may_claim, strict=True) if may]

    def _may_be_lost(self, due: Due) -> bool:
        return self._lost_keys is not None and self._lost_keys.may_include(due.state.order, due.row)

    async def _is_absent(self, due: Due) -> bool:
        if not self._may_be_lost(due):
            return True
        try:
            found = await self._venues[due.row.venue].find_by_client_order_id(due.row.venue_client_order_id)
        except VenueUnavailable:
            return False
        if found is not None:
            await self._outcomes.write_doubt(due, "EXECUTED_BEFORE")
        return found is None

    def _proposal(self, due: Due, breaches: Mapping[OutboxKey, Violation], now: datetime) -> Proposal:
        claimed = due.row

        def decision(newest: OrderState, _: Positions) -> Change | None:
            row = newest.find(claimed.kind, claimed.number)
            if row is None or row.version != claimed.version:
                return None
            instead = self._instead.of_sending(newest, row, breaches, now) if row.kind == "new" else None
            return instead or decisions.begin_attempt(newest, row, self._worker, now)

        return Proposal(claimed.order_id, decision)


def _waits_for_a_quote(due: Due, breaches: Mapping[OutboxKey, Violation], now: datetime) -> bool:
    """Whether the order is to be sent again and cannot be judged by its collar yet."""
    breach = breaches.get(due.row.key)
    if breach is None or breach.reason != "COLLAR_NO_QUOTE":
        return False
    return not decisions.is_past_deadline(due.state.order, now)


def _is_stray(due: Due) -> bool:
    """Whether the venue reported on the order before its first attempt, and no operator has decided about it since.

    It may have been executed from a database that was lost, so it must not be sent.
    """
    return due.reported_before and is_first_attempt(due.row) and due.row.last_error != "NOT_SENT_BY_DECISION"
