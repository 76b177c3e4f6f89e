"""Send what the outbox holds: commit the attempt, send, record what came of it."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta

import structlog

from switchyard.domain import decisions
from switchyard.domain.changes import Change, Committed
from switchyard.domain.errors import OutcomeUnknown, Unavailable
from switchyard.domain.ids import VenueName, WorkerId
from switchyard.domain.outbox import OrderState, OutboxRow
from switchyard.flow.decide import Commit, Decision, after, decide
from switchyard.flow.sending.lanes import Departures, HeldLanes, Turn
from switchyard.flow.sending.throttle import Throttle
from switchyard.flow.wake import Wake
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.liveness import Liveness
from switchyard.ports.outbox import Due, OutboxQueries
from switchyard.ports.randomness import Randomness
from switchyard.ports.venue import (
    RATE_LIMITED,
    TURN_LIMIT,
    Accepted,
    Ambiguous,
    SendOutcome,
    Unsent,
    Venue,
    VenueRejected,
    ignore_departure,
)
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

# Orphans come from a crash; a few seconds more do not matter, a query per turn would.
RECOVERY_SECONDS = 5.0
RECOVERY_PAGE = 1_000
# While the database is away an outcome is kept in hand and its slot taken; a second is soon enough to look again.
RECORD_AGAIN_SECONDS = 1.0
# Statuses in which an order's own row may be sent: it is not at the venue, as far as anyone knows.
SENDABLE = ("ACCEPTED", "UNKNOWN", "CANCEL_REQUESTED")


_Key = tuple[str, str, int]


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
    ) -> None:
        self._worker = worker
        self._journal = journal
        self._queries = queries
        self._liveness = liveness
        self._commit = commit
        self._venues = venues
        self._clock = clock
        self._randomness = randomness
        self._metrics = metrics
        self._slots = batch_size * parallelism
        self._retry_max = retry_max
        self._idle_seconds = idle_seconds
        self._stuck_after = stuck_after
        self._claiming: asyncio.Future[list[bool]] | None = None
        self._sends: dict[_Key, asyncio.Task[None]] = {}
        self._freed = asyncio.Event()
        self._open: set[VenueName] = set()
        self._lanes = lanes
        self._departures = Departures()
        self._throttles = {name: Throttle(self._slots) for name in venues}
        self._under_way: Counter[VenueName] = Counter()

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
        due = await self._queries.due(self._clock.now(), min(slots, sum(free.values())), list(free), lanes)
        self._metrics.dequeued.labels("success" if due else "empty").inc()
        strays = [one for one in due if one.reported_before and _is_first(one.row) and one.row.last_error is None]
        if strays:
            await asyncio.gather(*(self._doubt(one, decisions.EXECUTED_BEFORE) for one in strays))
            return len(strays)
        taken: Counter[VenueName] = Counter()
        claims = []
        for one in due:
            taken[one.row.venue] += 1
            if taken[one.row.venue] <= free[one.row.venue]:
                claims.append(self._claim(one))
        # Not to be interrupted: an attempt that is committed and then not made would be a doubt out of nothing.
        self._claiming = asyncio.gather(*claims)
        return sum(await asyncio.shield(self._claiming))

    def open_venue(self, venue: VenueName) -> None:
        """Send to this venue from now on: what it has is known."""
        self._open.add(venue)

    def _free_by_venue(self) -> dict[VenueName, int]:
        if len(self._sends) >= self._slots:
            return {}
        now = self._clock.now()
        free = {name: self._throttles[name].free(self._under_way[name], now) for name in self._open}
        return {name: count for name, count in free.items() if count}

    async def recover_once(self) -> int:
        """Bring attempts whose sender is proven gone into doubt; returns how many there were.

        A row under our own name that nobody here is sending is one whose claim was committed but never heard of. One
        that a living worker has been sending for too long is in doubt as well, but nothing is sent in its place.
        """
        unsettled = await self._queries.unsettled("sending", RECOVERY_PAGE)
        others = {due.row.worker for due in unsettled if due.row.worker not in (None, self._worker)}
        dead = await self._liveness.dead([worker for worker in others if worker is not None])
        orphans = [
            due
            for due in unsettled
            if due.row.worker in dead or (due.row.worker == self._worker and _key(due.row) not in self._sends)
        ]
        await asyncio.gather(*(self._settle(due.row, Ambiguous("SENDER_DIED"), due.state) for due in orphans))
        stuck_before = self._clock.now() - self._stuck_after
        stuck = [due for due in unsettled if due not in orphans and due.row.updated_at < stuck_before]
        await asyncio.gather(*(self._doubt(due, "STUCK", suspect=due.row.worker) for due in stuck))
        return len(orphans) + len(stuck) + await self._expire_at_closed_venues()

    async def _expire_at_closed_venues(self) -> int:
        """End what has become too late while its venue cannot be reached at all; returns how many there were."""
        closed = [name for name in self._venues if name not in self._open]
        lanes = self._lanes.filter()
        if not closed or lanes == []:
            return 0
        now = self._clock.now()
        late = [
            due
            for due in await self._queries.due(now, RECOVERY_PAGE, closed, lanes)
            if _is_first(due.row) and decisions.is_past_deadline(due.state.order, now)
        ]
        changes = (decisions.record_expired(due.state, due.row, "BROKER_DOWN", now) for due in late)
        outcomes = await asyncio.gather(*map(self._commit, changes))
        return sum(isinstance(outcome, Committed) for outcome in outcomes)

    async def drain(self, seconds_max: float) -> None:
        """Wait for the sends under way, at most so long; what is left is settled by the next start."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                if self._claiming is not None:
                    await asyncio.wait({self._claiming})
                if self._sends:
                    await asyncio.wait(set(self._sends.values()))

    async def _claim(self, due: Due) -> bool:
        # The line forms in the order of acceptance, here and now: what is committed first may come back later.
        turn = (
            self._departures.join((due.state.order.account_id, due.state.order.symbol)) if _is_first(due.row) else None
        )
        try:
            return await self._take(due, turn)
        except BaseException:
            _leave(turn)
            raise

    async def _take(self, due: Due, turn: Turn | None) -> bool:
        row, state = due.row, due.state
        now = self._clock.now()
        unsendable = self._unsendable(state, row, now) if row.kind == "new" else None
        if unsendable is not None:
            _leave(turn)
            await self._commit(unsendable)
            return True
        begun_at = self._clock.monotonic()
        change = decisions.begin_attempt(state, row, self._worker, now)
        if not isinstance(await self._commit(change), Committed):
            _leave(turn)
            return False  # somebody else has it, or the order moved on: the next look tells
        if not row.attempt:
            self._metrics.outbox_lag.observe((now - row.created_at).total_seconds())
        self._begin(change.outbox[0], after(state, change), turn, begun_at)
        return True

    def _begin(self, row: OutboxRow, state: OrderState, turn: Turn | None, begun_at: float) -> None:
        self._under_way[row.venue] += 1
        self._lanes.begin(row.lane)
        task = self._sends[_key(row)] = asyncio.create_task(self._send(row, state, turn, begun_at))
        self._metrics.inflight.set(len(self._sends))
        task.add_done_callback(lambda done: self._sent(row, turn, done))

    def _unsendable(self, state: OrderState, row: OutboxRow, now: datetime) -> Change | None:
        """What to write instead of sending, where sending would be wrong."""
        order = state.order
        if order.status not in SENDABLE:
            # A report told us meanwhile that the venue has it: there is nothing left to send.
            return decisions.record_sent(state, row, order.venue_order_id, now)
        if not decisions.is_past_deadline(order, now):
            return None
        if order.status == "UNKNOWN":
            # A resend is an execution, and it is too late for one: from here on the venue can only be asked.
            return decisions.record_doubt(state, row, row.last_error or "TOO_LATE_TO_RESEND", None, now)
        return decisions.record_expired(state, row, "BROKER_DOWN" if row.attempt else "BROKER_TIMEOUT", now)

    def _sent(self, row: OutboxRow, turn: Turn | None, task: "asyncio.Task[None]") -> None:
        _leave(turn)
        del self._sends[_key(row)]
        self._under_way[row.venue] -= 1
        self._lanes.end(row.lane)
        self._metrics.inflight.set(len(self._sends))
        self._freed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            # The row stays `sending` under our name, and the next recovery finds it.
            self._metrics.stage_failures.labels("dispatch").inc()
            log.error("a send's outcome was not recorded", error=repr(error))

    async def _send(self, row: OutboxRow, state: OrderState, turn: Turn | None, begun_at: float) -> None:
        try:
            outcome = await self._deliver(row, state, turn, begun_at)
        except Exception as error:
            # An adapter that raises has a defect, and what the venue saw is anyone's guess: that is doubt.
            log.exception("a venue adapter failed", venue=row.venue)
            outcome = Ambiguous(f"ADAPTER_FAILED: {error!r}")
        if isinstance(outcome, Unsent) and outcome.error == RATE_LIMITED:
            self._throttles[row.venue].slow_down(self._clock.now(), outcome.retry_after)
        elif isinstance(outcome, Accepted):
            self._throttles[row.venue].speed_up()
        _leave(turn)
        await self._settle(row, outcome, state)

    async def _deliver(self, row: OutboxRow, state: OrderState, turn: Turn | None, begun_at: float) -> SendOutcome:
        venue = self._venues[row.venue]
        if turn is not None and not await turn.comes_within(TURN_LIMIT.total_seconds()):
            return Unsent("STUCK_IN_LINE")
        if self._clock.monotonic() - begun_at > TURN_LIMIT.total_seconds():
            # It was paused, or waited: by now others may rightly believe that this attempt has come to its end.
            return Unsent("BEGUN_TOO_LONG_AGO")
        if row.kind == "cancel":
            return await venue.cancel(state.order)
        if state.order.status != "UNKNOWN" and decisions.is_past_deadline(state.order, self._clock.now()):
            return Unsent("TOO_LATE")  # it waited for its turn too long, and nothing of it has left
        return await venue.submit(state.order, turn.depart if turn is not None else ignore_departure)

    async def _settle(self, row: OutboxRow, outcome: SendOutcome, state: OrderState) -> None:
        def decision(newest: OrderState) -> Change | None:
            current = newest.row(row.kind, row.number)
            if current.attempt == row.attempt and (current.status == "sending" or self._may_tell(current, outcome)):
                return self._outcome_change(newest, current, outcome, self._clock.now())
            self._metrics.stale_writes.inc()
            return None

        change = await self._record(row, decision, state)
        if change is None:
            return
        order = change.orders[0]
        self._metrics.sends.labels(_label(outcome)).inc()
        if change.outbox[0].status in decisions.SETTLED:
            self._metrics.retries.observe(row.attempt - 1)
        if row.kind == "new" and isinstance(outcome, Accepted):
            waited = order.updated_at - order.accepted_at
            self._metrics.accept_to_sent.observe(waited.total_seconds() * 1000)
        if order.status == "UNKNOWN":
            self._metrics.uncertain.inc()
            log.error("order in doubt", order_id=order.order_id, venue=row.venue, error=_error(outcome))

    def _may_tell(self, row: OutboxRow, outcome: SendOutcome) -> bool:
        """Whether a row that was taken to hang is ours and nothing has left: nobody but its sender can know that."""
        return row.status == "uncertain" and row.worker == self._worker and isinstance(outcome, Unsent)

    async def _doubt(self, due: Due, error: str, suspect: WorkerId | None = None) -> None:
        """Bring a row into doubt without an outcome of its own; rejected if one came after all."""
        log.error("order in doubt", order_id=due.row.order_id, venue=due.row.venue, error=error, worker=suspect)
        change = decisions.record_doubt(due.state, due.row, error, None, self._clock.now(), suspect=suspect)
        if isinstance(await self._commit(change), Committed):
            self._metrics.uncertain.inc()

    async def _record(self, row: OutboxRow, decision: Decision, state: OrderState | None) -> Change | None:
        """Write an outcome, however long the database is away: it is the only trace of what the venue said."""
        while True:
            try:
                return await decide(self._journal, self._commit, row.order_id, decision, state)
            except (Unavailable, OutcomeUnknown) as error:
                log.warning("an outcome waits for the journal", order_id=row.order_id, error=str(error))
            state = None
            await asyncio.sleep(RECORD_AGAIN_SECONDS)

    def _outcome_change(self, state: OrderState, row: OutboxRow, outcome: SendOutcome, now: datetime) -> Change:
        exhausted = row.attempt > self._retry_max
        again_at = now + decisions.backoff(row.attempt, self._randomness.jitter())
        is_safe_to_repeat = self._venues[row.venue].capabilities.dedupe == "forever"
        # An outcome speaks of its own attempt. After an earlier one that ended in doubt, only a yes ends the doubt.
        # A row that was taken to hang is in doubt about this very attempt, except where attempts may begin in doubt.
        in_doubt = (
            row.kind == "new" and state.order.status == "UNKNOWN" and (row.status == "sending" or is_safe_to_repeat)
        )
        match outcome:
            case Accepted(venue_order_id):
                return decisions.record_sent(state, row, venue_order_id, now)
            case VenueRejected(reason):
                if in_doubt:
                    return decisions.record_doubt(state, row, reason, None, now)
                return decisions.record_rejected(state, row, reason, now)
            case Unsent(error, retry_after):
                if retry_after is not None:
                    again_at = max(again_at, now + retry_after)
                if in_doubt:
                    return decisions.record_doubt(state, row, error, None if exhausted else again_at, now)
                if exhausted:
                    return decisions.record_rejected(state, row, "RETRY_EXHAUSTED", now)
                return decisions.record_unsent(state, row, error, again_at, now)
            case Ambiguous(error):
                if not is_safe_to_repeat or exhausted:
                    return decisions.record_doubt(state, row, error, None, now)
                # The sender is gone, not the venue: there is nothing to back off from.
                return decisions.record_doubt(state, row, error, now if error == "SENDER_DIED" else again_at, now)


def _key(row: OutboxRow) -> _Key:
    return (row.order_id, row.kind, row.number)


def _is_first(row: OutboxRow) -> bool:
    """Whether the order leaves for the first time; what comes back from a failure or a doubt has lost its place."""
    return row.kind == "new" and not row.attempt


def _leave(turn: Turn | None) -> None:
    if turn is not None:
        turn.depart()


def _label(outcome: SendOutcome) -> str:
    match outcome:
        case Accepted(already_processed=True):
            return "conflict_processed"
        case Accepted():
            return "success"
        case VenueRejected():
            return "dead"
        case Unsent():
            return "retry"
        case Ambiguous():
            return "uncertain"


def _error(outcome: SendOutcome) -> str | None:
    return outcome.error if isinstance(outcome, Ambiguous | Unsent) else None
