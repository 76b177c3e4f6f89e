"""The queue forecast: only orders that would miss their send deadline are rejected."""

from datetime import timedelta

import msgspec
import pytest

from switchyard.domain.errors import QueueDelayed
from switchyard.domain.ids import VenueName
from switchyard.domain.orders.order import TimeInForce
from switchyard.flow.routing.window import STALE_SECONDS, Forecast
from tests.support.build import VENUE, an_accept
from tests.support.memory.clock import ManualClock
from tests.support.memory.database import MemoryDatabase

SIM, OTHER = VENUE, VenueName("other")


class Queue:
    """A venue's queue that the test moves."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        database = MemoryDatabase(self.clock)
        self.outbox = database.journal.outbox
        self._seq = 0
        self.forecast = Forecast(database.queries, [SIM, OTHER], self.clock)

    async def poll(self, *, waited_seconds: float) -> None:
        [row] = an_accept(now=self.clock.now() - timedelta(seconds=waited_seconds)).outbox
        self._seq += 1
        head = msgspec.structs.replace(row, seq=self._seq)
        self.outbox.clear()
        self.outbox[head.order_id, head.kind, head.number] = head
        await self.forecast.run_once()

    async def stand_still(self, seconds: float) -> None:
        self.clock.advance(timedelta(seconds=seconds))
        await self.forecast.run_once()


@pytest.mark.parametrize(
    ("stalled_seconds", "time_in_force", "is_too_slow"),
    [(1.4, "IOC", False), (1.6, "IOC", True), (3.9, "FOK", False), (4.1, "FOK", True), (60, "GTC", False)],
)
async def test_a_queue_that_stands_still_is_too_slow_a_margin_before_the_send_deadline(
    stalled_seconds: float, time_in_force: TimeInForce, is_too_slow: bool
) -> None:
    queue = Queue()
    await queue.poll(waited_seconds=0)
    await queue.stand_still(stalled_seconds)
    assert queue.forecast.is_too_slow(SIM, time_in_force) == is_too_slow
    assert not queue.forecast.is_too_slow(OTHER, time_in_force)


async def test_an_old_backlog_that_is_sent_quickly_delays_no_new_order() -> None:
    queue = Queue()
    await queue.poll(waited_seconds=60)
    assert not queue.forecast.is_too_slow(SIM, "IOC"), "the pace is not known after one poll"
    queue.clock.advance(timedelta(seconds=0.25))
    await queue.poll(waited_seconds=50)
    assert queue.forecast.delay(SIM) == timedelta(seconds=50 / 10.25 * 0.25)
    assert not queue.forecast.is_too_slow(SIM, "IOC")


async def test_a_short_queue_that_hardly_moves_is_too_slow() -> None:
    queue = Queue()
    await queue.poll(waited_seconds=1)
    queue.clock.advance(timedelta(seconds=0.25))
    await queue.poll(waited_seconds=1.2)
    assert queue.forecast.delay(SIM) == timedelta(seconds=6)
    assert queue.forecast.is_too_slow(SIM, "FOK")


async def test_a_queue_of_constant_length_delays_by_its_length() -> None:
    queue = Queue()
    await queue.poll(waited_seconds=1)
    queue.clock.advance(timedelta(seconds=0.25))
    await queue.poll(waited_seconds=1)
    assert queue.forecast.delay(SIM) == timedelta(seconds=1)


async def test_a_head_dated_by_a_slower_gateway_shows_that_the_queue_moves() -> None:
    queue = Queue()
    await queue.poll(waited_seconds=0.1)
    for _ in range(20):
        queue.clock.advance(timedelta(seconds=0.25))
        await queue.poll(waited_seconds=0.9)
        queue.clock.advance(timedelta(seconds=0.25))
        await queue.poll(waited_seconds=0.1)
    assert not queue.forecast.is_too_slow(SIM, "IOC")


async def test_an_empty_queue_and_a_stale_forecast_reject_no_order() -> None:
    queue = Queue()
    await queue.poll(waited_seconds=0)
    await queue.stand_still(10)
    assert queue.forecast.is_too_slow(SIM, "IOC")
    queue.clock.advance(timedelta(seconds=STALE_SECONDS + 1))
    assert not queue.forecast.is_too_slow(SIM, "IOC")
    await queue.forecast.run_once()
    assert queue.forecast.is_too_slow(SIM, "IOC")
    queue.outbox.clear()
    await queue.forecast.run_once()
    assert not queue.forecast.is_too_slow(SIM, "IOC")


async def test_the_error_says_how_long_orders_wait() -> None:
    queue = Queue()
    await queue.poll(waited_seconds=0)
    await queue.stand_still(3)
    assert str(queue.forecast.rejection(SIM)) == "orders to sim wait 3.0 s: this one might miss its send deadline"
    assert QueueDelayed.reason == "QUEUE_DELAY"
