"""Let new orders in only as fast as this process can send them, and predict how long one would wait.

Accepting an order is a fraction of the work of sending it: without a bound, requests would take the time that the
orders before them need. Reads the dispatcher and the outbox; writes nothing.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from switchyard.domain.decisions import SEND_DEADLINES
from switchyard.domain.errors import QueueDelayed
from switchyard.domain.ids import AccountId, OrderId, VenueName
from switchyard.domain.journal.changes import Change
from switchyard.domain.orders.order import TimeInForce
from switchyard.ports.clock import Clock
from switchyard.ports.outbox import OutboxQueries, QueueHead
from switchyard.telemetry.metrics import Metrics

# Short compared with the shortest deadline (2.5 s); each poll is one lookup by index.
POLL_SECONDS = 0.25
# The queue keeps growing until the next poll, and its pace is an estimate: an order that is predicted to be sent this
# close to its deadline may as well miss it.
MARGIN = timedelta(seconds=1)
# After this time without a successful poll the estimate is dropped: accept rather than reject on old data.
STALE_SECONDS = 2.0


Held = Callable[[VenueName], Collection[AccountId]]
"""The accounts whose orders wait at a venue although those of others are sent."""


def _nobody(_venue: VenueName) -> Collection[AccountId]:
    return ()


class _Head(msgspec.Struct):
    """The order at the head of a venue's queue."""

    seq: int
    accepted_at: datetime
    seen_at: float
    """When it was first seen at the head, on the monotonic clock."""
    delay: timedelta
    """The wait of an order that joined at that time, estimated from the pace at which the earlier heads left."""


class Forecast:
    """The expected wait in each venue's queue.

    While the head changes, the wait is the age of the head divided by the pace at which that age shrinks. A backlog
    from before a restart that is sent quickly therefore delays no new order. While the head stays the same, the wait
    is at least the time that it has been the head.

    An account whose orders are held back has a queue of its own: the others do not wait for it.
    """

    def __init__(self, queries: OutboxQueries, venues: Sequence[VenueName], clock: Clock, held: Held = _nobody) -> None:
        self._held = held
        self._queries = queries
        self._venues = venues
        self._clock = clock
        self._heads: dict[VenueName, _Head] = {}
        """The heads of the queues of those that are not held back."""
        self._held_heads: dict[VenueName, _Head] = {}
        """The heads of all orders, of the venues where an account is held back."""
        self._polled_at = float("-inf")
        self._polled_now = clock.now()

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await self.run_once()
            await asyncio.sleep(POLL_SECONDS)

    async def run_once(self) -> int:
        """Read the heads of the queues; returns how many venues have one."""
        oldest = await self._queries.oldest_unsent(self._venues)
        others = dict(oldest)
        for venue in oldest:
            if held := sorted(self._held(venue)):
                del others[venue]
                others |= await self._queries.oldest_unsent([venue], held)
        self._polled_at, self._polled_now = self._clock.monotonic(), self._clock.now()
        self._heads = {venue: self._head(self._heads.get(venue), head) for venue, head in others.items()}
        self._held_heads = {
            venue: self._head(self._held_heads.get(venue), head)
            for venue, head in oldest.items()
            if others.get(venue) != head
        }
        return len(oldest)

    def _head(self, previous: _Head | None, head: QueueHead) -> _Head:
        if previous is None:
            return _Head(head.seq, head.created_at, self._polled_at, timedelta(0))
        if head.seq <= previous.seq:
            return previous
        shortened = head.created_at - previous.accepted_at
        if shortened <= timedelta(0):
            # Dated by a gateway whose clock is slower: the queue moves, but its pace cannot be told from this pair.
            return _Head(head.seq, previous.accepted_at, self._polled_at, previous.delay)
        remaining = max(self._clock.now() - head.created_at, timedelta(0))
        elapsed = timedelta(seconds=self._polled_at - previous.seen_at)
        return _Head(head.seq, head.created_at, self._polled_at, remaining / shortened * elapsed)

    def delay(self, venue: VenueName, account: AccountId | None = None) -> timedelta:
        """Return how long a new order of the account would wait at this venue; zero where that is not known."""
        head = self._held_heads.get(venue) if account in self._held(venue) else None
        head = head or self._heads.get(venue)
        if head is None or self._clock.monotonic() - self._polled_at > STALE_SECONDS:
            return timedelta(0)
        return max(head.delay, timedelta(seconds=self._polled_at - head.seen_at))

    def age(self, venue: VenueName) -> timedelta:
        """Return how long the head of the venue's queue had waited at the last poll; zero where that is not known."""
        head = self._heads.get(venue)
        if head is None or self._clock.monotonic() - self._polled_at > STALE_SECONDS:
            return timedelta(0)
        return self._polled_now - head.accepted_at

    def is_too_slow(
        self, venue: VenueName, time_in_force: TimeInForce | None, account: AccountId | None = None
    ) -> bool:
        """Whether a new order might be sent after its deadline; only IOC and FOK orders have one."""
        deadline = SEND_DEADLINES.get(time_in_force) if time_in_force is not None else None
        return deadline is not None and self.delay(venue, account) > deadline - MARGIN

    def rejection(self, venue: VenueName, account: AccountId | None = None) -> QueueDelayed:
        """Return the error for an order that might be sent too late."""
        seconds = self.delay(venue, account).total_seconds()
        return QueueDelayed(f"orders to {venue} wait {seconds:.1f} s: this one might miss its send deadline")


