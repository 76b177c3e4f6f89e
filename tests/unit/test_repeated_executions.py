"""Which fills the repeated-execution throttle counts, and when they are too many."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import cast

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from switchyard.domain.errors import TooManyKills
from switchyard.domain.ids import AccountId, KillId, OrderId
from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.orders.order import Order
from switchyard.domain.risk.kills import REPEATED_EXECUTIONS, Kill
from switchyard.flow.risk.contents import RepeatedExecutions
from switchyard.ports.journal import Head, Journal
from switchyard.ports.queries import Queries
from tests.support.build import an_accept
from tests.support.memory.clock import START

MAX = 3
WINDOW = timedelta(seconds=10)


class Market:
    """A journal and an order table in which orders of strategies are filled at given times."""

    def __init__(self) -> None:
        self.suspended: list[tuple[AccountId, str]] = []
        self.kill_ids: list[KillId] = []
        self.is_full = False
        self._events: list[JournalEvent] = []
        self._orders: dict[OrderId, Order] = {}
        self.throttle = RepeatedExecutions(
            journal=cast(Journal, self),
            queries=cast(Queries, self),
            fills_max=MAX,
            window=WINDOW,
            suspend=self._suspend,
        )

    async def head(self, _shard: int) -> Head:
        return Head(1, len(self._events), "")

    async def read(self, _shard: int, after_seq: int, limit: int) -> Sequence[JournalEvent]:
        return self._events[after_seq : after_seq + limit]

    async def order(self, order_id: OrderId) -> Order | None:
        return self._orders.get(order_id)

    async def _suspend(self, account: AccountId, strategy: str, reason: str, kill_id: KillId) -> Kill:
        if self.is_full:
            raise TooManyKills.of(1_000, "programs", "clear some")
        self.suspended.append((account, strategy))
        self.kill_ids.append(kill_id)
        return Kill(
            kill_id=kill_id,
            account_id=account,
            strategy=strategy,
            set_by=REPEATED_EXECUTIONS,
            set_reason=reason,
            set_at=START,
            version=1,
        )

    def add(self, seconds: float, strategy: str | None = "s", account: str = "acc-1", status: str = "FILLED") -> None:
        """An order of the strategy changes its status."""
        order = replace(an_accept(account=account).orders[0], strategy=strategy)
        self._orders[order.order_id] = order
        at: datetime = START + timedelta(seconds=seconds)
        text = f'{{"data":{{"order":{{"status":"{status}","version":4}},"outbox":[]}}'
        self._events.append(
            JournalEvent(len(self._events) + 1, at, "OrderUpdated", order.account_id, order.order_id, text, "")
        )

    async def counted(self) -> list[tuple[AccountId, str]]:
        """The strategies that are suspended once all events are counted."""
        while await self.throttle.run_once():
            pass
        return self.suspended


async def market() -> Market:
    made = Market()
    await made.throttle.start()
    return made


async def test_every_process_that_counts_the_same_fills_names_the_same_kill() -> None:
    one, two = await market(), await market()
    for made in (one, two):
        for seconds in range(2 * MAX):
            made.add(seconds)
        await made.counted()

    assert one.kill_ids == two.kill_ids
    assert len(set(one.kill_ids)) == 2, "a second suspension is another kill"


async def test_as_many_fills_as_allowed_within_the_window_suspend_the_strategy() -> None:
    one = await market()
    for seconds in (0, 5, 10):
        one.add(seconds)
    assert await one.counted() == [("acc-1", "s")]


async def test_fills_further_apart_than_the_window_do_not() -> None:
    one = await market()
    for seconds in (0, 5, 10.1, 15.2, 20.3):
        one.add(seconds)
    assert await one.counted() == []


async def test_only_whole_fills_of_one_account_and_strategy_count_together() -> None:
    one = await market()
    for number in range(MAX - 1):
        one.add(number)
    one.add(2, strategy="other")
    one.add(2, account="acc-2")
    one.add(2, strategy=None)
    one.add(2, status="PARTIALLY_FILLED")
    one.add(2, status="CANCELED")
    assert await one.counted() == []
    one.add(3)
    assert await one.counted() == [("acc-1", "s")]


async def test_after_a_suspension_as_many_fills_are_needed_again() -> None:
    one = await market()
    for number in range(MAX * 2 - 1):
        one.add(number)
    assert len(await one.counted()) == 1
    one.add(MAX * 2)
    assert len(await one.counted()) == 2


async def test_fills_before_the_start_do_not_count() -> None:
    one = Market()
    for number in range(MAX):
        one.add(number)
    await one.throttle.start()
    assert await one.counted() == []


async def test_without_room_for_a_kill_it_logs_once_and_the_next_fill_tries_again() -> None:
    one = await market()
    one.is_full = True
    for seconds in range(MAX):
        one.add(seconds)
        one.add(seconds, account="acc-2")
    with capture_logs() as logs:
        assert await one.counted() == []
    assert [line["event"] for line in logs] == ["strategy_not_suspended"]

    one.is_full = False
    one.add(MAX)
    assert await one.counted() == [("acc-1", "s")]


async def test_an_account_with_many_labels_does_not_displace_the_fills_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("switchyard.flow.risk.contents.STRATEGIES_MAX", 4)
    one = await market()
    for number in range(MAX - 1):
        one.add(number)
    for number in range(20):
        one.add(MAX, account="acc-2", strategy=f"s{number}")
    one.add(MAX)
    assert await one.counted() == [("acc-1", "s")]
