"""Departure order within a worker, and how a worker renews and releases its lanes."""

import asyncio
from datetime import timedelta
from typing import cast

import pytest

from switchyard.domain.errors import JournalUnavailable
from switchyard.domain.ids import AccountId, WorkerId
from switchyard.domain.orders.outbox import LANES, lane_of
from switchyard.flow.sending import lanes as lanes_module
from switchyard.flow.sending.lanes import STALE_SECONDS, Departures, HeldLanes
from switchyard.ports.journal import Liveness
from tests.support.memory.clock import ManualClock
from tests.support.memory.database import MemoryDatabase
from tests.support.memory.lanes import PATIENCE
from tests.support.wrapped import Forwarding

ME, OTHER = WorkerId("me"), WorkerId("other")


async def test_sends_of_one_line_leave_in_order_and_other_lines_do_not_wait() -> None:
    line = Departures()
    left: list[str] = []

    async def send(name: str, key: str, may_leave: asyncio.Event) -> None:
        ticket = tickets[name]
        assert await ticket.comes_within(60)
        await may_leave.wait()
        left.append(name)
        ticket.depart()

    tickets = {name: line.join(name[0]) for name in ("a1", "a2", "b1", "a3")}
    go, slow = asyncio.Event(), asyncio.Event()
    tasks = [
        asyncio.create_task(send(name, name[0], slow if name == "a1" else go)) for name in ("a3", "b1", "a2", "a1")
    ]
    go.set()
    await tasks[1]
    assert left == ["b1"]
    slow.set()
    await asyncio.gather(*tasks)
    assert left == ["b1", "a1", "a2", "a3"]


async def test_a_turn_is_not_waited_for_for_ever() -> None:
    line = Departures()
    line.join("a")
    assert not await line.join("a").comes_within(0.01)


async def test_a_send_that_leaves_its_line_does_not_hold_back_the_next_one() -> None:
    line = Departures()
    first, second = line.join("a"), line.join("a")
    first.depart()
    first.depart()
    assert await second.comes_within(60)
    third = line.join("a")
    second.depart()
    assert await third.comes_within(60)


async def test_a_send_that_gave_up_waiting_lets_nobody_pass_the_one_before_it() -> None:
    line = Departures()
    slow, impatient, next_one = line.join("a"), line.join("a"), line.join("a")
    assert not await impatient.comes_within(0.01)
    impatient.depart()
    assert not await next_one.comes_within(0.01), "the first one has not left"
    next_one.depart()
    last = line.join("a")
    assert not await last.comes_within(0.01)
    slow.depart()
    assert await line.join("a").comes_within(60)


async def test_a_send_behind_one_that_gave_up_does_not_pass_one_that_is_held_back() -> None:
    line = Departures()
    slow, impatient, next_one = line.join("a"), line.join("a"), line.join("a")
    assert not await impatient.comes_within(0.01)
    impatient.depart()
    slow.hold_back()
    slow.depart()
    assert await next_one.comes_within(60)
    assert next_one.would_pass


class Workers:
    """This worker's lanes beside another worker's."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.database = MemoryDatabase(self.clock)
        self.held = HeldLanes(self.database.lanes, ME, self.clock)

    async def renew(self) -> None:
        await self.database.liveness.hold(ME)
        await self.held.renew()

    async def renew_other(self) -> frozenset[int]:
        await self.database.liveness.hold(OTHER)
        return (await self.database.lanes.hold(OTHER, [])).lanes


async def test_lanes_beyond_the_share_are_given_up_and_not_sent_on_meanwhile() -> None:
    workers = Workers()
    await workers.renew()
    assert workers.held.filter() is None
    workers.held.begin(LANES - 1)
    assert await workers.renew_other() == frozenset()
    await workers.renew()
    assert workers.held.filter() == list(range(LANES // 2))
    await workers.renew()
    assert await workers.renew_other() == set(range(LANES // 2, LANES - 1)), "the busy lane is kept until it is idle"
    workers.held.end(LANES - 1)
    await workers.renew()
    assert await workers.renew_other() == set(range(LANES // 2, LANES))


async def test_a_worker_that_could_not_renew_sends_nothing() -> None:
    workers = Workers()
    assert workers.held.filter() == []
    await workers.renew()
    workers.clock.advance(timedelta(seconds=STALE_SECONDS + 1))
    assert workers.held.filter() == []
    await workers.renew()
    assert workers.held.filter() is None


async def test_the_lanes_of_a_dead_worker_are_taken_at_once() -> None:
    workers = Workers()
    await workers.renew()
    assert await workers.renew_other() == frozenset()
    workers.database.liveness.living.remove(ME)
    assert await workers.renew_other() == set(range(LANES))


async def test_the_lanes_of_a_silent_worker_are_taken_although_it_is_alive() -> None:
    workers = Workers()
    await workers.renew()
    workers.clock.advance(PATIENCE)
    assert await workers.renew_other() == frozenset()
    workers.clock.advance(timedelta(microseconds=1))
    assert await workers.renew_other() == set(range(LANES))
    await workers.renew()
    assert workers.held.filter() == []


def test_a_lane_is_a_function_of_account_and_symbol() -> None:
    lanes = {lane_of(AccountId(f"acc{account}"), f"SYM{symbol}") for account in range(40) for symbol in range(40)}
    assert lanes == set(range(LANES))
    assert lane_of(AccountId("acc1"), "USDJPY") == 12, "rows in databases carry it: it must never change"


async def test_a_worker_that_starts_waits_for_a_database_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lanes_module, "RENEW_SECONDS", 0.0)
    clock = ManualClock()
    database = MemoryDatabase(clock)
    failures = 2

    class Failing(Forwarding):
        async def hold(self, worker: WorkerId) -> None:
            nonlocal failures
            failures -= 1
            if failures >= 0:
                raise JournalUnavailable("too many clients")
            await self.port.hold(worker)

    held = HeldLanes(database.lanes, ME, clock)
    await held.join(cast(Liveness, Failing(database.liveness)))
    assert len(held.usable()) == LANES