# Orders on their way through this process, of the slots for sends: fewer than there are, so that the first attempt of
# each can begin in the commit that accepts it, although a slot is free only some time after the answer is committed.
WINDOW_SHARE = 15 / 16
# Enough to fill the next commit while one is under way.
WINDOW_MIN = 32
# A request that waits longer is rejected. With the commit, every answer comes within 1.5 s.
WAIT_SECONDS_MAX = 1.0
# Requests that may wait: as many as were let in lately within this time, so that a longer wait is rejected at once
# instead of after it. The bounds are a burst, of which nothing is known yet, and more than any process lets in.
LINE_SECONDS_MAX = 0.8
WAITING_MIN = 1_024
WAITING_MAX = 4_096
# While several accounts place orders, each may have this many in the commits under way, so that no order waits behind
# more of another account. With fewer, an account that posts without a pause loses more than the others gain.
SHARE = 8
# An account counts as one that places orders for one to two of these.
ACTIVE_SECONDS = 1.0
# How much the rate of the last tick counts: the pace of the last second.
PACE_SHARE = 0.1
# Orders without a send deadline that may be committed at the same time while an old queue is sent: enough to accept
# some hundred per second, too few to slow the sending down.
TRICKLE = 8
# An order that is not answered after this time is at the venue, is sent by another process, or is in an old queue.
COUNTED_SECONDS_MAX = 2.0
# Longer than a short queue takes to end. Orders behind one that lasts are let in before they would be rejected.
QUEUED_SECONDS_MAX = 0.5
# How often the sender is looked at; a request waits at most this much longer than its limit.
TICK_SECONDS = 0.1


class Sender(Protocol):
    """The dispatcher of this process."""

    def owns(self, lane: int) -> bool:
        """Whether this process sends the orders of the lane."""

    def at_venue(self, venue: VenueName) -> int:
        """How many requests the venue has not answered yet."""

    def waits_for_venue(self, venue: VenueName) -> bool:
        """Whether the venue limits the sending: it is closed, or it holds the slots and none is free."""

    def is_held(self, venue: VenueName, account: AccountId) -> bool:
        """Whether the account's orders wait for the venue, although those of other accounts may be sent."""


class _Waiting(NamedTuple):
    """A request that waits for room."""

    admitted: "asyncio.Future[None]"
    since: float
    time_in_force: TimeInForce | None


class _Account:
    """How many orders of one account are on their way to a venue in this process."""

    __slots__ = ("entering", "queued")

    def __init__(self) -> None:
        self.entering = 0
        """Requests that were let in and whose commit has not ended."""
        self.queued = 0
        """Orders whose first attempt has not begun."""


