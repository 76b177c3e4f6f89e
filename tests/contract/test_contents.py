"""The duplicate window on every engine: one claim for each content, which ends with the window or is given up."""

import asyncio
from collections import Counter
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from switchyard.domain.errors import JournalUnavailable
from switchyard.domain.ids import AccountId
from switchyard.domain.journal.changes import Change, Outcome
from switchyard.domain.orders.order import OrderRequest
from switchyard.flow.intake.derived import Reaper
from switchyard.flow.risk.contents import RecentContents
from switchyard.telemetry.metrics import Metrics
from tests.support.databases import Database
from tests.support.memory.clock import START, ManualClock

ACCOUNT = AccountId("acct-1")
ORDER = OrderRequest(symbol="BTC", side="BUY", type="LIMIT", qty=Decimal(1), price=Decimal(5), time_in_force="GTC")
WINDOW = timedelta(seconds=10)


class Site:
    """A gateway over the database; every commit is a group of its own."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.clock = ManualClock()
        self._numbers = Counter[str]()
        self.contents = RecentContents(WINDOW, keys=database.keys, commit=self.commit, clock=self.clock)

    async def commit(self, change: Change) -> Outcome:
        self._numbers["group"] += 1
        name = f"{id(self)}-{self._numbers['group']}"
        [outcome] = await self.database.journal.append(0, name, [change], self.clock.now())
        return outcome

    async def placed(self, owner: str = "", order: OrderRequest = ORDER, account: AccountId = ACCOUNT) -> bool:
        """Place an order if its content is free."""
        async with self.contents.claimed(account, order, owner) as claim:
            claim.is_used = claim.violation is None
        return claim.violation is None

    async def is_free(self) -> bool:
        [result] = await self.contents.checks(ACCOUNT, ORDER)
        return result.violation is None


@pytest.fixture
def site(database: Database) -> Site:
    return Site(database)


async def test_an_equal_order_passes_only_after_the_window(site: Site) -> None:
    assert await site.is_free()
    assert await site.placed("orders:a")
    assert not await site.is_free()
    site.clock.advance(WINDOW - timedelta(milliseconds=1))
    assert not await site.placed("orders:b")
    site.clock.advance(timedelta(milliseconds=1))
    assert await site.is_free()
    assert await site.placed("orders:b")
    assert not await site.placed()


async def test_only_the_content_of_the_same_account_counts(site: Site) -> None:
    assert await site.placed()
    labelled = OrderRequest(**{**_members(), "client_order_id": "mine", "tags": ("a",)})
    assert not await site.placed(order=labelled)
    others: list[dict[str, Any]] = [
        {"side": "SELL"},
        {"qty": Decimal(2)},
        {"price": Decimal(6)},
        {"strategy": "carry"},
    ]
    for changes in others:
        assert await site.placed(order=OrderRequest(**{**_members(), **changes}))
    assert await site.placed(account=AccountId("acct-2"))


async def test_the_same_intent_may_claim_its_content_again(site: Site) -> None:
    assert await site.placed("orders:a")
    assert await site.placed("orders:a")  # its first request may have failed after the claim
    assert not await site.placed("orders:b")


async def test_an_order_that_is_not_accepted_gives_its_claim_up(site: Site) -> None:
    async with site.contents.claimed(ACCOUNT, ORDER, ""):
        assert not await site.is_free()
    assert await site.is_free()
    with pytest.raises(JournalUnavailable):
        async with site.contents.claimed(ACCOUNT, ORDER, ""):
            raise JournalUnavailable("nothing was written")
    assert await site.is_free()
    with pytest.raises(asyncio.CancelledError):
        async with site.contents.claimed(ACCOUNT, ORDER, ""):
            raise asyncio.CancelledError
    assert not await site.is_free()  # the order may have been written


async def test_of_equal_orders_at_the_same_time_one_passes(database: Database) -> None:
    first, second = Site(database), Site(database)
    placed = await asyncio.gather(*((first, second)[number % 2].placed(f"orders:{number}") for number in range(20)))
    assert placed.count(True) == 1


async def test_claims_are_removed_after_they_have_expired(site: Site) -> None:
    assert await site.placed()
    reaper = Reaper(site.database.keys, site.clock, Metrics())
    await reaper.run_once()
    assert not await site.is_free()
    site.clock.advance(timedelta(minutes=1) + WINDOW)
    while not await reaper.run_once():
        pass
    assert await site.database.keys.entries(ACCOUNT, "risk.content", "", "~", START - WINDOW, 10) == []
    assert await site.placed()


def _members() -> dict[str, Any]:
    return {name: getattr(ORDER, name) for name in OrderRequest.__struct_fields__}
