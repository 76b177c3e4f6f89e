"""The attempts under way in a worker: sends them in their order, several in one call if the venue takes them.

Calls venues outside of any transaction; has the outcomes recorded through `OutcomeWriter`. Slows down a venue that
rejects for its rate, and remembers which ids were sent from here.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import structlog

from switchyard.domain import decisions
from switchyard.domain.errors import Unavailable
from switchyard.domain.ids import AccountId, VenueClientOrderId, VenueName
from switchyard.domain.orders.amends import amend_of, is_stale
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OrderState, OutboxKey, OutboxKind, OutboxRow
from switchyard.domain.orders.reasons import HELD_BACK
from switchyard.flow.active_kills import ActiveKills
from switchyard.flow.health.venues import HealthBoard
from switchyard.flow.sending.lanes import Departures, HeldLanes, SendTicket
from switchyard.flow.sending.outcomes import Ended, OutcomeWriter
from switchyard.flow.sending.pre_send_checks import FirstSends
from switchyard.flow.traced import traceparent_of
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.outbox import KnownState, OutboxQueries
from switchyard.ports.tracing import Span, Tracer
from switchyard.ports.venue import TURN_LIMIT, Accepted, Ambiguous, SendOutcome, Unsent, Venue, ignore_departure
from switchyard.telemetry.logs import account_hash
from switchyard.telemetry.metrics import Metrics
from switchyard.telemetry.traces import describe

# The pause after a 429 without Retry-After.
REST = timedelta(seconds=1)
# Slots regained per accepted send: a few seconds of steady sending lead from one slot back to all of them.
STEP = 0.25


class Throttle:
    """One venue's limit within a worker's slots."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._allowed = float(slots)
        self._closed_until: datetime | None = None

    def free(self, under_way: int, now: datetime) -> int:
        """How many more sends may begin now."""
        if self._closed_until is not None and now < self._closed_until:
            return 0
        return max(int(self._allowed) - under_way, 0)

    def slow_down(self, now: datetime, retry_after: timedelta | None) -> None:
        """The venue answered 429: halve the limit, and send nothing until the pause is over."""
        self._allowed = max(self._allowed / 2, 1.0)
        until = now + (retry_after or REST)
        self._closed_until = until if self._closed_until is None else max(self._closed_until, until)

    def speed_up(self) -> None:
        """The venue accepted a send: regain a part of a slot."""
        self._allowed = min(self._allowed + STEP, float(self._slots))


_NAMES = {"new": "venue.send", "cancel": "venue.cancel", "amend": "venue.amend"}


class SendSpans:
    """The spans of one batch; an attempt without a trace has none."""

    def __init__(self, tracer: Tracer, sends: Sequence[tuple[OutboxRow, OrderState]]) -> None:
        self._spans = [_begin(tracer, row, state) for row, state in sends]

    def end(self, outcomes: Sequence[SendOutcome]) -> None:
        """End them with the outcomes, given in the same order."""
        for span, outcome in zip(self._spans, outcomes, strict=True):
            if span is None:
                continue
            describe(span, outcome=type(outcome).__name__)
            match outcome:
                case Accepted(venue_order_id):
                    describe(span, venue_order_id=venue_order_id or None)
                case Unsent(code) | Ambiguous(code):
                    span.fail(code)
                case _:
                    span.fail(type(outcome).__name__)
            span.end()


def _begin(tracer: Tracer, row: OutboxRow, state: OrderState) -> Span | None:
    # A cancel that no request has made, of a kill for example, belongs to the trace of its order.
    traceparent = row.traceparent or traceparent_of(state)
    if traceparent is None:
        return None
    span, order = tracer.child(_NAMES[row.kind], traceparent, "client"), state.order
    describe(
        span,
        order_id=order.order_id,
        account_hash=account_hash(order.account_id),
        trace_id=order.trace_id,
        venue=row.venue,
        outbox_id=row.outbox_id,
        attempt=row.attempt,
        client_order_id=row.venue_client_order_id,
    )
    return span


log = structlog.get_logger()

