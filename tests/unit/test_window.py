"""The admission window: new orders wait for those before them, in order, and for a limited time."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import msgspec
import pytest

from switchyard.domain.decisions import begin_attempt, record_sent
from switchyard.domain.errors import QueueDelayed
from switchyard.domain.ids import AccountId, VenueName
from switchyard.domain.journal.changes import Change, merged
from switchyard.domain.orders.order import TimeInForce
from switchyard.flow.routing import window as limits
from switchyard.flow.routing.window import (
    ACTIVE_SECONDS,
    COUNTED_SECONDS_MAX,
    QUEUED_SECONDS_MAX,
    SHARE,
    TRICKLE,
    WAIT_SECONDS_MAX,
    WINDOW_MIN,
    AdmissionWindow,
    Forecast,
)
from switchyard.telemetry.metrics import Metrics
from tests.support.build import VENUE, WORKER, an_accept, state_after
from tests.support.memory.clock import ManualClock
from tests.support.memory.database import MemoryDatabase

# As many as slots where there are few of these.
WINDOW = WINDOW_MIN
OTHER = VenueName("other")
ACCOUNT, ANOTHER = AccountId("test-account"), AccountId("another")


class Sender:
    """A dispatcher whose state the test sets."""

    def __init__(self) -> None:
        self.owns_lanes = True
        self.held = 0
        self.is_waiting = False
        self.held_accounts: set[AccountId] = set()

    def owns(self, lane: int) -> bool:
        return self.owns_lanes

    def at_venue(self, venue: VenueName) -> int:
        return self.held if venue == VENUE else 0

    def waits_for_venue(self, venue: VenueName) -> bool:
        return self.is_waiting and venue == VENUE

    def is_held(self, venue: VenueName, account: AccountId) -> bool:
        return venue == VENUE and account in self.held_accounts


class Door:
    """A window in front of a venue that answers when the test says so."""

    def __init__(self, *, sends: bool = True) -> None:
        self.clock = ManualClock()
        database = MemoryDatabase(self.clock)
        self.outbox = database.journal.outbox
        self.forecast = Forecast(database.queries, [VENUE, OTHER], self.clock)
        self.metrics = Metrics()
        self.window = AdmissionWindow(self.forecast, [VENUE, OTHER], self.clock, self.metrics)
        self.sender = Sender()
        self._heads = 0
        if sends:
            self.window.start(self.sender, slots=WINDOW)
        self.window.run_once()

    async def request(
        self, time_in_force: TimeInForce = "IOC", account: AccountId = ACCOUNT, *, begins: bool = True
    ) -> Change:
        """Enter, commit an order and leave, as the intake does; unless it has to queue, its attempt begins with it."""
        await self.window.enter(VENUE, account, time_in_force)
        accepted = an_accept(account=account, time_in_force=time_in_force)
        self.window.note([merged([accepted, self.attempt(accepted)] if begins else [accepted])])
        self.window.leave(VENUE, account)
        return accepted

    def has_room(self, venue: VenueName) -> bool:
        """Whether a new order would be let in at once."""
        has_room = self.window.try_enter(venue, ACCOUNT, "IOC")
        if has_room:
            self.window.leave(venue, ACCOUNT)
        return has_room

    async def fill(self) -> list[Change]:
        return [await self.request() for _ in range(WINDOW)]

    async def let_in_one(self, answered: Change) -> Change:
        """Answer an order, and let another one in."""
        self.answer(answered)
        return await self.request()

    async def waiting(
        self, count: int, time_in_force: TimeInForce = "IOC", account: AccountId = ACCOUNT
    ) -> list[asyncio.Task[Change]]:
        tasks = [asyncio.create_task(self.request(time_in_force, account)) for _ in range(count)]
        await settle()
        return tasks

    def attempt(self, accepted: Change) -> Change:
        """The first attempt of an order."""
        state = state_after(accepted)
        return begin_attempt(state, state.row("new", 1), WORKER, self.clock.now())

    def begin(self, accepted: Change) -> None:
        """Commit the attempt of an order in the queue."""
        self.window.note([self.attempt(accepted)])

    def answer(self, accepted: Change) -> None:
        """Commit the venue's answer."""
        state = state_after(accepted, self.attempt(accepted))
        self.window.note([record_sent(state, state.row("new", 1), "venue-1", self.clock.now())])

    async def old_queue(self, *, waited_seconds: float) -> None:
        """Put an order of this age at the head of the durable queue; 0 for an empty queue."""
        self.outbox.clear()
        if waited_seconds:
            [row] = an_accept(now=self.clock.now() - timedelta(seconds=waited_seconds)).outbox
            self._heads += 1
            self.outbox[row.order_id, row.kind, row.number] = msgspec.structs.replace(row, seq=self._heads)
        await self.forecast.run_once()
        self.window.run_once()

    async def tick(self, seconds: float) -> None:
        self.clock.advance(timedelta(seconds=seconds))
        self.window.run_once()
        await settle()

    def figure(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, {"venue": VENUE})


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def done(tasks: Sequence[asyncio.Task[Change]]) -> list[bool]:
    return [task.done() for task in tasks]


