"""Departure order within a worker, and how a worker renews and releases its lanes."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from switchyard.adapters.memory.clock import ManualClock
from switchyard.domain.ids import AccountId, WorkerId
from switchyard.domain.outbox import LANES, lane_of
from switchyard.flow.sending.lanes import STALE_SECONDS, Departures, HeldLanes
from switchyard.ports.lanes import LaneShare

ME = WorkerId("me")


class Table:
    """The table of lane owners: one worker owns all lanes, and its fair share may shrink."""

    def __init__(self, share: int = LANES) -> None:
        self.share = share
        self.lanes = set(range(LANES))
        self.given_up: list[list[int]] = []

    async def hold(self, worker: WorkerId, given_up: Sequence[int]) -> LaneShare:
        self.given_up.append(sorted(given_up))
        self.lanes -= set(given_up)
        return LaneShare(frozenset(self.lanes), self.share)


async def test_sends_of_one_line_leave_in_order_and_other_lines_do_not_wait() -> None:
    line = Departures()
    left: list[str] = []

    async def send(name: str, key: str, may_leave: asyncio.Event) -> None:
        turn = turns[name]
        assert await turn.comes_within(60)
        await may_leave.wait()
        left.append(name)
        turn.depart()

    turns = {name: line.join(name[0]) for name in ("a1", "a2", "b1", "a3")}
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


async def test_lanes_beyond_the_share_are_released_and_not_used_meanwhile() -> None:
    table = Table()
    held = HeldLanes(table, ME, ManualClock())
    await held.renew()
    assert held.filter() is None
    held.begin(LANES - 1)
    table.share = LANES // 2
    await held.renew()
    assert held.filter() == list(range(LANES // 2))
    await held.renew()
    assert table.given_up[-1] == list(range(LANES // 2, LANES - 1)), "the busy lane is kept until it is idle"
    held.end(LANES - 1)
    await held.renew()
    assert table.given_up[-1] == [LANES - 1]
    assert table.lanes == set(range(LANES // 2))


async def test_a_worker_that_could_not_renew_sends_nothing() -> None:
    clock = ManualClock()
    held = HeldLanes(Table(), ME, clock)
    assert held.filter() == []
    await held.renew()
    clock.advance(timedelta(seconds=STALE_SECONDS + 1))
    assert held.filter() == []
    await held.renew()
    assert held.filter() is None


def test_a_lane_is_a_function_of_account_and_symbol() -> None:
    lanes = {lane_of(AccountId(f"acc{account}"), f"SYM{symbol}") for account in range(40) for symbol in range(40)}
    assert lanes == set(range(LANES))
    assert lane_of(AccountId("acc1"), "USDJPY") == 12, "rows in databases carry it: it must never change"