# Short enough that the ids of one period need little memory, long enough that the queries cost nothing.
CHECK_SECONDS = 5.0
# More than a worker can send within a period; beyond it the count is one too many, whatever was accepted.
IDS_MAX = 1_000_000

Trip = Callable[[str], Awaitable[None]]
"""Sets a kill of everything, for this reason."""


class SentIds:
    """Counts the distinct client order ids that leave this worker, period by period."""

    def __init__(self, *, journal: Journal, queries: OutboxQueries, metrics: Metrics, trip: Trip) -> None:
        self._journal = journal
        self._queries = queries
        self._metrics = metrics
        self._trip = trip
        self._ids: set[VenueClientOrderId] = set()
        self._allowed = 0
        self._seq = 0

    def note(self, ids: Iterable[VenueClientOrderId]) -> None:
        """These ids are about to leave."""
        if len(self._ids) < IDS_MAX:
            self._ids.update(ids)

    async def start(self) -> None:
        """Begin the first period; must come before the first send."""
        await self._begin()

    async def run(self) -> None:
        """Check for as long as the process lives."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                await self.check_once()
            except Unavailable as error:
                log.warning("sent_ids_not_checked", error=str(error))

    async def check_once(self) -> None:
        """End the period: trip where more ids have left in it than were waiting at its start or accepted since."""
        allowed = self._allowed + await self._queries.accepted_since(self._seq)
        # Before the new counts: what leaves from now on was waiting then, or is accepted later.
        sent = len(self._ids)
        if sent > allowed:
            # Counted again: ids may have left since the accepted orders were counted.
            allowed = self._allowed + await self._queries.accepted_since(self._seq)
        if sent > allowed:
            self._metrics.kills.ids_exceeded.inc()
            log.critical("more_ids_sent_than_orders_accepted", sent=sent, accepted=allowed)
            await self._trip(
                f"{sent} client order ids left within {CHECK_SECONDS:g} s, and only {allowed} orders were waiting or "
                "accepted: a worker sends orders that were never placed"
            )
        await self._begin()

    async def _begin(self) -> None:
        seq = (await self._journal.head(0)).seq
        waiting = sum(count.rows for count in await self._queries.outbox_counts())
        # An order that leaves after this line was waiting then, or was accepted after `seq`, perhaps both.
        self._allowed, self._seq, self._ids = waiting, seq, set()


# Of a venue's slots one in so many, and at least one, stays free for other accounts than the one that has most. As many
# as `flow.routing.window` leaves: an account that is alone never needs them.
SHARE_LEFT = 16

# Attempts whose commit was given up without an answer; recovery settles them within seconds.
NEVER_LEFT_MAX = 10_000


class Send(NamedTuple):
    """A committed attempt: its row, its order's state after the commit, and when it began on the monotonic clock."""

    row: OutboxRow
    state: OrderState
    begun_at: float
    key: OutboxKey
    would_pass: bool = False
    """Whether an order before it in its line was not claimed with it: it must not be sent."""

    @property
    def line(self) -> Hashable:
        """The line that its order leaves in."""
        return line_of(self.state.order)

    @property
    def is_first(self) -> bool:
        """Whether the attempt is the order's first one to be sent, which keeps its place in the line."""
        return self.row.kind == "new" and (self.row.attempt == 1 or self.row.last_error in HELD_BACK)

    def is_late(self, now: datetime) -> bool:
        """Whether the order must not be sent any more."""
        return self.state.order.status != "UNKNOWN" and decisions.is_past_deadline(self.state.order, now)