async def test_requests_wait_for_room_and_enter_in_the_order_of_arrival() -> None:
    door = Door()
    accepted = await door.fill()
    tasks = await door.waiting(3)
    assert (done(tasks), door.figure("admission_waiting_requests")) == ([False] * 3, 3)
    door.answer(accepted[0])
    await settle()
    assert done(tasks) == [True, False, False]
    for change in accepted[1:3]:
        door.answer(change)
    await settle()
    assert done(tasks) == [True] * 3
    assert door.figure("admission_window_orders") == WINDOW
    assert door.figure("admission_rejects_total") == 0


async def test_a_request_is_rejected_only_after_it_has_waited_for_the_whole_time() -> None:
    door = Door()
    await door.fill()
    [task] = await door.waiting(1)
    await door.tick(WAIT_SECONDS_MAX - 0.01)
    assert not task.done()
    await door.tick(0.01)
    with pytest.raises(QueueDelayed, match="wait longer than 1 s"):
        await task
    assert door.figure("admission_rejects_total") == 1


async def test_the_line_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WAITING_MAX", 2)
    door = Door()
    await door.fill()
    tasks = await door.waiting(3)
    assert done(tasks) == [False, False, True]
    with pytest.raises(QueueDelayed):
        await tasks[2]
    for task in tasks[:2]:
        task.cancel()


async def test_as_many_may_wait_as_are_let_in_within_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WAITING_MIN", 2)
    door = Door()
    orders = await door.fill()
    for _ in range(100):  # 100 of them per second
        orders += [await door.let_in_one(orders.pop(0)) for _ in range(10)]
        await door.tick(0.1)
    line = await door.waiting(70)
    assert not any(task.done() for task in line)
    assert not door.window.turns_away(ACCOUNT)  # the other venue has room
    with pytest.raises(QueueDelayed):
        await asyncio.gather(*await door.waiting(20))
    for task in line:
        task.cancel()


async def test_requests_are_turned_away_only_where_every_venue_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WAITING_MIN", 1)
    door = Door()
    await door.fill()
    [waiting] = await door.waiting(1)
    assert not door.window.turns_away(ACCOUNT)
    for _ in range(WINDOW):
        await door.window.enter(OTHER, ACCOUNT, "IOC")
    other = asyncio.create_task(door.window.enter(OTHER, ACCOUNT, "IOC"))
    await settle()
    assert door.window.turns_away(ACCOUNT)
    assert door.metrics.registry.get_sample_value("admission_turned_away_total") == 1
    other.cancel()
    await settle()
    door.window.leave(OTHER, ACCOUNT)
    await settle()
    assert not door.window.turns_away(ACCOUNT)
    waiting.cancel()


async def test_a_request_that_makes_no_order_leaves_its_room_to_the_next_one() -> None:
    door = Door()
    for _ in range(WINDOW):
        await door.window.enter(VENUE, ACCOUNT, "IOC")
    tasks = await door.waiting(1)
    assert done(tasks) == [False]
    door.window.leave(VENUE, ACCOUNT)
    await settle()
    assert done(tasks) == [True]


