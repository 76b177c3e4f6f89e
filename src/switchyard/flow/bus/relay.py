"""Publishes the journal's events to a message broker, in order, each at least once; no order waits for it.

Reads the journal after a cursor of its own, holds the relay's lease, and moves the cursor only after the brokers
have acknowledged.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec
import structlog
from msgspec.structs import replace

from switchyard.domain.errors import HistoryMismatch
from switchyard.domain.ids import AccountId, WorkerId
from switchyard.domain.journal.lines import BusEvent, Place, bus_event, check_follows
from switchyard.flow.clock import Wake
from switchyard.flow.traced import EventTraces
from switchyard.ports.bus import BusUnavailable, Lease, LeaseLost, Publisher, RelayLeases, TopicResized
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal, Liveness
from switchyard.ports.queries import Queries
from switchyard.telemetry.metrics import BusMetrics

# An owner that has not renewed for this long is paused or cut off from the database: another relay takes over, though
# the owner may still publish. As long as workers wait for each other's lanes.
SILENCE_SECONDS_MAX = 10.0


class HeldLease:
    """The lease of one topic, as one process sees it; `held` while this process is the owner."""

    def __init__(self, topic: str, owner: WorkerId, *, leases: RelayLeases, liveness: Liveness, clock: Clock) -> None:
        self._topic = topic
        self._owner = owner
        self._leases = leases
        self._liveness = liveness
        self._clock = clock
        self._seen: tuple[int, int] | None = None
        """Generation and beat of another owner, first seen at `_seen_at`."""
        self._seen_at = 0.0
        self.held: Lease | None = None

    async def take(self) -> Lease | None:
        """Become the owner if there is none, or if it is gone; return the lease as it is, also if another has it."""
        await self._liveness.hold(self._owner)
        found = await self._leases.lease(self._topic)
        if found is not None and not await self._may_take(found):
            return found
        self.held = await self._leases.claim(self._topic, self._owner, found)
        self._seen = None
        return self.held

    async def renew(self, topic_id: str, place: Place) -> None:
        """Store the place; raises LeaseLost where another relay has taken over."""
        assert self.held is not None, "it is not the owner"
        self.held = await self._leases.renew(self.held, topic_id, place)

    def lose(self) -> None:
        """Stand by from now on."""
        self.held = None

    async def _may_take(self, found: Lease) -> bool:
        if found.owner == self._owner or await self._liveness.dead([found.owner]):
            return True
        now, beat = self._clock.monotonic(), (found.generation, found.beat)
        if self._seen != beat:
            self._seen, self._seen_at = beat, now
        return now - self._seen_at > SILENCE_SECONDS_MAX


# About 150 bytes each. An account that was dropped is looked up again with its next event.
ACCOUNTS_MAX = 10_000


class PreviousEvents:
    """The last event of each account, up to where the relay has read."""

    def __init__(self, queries: Queries, accounts_max: int = ACCOUNTS_MAX) -> None:
        self._queries = queries
        self._accounts_max = accounts_max
        self._last: OrderedDict[AccountId, int] = OrderedDict()
        """The one that was not used for the longest time comes first."""

    async def linked(self, events: Sequence[BusEvent]) -> list[BusEvent]:
        """The next events, each with the number of the one before it; the caller leaves none out."""
        linked = []
        for each in events:
            account = each.event.account_id
            previous = self._last.get(account)
            if previous is None:
                previous = await self._look_up(account, each.event.seq)
            assert previous < each.event.seq, "the events are not those after the last"
            linked.append(replace(each, previous_seq=previous))
            self._last[account] = each.event.seq
            self._last.move_to_end(account)
        while len(self._last) > self._accounts_max:
            self._last.popitem(last=False)
        return linked

    def clear(self) -> None:
        """Forget all accounts, because the next events are not those after the last."""
        self._last.clear()

    async def _look_up(self, account: AccountId, before: int) -> int:
        found = await self._queries.last_events(account_id=account, before=before, limit=1)
        return found[0].seq if found else 0


class Lag(msgspec.Struct, frozen=True):
    """What is in the journal after a place."""

    events: int = 0
    oldest_at: datetime | None = None
    """The time of the first of them."""


class RelaySource:
    """One shard of the journal."""

    def __init__(self, journal: Journal, shard: int = 0, traces: EventTraces | None = None) -> None:
        """`traces`: where traces are on."""
        self._journal = journal
        self._traces = traces
        self._shard = shard

    async def check(self, place: Place) -> None:
        """Raise HistoryMismatch unless the journal has the event at this place."""
        if place.seq == 0:
            return
        found = await self._journal.last_event(self._shard, place.seq)
        if (found.seq, found.hash) != (place.seq, place.hash):
            raise HistoryMismatch(
                f"the relay has published up to event {place.seq} of epoch {place.epoch} with hash {place.hash}; the "
                f"last event of the journal up to that number is {found.seq} of epoch {found.epoch} with hash "
                f"{found.hash}"
            )

    async def page(self, after: Place, limit: int) -> list[BusEvent]:
        """The next events; HistoryMismatch at a gap or at another history."""
        events = [bus_event(event) for event in await self._journal.read(self._shard, after.seq, limit)]
        place = after
        for event in events:
            check_follows(place, event)
            place = event.place
        return events if self._traces is None else await self._traces.attached(events)

    async def lag(self, place: Place) -> Lag:
        """What is after the place; without the numbers that a new epoch leaves out."""
        oldest = await self._journal.read(self._shard, place.seq, 1)
        if not oldest:
            return Lag()
        head = await self._journal.head(self._shard)
        skipped = sum(
            epoch.first_seq - max(epoch.after_seq, place.seq) - 1
            for epoch in await self._journal.epochs(self._shard)
            if place.seq < epoch.first_seq <= head.seq
        )
        return Lag(max(head.seq - place.seq - skipped, 0), oldest[0].at)


log = structlog.get_logger()

# Small enough that a page does not keep the event loop from orders for long.
EVENTS_MAX = 500
# No caller waits for the bus: a pause lets a page cover the events of many orders.
LINGER_SECONDS = 0.05
# The place is stored this often while events are delivered; those since then are published again after a crash.
RENEW_SECONDS = 1.0
# How often the topic is compared with the one that was opened: one that was created again lacks the earlier events.
TOPIC_CHECK_SECONDS = 10.0
# The pauses before the brokers are tried again, after they rejected something or the topic is missing.
RETRY_SECONDS = (1.0, 2.0, 5.0, 10.0)
# How long a process that ends waits for the brokers; the rest is published by the next relay.
CLOSING_SECONDS_MAX = 2.0


class _Page(NamedTuple):
    last: Place
    size: int
    delivery: "asyncio.Future[None]"


class Relay:
    """One process's relay: it publishes while it holds the topic's lease, and stands by otherwise."""

    def __init__(
        self,
        publisher: Publisher,
        *,
        source: RelaySource,
        previous: PreviousEvents,
        lease: HeldLease,
        capacity: int,
        clock: Clock,
        metrics: BusMetrics,
    ) -> None:
        self._publisher = publisher
        self._source = source
        self._previous = previous
        self._lease = lease
        self._capacity = capacity
        self._clock = clock
        self._metrics = metrics
        self._topic_id: str | None = None
        """Of the topic that is open; none while the publisher is closed."""
        self._read = self._delivered = Place()
        """The last event handed over, and the last one such that all up to it were delivered."""
        self._pages: deque[_Page] = deque()
        self._in_flight = 0
        self._is_idle = False
        """Whether everything that the journal had at the last look was handed over."""
        self._failures = 0
        self._renew_at = self._retry_at = self._check_at = self._measure_at = 0.0
        self._wake: Wake | None = None
        self.halted: str | None = None
        """Why it has stopped for good: another journal than the one published, or a topic with other partitions."""
        self.trouble: str | None = None
        """Why nothing can be delivered at the moment; it tries again by itself."""

    @property
    def delivered(self) -> Place:
        """The last event such that it and all before it were delivered."""
        return self._delivered

    async def run_once(self) -> int:
        """Publish one page and return its number of events; 0 while standing by, while pausing and at the end."""
        now = self._clock.monotonic()
        if now >= self._measure_at:
            await self._measure(now)
        if self.halted is not None:
            return 0
        try:
            await self._renew(now)
            if now < self._retry_at:
                return 0
            if self._lease.held is None and not await self._take_over():
                return 0
            if self._topic_id is None:
                await self._open()
            self._settle()
            if now >= self._check_at:
                self._check_at = now + TOPIC_CHECK_SECONDS
                await self._check_topic()
            return await self._publish()
        except BusUnavailable as error:
            await self._fail(error)
        except LeaseLost as error:
            log.warning("relay_lost_its_lease", error=str(error))
            await self._stand_by()
        except HistoryMismatch as error:
            await self._halt(f"{error}. Bring the right database back, or see docs/operate/kafka.md")
        except TopicResized as error:
            await self._halt(str(error))
        return 0

    async def run(self, wake: Wake) -> None:
        """Publish events until cancelled; then call `close`."""
        self._wake = wake
        while True:
            began = self._clock.monotonic()
            if await self.run_once() == EVENTS_MAX:
                # Behind: at most half of the time is spent here, because this process handles orders too.
                await asyncio.sleep(self._clock.monotonic() - began)
            else:
                await asyncio.sleep(LINGER_SECONDS)
                await wake.wait(RENEW_SECONDS)

    async def close(self) -> None:
        """Wait a little for the brokers, store the place, and disconnect."""
        if self._pages:
            await asyncio.wait([page.delivery for page in self._pages], timeout=CLOSING_SECONDS_MAX)
        self._renew_at = 0.0
        try:
            if self._topic_id is not None:
                self._settle()
                await self._renew(self._clock.monotonic())
        except (BusUnavailable, LeaseLost) as error:
            log.warning("relay_closed_behind", seq=self._delivered.seq, error=str(error))
        await self._disconnect()

    def note_trouble(self, error: str) -> None:
        """The publisher lost its brokers; it connects again by itself."""
        self._metrics.delivery_errors.inc()
        if self.trouble is None:
            log.error("bus_unreachable", error=error, in_flight=self._in_flight)
        self.trouble = error

    async def _take_over(self) -> bool:
        lease = await self._lease.take()
        if self._lease.held is None:
            self._delivered = Place() if lease is None else lease.place
            self._retry_at = self._clock.monotonic() + RENEW_SECONDS
            return False
        log.info("relay_active", generation=self._lease.held.generation, seq=self._lease.held.place.seq)
        self._delivered = self._lease.held.place
        self._metrics.active.set(1)
        return True

    async def _open(self) -> None:
        """Connect, and continue at the place of this topic; a topic that was created again gets every event."""
        held = self._lease.held
        assert held is not None, "only the owner publishes"
        topic_id = await self._publisher.open(held.topic_id)
        if held.topic_id not in ("", topic_id):
            log.error("bus_topic_replaced", topic=held.topic, former_id=held.topic_id, id=topic_id)
        place = held.place if held.topic_id == topic_id else Place()
        await self._source.check(place)
        await self._lease.renew(topic_id, place)
        self._read = self._delivered = place
        self._previous.clear()
        self._topic_id = topic_id
        self._check_at = self._clock.monotonic() + TOPIC_CHECK_SECONDS
        log.info("bus_opened", topic=held.topic, topic_id=topic_id, seq=place.seq)

    async def _publish(self) -> int:
        room = self._capacity - self._in_flight
        if room <= 0:
            return 0
        events = await self._source.page(self._read, min(EVENTS_MAX, room))
        self._is_idle = not events
        if not events:
            return 0
        try:
            delivery = await self._publisher.send(await self._previous.linked(events))
        except BaseException:
            self._previous.clear()  # it may have noted events that were not handed over
            raise
        delivery.add_done_callback(self._notify)
        self._read = events[-1].place
        self._pages.append(_Page(self._read, len(events), delivery))
        self._count_in_flight(len(events))
        return len(events)

    def _settle(self) -> None:
        """Note what was delivered; raises BusUnavailable where the brokers rejected something."""
        while self._pages and self._pages[0].delivery.done():
            page = self._pages[0]
            page.delivery.result()  # raises what the brokers rejected
            self._pages.popleft()
            self._count_in_flight(-page.size)
            self._metrics.published.inc(page.size)
            self._delivered = page.last
            self._failures, self.trouble = 0, None

    async def _renew(self, now: float) -> None:
        """Store the place from time to time, which also shows the others that this relay is alive."""
        held = self._lease.held
        if held is None or now < self._renew_at:
            return
        self._renew_at = now + RENEW_SECONDS
        if self._topic_id is None:
            await self._lease.renew(held.topic_id, held.place)
        else:
            await self._lease.renew(self._topic_id, self._delivered)

    async def _check_topic(self) -> None:
        try:
            topic_id = await self._publisher.topic_id(self._topic_id or "")
        except BusUnavailable as error:
            self.note_trouble(str(error))  # the brokers may be away; the producer keeps what it has
            return
        if topic_id != self._topic_id:
            raise BusUnavailable(f"the topic was created again: its id was {self._topic_id} and is {topic_id}")
        if self._is_idle and not self._pages:
            self._failures, self.trouble = 0, None  # otherwise the next delivery tells

    async def _fail(self, error: BusUnavailable) -> None:
        """Give up what is in flight, and publish again from the last place, after a pause."""
        pause = RETRY_SECONDS[min(self._failures, len(RETRY_SECONDS) - 1)]
        self._failures += 1
        self._metrics.delivery_errors.inc()
        self.trouble, self._is_idle = str(error), False
        log.error("bus_delivery_failed", error=str(error), seq=self._delivered.seq, retry_seconds=pause)
        self._retry_at = self._clock.monotonic() + pause
        self._renew_at = 0.0
        try:
            await self._renew(self._retry_at)
        except LeaseLost:
            await self._stand_by()
        await self._disconnect()

    async def _stand_by(self) -> None:
        await self._disconnect()
        self._lease.lose()
        self._metrics.active.set(0)

    async def _halt(self, error: str) -> None:
        self.halted = error
        self._metrics.halted.set(1)
        log.critical("relay_halted", error=self.halted)
        await self._stand_by()

    async def _disconnect(self) -> None:
        self._topic_id = None
        await self._publisher.close()
        for page in self._pages:
            if not page.delivery.cancel():
                page.delivery.exception()  # it is retrieved, or asyncio reports it as lost
        self._pages.clear()
        self._count_in_flight(-self._in_flight)

    async def _measure(self, now: float) -> None:
        """Show how far the deliveries are behind the journal; a relay that stands by shows it for the active one."""
        self._measure_at = now + RENEW_SECONDS
        lag = await self._source.lag(self._delivered)
        self._metrics.lag_events.set(lag.events)
        age = 0.0 if lag.oldest_at is None else (self._clock.now() - lag.oldest_at).total_seconds()
        self._metrics.lag_seconds.set(max(age, 0.0))

    def _count_in_flight(self, change: int) -> None:
        self._in_flight += change
        self._metrics.in_flight.set(self._in_flight)

    def _notify(self, _: "asyncio.Future[None]") -> None:
        if self._wake is not None:
            self._wake.notify()
