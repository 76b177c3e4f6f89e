"""The dispatcher: claims due outbox rows, commits each attempt, sends it, and has the outcome recorded.

Reads the outbox; writes attempts through `Commit` and outcomes through `OutcomeWriter`; calls venues outside of any
transaction.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta

import structlog

from switchyard.domain import decisions
from switchyard.domain.changes import Change, Committed
from switchyard.domain.ids import VenueName, WorkerId
from switchyard.domain.outbox import OrderState, OutboxKey, OutboxRow, is_first_attempt
from switchyard.domain.reasons import described
from switchyard.flow.decide import Commit, after
from switchyard.flow.sending.lanes import Departures, HeldLanes, Turn
from switchyard.flow.sending.lost_keys import LostKeys
from switchyard.flow.sending.outcomes import OutcomeWriter
from switchyard.flow.sending.recover import Recovery, WasRead, always_read
from switchyard.flow.sending.resend import FirstSends
from switchyard.flow.sending.throttle import Throttle
from switchyard.flow.wake import Wake
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.liveness import Liveness
from switchyard.ports.outbox import Due, OutboxQueries
from switchyard.ports.randomness import Randomness
from switchyard.ports.venue import (
    TURN_LIMIT,
    Accepted,
    Ambiguous,
    SendOutcome,
    Unsent,
    Venue,
    VenueUnavailable,
    ignore_departure,
)
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

# Orphans come from crashes: a few seconds more do not matter, a query in every turn of the loop would.
RECOVERY_SECONDS = 5.0
# The statuses in which an order's own row may be sent: no evidence shows that the venue has the order.
SENDABLE = ("ACCEPTED", "UNKNOWN", "CANCEL_REQUESTED")


class Dispatcher:
    """One worker: claims rows for its free slots and sends them."""

    def __init__(
        self,
        *,
        worker: WorkerId,
        journal: Journal,
        queries: OutboxQueries,
        liveness: Liveness,
        lanes: HeldLanes,
        commit: Commit,
        venues: Mapping[VenueName, Venue],
        clock: Clock,
        randomness: Randomness,
        metrics: Metrics,
        batch_size: int,
        parallelism: int,
        retry_max: int,
        idle_seconds: float,
        stuck_after: timedelta,
        was_read: WasRead = always_read,
        lost_keys: LostKeys | None = None,
    ) -> None:
        self._worker = worker
        self._queries = queries
        self._liveness = liveness
        self._lanes = lanes
        self._commit = commit
        self._venues = venues
        self._clock = clock
        self._randomness = randomness
        self._metrics = metrics
        self._slots = batch_size * parallelism
        self._idle_seconds = idle_seconds
        self._lost_keys = lost_keys
        self._claiming: asyncio.Future[list[bool]] | None = None
        self._sends: dict[OutboxKey, asyncio.Task[None]] = {}
        self._freed = asyncio.Event()
        self._open: set[VenueName] = set()
        self._departures = Departures()
        self._throttles = {name: Throttle(self._slots) for name in venues}
        self._under_way: Counter[VenueName] = Counter()
        self._at_venue: Counter[VenueName] = Counter()
        self._first_sends = FirstSends(venues, clock)
        self._outcomes = OutcomeWriter(
            worker=worker,
            journal=journal,
            commit=commit,
            venues=venues,
            clock=clock,
            randomness=randomness,
            metrics=metrics,
            retry_max=retry_max,
            first_sends=self._first_sends,
        )
        self._recovery = Recovery(
            worker=worker,
            queries=queries,
            liveness=liveness,
            lanes=lanes,
            commit=commit,
            outcomes=self._outcomes,
            venues=venues,
            clock=clock,
            stuck_after=stuck_after,
            was_read=was_read,
        )

    async def run(self, wake: Wake) -> None:
        """Send for as long as the process lives."""
        await self._liveness.hold(self._worker)
        recovered_at = float("-inf")
        while True:
            if self._clock.monotonic() - recovered_at >= RECOVERY_SECONDS:
                while await self.recover_once():
                    pass
                recovered_at = self._clock.monotonic()
            if await self.run_once():
                continue
            if len(self._sends) >= self._slots:
                self._freed.clear()
                await self._freed.wait()
            else:
                await wake.wait(self._idle_seconds * (1 + self._randomness.jitter() / 10))

    async def run_once(self) -> int:
        """Claim rows for the free slots and begin to send them; returns how many."""
        free, lanes = self._free_by_venue(), self._lanes.filter()
        if not free or lanes == []:
            return 0
        slots = self._slots - len(self._sends)
        page = await self._queries.due(self._clock.now(), min(slots, sum(free.values())), list(free), lanes)
        self._metrics.dequeued.labels("success" if page else "empty").inc()
        strays = [due for due in page if _is_stray(due)]
        if strays:
            await asyncio.gather(*(self._outcomes.write_doubt(due, "EXECUTED_BEFORE") for due in strays))
            return len(strays)
        claimed: Counter[VenueName] = Counter()
        claims = []
        for due in page:
            claimed[due.row.venue] += 1
            if claimed[due.row.venue] <= free[due.row.venue]:
                claims.append(self._claim(due))
        # Shielded from cancellation: an attempt that is committed but not sent would bring its order into doubt.
        self._claiming = asyncio.gather(*claims)
        return sum(await asyncio.shield(self._claiming))

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

    def at_venue(self, venue: VenueName) -> int:
        """How many requests the venue has not answered yet."""
        return self._at_venue[venue]

    def waits_for_venue(self, venue: VenueName) -> bool:
        """Whether the venue limits the sending: it is closed, or no slot is free and it holds most of those in use."""
        if venue not in self._open:
            return True
        return venue not in self._free_by_venue() and self._at_venue[venue] * 2 >= self._under_way[venue]

    async def drain(self, seconds_max: float) -> None:
        """Wait for the sends under way, for a limited time; recovery settles the rest after the next start."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                if self._claiming is not None:
                    await asyncio.wait({self._claiming})
                if self._sends:
                    await asyncio.wait(set(self._sends.values()))

    def _free_by_venue(self) -> dict[VenueName, int]:
        if len(self._sends) >= self._slots:
            return {}
        now = self._clock.now()
        free = {name: self._throttles[name].free(self._under_way[name], now) for name in self._open}
        return {name: count for name, count in free.items() if count}

    async def _claim(self, due: Due) -> bool:
        # Joins the line before the first await: claims are made in journal order, but their commits may be
        # answered in another order.
        order = due.state.order
        turn = self._departures.join((order.account_id, order.symbol)) if is_first_attempt(due.row) else None
        try:
            return await self._begin_attempt(due, turn)
        except BaseException:
            _leave(turn)
            raise

    async def _begin_attempt(self, due: Due, turn: Turn | None) -> bool:
        row, state = due.row, due.state
        now = self._clock.now()
        instead = self._change_instead_of_sending(state, row, now) if row.kind == "new" else None
        if instead is not None:
            _leave(turn)
            await self._commit(instead)
            return True
        if self._lost_keys is not None and self._lost_keys.may_include(due):
            try:
                found = await self._venues[row.venue].find_by_client_order_id(row.venue_client_order_id)
            except VenueUnavailable:
                _leave(turn)
                return False  # asked again with the next claim
            if found is not None:
                _leave(turn)
                await self._outcomes.write_doubt(due, "EXECUTED_BEFORE")
                return True
        begun_at = self._clock.monotonic()
        change = decisions.begin_attempt(state, row, self._worker, now)
        if not isinstance(await self._commit(change), Committed):
            _leave(turn)
            return False  # version conflict: another worker claimed the row, or the order changed; the next query shows
        if not row.attempt:
            self._metrics.outbox_lag.observe((now - row.created_at).total_seconds())
        self._start_send(change.outbox[0], after(state, change), turn, begun_at)
        return True

    def _change_instead_of_sending(self, state: OrderState, row: OutboxRow, now: datetime) -> Change | None:
        """The change to commit where the order must not be sent; none where it may be sent."""
        order = state.order
        if order.status not in SENDABLE:
            # A report has shown that the venue has the order.
            return decisions.record_sent(state, row, order.venue_order_id, now)
        is_late = decisions.is_past_deadline(order, now)
        if order.status == "UNKNOWN":
            if not is_late and self._first_sends.may_resend(row):
                return None
            # A resend is an execution: past the deadline, or where the venue may not recognise the client order id any
            # more, the venue can only be asked.
            self._first_sends.settle(row)
            code = row.last_error or "TOO_LATE_TO_RESEND"
            return decisions.record_doubt(state, row, code, None, now, detail=row.error_detail)
        if not is_late:
            return None
        if row.last_error == "ABSENT_AT_VENUE":
            return decisions.record_expired(state, row, "ABSENT_AT_VENUE", now)
        detail = None if row.last_error is None else described(row.last_error, row.error_detail)
        return decisions.record_expired(
            state, row, "BROKER_DOWN" if row.attempt else "BROKER_TIMEOUT", now, detail=detail
        )

    def _start_send(self, row: OutboxRow, state: OrderState, turn: Turn | None, begun_at: float) -> None:
        self._first_sends.begin(row, begun_at, in_doubt=state.order.status == "UNKNOWN")
        self._under_way[row.venue] += 1
        self._lanes.begin(row.lane)
        task = self._sends[row.key] = asyncio.create_task(self._send(row, state, turn, begun_at))
        self._metrics.inflight.set(len(self._sends))
        task.add_done_callback(lambda done: self._end_send(row, turn, done))

    def _end_send(self, row: OutboxRow, turn: Turn | None, task: "asyncio.Task[None]") -> None:
        _leave(turn)
        del self._sends[row.key]
        self._under_way[row.venue] -= 1
        self._lanes.end(row.lane)
        self._metrics.inflight.set(len(self._sends))
        self._freed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            # The row stays `sending` under this worker's name, and the next recovery brings it into doubt.
            self._metrics.stage_failures.labels("dispatch").inc()
            log.error("send_outcome_lost", order_id=row.order_id, venue=row.venue, error=repr(error))

    async def _send(self, row: OutboxRow, state: OrderState, turn: Turn | None, begun_at: float) -> None:
        self._at_venue[row.venue] += 1
        try:
            outcome = await self._deliver(row, state, turn, begun_at)
        except Exception as error:
            # An adapter that raises has a defect, and the venue may or may not have the order.
            log.exception("venue_adapter_failed", order_id=row.order_id, venue=row.venue)
            outcome = Ambiguous("ADAPTER_FAILED", repr(error))
        finally:
            self._at_venue[row.venue] -= 1
        if isinstance(outcome, Unsent) and outcome.code == "RATE_LIMITED":
            self._throttles[row.venue].slow_down(self._clock.now(), outcome.retry_after)
        elif isinstance(outcome, Accepted):
            self._throttles[row.venue].speed_up()
        _leave(turn)
        await self._outcomes.write(row, outcome, state)

    async def _deliver(self, row: OutboxRow, state: OrderState, turn: Turn | None, begun_at: float) -> SendOutcome:
        venue = self._venues[row.venue]
        if turn is not None and not await turn.comes_within(TURN_LIMIT.total_seconds()):
            return Unsent("TURN_TIMEOUT")
        if self._clock.monotonic() - begun_at > TURN_LIMIT.total_seconds():
            # The process was paused, or the commit took long: the resolver may already treat this attempt as ended.
            return Unsent("ATTEMPT_STALE")
        if row.kind == "cancel":
            return await venue.cancel(state.order)
        if state.order.status != "UNKNOWN" and decisions.is_past_deadline(state.order, self._clock.now()):
            return Unsent("DEADLINE_PASSED")
        return await venue.submit(state.order, turn.depart if turn is not None else ignore_departure)


def _is_stray(due: Due) -> bool:
    """Whether the venue reported on the order before its first attempt, and no operator has decided about it since.

    It may have been executed from a database that was lost, so it must not be sent.
    """
    return due.reported_before and is_first_attempt(due.row) and due.row.last_error != "NOT_SENT_BY_DECISION"


def _leave(turn: Turn | None) -> None:
    if turn is not None:
        turn.depart()