class Sends:
    """The attempts that are being sent or whose outcome is being recorded; each occupies a slot."""

    def __init__(
        self,
        *,
        slots: int,
        venues: Mapping[VenueName, Venue],
        lanes: HeldLanes,
        outcomes: OutcomeWriter,
        first_sends: FirstSends,
        newest: KnownState,
        kills: ActiveKills,
        clock: Clock,
        metrics: Metrics,
        sent_ids: SentIds | None = None,
        health: HealthBoard | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._slots = slots
        self._tracer = tracer
        self._health = health or HealthBoard()
        self._venues = venues
        self._lanes = lanes
        self._outcomes = outcomes
        self._first_sends = first_sends
        self._newest = newest
        self._kills = kills
        self._clock = clock
        self._metrics = metrics
        self._sent_ids = sent_ids
        self._tasks: dict[OutboxKey, asyncio.Task[None] | None] = {}
        """None for an attempt that is registered: its commit has not ended."""
        self._never_left: dict[OutboxKey, None] = {}
        self._unsure: dict[OutboxKey, OutboxRow] = {}
        """Attempts of which it is not known whether they are committed, until recovery has looked for them."""
        self._held_back: dict[Hashable, dict[OutboxKey, int]] = {}
        """By line: the journal numbers of attempts that were held back; a page read before that lacks their orders."""
        self._freed = asyncio.Event()
        self._departures = Departures()
        # One venue that hangs must not occupy all slots: a quarter is left for the others.
        slots_there = slots if len(venues) == 1 else max(slots * 3 // 4, 1)
        self._throttles = {name: Throttle(slots_there) for name in venues}
        self._share = max(slots_there - max(slots_there // SHARE_LEFT, 1), 1)
        metrics.inflight.set_function(lambda: len(self._tasks))
        self._under_way: Counter[VenueName] = Counter()
        self._at_venue: Counter[VenueName] = Counter()
        self._of_accounts: dict[VenueName, Counter[AccountId]] = {name: Counter() for name in venues}
        """The attempts under way at a venue, of each account that has some."""
        self._waiting_there: dict[VenueName, Counter[AccountId]] = {name: Counter() for name in venues}
        """Those of them that the venue has not answered."""
        self._health.held_here = self.held

    def __contains__(self, key: object) -> bool:
        """Whether an attempt of this row is under way here."""
        return key in self._tasks

    @property
    def free(self) -> int:
        """How many slots are free."""
        return self._slots - len(self._tasks)

    async def slot_freed(self) -> None:
        """Wait until an attempt ends."""
        self._freed.clear()
        await self._freed.wait()

    def free_by_venue(self, venues: Iterable[VenueName]) -> dict[VenueName, int]:
        """How many attempts may begin at each of these venues; those without a free slot are left out."""
        if self.free <= 0:
            return {}
        now = self._clock.now()
        free = {name: self._throttles[name].free(self._under_way[name], now) for name in venues}
        for name in free:
            if self._health.is_trial(name):
                free[name] = min(free[name], max(1 - self._trials(name), 0))
        return {name: count for name, count in free.items() if count}

    def _trials(self, venue: VenueName) -> int:
        """How many attempts are under way that may show that the venue answers: those of accounts without a fault."""
        breaker = self._health.breaker(venue)
        faulty = () if breaker is None else breaker.faulty
        return self._under_way[venue] - sum(self._of_accounts[venue][account] for account in faulty)

    def room(self, venue: VenueName, account: AccountId, kind: OutboxKind = "new") -> int:
        """How many more attempts of the account may begin at the venue, if it has a free slot.

        Never more than a share of the slots; and orders and amends one at a time if they keep failing.
        """
        own, breaker = self._of_accounts[venue][account], self._health.breaker(venue)
        if breaker is not None and account in breaker.faulty:
            if breaker.is_ajar:
                return 0
            if breaker.is_trial and kind != "cancel":
                return max(1 - self._under_way[venue], 0)
            if breaker.is_suspect(account) and kind != "cancel":
                return max(1 - own, 0)
        return max(self._share - own, 0)

    def full(self, venue: VenueName) -> frozenset[AccountId]:
        """The accounts of which no order may begin at the venue now."""
        breaker = self._health.breaker(venue)
        known = {*self._of_accounts[venue], *(() if breaker is None else breaker.faulty)}
        return frozenset(account for account in known if not self.room(venue, account))

    def last_in_trial(self, venue: VenueName) -> frozenset[AccountId]:
        """The accounts whose orders are the first ones after a pause only if no other account has one."""
        breaker = self._health.breaker(venue)
        return frozenset(() if breaker is None or not breaker.is_trial else breaker.faulty)

    def held(self, venue: VenueName) -> list[AccountId]:
        """Those of them that wait for the venue, and not for this process."""
        return [account for account in self.full(venue) if self.is_held(venue, account)]

    def is_held(self, venue: VenueName, account: AccountId) -> bool:
        """Whether the account is one of those."""
        if self.room(venue, account):
            return False
        return self._waiting_there[venue][account] * 2 >= self._of_accounts[venue][account]

    def at_venue(self, venue: VenueName) -> int:
        """How many requests the venue has not answered yet."""
        return self._at_venue[venue]

    def holds_most(self, venue: VenueName) -> bool:
        """Whether most of the venue's attempts under way wait for its answer."""
        return self._at_venue[venue] * 2 >= self._under_way[venue]

    def start(self, sends: Sequence[Send]) -> None:
        """Begin to send committed attempts, given in journal order."""
        if self._held_back:
            for send in sends:
                self._held_back.get(send.line, {}).pop(send.key, None)
        for batch in self._batches([self._in_line(send) for send in sends]):
            self._start(batch)

    def begin_read(self) -> None:
        """A query of the outbox begins: it finds the orders that are back in the queue by now."""
        for line, rows in list(self._held_back.items()):
            recording = {key: seq for key, seq in rows.items() if key in self._tasks}
            if recording:
                self._held_back[line] = recording
            else:
                del self._held_back[line]

    @property
    def is_holding_back(self) -> bool:
        """Whether an attempt that was held back is being recorded."""
        return any(key in self._tasks for rows in self._held_back.values() for key in rows)

    def must_wait(self, line: Hashable, lane: int) -> bool:
        """Whether orders of the line are on their way back to the queue: those behind them would be held back too."""
        if not self._held_back and not self._unsure:
            return False
        return bool(self._held_back.get(line)) or self.is_unsure(lane)

    def register(self, row: OutboxRow, account: AccountId) -> None:
        """Occupy a slot for an attempt before its commit; `release` must follow, after `start` if it is to be sent."""
        self._tasks[row.key] = None
        self._occupy(row, account)

    def release(self, row: OutboxRow, account: AccountId, *, never_left: bool = False) -> None:
        """Give back the slot of a registered attempt, unless it was started.

        `never_left`: its commit may have happened all the same.
        """
        if self._tasks.get(row.key, ...) is not None:
            return
        del self._tasks[row.key]
        if never_left:
            # Its lane stays under way: another worker would send those behind it first.
            if row.key not in self._unsure:
                self._lanes.begin(row.lane)
            self._unsure[row.key] = row
            self._never_left[row.key] = None
            if len(self._never_left) > NEVER_LEFT_MAX:
                del self._never_left[next(iter(self._never_left))]
        self._vacate(row, account)

    @property
    def unsure(self) -> list[OutboxRow]:
        """The attempts that recovery has to look for before others of their lanes are sent."""
        return list(self._unsure.values())

    def is_unsure(self, lane: int) -> bool:
        """Whether an order of the lane may wait for recovery to put it back into the queue."""
        return bool(self._unsure) and any(row.lane == lane for row in self._unsure.values())

    def looked_for(self, rows: Iterable[OutboxRow]) -> None:
        """Recovery has put these attempts back, or they were not committed."""
        for row in rows:
            if self._unsure.get(row.key) is row:  # not a later attempt of the same order
                del self._unsure[row.key]
                self._lanes.end(row.lane)

    def has_never_left(self, key: OutboxKey) -> bool:
        """Whether it is known that this worker did not send the row, although its attempt may be committed."""
        return key in self._never_left

    async def drain(self) -> None:
        """Wait for the attempts under way."""
        while self._tasks:
            await self.slot_freed()

    def _batches(self, sends: Sequence[Send]) -> Iterator[list[Send]]:
        """The attempts as they are sent: orders together where the venue takes several in one call, in journal order.

        A retry, a cancel and an amend have no place in a line and go alone.
        """
        batches: dict[VenueName, list[Send]] = {}
        for send in sends:
            batch_max = self._venues[send.row.venue].capabilities.batch_max
            if batch_max == 1 or not send.is_first:
                yield [send]
                continue
            batch = batches.setdefault(send.row.venue, [])
            batch.append(send)
            if len(batch) == batch_max:
                yield batches.pop(send.row.venue)
        yield from batches.values()

    def _in_line(self, send: Send) -> Send:
        """The attempt, marked where it must not be sent because one before it in its line goes back to the queue."""
        if not (self._held_back or self._unsure) or not send.is_first:
            return send
        held_back = self._held_back.get(send.line, {}).values()
        if self.is_unsure(send.row.lane) or any(seq < send.row.seq for seq in held_back):
            return send._replace(would_pass=True)
        return send

    def _start(self, batch: list[Send]) -> None:
        for row, state, begun_at, key, _ in batch:
            self._never_left.pop(key, None)
            self._first_sends.begin(row, begun_at, in_doubt=state.order.status == "UNKNOWN")
            if key not in self._tasks:
                self._occupy(row, state.order.account_id)
            if row.attempt == 1:
                self._metrics.outbox_lag.observe((row.updated_at - row.created_at).total_seconds())
        venue = batch[0].row.venue
        # Joined in journal order, before the first await. A batch may hold every account and symbol of its venue.
        takes_many = self._venues[venue].capabilities.batch_max > 1
        line: Hashable = venue if takes_many else batch[0].line
        ticket = self._departures.join(line) if batch[0].is_first else None
        task = asyncio.create_task(self._send(batch, ticket))
        self._tasks.update([(send.key, task) for send in batch])
        task.add_done_callback(lambda done: self._end(batch, ticket, done))

    def _end(self, batch: list[Send], ticket: SendTicket | None, task: "asyncio.Task[None]") -> None:
        if ticket is not None:
            ticket.depart()
        for send in batch:
            if self._tasks.get(send.key) is task:
                del self._tasks[send.key]
            self._vacate(send.row, send.state.order.account_id)
        if not task.cancelled() and (error := task.exception()) is not None:
            # The rows stay `sending` under this worker's name, and the next recovery brings them into doubt.
            self._metrics.stage_failures.labels("dispatch").inc(len(batch))
            for row, *_ in batch:
                log.error("send_outcome_lost", order_id=row.order_id, venue=row.venue, error=repr(error))

    def _occupy(self, row: OutboxRow, account: AccountId) -> None:
        self._lanes.begin(row.lane)
        self._under_way[row.venue] += 1
        self._of_accounts[row.venue][account] += 1

    def _vacate(self, row: OutboxRow, account: AccountId) -> None:
        self._lanes.end(row.lane)
        self._under_way[row.venue] -= 1
        _take_one(self._of_accounts[row.venue], account)
        if not self._freed.is_set():
            self._freed.set()

    async def _send(self, batch: list[Send], ticket: SendTicket | None) -> None:
        venue = batch[0].row.venue
        self._at_venue[venue] += len(batch)
        waiting_there = self._waiting_there[venue]
        for send in batch:
            waiting_there[send.state.order.account_id] += 1
        spans = None if self._tracer is None else SendSpans(self._tracer, [(send.row, send.state) for send in batch])
        try:
            outcomes = await self._deliver(batch, ticket)
        except Exception as error:
            # An adapter that raises has a defect, and the venue may or may not have the orders.
            log.exception("venue_adapter_failed", order_id=batch[0].row.order_id, venue=venue, orders=len(batch))
            outcomes = [Ambiguous("ADAPTER_FAILED", repr(error))] * len(batch)
        finally:
            self._at_venue[venue] -= len(batch)
            for send in batch:
                _take_one(waiting_there, send.state.order.account_id)
        if spans is not None:
            spans.end(outcomes)
        throttle = self._throttles[venue]
        for outcome in outcomes:
            if isinstance(outcome, Unsent) and outcome.code == "RATE_LIMITED":
                throttle.slow_down(self._clock.now(), outcome.retry_after)
            elif isinstance(outcome, Accepted):
                throttle.speed_up()
        if venue in self._health.paused:
            await self._health.keep_pause(venue)
        if ticket is not None:
            ticket.depart()  # those behind one that was held back are held back at once, too
        await self._outcomes.write([Ended(send.row, outcome) for send, outcome in zip(batch, outcomes, strict=True)])

    async def _deliver(self, batch: list[Send], ticket: SendTicket | None) -> Sequence[SendOutcome]:
        """Send the batch; the outcomes are in its order."""
        venue = self._venues[batch[0].row.venue]
        if ticket is not None and not await ticket.comes_within(TURN_LIMIT.total_seconds()):
            return [Unsent("TURN_TIMEOUT")] * len(batch)
        is_stale = self._clock.monotonic() - min([send.begun_at for send in batch]) > TURN_LIMIT.total_seconds()
        is_paused = venue.name in self._health.paused  # it would be rejected like the one that has shown it
        if (
            is_paused
            or is_stale
            or (ticket is not None and ticket.would_pass)
            or True in [send.would_pass for send in batch]
        ):
            # The credential was paused. Or the process was, or the commit took long: then the resolver may treat this
            # attempt as ended. Those behind it in the line wait too: all go back to the queue, and leave it in their
            # order.
            if ticket is not None:
                ticket.hold_back()
                for send in batch:
                    self._held_back.setdefault(send.line, {})[send.key] = send.row.seq
            return [Unsent("CREDENTIAL_PAUSED" if is_paused else "ATTEMPT_STALE")] * len(batch)
        if batch[0].row.kind != "new":
            return [await self._follow_up(batch[0], venue)]
        now = self._clock.now()
        instead = [self._unsendable(send, now) for send in batch]
        orders = [send.state.order for send, outcome in zip(batch, instead, strict=True) if outcome is None]
        sent: Iterator[SendOutcome] = iter(())
        if orders:
            depart = ticket.depart if ticket is not None else ignore_departure
            if self._sent_ids is not None:
                self._sent_ids.note([order.venue_client_order_id for order in orders])
            begun_at = self._clock.monotonic()
            answers = await venue.submit_many(orders, depart)
            accounts = [order.account_id for order in orders]
            self._health.note_sends(venue.name, accounts, answers, self._clock.monotonic() - begun_at)
            sent = iter(answers)
        return [next(sent) if outcome is None else outcome for outcome in instead]

    async def _follow_up(self, send: Send, venue: Venue) -> SendOutcome:
        """Send a cancel or an amend."""
        # What was committed since the claim, perhaps in the same commit, may have given the order another id.
        newest = self._newest(send.row.order_id)
        order = send.state.order if newest is None else newest.order
        begun_at = self._clock.monotonic()
        if send.row.kind == "cancel":
            outcome = await venue.cancel(order)
        elif self._kills.covering(order) is not None:
            self._metrics.kills.blocked.labels("send").inc()
            return Unsent("KILL_SWITCH")
        elif newest is not None and is_stale(newest, send.row):
            return Unsent("ATTEMPT_STALE")
        else:
            outcome = await venue.amend(order, amend_of(send.row))
        self._health.note_sends(venue.name, [order.account_id], [outcome], self._clock.monotonic() - begun_at)
        return outcome

    def _unsendable(self, send: Send, now: datetime) -> SendOutcome | None:
        """The outcome of an order that must not be sent any more; none where it may be sent."""
        newest = self._newest(send.row.order_id)
        if newest is not None and decisions.is_at_venue(newest.order):
            # A report has shown since the claim, perhaps in the same commit, that the venue has the order.
            return Accepted(newest.order.venue_order_id or "")
        if self._kills.covering(send.state.order) is not None:
            self._metrics.kills.blocked.labels("send").inc()
            return Unsent("KILL_SWITCH")
        return Unsent("DEADLINE_PASSED") if send.is_late(now) else None


def _take_one(counts: Counter[AccountId], account: AccountId) -> None:
    counts[account] -= 1
    if not counts[account]:
        del counts[account]


def line_of(order: Order) -> Hashable:
    """The orders of an account in a symbol leave in their order."""
    return order.account_id, order.symbol
