"""Departure order: the lanes that a worker owns, which of them have a queue, and the order of sends within one."""

import asyncio
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence

import structlog

from switchyard.domain.errors import DifferentDeclarations, Unavailable
from switchyard.domain.ids import VenueName, WorkerId
from switchyard.domain.journal.changes import Change
from switchyard.domain.orders.outbox import LANES
from switchyard.flow.clock import Wake
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Liveness
from switchyard.ports.outbox import NOTHING_DECLARED, Lanes, LaneShare

log = structlog.get_logger()

# A lane whose owner died is taken over within this time: well below the send deadline of an IOC order (2.5 s).
RENEW_SECONDS = 0.5
# After this time without a renewal, other workers may soon take the lanes over; half of the time they wait.
STALE_SECONDS = 5.0
# Longer than a silent worker keeps its registration.
JOIN_SECONDS = 12.0


class HeldLanes:
    """The lanes of one worker: renewed periodically, released only when nothing is under way on them."""

    def __init__(
        self, lanes: Lanes, worker: WorkerId, clock: Clock, declared: Mapping[VenueName, str] = NOTHING_DECLARED
    ) -> None:
        """`declared`: what the worker's settings say of each venue."""
        self._declared = declared
        self._lanes = lanes
        self._worker = worker
        self._clock = clock
        self._held = LaneShare(frozenset(), 0)
        self._leaving: frozenset[int] = frozenset()
        self._staying: frozenset[int] = frozenset()
        """Those that are held and not being released."""
        self._under_way: Counter[int] = Counter()
        self._renewed_at = float("-inf")

    async def join(self, liveness: Liveness) -> None:
        """Register the worker, with its lock; raises DifferentDeclarations where one with others is running.

        Another worker that is gone without a trace, with its machine, counts as running until it has been silent for
        long enough. A database that does not answer is waited for as long, then JournalUnavailable is raised.
        """
        began_at = self._clock.monotonic()
        while True:
            try:
                await liveness.hold(self._worker)
                return await self.renew()
            except (DifferentDeclarations, Unavailable) as error:
                if self._clock.monotonic() - began_at > JOIN_SECONDS:
                    raise
                log.warning("worker_waits", error=str(error))
            await asyncio.sleep(RENEW_SECONDS)

    async def run(self) -> None:
        """Renew for as long as the process lives; raises DifferentDeclarations."""
        while True:
            await self.renew()
            await asyncio.sleep(RENEW_SECONDS)

    async def renew(self) -> None:
        """Renew the ownership; lanes beyond the fair share are released, busy ones as soon as they are idle."""
        started_at = self._clock.monotonic()
        given_up = [lane for lane in self._leaving if not self._under_way[lane]]
        self._held = await self._lanes.hold(self._worker, given_up, self._declared)
        self._renewed_at = started_at
        # Lanes that are being released stay chosen: otherwise a lane that is rarely idle might never be released.
        kept = sorted(self._leaving & self._held.lanes)
        others = [lane for lane in sorted(self._held.lanes, reverse=True) if lane not in kept]
        self._leaving = frozenset((kept + others)[: max(len(self._held.lanes) - self._held.share, 0)])
        self._staying = self._held.lanes - self._leaving

    def usable(self) -> frozenset[int]:
        """The lanes to send on now; none when the last renewal is too old."""
        if self._clock.monotonic() - self._renewed_at > STALE_SECONDS:
            return frozenset()
        return self._staying

    def begin(self, lane: int) -> None:
        """A send begins on this lane."""
        self._under_way[lane] += 1

    def end(self, lane: int) -> None:
        """A send on this lane has ended."""
        self._under_way[lane] -= 1

    def filter(self) -> list[int] | None:
        """The usable lanes as a filter for `Queries.due`; none where every lane is usable."""
        usable = self.usable()
        return None if len(usable) == LANES else sorted(usable)