class _Venue:
    """The orders of one venue that this process has let in, and the requests that wait."""

    def __init__(self) -> None:
        self.entering = 0
        """Requests that were let in and whose commit has not ended."""
        self.unanswered: dict[OrderId, float] = {}
        """Orders that the venue has not answered, with the time of their commit; the oldest first."""
        self.queued: dict[OrderId, tuple[float, AccountId]] = {}
        """Those of them whose first attempt has not begun."""
        self.accounts: dict[AccountId, _Account] = {}
        self.lines: dict[AccountId, deque[_Waiting]] = {}
        """The accounts with requests that wait; the first one is served next."""
        self.waiting = 0
        """How many requests wait, of all accounts."""
        self.waiting_max = WAITING_MIN
        self.let_in = 0
        """Requests that were let in since the last tick."""
        self.let_in_per_second = 0.0
        self.is_limit = True
        """Whether the venue, and not this process, limits the sending."""
        self.has_old_queue = False
        self.active = 0
        """How many accounts have placed orders lately."""
        self._arrived: set[AccountId] = set()
        self._arrived_before: set[AccountId] = set()
        self._arrived_since = 0.0

    def count(self) -> int:
        """How many orders were let in and are not answered."""
        return self.entering + len(self.unanswered)

    def arrive(self, account_id: AccountId) -> None:
        """Count an account as one that places orders."""
        if account_id not in self._arrived:
            self._arrived.add(account_id)
            self.active += account_id not in self._arrived_before

    def note_time(self, now: float) -> None:
        """Stop counting accounts that have placed no order lately."""
        if now - self._arrived_since >= ACTIVE_SECONDS:
            self._arrived_before, self._arrived, self._arrived_since = self._arrived, set(self.lines), now
            self.active = len(self._arrived | self._arrived_before)

    def enter(self, account_id: AccountId) -> None:
        """Let a request in."""
        self.entering += 1
        account = self.accounts.get(account_id)
        if account is None:
            account = self.accounts[account_id] = _Account()
        account.entering += 1
        self.let_in += 1

    def leave(self, account_id: AccountId) -> None:
        """Take note that the commit of a request that was let in has ended."""
        self.entering -= 1
        account = self.accounts[account_id]
        account.entering -= 1
        if not account.entering and not account.queued:
            del self.accounts[account_id]

    def begin(self, order_id: OrderId) -> bool:
        """Take note that the first attempt of a queued order has begun; returns whether its account has no other."""
        _, account_id = self.queued.pop(order_id)
        account = self.accounts[account_id]
        account.queued -= 1
        if not account.entering and not account.queued:
            del self.accounts[account_id]
        return not account.queued

    def is_full(self, account_id: AccountId) -> bool:
        """Whether another request of the account would wait too long.

        Each account may have its share of those that wait, even if another one has filled the line before.
        """
        share = max(self.waiting_max // max(self.active, 1), min(SHARE, self.waiting_max))
        return len(self.lines.get(account_id, ())) >= share or self.waiting >= 2 * WAITING_MAX

    def wait(self, account_id: AccountId, waiting: _Waiting) -> None:
        """Put a request behind the others of its account."""
        self.lines.setdefault(account_id, deque()).append(waiting)
        self.waiting += 1

    def take_first(self, account_id: AccountId) -> _Waiting:
        """Remove the account's first request from its line."""
        line = self.lines[account_id]
        waiting = line.popleft()
        if not line:
            del self.lines[account_id]
        self.waiting -= 1
        return waiting

    def admit(self, account_id: AccountId, waiting: _Waiting) -> None:
        """Let in a request that has waited."""
        if not waiting.admitted.done():  # done where the request was cancelled
            self.enter(account_id)
            waiting.admitted.set_result(None)

    def queue(self, order_id: OrderId, account_id: AccountId, now: float) -> None:
        """Count an order that was accepted."""
        self.unanswered[order_id] = now
        self.queued[order_id] = now, account_id
        account = self.accounts.get(account_id)
        if account is None:
            account = self.accounts[account_id] = _Account()
        account.queued += 1

    def note_pace(self, seconds: float) -> None:
        """Learn how many requests are let in within this time, and so how many may wait."""
        pace = self.let_in / max(seconds, TICK_SECONDS)
        self.let_in_per_second += PACE_SHARE * (pace - self.let_in_per_second)
        self.let_in = 0
        self.waiting_max = min(max(WAITING_MIN, int(self.let_in_per_second * LINE_SECONDS_MAX)), WAITING_MAX)


class AdmissionWindow:
    """A bound on the orders per venue that this process has accepted and still has to send.

    A request waits for room behind the others of its account and is rejected after `WAIT_SECONDS_MAX`; the accounts
    that wait take turns, and while several place orders, none may use more than its share. Orders that the venue
    holds do not count. While the venue limits the sending, orders without a send deadline do not wait: they belong in
    the durable queue. While this process limits it, a durable queue whose head is older than `WAIT_SECONDS_MAX` is sent
    before new orders are let in, except for a trickle of orders without a deadline. A younger queue is sent before more
    of its account are let in: the orders behind it would have to join it, and each would take two more commits than one
    whose first attempt begins when it is accepted, so that the queue would not end.
    Where other processes send, only `Forecast` rejects orders.
    """

    def __init__(self, forecast: Forecast, venues: Iterable[VenueName], clock: Clock, metrics: Metrics) -> None:
        self._forecast = forecast
        self._clock = clock
        self._sender: Sender | None = None
        self._is_letting_in = False
        """Whether `_let_in_all` will run in this turn of the event loop."""
        self.size = WINDOW_MIN
        self._looked_at = clock.monotonic()
        self._venues = {name: _Venue() for name in venues}
        self._turned_away = metrics.window_turned_away
        self._rejects = {name: metrics.window_rejects.labels(name) for name in self._venues}
        for name, venue in self._venues.items():
            metrics.window_orders.labels(name).set_function(venue.count)
            metrics.window_waiting.labels(name).set_function(partial(getattr, venue, "waiting"))

    def start(self, sender: Sender, slots: int) -> None:
        """Apply the bound from now on: this process sends, with this number of slots."""
        self._sender = sender
        self.size = max(WINDOW_MIN, int(slots * WINDOW_SHARE))

    async def run(self) -> None:
        """Watch the sender for as long as the process lives."""
        while True:
            self.run_once()
            await asyncio.sleep(TICK_SECONDS)

    def run_once(self) -> int:
        """Look at the sender, let requests in and reject those that have waited too long; returns how many wait."""
        now = self._clock.monotonic()
        elapsed, self._looked_at = now - self._looked_at, now
        for name, venue in self._venues.items():
            venue.note_pace(elapsed)
            venue.note_time(now)
            venue.is_limit = self._sender is None or self._sender.waits_for_venue(name)
            venue.has_old_queue = self._forecast.age(name).total_seconds() > WAIT_SECONDS_MAX
            self._forget_old(venue, now)
            self._forget_held(name, venue)
            if venue.is_limit:
                self._let_in_without_deadline(name, venue)
            self._let_in(name, venue)
            for account_id, line in list(venue.lines.items()):
                while line and now - line[0].since >= WAIT_SECONDS_MAX:
                    admitted = venue.take_first(account_id).admitted
                    if not admitted.done():
                        admitted.set_exception(self._rejection(name))
        return sum(venue.waiting for venue in self._venues.values())

    def turns_away(self, account_id: AccountId) -> bool:
        """Whether every new order of the account would be rejected: the body of its request need not be read."""
        for venue in self._venues.values():
            if not venue.is_full(account_id):
                return False
        self._turned_away.inc()
        return True

    def try_enter(self, name: VenueName, account_id: AccountId, time_in_force: TimeInForce | None) -> bool:
        """Let a new order in if there is room; `leave` must follow once its commit has ended."""
        venue = self._venues[name]
        venue.arrive(account_id)
        # Behind the others of its account, unless the venue is the limit and the order has no send deadline.
        waits_behind = account_id in venue.lines and (
            time_in_force in SEND_DEADLINES or not self._is_limit(name, venue, account_id)
        )
        if waits_behind or not self._has_room(name, venue, account_id, time_in_force):
            return False
        venue.enter(account_id)
        return True

    async def enter(self, name: VenueName, account_id: AccountId, time_in_force: TimeInForce | None) -> None:
        """Wait for room; raises QueueDelayed where there is none in time. `leave` must follow once it has returned."""
        if self.try_enter(name, account_id, time_in_force):
            return
        venue = self._venues[name]
        if self._is_limit(name, venue, account_id) and self._forecast.is_too_slow(name, time_in_force, account_id):
            raise self._forecast.rejection(name, account_id)
        if venue.is_full(account_id):
            raise self._rejection(name)
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        venue.wait(account_id, _Waiting(admitted, self._clock.monotonic(), time_in_force))
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled() and admitted.exception() is None:
                self.leave(name, account_id)
            raise

    def leave(self, name: VenueName, account_id: AccountId) -> None:
        """The commit of a request that was let in has ended; `note` has counted its order, if it made one."""
        venue = self._venues[name]
        venue.leave(account_id)
        if venue.lines:
            self._let_in_soon()

    def note(self, changes: Sequence[Change]) -> None:
        """Count what committed changes accept, and what they show to be answered."""
        now = self._clock.monotonic()
        has_room = False
        for change in changes:
            for row in change.outbox:
                venue = self._venues.get(row.venue)
                if venue is None or row.kind != "new":
                    continue
                if row.version > 1:
                    was_queued = row.order_id in venue.queued and venue.begin(row.order_id)
                    was_unanswered = row.status != "sending" and venue.unanswered.pop(row.order_id, None) is not None
                    has_room = has_room or (bool(venue.lines) and (was_unanswered or was_queued))
                elif self._sender is not None and self._sender.owns(row.lane):
                    account_id = change.orders[0].account_id
                    if not self._sender.is_held(row.venue, account_id):
                        venue.queue(row.order_id, account_id, now)
        if has_room:
            self._let_in_soon()

    def _let_in_soon(self) -> None:
        """Let requests in once for all orders of a commit group, and not once for each of them."""
        if not self._is_letting_in:
            self._is_letting_in = True
            asyncio.get_running_loop().call_soon(self._let_in_all)

    def _let_in_all(self) -> None:
        self._is_letting_in = False
        for name, venue in self._venues.items():
            self._let_in(name, venue)

    def _has_room(
        self, name: VenueName, venue: _Venue, account_id: AccountId, time_in_force: TimeInForce | None
    ) -> bool:
        account = venue.accounts.get(account_id)
        if account is not None and venue.active > 1 and account.entering >= SHARE:
            return False
        has_deadline = time_in_force in SEND_DEADLINES
        if self._is_limit(name, venue, account_id):
            if not has_deadline:
                return True
            if self._forecast.is_too_slow(name, time_in_force, account_id):
                return False
        elif venue.has_old_queue:
            return not has_deadline and venue.entering < TRICKLE
        elif account is not None and account.queued and self._sender is not None:
            return False
        let_in = venue.entering + len(venue.unanswered)
        return self._sender is None or let_in < self.size or let_in - self._sender.at_venue(name) < self.size

    def _is_limit(self, name: VenueName, venue: _Venue, account_id: AccountId) -> bool:
        """Whether the venue limits the sending of the account's orders."""
        return venue.is_limit or (self._sender is not None and self._sender.is_held(name, account_id))

    def _let_in(self, name: VenueName, venue: _Venue) -> None:
        """Let in what there is room for: one request of each account, then the next one of each."""
        passed_over = 0
        while len(venue.lines) > passed_over:
            account_id, line = next(iter(venue.lines.items()))
            has_room = self._has_room(name, venue, account_id, line[0].time_in_force)
            passed_over = 0 if has_room else passed_over + 1
            if has_room:
                venue.admit(account_id, venue.take_first(account_id))
            if account_id in venue.lines:  # behind the other accounts
                venue.lines[account_id] = venue.lines.pop(account_id)

    def _let_in_without_deadline(self, name: VenueName, venue: _Venue) -> None:
        """Let in those that do not wait for the venue, although others are before them."""
        for account_id, line in list(venue.lines.items()):
            for _ in range(len(line)):
                waiting = venue.take_first(account_id)
                kind = waiting.time_in_force
                if kind not in SEND_DEADLINES and self._has_room(name, venue, account_id, kind):
                    venue.admit(account_id, waiting)
                else:
                    venue.wait(account_id, waiting)

    def _forget_old(self, venue: _Venue, now: float) -> None:
        """Stop counting orders that take long; where they are not sent, the forecast shows it."""
        unanswered, queued = venue.unanswered, venue.queued
        while unanswered and now - unanswered[oldest := next(iter(unanswered))] >= COUNTED_SECONDS_MAX:
            del unanswered[oldest]
        while queued and now - queued[oldest := next(iter(queued))][0] >= QUEUED_SECONDS_MAX:
            venue.begin(oldest)

    def _forget_held(self, name: VenueName, venue: _Venue) -> None:
        """Stop counting orders of accounts that wait for the venue alone: those of others do not wait behind them."""
        sender = self._sender
        held = set() if sender is None else {account for account in venue.accounts if sender.is_held(name, account)}
        for order_id, (_, account_id) in list(venue.queued.items()) if held else ():
            if account_id in held:
                venue.begin(order_id)
                venue.unanswered.pop(order_id, None)

    def _rejection(self, name: VenueName) -> QueueDelayed:
        self._rejects[name].inc()
        return QueueDelayed(f"new orders to {name} wait longer than {WAIT_SECONDS_MAX:.0f} s for those before them")
