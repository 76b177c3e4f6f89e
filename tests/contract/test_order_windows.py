"""Orders per window on every engine: exact, whatever the engine counts with, and the same after a rebuild."""

import random
from datetime import timedelta
from itertools import count

import msgspec
import pytest

from switchyard.domain.decisions import request_cancel
from switchyard.domain.ids import OrderId, order_id, ulid_milliseconds
from switchyard.domain.journal.changes import Change, Committed
from switchyard.domain.risk.claims import Claim, Limits
from tests.contract.test_claims_random import forget_totals
from tests.support.build import ACCOUNT, an_accept, state_after
from tests.support.databases import Database
from tests.support.memory.clock import START

WINDOW_MS = 20  # so short that many orders lie at its edges
GROUPS = 60
_groups = count(1)


class Orders:
    """Places orders in groups, and knows which of them must be accepted."""

    def __init__(self, database: Database, seed: int) -> None:
        self.journal = database.journal
        self.random = random.Random(seed)
        self.orders_max = self.random.choice((2, 5, 12))
        self.milliseconds = int(START.timestamp() * 1000)
        self.accepted: list[Change] = []

    async def place(self) -> None:
        self.milliseconds += self.random.choice((0, 1, 2, 5, 9, 14, -1, -3, -6))
        since = order_id(self.milliseconds - WINDOW_MS + 1, 0)
        group = [self.order(since) for _ in range(self.random.randint(1, 4))]
        taken, expected = self.recent(since), []
        for change in group:
            is_accepted = not change.claims or taken < self.orders_max
            taken += is_accepted
            expected.append(is_accepted)
        outcomes = await self.journal.append(0, f"window-{next(_groups)}", group, START)
        assert [isinstance(outcome, Committed) for outcome in outcomes] == expected
        self.accepted += [change for change, is_accepted in zip(group, expected, strict=True) if is_accepted]

    def order(self, since: OrderId) -> Change:
        """An order with the limit, or, while there is much room, one of a process that has no limits."""
        now = START + timedelta(milliseconds=self.milliseconds - int(START.timestamp() * 1000))
        change = an_accept(now=now, symbol=self.random.choice(("USDJPY", "EURUSD")))
        if self.random.random() < 0.1 and self.recent(since) + 4 < self.orders_max:
            return change
        claim = Claim(order_id=change.orders[0].order_id, limits=Limits(window_orders=self.orders_max), since=since)
        return msgspec.structs.replace(change, claims=(claim,))

    async def end_one(self) -> None:
        """End an order: it counts for its window all the same."""
        if self.accepted:
            change = self.accepted[self.random.randrange(len(self.accepted))]
            order = change.orders[0].order_id
            state = (await self.journal.load([order]))[order]
            if (canceled := request_cancel(state, START)) is not None and state == state_after(change):
                await self.journal.append(0, f"window-{next(_groups)}", [canceled], START)

    def recent(self, since: OrderId) -> int:
        return sum(change.orders[0].order_id >= since for change in self.accepted)

    def most_in_a_window(self) -> int:
        times = [ulid_milliseconds(change.orders[0].order_id.removeprefix("ord_")) for change in self.accepted]
        return max(sum(start <= time < start + WINDOW_MS for time in times) for start in times)


@pytest.mark.parametrize("seed", range(3))
async def test_no_window_has_more_orders_than_allowed(database: Database, seed: int) -> None:
    service = Orders(database, seed)
    for _ in range(GROUPS):
        if service.random.random() < 0.1:
            await forget_totals(database)
        await service.place()
        if service.random.random() < 0.3:
            await service.end_one()
    assert service.most_in_a_window() <= service.orders_max
    counted = (await database.journal.account_exposure(ACCOUNT, order_id(0, 0))).window_orders
    assert counted == len(service.accepted)
