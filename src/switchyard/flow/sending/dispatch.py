"""The dispatcher: claims due outbox rows and begins their attempts, page by page; new orders begin theirs with their
commit.

Reads the outbox; proposes attempts to the sequencer; calls no venue itself. `Sends` carries the attempts out. Rates
of venues are kept here too: an order without a token of its venue is not claimed.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Container, Hashable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial

from switchyard.domain import decisions
from switchyard.domain.ids import AccountId, OrderId, VenueName, WorkerId
from switchyard.domain.journal.changes import Change, Committed, Outcome, merged
from switchyard.domain.orders.outbox import OrderState, OutboxKey, OutboxRow, never_lost
from switchyard.domain.risk.checks import Violation
from switchyard.flow.active_kills import ActiveKills
from switchyard.flow.clock import Wake
from switchyard.flow.commit.groups import Answer, Decided, Decision, Failed, Positions
from switchyard.flow.commit.sequencer import Sequencer, decide_all
from switchyard.flow.commit.states import accepted_state, after
from switchyard.flow.health.venues import HealthBoard, VenueChoice
from switchyard.flow.sending.failover import Failover
from switchyard.flow.sending.lanes import HeldLanes, WaitingLanes
from switchyard.flow.sending.lost_keys import LostKeys, is_stray
from switchyard.flow.sending.outcomes import AppliesReports, NoteAnswer, OutcomeWriter, ignore_answer, log_moved
from switchyard.flow.sending.pre_send_checks import FirstSends, Guard, PreSendChecks, waits_for_a_quote
from switchyard.flow.sending.resolve import Recovery, WasRead, always_read
from switchyard.flow.sending.sends import Send, Sends, SentIds, line_of
from switchyard.ports.cache import TokenBuckets
from switchyard.ports.clock import Clock, Randomness
from switchyard.ports.journal import Liveness
from switchyard.ports.outbox import Due, KnownState, OutboxQueries
from switchyard.ports.tracing import Tracer
from switchyard.ports.venue import Venue
from switchyard.telemetry.metrics import Metrics


class InlineFirstSend:
    """flow.commit.sequencer.FirstAttempts of one worker."""

    def __init__(
        self,
        *,
        worker: WorkerId,
        sends: Sends,
        lanes: HeldLanes,
        waiting: WaitingLanes,
        sendable: Callable[[], Collection[VenueName]],
        lost_keys: LostKeys | None,
        newest: KnownState,
        clock: Clock,
        any_lane: Container[VenueName] = (),
    ) -> None:
        """`any_lane`: as in `Dispatcher.open_venue`."""
        self._any_lane = any_lane
        self._newest = newest
        self._worker = worker
        self._sends = sends
        self._lanes = lanes
        self._waiting = waiting
        self._sendable = sendable
        self._lost_keys = lost_keys
        self._clock = clock
        self._is_on = False
        self._begun_at: dict[OrderId, float] = {}
        """When each attempt that is being committed began, on the monotonic clock."""

    def start(self) -> None:
        """Begin attempts from now on: the worker's name is known to be alive."""
        self._is_on = True

    def stop(self) -> None:
        """Begin no more attempts."""
        self._is_on = False

    def begin(self, changes: Sequence[tuple[Change, bool]]) -> list[Change | None]:
        """For each change of a group the change with its first attempt; none where no attempt begins with it."""
        begun: list[Change | None] = [None] * len(changes)
        if not self._is_on or True not in [may_begin for _, may_begin in changes]:
            return begun
        free = self._sends.free_by_venue(self._sendable())
        slots, usable = self._sends.free, self._lanes.usable()
        now, begun_at = self._clock.now(), self._clock.monotonic()
        queued: set[int] = set()
        for place, (change, may_begin) in enumerate(changes):
            if len(change.outbox) != 1 or len(change.orders) != 1:
                continue
            [row] = change.outbox
            if row.version != 1 or row.kind != "new" or row.status != "queued":
                continue  # not a new order
            may_begin = may_begin and slots > 0 and free.get(row.venue, 0) > 0
            is_own = row.lane in usable or row.venue in self._any_lane
            may_begin = may_begin and is_own and row.lane not in self._waiting and row.lane not in queued
            may_begin = may_begin and not self._sends.must_wait(line_of(change.orders[0]), row.lane)
            account = change.orders[0].account_id
            may_begin = may_begin and self._sends.room(row.venue, account) > 0
            if not may_begin or not self._may_send(change, row, now):
                queued.add(row.lane)  # those behind it in this group must not pass it
                continue
            state = OrderState(order=change.orders[0], outbox=(row,))
            begun[place] = merged([change, decisions.begin_attempt(state, row, self._worker, now)])
            # Before the commit: recovery takes an attempt that it does not find here for one of a dead worker.
            self._sends.register(row, account)
            self._begun_at[row.order_id] = begun_at
            free[row.venue] -= 1
            slots -= 1
        return begun

    def settle(self, begun: Sequence[tuple[Change, Outcome]]) -> None:
        """Send the attempts that are committed, in journal order, and give up those that conflicted."""
        sends = []
        for change, outcome in begun:
            row = change.outbox[-1]
            begun_at = self._begun_at.pop(row.order_id)
            if isinstance(outcome, Committed):
                state = self._newest(row.order_id) or accepted_state(change.orders[-1], change, outcome)
                sends.append(Send(state.outbox[0], state, begun_at, row.key))
                continue
            self._sends.release(row, change.orders[-1].account_id)
            if outcome.is_of_rows:
                self._waiting.add(row.lane)
        self._sends.start(sends)

    def abandon(self, begun: Sequence[Change], *, may_be_committed: bool) -> None:
        """Give up attempts that were not committed, or of which that is not known: none of them was sent."""
        for change in begun:
            row = change.outbox[-1]
            del self._begun_at[row.order_id]
            self._sends.release(row, change.orders[-1].account_id, never_left=may_be_committed)
        if may_be_committed:
            self._waiting.wake()

    def _may_send(self, change: Change, row: OutboxRow, now: datetime) -> bool:
        order = change.orders[0]
        if decisions.is_past_deadline(order, now):
            return False
        return self._lost_keys is None or not self._lost_keys.must_wait(order, row)


