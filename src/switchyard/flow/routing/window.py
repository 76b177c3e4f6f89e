"""Let new orders in only as fast as this process can send them.

Accepting an order is a fraction of the work of sending it: without a bound, requests would take the time that the
orders before them need. Reads the dispatcher and the queue forecast; learns from the sequencer what was accepted and
what was answered; writes nothing.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from switchyard.domain.changes import Change
from switchyard.domain.decisions import SEND_DEADLINES
from switchyard.domain.errors import QueueDelayed
from switchyard.domain.ids import OrderId, VenueName
from switchyard.domain.orders import TimeInForce
from switchyard.flow.routing.forecast import Forecast
from switchyard.ports.clock import Clock
from switchyard.telemetry.metrics import Metrics

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
        ...

    def begins_at_once(self, venue: VenueName) -> bool:
        """Whether first attempts at this venue begin in the commits that accept their orders."""
        ...

    def at_venue(self, venue: VenueName) -> int:
        """How many requests the venue has not answered yet."""
        ...

    def waits_for_venue(self, venue: VenueName) -> bool:
        """Whether the venue limits the sending: it is closed, or it holds the slots and none is free."""
        ...


class _Waiting(NamedTuple):
    """A request that waits for room."""

    admitted: "asyncio.Future[None]"
    since: float
    time_in_force: TimeInForce | None


class _Venue:
    """The orders of one venue that this process has let in, and the requests that wait."""

    def __init__(self) -> None:
        self.entering = 0
        """Requests that were let in and whose commit has not ended."""
        self.unanswered: dict[OrderId, float] = {}
        """Orders that the venue has not answered, with the time of their commit; the oldest first."""
        self.queued: dict[OrderId, float] = {}
        """Those of them whose first attempt has not begun."""
        self.line: deque[_Waiting] = deque()
        self.line_max = WAITING_MIN
        self.let_in = 0
        """Requests that were let in since the last tick."""
        self.let_in_per_second = 0.0
        self.is_limit = True
        """Whether the venue, and not this process, limits the sending."""
        self.has_old_queue = False

    def count(self) -> int:
        """How many orders were let in and are not answered."""
        return self.entering + len(self.unanswered)

    def enter(self) -> None:
        """Let a request in."""
        self.entering += 1
        self.let_in += 1

    def is_full(self) -> bool:
        """Whether another request would wait too long."""
        return len(self.line) >= self.line_max

    def note_pace(self, seconds: float) -> None:
        """Learn how many requests are let in within this time, and so how many may wait."""
        pace = self.let_in / max(seconds, TICK_SECONDS)
        self.let_in_per_second += PACE_SHARE * (pace - self.let_in_per_second)
        self.let_in = 0
        self.line_max = min(max(WAITING_MIN, int(self.let_in_per_second * LINE_SECONDS_MAX)), WAITING_MAX)


class AdmissionWindow:
    """A bound on the orders per venue that this process has accepted and still has to send.

    A request waits for room in the order of arrival and is rejected after `WAIT_SECONDS_MAX`. Orders that the venue
    holds do not count. While the venue limits the sending, orders without a send deadline do not wait: they belong in
    the durable queue. While this process limits it, a durable queue whose head is older than `WAIT_SECONDS_MAX` is sent
    before new orders are let in, except for a trickle of orders without a deadline. A younger queue is sent before any
    is let in: the orders behind it would have to join it, and each would take two more commits than one whose first
    attempt begins when it is accepted, so that the queue would not end.
    Where other processes send, only `Forecast` rejects orders.
    """

    def __init__(self, forecast: Forecast, venues: Iterable[VenueName], clock: Clock, metrics: Metrics) -> None:
        self._forecast = forecast
        self._clock = clock
        self._sender: Sender | None = None
        self.size = WINDOW_MIN
        self._looked_at = clock.monotonic()
        self._venues = {name: _Venue() for name in venues}
        self._turned_away = metrics.window_turned_away
        self._rejects = {name: metrics.window_rejects.labels(name) for name in self._venues}
        for name, venue in self._venues.items():
            metrics.window_orders.labels(name).set_function(venue.count)
            metrics.window_waiting.labels(name).set_function(venue.line.__len__)

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
            venue.is_limit = self._sender is None or self._sender.waits_for_venue(name)
            venue.has_old_queue = self._forecast.age(name).total_seconds() > WAIT_SECONDS_MAX
            self._forget_old(venue, now)
            if venue.is_limit:
                self._let_in_without_deadline(venue)
            self._let_in(name, venue)
            while venue.line and now - venue.line[0].since >= WAIT_SECONDS_MAX:
                admitted = venue.line.popleft().admitted
                if not admitted.done():
                    admitted.set_exception(self._rejection(name))
        return sum(len(venue.line) for venue in self._venues.values())

    def turns_away(self) -> bool:
        """Whether every new order would be rejected, whichever venue it is for: its request need not be read."""
        return all(map(_Venue.is_full, self._venues.values()))

    def note_turned_away(self) -> None:
        """Count a request that was rejected unread."""
        self._turned_away.inc()

    def has_room(self, name: VenueName, time_in_force: TimeInForce | None) -> bool:
        """Whether a new order would be let in at once."""
        venue = self._venues[name]
        if venue.is_limit and time_in_force not in SEND_DEADLINES:
            return True
        return not venue.line and self._has_room(name, venue, time_in_force)

    def try_enter(self, name: VenueName, time_in_force: TimeInForce | None) -> bool:
        """Let a new order in if there is room; `leave` must follow once its commit has ended."""
        if not self.has_room(name, time_in_force):
            return False
        self._venues[name].enter()
        return True

    async def enter(self, name: VenueName, time_in_force: TimeInForce | None) -> None:
        """Wait for room; raises QueueDelayed where there is none in time. `leave` must follow once it has returned."""
        if self.try_enter(name, time_in_force):
            return
        venue = self._venues[name]
        if venue.is_limit and self._forecast.is_too_slow(name, time_in_force):
            raise self._forecast.rejection(name)
        if venue.is_full():
            raise self._rejection(name)
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        venue.line.append(_Waiting(admitted, self._clock.monotonic(), time_in_force))
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled() and admitted.exception() is None:
                self.leave(name)
            raise

    def leave(self, name: VenueName) -> None:
        """The commit of a request that was let in has ended; `note` has counted its order, if it made one."""
        venue = self._venues[name]
        venue.entering -= 1
        self._let_in(name, venue)

    def note(self, change: Change) -> None:
        """Count what a committed change accepts, and what it shows to be answered."""
        for row in change.outbox:
            venue = self._venues.get(row.venue)
            if venue is None or row.kind != "new":
                continue
            if row.version > 1:
                was_queued = venue.queued.pop(row.order_id, None) is not None
                was_unanswered = row.status != "sending" and venue.unanswered.pop(row.order_id, None) is not None
                if was_unanswered or (was_queued and not venue.queued):
                    self._let_in(row.venue, venue)
            elif self._sender is not None and self._sender.owns(row.lane):
                venue.unanswered[row.order_id] = venue.queued[row.order_id] = self._clock.monotonic()

    def _has_room(self, name: VenueName, venue: _Venue, time_in_force: TimeInForce | None) -> bool:
        has_deadline = time_in_force in SEND_DEADLINES
        if venue.is_limit:
            if not has_deadline:
                return True
            if self._forecast.is_too_slow(name, time_in_force):
                return False
        elif venue.has_old_queue:
            return not has_deadline and venue.entering < TRICKLE
        elif venue.queued and self._sender is not None and self._sender.begins_at_once(name):
            return False
        return self._sender is None or venue.count() - self._sender.at_venue(name) < self.size

    def _let_in(self, name: VenueName, venue: _Venue) -> None:
        line = venue.line
        while line and self._has_room(name, venue, line[0].time_in_force):
            _admit(venue, line.popleft())

    def _let_in_without_deadline(self, venue: _Venue) -> None:
        """Let in those that do not wait for the venue, although others are before them."""
        for _ in range(len(venue.line)):
            waiting = venue.line.popleft()
            if waiting.time_in_force in SEND_DEADLINES:
                venue.line.append(waiting)
            else:
                _admit(venue, waiting)

    def _forget_old(self, venue: _Venue, now: float) -> None:
        """Stop counting orders that take long; where they are not sent, the forecast shows it."""
        for orders, seconds_max in ((venue.unanswered, COUNTED_SECONDS_MAX), (venue.queued, QUEUED_SECONDS_MAX)):
            while orders and now - orders[oldest := next(iter(orders))] >= seconds_max:
                del orders[oldest]

    def _rejection(self, name: VenueName) -> QueueDelayed:
        self._rejects[name].inc()
        return QueueDelayed(f"new orders to {name} wait longer than {WAIT_SECONDS_MAX:.0f} s for those before them")


def _admit(venue: _Venue, waiting: _Waiting) -> None:
    if not waiting.admitted.done():  # done where the request was cancelled
        venue.enter()
        waiting.admitted.set_result(None)