class SendTicket:
    """One send's place in a line."""

    def __init__(self, departures: "Departures", key: Hashable, before: "SendTicket | None") -> None:
        self._departures = departures
        self._key = key
        self._before = before
        self.has_departed = False
        """Whether this send has left, or will not be sent now."""
        self._departed: asyncio.Event | None = None
        """Made if another send waits for it."""
        self._is_held_back = False
        self._has_given_up = False

    async def comes_within(self, seconds: float) -> bool:
        """Wait until the send before this one has left; false where it has not within this time."""
        if self._before is None:
            return True
        try:
            async with asyncio.timeout(seconds):
                while (before := self.before) is not None and not before.has_departed:
                    await before.wait()
        except TimeoutError:
            self._has_given_up = True
            return False
        return True

    @property
    def before(self) -> "SendTicket | None":
        """The send before this one: those that gave up waiting are none, but those before them may not have left."""
        while self._before is not None and self._before._has_given_up:
            self._before = self._before._before
        return self._before

    @property
    def has_given_up(self) -> bool:
        """Whether this send did not wait for the one before it to leave."""
        return self._has_given_up

    @property
    def would_pass(self) -> bool:
        """Whether the send before this one did not leave, and goes back to the queue."""
        return self.before is not None and self.before.is_held_back

    @property
    def is_held_back(self) -> bool:
        """Whether this send goes back to the queue."""
        return self._is_held_back

    def hold_back(self) -> None:
        """This send goes back to the queue, and so must those behind it in the line."""
        self._is_held_back = True

    def depart(self) -> None:
        """Let the next send in the line go; may be called more than once."""
        if self.has_departed:
            return
        self.has_departed = True
        if self._departed is not None:
            self._departed.set()
        self._departures.remove(self._key, self)
        if not self._has_given_up:
            self._before = None  # otherwise a long line would be kept whole

    async def wait(self) -> None:
        """Wait until it has departed."""
        if not self.has_departed:
            self._departed = self._departed or asyncio.Event()
            await self._departed.wait()


class Departures:
    """Lines of sends that must leave in order, one line per key."""

    def __init__(self) -> None:
        self._last: dict[Hashable, SendTicket] = {}

    def join(self, key: Hashable) -> SendTicket:
        """Join the end of the key's line."""
        ticket = SendTicket(self, key, self._last.get(key))
        self._last[key] = ticket
        return ticket

    def remove(self, key: Hashable, ticket: SendTicket) -> None:
        """Drop the key's line if this was its last send; one that gave up leaves those before it."""
        if self._last.get(key) is not ticket:
            return
        if ticket.has_given_up and ticket.before is not None and not ticket.before.has_departed:
            self._last[key] = ticket.before
        else:
            del self._last[key]


class WaitingLanes:
    """The lanes with orders that wait, and the wake-up of the dispatcher that sends them."""

    def __init__(self, wake: Wake) -> None:
        self._wake = wake
        self._lanes: set[int] = set()
        self._since_read: set[int] = set()
        """Those that were added since the last query began: the query may not have seen them."""

    def __contains__(self, lane: object) -> bool:
        """Whether an order of the lane may be waiting, or be on its way from the queue to the venue."""
        return lane in self._lanes

    def add(self, lane: int) -> None:
        """An order of the lane waits."""
        self._lanes.add(lane)
        self._since_read.add(lane)

    def wake(self) -> None:
        """Wake the dispatcher: its recovery has something to do."""
        self._wake.notify()

    def note(self, changes: Sequence[Change]) -> None:
        """Learn from committed changes what waits, and wake the dispatcher if it may have something to do."""
        wakes = bool(self._lanes)  # what was sent has freed a slot
        for change in changes:
            for _, row in change.outbox_updates:
                if row.status in ("queued", "failed"):
                    wakes = True
                    if row.kind == "new":
                        self.add(row.lane)
            for order in change.orders:
                # A cancel and an amend become due when their order is shown to be at the venue.
                wakes = wakes or order.status == "CANCEL_REQUESTED" or order.amend_qty is not None
        if wakes:
            self._wake.notify()

    def begin_read(self) -> None:
        """A query of the outbox begins."""
        self._since_read = set()

    def note_read(self, lanes: Iterable[int], *, is_complete: bool) -> None:
        """The query has found rows of these lanes; `is_complete` if it has found all that are due."""
        if is_complete:
            self._lanes = set(self._since_read)
        self._lanes.update(lanes)

    def note_started(self, lanes: Iterable[int]) -> None:
        """The rows of these lanes that the last query found have left the queue, in their order."""
        self._lanes.difference_update(lane for lane in lanes if lane not in self._since_read)