async def test_a_request_that_is_cancelled_takes_no_room() -> None:
    door = Door()
    accepted = await door.fill()
    waiting, admitted, last = await door.waiting(3)
    waiting.cancel()
    door.answer(accepted[0])
    admitted.cancel()  # after it was let in, before it could run
    await settle()
    assert last.done()
    assert door.figure("admission_window_orders") == WINDOW


async def test_orders_that_the_venue_holds_do_not_count() -> None:
    door = Door()
    await door.fill()
    door.sender.held = 10
    await asyncio.gather(*(door.request() for _ in range(10)))
    assert not door.has_room(VENUE)
    assert door.has_room(OTHER), "one venue's orders hold up another's"


async def test_while_the_venue_limits_the_sending_orders_without_a_deadline_do_not_wait() -> None:
    door = Door()
    await door.fill()
    before = await door.waiting(2, "GTC")
    door.sender.is_waiting = True
    urgent = await door.waiting(1)
    await door.tick(0)
    assert (done(before), done(urgent)) == ([True, True], [False])
    await asyncio.gather(*(door.request("GTC") for _ in range(2 * WINDOW)))
    await door.tick(WAIT_SECONDS_MAX)
    with pytest.raises(QueueDelayed):
        await urgent[0]


async def test_a_queue_is_sent_before_orders_are_let_in_that_need_not_join_one() -> None:
    door = Door()
    first = await door.request("GTC", begins=False)  # those behind it would have to wait in the outbox
    [second] = await door.waiting(1, "GTC")
    assert not second.done()
    door.begin(first)
    await settle()
    assert second.done()
    await door.window.enter(OTHER, ACCOUNT, "GTC")


async def test_a_queue_that_lasts_does_not_keep_orders_out() -> None:
    door = Door()
    await door.request("GTC", begins=False)
    [second] = await door.waiting(1, "GTC")
    door.clock.advance(timedelta(seconds=QUEUED_SECONDS_MAX))
    door.window.run_once()
    await settle()
    assert second.done()


async def test_an_order_whose_attempt_began_with_its_acceptance_holds_nobody_up() -> None:
    door = Door()
    await door.request("GTC")
    assert door.has_room(VENUE)


async def test_an_old_queue_is_sent_before_new_orders_are_let_in() -> None:
    door = Door()
    await door.old_queue(waited_seconds=WAIT_SECONDS_MAX + 0.1)
    tasks = await door.waiting(1)
    assert done(tasks) == [False]
    await door.old_queue(waited_seconds=WAIT_SECONDS_MAX - 0.1)
    await settle()
    assert done(tasks) == [True]


async def test_while_an_old_queue_is_sent_a_trickle_of_orders_without_a_deadline_is_let_in() -> None:
    door = Door()
    await door.old_queue(waited_seconds=60)
    for _ in range(TRICKLE):
        await door.window.enter(VENUE, ACCOUNT, "GTC")
    tasks = await door.waiting(1, "GTC")
    assert done(tasks) == [False]
    door.window.leave(VENUE, ACCOUNT)
    await settle()
    assert done(tasks) == [True]


async def test_orders_that_another_process_sends_do_not_count() -> None:
    door = Door()
    door.sender.owns_lanes = False
    await door.fill()
    assert door.figure("admission_window_orders") == 0
    door.sender.owns_lanes = True
    await door.fill()
    await door.tick(COUNTED_SECONDS_MAX)
    assert door.figure("admission_window_orders") == 0, "an order whose lane moved to another process counts for ever"


async def test_without_a_sender_only_the_forecast_rejects_orders() -> None:
    door = Door(sends=False)
    await asyncio.gather(*(door.request() for _ in range(2 * WINDOW)))
    await door.old_queue(waited_seconds=1)
    door.clock.advance(timedelta(seconds=3))
    await door.forecast.run_once()
    with pytest.raises(QueueDelayed, match="might miss its send deadline"):
        await door.request()
    await door.request("GTC")