class VenueRates:
    """The token buckets of the venues that have a rate."""

    def __init__(self, buckets: Mapping[VenueName, TokenBuckets], clock: Clock, metrics: Metrics) -> None:
        self._buckets = buckets
        self._clock = clock
        self._metrics = metrics
        self._empty_until: dict[VenueName, float] = {}
        """On the monotonic clock: when the next token is expected."""

    @property
    def has_limits(self) -> bool:
        """Whether some venue has a rate."""
        return bool(self._buckets)

    def unlimited(self, venues: Collection[VenueName]) -> Collection[VenueName]:
        """Those of the venues that have no rate: a first attempt can begin without a token."""
        return [venue for venue in venues if venue not in self._buckets] if self._buckets else venues

    def ready(self, free: dict[VenueName, int]) -> dict[VenueName, int]:
        """The free slots, without those of venues whose bucket is empty."""
        if not self._empty_until:
            return free
        now = self._clock.monotonic()
        self._empty_until = {venue: until for venue, until in self._empty_until.items() if until > now}
        return {venue: count for venue, count in free.items() if venue not in self._empty_until}

    def wait_seconds(self) -> float:
        """How long until the next token of an empty bucket; infinite if none is empty."""
        now = self._clock.monotonic()
        return max(min(self._empty_until.values(), default=float("inf")) - now, 0.0)

    async def granted(self, claims: Sequence[Due]) -> list[Due]:
        """Those of the claims for which there is a token, which is taken; in journal order for each venue."""
        granted: list[Due] = []
        empty: set[VenueName] = set()
        for due in claims:
            venue = due.row.venue
            bucket = self._buckets.get(venue)
            if venue in empty:
                continue
            wait = None if bucket is None else await bucket.take(venue)
            if wait is None:
                granted.append(due)
                continue
            empty.add(venue)
            self._empty_until[venue] = self._clock.monotonic() + wait.total_seconds()
            self._metrics.routing.rate_waits.labels(venue).inc()
        return granted


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
        wait_max: timedelta | None = None,
        kills: ActiveKills,
        was_read: WasRead = always_read,
        lost_keys: LostKeys | None = None,
        waiting: WaitingLanes,
        sent_ids: SentIds | None = None,
        guard: Guard | None = None,
        inline_reports: Mapping[VenueName, AppliesReports] | None = None,
        note_answer: NoteAnswer = ignore_answer,
        health: HealthBoard | None = None,
        choice: VenueChoice | None = None,
        rates: VenueRates | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._worker = worker
        self._queries = queries
        self._liveness = liveness
        self._lanes = lanes
        self._sequencer = sequencer
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
        """The venues that were read; orders are sent to those of them whose breaker is closed."""
        self._open_at_read: frozenset[VenueName] = frozenset()
        """Those when the last page was read: it shows what they had reported by then."""
        self._any_lane: set[VenueName] = set()
        """Those of them that no other worker sends to: their rows of all lanes are sent from here."""
        self._locked: set[VenueName] = set()
        self._health = health or HealthBoard()
        self._rates = rates or VenueRates({}, clock, metrics)
        self._waiting = waiting
        self._first_sends = FirstSends(venues, clock)
        self._retries = decisions.retry_limits(
            retry_max, wait_max, partial(_counted_from, clock), self._health.may_send_since
        )
        may_be_lost = never_lost if lost_keys is None else lost_keys.history.may_have_sent
        is_unasked = never_lost if lost_keys is None else lost_keys.is_unasked
        self._checks = PreSendChecks(self._first_sends, kills, self._retries, is_unasked)
        self._outcomes = OutcomeWriter(
            worker=worker,
            sequencer=sequencer,
            venues=venues,
            clock=clock,
            randomness=randomness,
            metrics=metrics,
            retries=self._retries,
            first_sends=self._first_sends,
            inline_reports={} if inline_reports is None else inline_reports,
            can_move=lambda order: self._failover.can_move(order, self._sendable),
            note_answer=note_answer,
            may_be_lost=may_be_lost,
        )
        self._failover = Failover(
            choice=choice,
            health=self._health,
            queries=queries,
            lanes=lanes,
            kills=kills,
            lost_keys=lost_keys,
            propose=self._propose,
            clock=clock,
            metrics=metrics,
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
            health=self._health,
            tracer=tracer,
        )
        self.inline_first_send = InlineFirstSend(
            worker=worker,
            sends=self._sends,
            lanes=lanes,
            waiting=waiting,
            sendable=lambda: self._rates.unlimited(self._sendable),
            lost_keys=lost_keys,
            newest=sequencer.states.order,
            clock=clock,
            any_lane=self._any_lane,
        )
        sequencer.first_attempts = self.inline_first_send
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
            retries=self._retries,
            was_read=was_read,
            may_be_lost=may_be_lost,
        )

    async def run(self, wake: Wake) -> None:
        """Send for as long as the process lives."""
        await self._liveness.hold(self._worker)
        self.inline_first_send.start()
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
                idle = self._idle_seconds * (1 + self._randomness.jitter() / 10)
                await wake.wait(min(idle, self._rates.wait_seconds()))

    async def run_once(self) -> int:
        """Claim rows for the free slots and begin to send them, and move orders elsewhere; returns how many."""
        page = await self._due_page()
        if self._health.unheard:
            page += await self._failover.cancels(self._open, self._sends.free)
        # After the page was read: an order before one of the page, at a venue that it leaves, is found here.
        moves = await self._failover.find(self._locked, self._sendable) if self._health.blocked else []
        moved = await self._failover.move(moves) if moves else 0
        if not page:
            return moved
        strays = [due for due in page if is_stray(due)]
        if strays:
            await asyncio.gather(*(self._outcomes.write_doubt(due, "EXECUTED_BEFORE") for due in strays))
            return moved + len(strays)
        moving = {line_of(move.due.state.order) for move in moves}
        claims = self._fitting(page, moving)
        if self._rates.has_limits:
            claims = self._fitting(await self._rates.granted(claims), moving)
        for due in claims:
            self._sends.register(due.row, due.state.order.account_id)
        # Shielded from cancellation: an attempt that is committed but not sent would bring its order into doubt.
        self._claiming = asyncio.create_task(self._claim(claims))
        return moved + await asyncio.shield(self._claiming)

    async def _due_page(self) -> list[Due]:
        """The rows that are due at venues with a free slot."""
        sendable = [*self._sendable, *(self._open & self._health.ajar)] if self._health.blocked else self._open
        free, lanes = self._rates.ready(self._sends.free_by_venue(sendable)), self._lanes.filter()
        if not free or (lanes == [] and not self._any_lane):
            return []
        self._open_at_read = frozenset(self._open)
        limit, known = min(self._sends.free, sum(free.values())), self._sequencer.states.order
        full = {venue for venue in free if self._sends.full(venue) or self._sends.last_in_trial(venue)}
        self._waiting.begin_read()
        self._sends.begin_read()
        page: list[Due] = []
        others = [venue for venue in free if venue not in full]
        of_any_lane = [venue for venue in others if venue in self._any_lane]
        of_lanes = [] if lanes == [] else [venue for venue in others if venue not in self._any_lane]
        for venues, their_lanes in ((of_lanes, lanes), (of_any_lane, None)):
            if venues and len(page) < limit:
                now = self._clock.now()
                page += await self._queries.due(now, limit - len(page), venues, their_lanes, known=known)
        for venue in full:
            their_lanes = None if venue in self._any_lane else lanes
            if their_lanes != []:
                page += await self._of_others(venue, min(limit, free[venue]), their_lanes)
        is_complete = len(page) < limit and len(free) == len(self._open) and not full
        self._waiting.note_read((due.row.lane for due in page if due.row.kind == "new"), is_complete=is_complete)
        self._dequeued["success" if page else "empty"].inc()
        return page

    async def _of_others(self, venue: VenueName, limit: int, lanes: Sequence[int] | None) -> list[Due]:
        """The rows of a venue that are due, without the orders of accounts that have their share of it under way.

        The cancels of these accounts are among them, unless the venue is closed to them.
        """
        read, full = partial(self._queries.due, self._clock.now(), limit, [venue], lanes), self._sends.full(venue)
        known, last = self._sequencer.states.order, self._sends.last_in_trial(venue)
        page = await read(without=sorted(full | last), known=known)
        if not page and not last <= full:
            return await read(without=sorted(full), known=known)
        found = {due.row.key for due in page}
        cancels = await read(kind="cancel", known=known)
        return page + [due for due in cancels if due.row.key not in found]

    def _fitting(self, page: Sequence[Due], moving: Container[Hashable]) -> list[Due]:
        """The rows of a page that may still be sent from here; `moving` are lines with an order that changes its venue.

        While it was read, slots were given to first attempts, and lanes may have been given to another worker.
        """
        blocked, usable, slots = self._health.blocked, self._lanes.usable(), self._sends.free
        if blocked:
            blocked -= self._health.ajar
        free = self._sends.free_by_venue(self._open - blocked | self._open & self._health.unheard)
        claims: list[Due] = []
        claimed: Counter[tuple[VenueName, AccountId]] = Counter()
        for due in page:
            if due.row.key in self._sends or (due.row.kind == "new" and due.row.venue in blocked):
                continue  # the batch of its last attempt is still being recorded, or only cancels go to its venue
            if due.row.kind == "new" and self._sends.must_wait(line_of(due.state.order), due.row.lane):
                continue  # it would be held back, attempt after attempt, until the ones before it are recorded
            if due.row.kind == "new" and line_of(due.state.order) in moving:
                continue  # one before it in its line may be among those
            is_own = due.row.lane in usable or due.row.venue in self._any_lane
            if len(claims) < slots and free.get(due.row.venue, 0) and is_own:
                account = due.row.venue, due.state.order.account_id
                if claimed[account] >= self._sends.room(*account, kind=due.row.kind):
                    continue
                claimed[account] += 1
                free[due.row.venue] -= 1
                claims.append(due)
        return claims

    async def recover_once(self) -> int:
        """Recover one page of rows that no live attempt will finish; returns how many there were."""
        # Orders to a paused credential wait until a person has changed it, however long that takes.
        return await self._recovery.run_once(self._sends, self._sendable, self._locked | self._health.paused)

    @property
    def _sendable(self) -> Collection[VenueName]:
        return self._open - self._health.blocked if self._health.blocked else self._open

    @property
    def worker(self) -> WorkerId:
        """The worker in whose name attempts are committed."""
        return self._worker

    def open_venue(self, venue: VenueName, *, any_lane: bool = False) -> None:
        """Send to this venue from now on; called once its open orders and reports have been read.

        `any_lane`: no other worker sends to it.
        """
        self._open.add(venue)
        if any_lane:
            self._any_lane.add(venue)
        self._locked.discard(venue)

    def close_venue(self, venue: VenueName) -> None:
        """Begin no more attempts at this venue, and move none of its orders; those under way end by themselves."""
        self._open.discard(venue)
        self._locked.add(venue)

    def leave_venue(self, venue: VenueName) -> None:
        """Begin no more attempts at this venue: another worker may send to it."""
        self._open.discard(venue)
        self._any_lane.discard(venue)

    def owns(self, lane: int) -> bool:
        """Whether this worker sends the orders of the lane; while it holds no lane yet, it may be any."""
        usable = self._lanes.usable()
        return not usable or lane in usable

    def at_venue(self, venue: VenueName) -> int:
        """How many requests the venue has not answered yet."""
        return self._sends.at_venue(venue)

    def waits_for_venue(self, venue: VenueName) -> bool:
        """Whether the venue limits the sending: it is closed, or no slot is free and it holds most of those in use."""
        if venue not in self._sendable:
            return True
        return not self._sends.free_by_venue([venue]) and self._sends.holds_most(venue)

    def is_held(self, venue: VenueName, account: AccountId) -> bool:
        """Whether the account's orders wait for the venue, although those of other accounts may be sent."""
        return self._sends.is_held(venue, account)

    async def drain(self, seconds_max: float) -> None:
        """Wait for the sends under way, for a limited time; recovery settles the rest after the next start."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                self.inline_first_send.stop()
                if self._claiming is not None:
                    await asyncio.wait({self._claiming})
                await self._sends.drain()

    async def _claim(self, page: Sequence[Due]) -> int:
        """Commit an attempt for each row, or what is to be done instead; begin to send; returns how many changed."""
        unsure: set[OutboxKey] = set()
        try:
            return await self._begin(await self._absent(page), unsure)
        finally:
            self._waiting.note_started(due.row.lane for due in page)
            for due in page:
                account = due.state.order.account_id
                self._sends.release(due.row, account, never_left=due.row.key in unsure)

    async def _begin(self, page: Sequence[Due], unsure: set[OutboxKey]) -> int:
        """`unsure` gets those of which it is not known whether their attempts are committed."""
        if not self._kills.is_empty:
            # An order that was accepted after a kill was cleared must not end because of it.
            await self._kills.refresh()
        breaches = {} if self._guard is None else await self._guard.breaches(page)
        begun_at, now = self._clock.monotonic(), self._clock.now()
        page = [due for due in page if not waits_for_a_quote(due, breaches, now, self._retries)]
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
                    send = Send(change.outbox[0], after(before, change.orders[0], change), begun_at, due.row.key)
                    sends.append(send._replace(would_pass=send.is_first and send.line in failed_lines))
                case Decided(_, change):
                    log_moved(due.row, change.outbox[0], change.orders[0])
                case Failed(_) if due.row.kind == "new":
                    failed_lines.add(line_of(due.state.order))
        self._sends.start(sends)
        for answer in answers:
            if isinstance(answer, Failed):
                raise answer.error
        # The others were claimed by another worker or have changed.
        return sum(answer is not None for answer in answers)

    async def _propose(self, proposals: Sequence[Decision]) -> list[Answer]:
        """Propose, and note the kills that have rejected an attempt: decided again, their orders end."""
        answers = await self._sequencer.propose(proposals)
        self._kills.note_conflicts(answers)
        return answers

    async def _absent(self, page: Sequence[Due]) -> list[Due]:
        """The rows without those that a venue has, or may have, from a history that was lost; these come into doubt."""
        if self._lost_keys is None:
            return list(page)
        return await self._lost_keys.absent(page, self._open_at_read, self._outcomes.write_doubt)

    def _proposal(self, due: Due, breaches: Mapping[OutboxKey, Violation], now: datetime) -> Decision:
        claimed = due.row

        def decision(newest: OrderState, _: Positions) -> Change | None:
            row = newest.find(claimed.kind, claimed.number)
            if row is None or row.version != claimed.version:
                return None
            instead = self._checks.of_message(newest, row, breaches, now)
            return instead or decisions.begin_attempt(newest, row, self._worker, now)

        return Decision(claimed.order_id, decision)


def _counted_from(clock: Clock, time: datetime) -> datetime:
    """When a wait of that time began: a step of the clock is no time in which an order has waited."""
    is_before = clock.jumped_at is not None and time < clock.jumped_at
    return time + clock.stepped_ahead if is_before else time
