"""Publishes the journal's events to a message broker, in order, each at least once; no order waits for it.

Reads the journal after a place of its own; sends to the publisher; moves the place only after the brokers have
acknowledged every event up to it.
"""

import asyncio
from collections import deque
from typing import NamedTuple

import structlog

from switchyard.domain.errors import HistoryMismatch
from switchyard.domain.journal.lines import Place
from switchyard.flow.bus.lease import HeldLease
from switchyard.flow.bus.previous import PreviousEvents
from switchyard.flow.bus.source import RelaySource
from switchyard.flow.wake import Wake
from switchyard.ports.bus import BusUnavailable, LeaseLost, Publisher, TopicResized
from switchyard.ports.clock import Clock
from switchyard.telemetry.bus_metrics import BusMetrics

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