async def test_a_request_that_is_cancelled_as_it_is_rejected_leaves_no_place() -> None:
    door = Door()
    for _ in range(WINDOW):
        assert door.window.try_enter(VENUE, ACCOUNT, "IOC")
    waiting = asyncio.create_task(door.window.enter(VENUE, ACCOUNT, "IOC"))
    await asyncio.sleep(0)
    door.clock.advance(timedelta(seconds=WAIT_SECONDS_MAX))
    door.window.run_once()  # rejects it
    waiting.cancel()  # the client leaves in the same turn of the loop
    await asyncio.wait([waiting])
    assert not door.window.try_enter(VENUE, ACCOUNT, "IOC")
    door.window.leave(VENUE, ACCOUNT)
    assert door.window.try_enter(VENUE, ACCOUNT, "IOC")


async def test_accounts_that_wait_take_turns() -> None:
    door = Door()
    orders = await door.fill()
    many = await door.waiting(5)
    few = await door.waiting(2, account=ANOTHER)
    for order in orders[:4]:
        door.answer(order)
    await settle()
    assert (done(many), done(few)) == ([True, True, False, False, False], [True, True])
    for task in many[2:]:
        task.cancel()


async def test_the_queue_of_an_account_holds_up_no_other_account() -> None:
    door = Door()
    first = await door.request(begins=False)  # those of its account wait until its attempt has begun
    behind = await door.waiting(1)
    await door.request(account=ANOTHER)
    assert done(behind) == [False]
    door.begin(first)
    await settle()
    assert done(behind) == [True]


async def test_while_another_account_places_orders_none_has_more_than_its_share_in_the_commits() -> None:
    door = Door()
    for _ in range(2 * SHARE):
        assert door.window.try_enter(VENUE, ACCOUNT, "IOC"), "an account that is alone may use the whole window"
    await door.request(account=ANOTHER)
    waiting = await door.waiting(1)
    for _ in range(SHARE):
        door.window.leave(VENUE, ACCOUNT)
    await settle()
    assert done(waiting) == [False]
    door.window.leave(VENUE, ACCOUNT)
    await settle()
    assert done(waiting) == [True]
    await door.tick(ACTIVE_SECONDS)
    await door.tick(ACTIVE_SECONDS)  # the other account has placed no order for a while
    for _ in range(SHARE):
        assert door.window.try_enter(VENUE, ACCOUNT, "IOC")


async def test_without_a_sender_an_account_has_no_more_than_its_share_either() -> None:
    door = Door(sends=False)
    await door.request("GTC", account=ANOTHER)
    for _ in range(SHARE):
        assert door.window.try_enter(VENUE, ACCOUNT, "GTC")
    waiting = await door.waiting(1, "GTC")
    await door.tick(0)
    assert done(waiting) == [False]
    door.window.leave(VENUE, ACCOUNT)
    await settle()
    assert done(waiting) == [True]


async def test_a_line_that_one_account_has_filled_turns_no_other_account_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WAITING_MIN", 100)
    door = Door()
    orders = await door.fill()
    line = await door.waiting(100)
    with pytest.raises(QueueDelayed):
        await door.request()
    [other] = await door.waiting(1, account=ANOTHER)
    door.answer(orders[0])
    door.answer(orders[1])
    await settle()
    assert (other.done(), sum(done(line))) == (True, 1)
    for task in line:
        task.cancel()


async def test_an_account_whose_orders_wait_for_the_venue_alone_takes_no_room_of_another_one() -> None:
    door = Door()
    for _ in range(WINDOW - 1):
        await door.request()
    await door.request(begins=False)
    assert await door.waiting(1, account=ANOTHER), "the window is full"
    door.sender.held_accounts.add(ACCOUNT)
    door.window.run_once()
    await settle()
    assert not door.window.run_once()
    await door.request("GTC", begins=False)
    assert door.window.try_enter(VENUE, ACCOUNT, "GTC"), "it may wait in the queue"
    door.window.leave(VENUE, ACCOUNT)
