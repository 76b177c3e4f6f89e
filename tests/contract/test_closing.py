"""A close is decided in the commit that accepts it, on every engine: several at once never turn a position around."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from decimal import Decimal
from itertools import count
from typing import Any

import pytest

from switchyard.domain.decisions import apply_report, request_cancel
from switchyard.domain.errors import IdempotencyConflict, NotFound, PositionClosing, PositionMoved, RequestError
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.journal.changes import Committed
from switchyard.domain.orders.lifecycle import is_final
from switchyard.domain.orders.order import Order, Side
from switchyard.domain.risk.exposure import AccountExposure, SymbolExposure
from switchyard.flow.intake.order_intake import Placement
from switchyard.flow.intake.orders import CLOSE_TRIES_MAX, EXACT_TRIES
from switchyard.ports.queries import Exposures, UnfinishedFilter
from tests.support.build import ACCOUNT, a_report, an_accept
from tests.support.databases import Database
from tests.support.journal_checks import commit
from tests.support.memory.clock import START, ManualClock
from tests.support.services import GatewayServices

SYMBOL = "USDJPY"
STEPS = 20
_exec_ids = count(1)


class Site:
    """Two gateways on one database."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.clock = ManualClock()
        self.gateways = [GatewayServices(database, self.clock) for _ in range(2)]

    async def close(
        self, key: str | None = None, *, gateway: int = 0, account: AccountId = ACCOUNT, **body: Any
    ) -> Placement:
        return await self.gateways[gateway].services.closing.close(account, SYMBOL, body, key)

    async def order(self, placement: Placement) -> Order:
        order = await self.database.queries.order(placement.order_id)
        assert order is not None
        return order

    async def hold(self, side: Side, qty: int, account: AccountId = ACCOUNT) -> None:
        """Bring the account into a position."""
        placed = an_accept(account=account, side=side, qty=Decimal(qty))
        await commit(self.database.journal, placed)
        await self.fill(placed.orders[0].order_id, Decimal(qty))

    async def fill(self, order_id: OrderId, qty: Decimal) -> None:
        """Fill up to this much of an order."""
        while True:
            state = (await self.database.journal.load([order_id]))[order_id]
            rest = min(qty, state.order.qty - state.order.filled_qty)
            if is_final(state.order.status) or not rest:
                return
            key = (state.order.account_id, state.order.symbol)
            held = (await self.database.journal.load_positions([key])).get(key)
            report = a_report(state, "PARTIALLY_FILLED", exec_id=f"close-{next(_exec_ids)}", qty=rest)
            change = apply_report(state, held, report, START)
            if isinstance(await self.gateways[0].sequencer.commit(change), Committed):
                return

    async def cancel(self, order_id: OrderId) -> None:
        """Cancel an order on the spot, unless it has ended or was filled in part."""
        state = (await self.database.journal.load([order_id]))[order_id]
        if state.order.status == "ACCEPTED" and (change := request_cancel(state, START)) is not None:
            await self.gateways[1].sequencer.commit(change)

    async def exposure(self, account: AccountId = ACCOUNT) -> SymbolExposure:
        return (await self.database.journal.account_exposure(account)).symbol(SYMBOL)


@pytest.fixture
async def site(database: Database) -> Site:
    return Site(database)


@pytest.mark.parametrize(("held", "closed_by"), [("BUY", "SELL"), ("SELL", "BUY")])
async def test_a_close_leaves_to_open_orders_what_they_may_still_close(site: Site, held: Side, closed_by: Side) -> None:
    await site.hold(held, 10)
    # Before the first claim of the database: an engine that keeps totals from then on has to find it too.
    await commit(site.database.journal, an_accept(side=closed_by, qty=Decimal(4)))

    order = await site.order(await site.close())

    assert (order.side, order.type, order.time_in_force) == (closed_by, "MARKET", "IOC")
    assert order.qty == 6
    assert (order.reduce_only, order.reducing, order.status) == (True, True, "ACCEPTED")
    with pytest.raises(PositionClosing, match=f"open {closed_by} orders have 10 left to fill, so at most 0 can be"):
        await site.close()


async def test_a_part_can_be_closed_and_not_more_than_there_is(site: Site) -> None:
    await site.hold("BUY", 10)

    order = await site.order(await site.close(qty=4, type="LIMIT", price=200, strategy="carry", tags=["x"]))

    assert (order.qty, order.price) == (Decimal(4), Decimal(200))
    assert (order.time_in_force, order.strategy, order.tags) == ("GTC", "carry", ("x",))
    with pytest.raises(PositionClosing, match="at most 6 can be closed"):
        await site.close(qty=7)
    assert (await site.order(await site.close(qty=6))).qty == 6


async def test_without_a_position_nothing_is_stored_and_the_key_stays_free(site: Site) -> None:
    for _ in range(2):
        with pytest.raises(NotFound):
            await site.close("key")
    assert (await site.database.journal.head(0)).seq == 0

    await site.hold("BUY", 10)
    first = await site.close("key")
    await site.fill(first.order_id, Decimal(10))

    again = await site.close("key", gateway=1)
    assert (again.order_id, again.replayed) == (first.order_id, True)
    with pytest.raises(IdempotencyConflict):
        await site.close("key", qty=1)


async def test_equal_closes_at_once_over_two_gateways_are_one_order(site: Site) -> None:
    await site.hold("BUY", 10)

    placed = await asyncio.gather(*(site.close("key", gateway=number % 2) for number in range(40)))

    assert len({placement.order_id for placement in placed}) == 1
    assert sum(not placement.replayed for placement in placed) == 1
    assert await site.exposure() == SymbolExposure(Decimal(10), Decimal(0), Decimal(10))


async def test_other_closes_at_once_over_two_gateways_take_the_position_once(site: Site) -> None:
    await site.hold("SELL", 10)

    answers = await asyncio.gather(
        *(site.close(f"key-{number}", gateway=number % 2, qty=3) for number in range(20)), return_exceptions=True
    )

    assert sum(isinstance(answer, Placement) for answer in answers) == 3
    assert {type(answer) for answer in answers} == {Placement, PositionClosing}
    assert await site.exposure() == SymbolExposure(Decimal(-10), Decimal(9), Decimal(0))


async def test_a_whole_close_includes_what_was_filled_before_its_commit(site: Site) -> None:
    await site.hold("BUY", 10)
    limits = site.gateways[0].services.limits
    limits._exposures = Moving(limits._exposures, lambda: site.hold("BUY", 5))

    order = await site.order(await site.close("key"))

    assert order.qty == 15


async def test_a_close_that_came_too_late_finds_the_order_that_took_the_position(site: Site) -> None:
    await site.hold("BUY", 10)
    limits = site.gateways[0].services.limits
    limits._exposures = Moving(limits._exposures, lambda: site.close("same", gateway=1))

    late = await site.close("same")

    assert late.replayed
    assert (await site.exposure()).sell_qty == 10


async def test_steady_fills_do_not_keep_a_position_from_being_closed(site: Site) -> None:
    await site.hold("BUY", 10)
    limits = site.gateways[0].services.limits
    limits._exposures = Moving(limits._exposures, lambda: site.hold("BUY", 1), times=CLOSE_TRIES_MAX)

    order = await site.order(await site.close("key"))

    assert order.qty == 10 + EXACT_TRIES, "decided on a read that was older than the commit"
    assert (await site.exposure()).position == 10 + EXACT_TRIES + 1


async def test_a_close_gives_up_where_others_take_from_the_position_at_every_try(site: Site) -> None:
    await site.hold("BUY", 100)
    limits = site.gateways[0].services.limits
    limits._exposures = Moving(limits._exposures, lambda: site.close(gateway=1, qty=1), times=CLOSE_TRIES_MAX)

    with pytest.raises(PositionMoved):
        await site.close("key")

    assert (await site.exposure()).sell_qty == CLOSE_TRIES_MAX
    assert not (await site.close("key")).replayed, "nothing was stored under the key"


class Moving:
    """Exposures that change right after they were read, as often as wanted."""

    def __init__(self, inner: Exposures, move: Callable[[], Awaitable[object]], times: int = 1) -> None:
        self._inner = inner
        self._move = move
        self._times = times

    async def symbol_exposure(self, account: AccountId, symbol: str, *, fresh: bool = False) -> SymbolExposure:
        read = await self._inner.symbol_exposure(account, symbol, fresh=fresh)
        if self._times:
            self._times -= 1
            await self._move()
        return read

    async def account_exposure(self, account: AccountId, since: OrderId | None = None) -> AccountExposure:
        return await self._inner.account_exposure(account, since)


@pytest.mark.parametrize("seed", range(3))
async def test_closes_never_turn_a_position_around(site: Site, seed: int) -> None:
    """Random orders that open, closes over two gateways, fills and cancels, all at once."""
    chance = random.Random(seed)
    accounts: dict[AccountId, Side] = {AccountId("long"): "BUY", AccountId("short"): "SELL"}
    closes = 0

    async def close(account: AccountId) -> None:
        nonlocal closes
        body: dict[str, Any] = chance.choice(({}, {"qty": 1}, {"qty": 2}, {"qty": 5}))
        try:
            await site.close(gateway=chance.randrange(2), account=account, **body)
            closes += 1
        except RequestError as error:
            assert isinstance(error, NotFound | PositionClosing)

    async def step(account: AccountId) -> None:
        unfinished = await site.database.accounts.unfinished_orders(UnfinishedFilter(account_id=account))
        if unfinished:
            order_id = chance.choice(unfinished).order_id
            await (site.cancel(order_id) if chance.random() < 0.3 else site.fill(order_id, Decimal(3)))

    for _ in range(STEPS):
        for account, side in accounts.items():
            opening = an_accept(account=account, side=side, qty=Decimal(chance.randint(1, 6)))
            await commit(site.database.journal, opening)
            await asyncio.gather(
                *(step(account) for _ in range(2)),
                *(close(account) for _ in range(chance.randint(1, 4))),
                site.fill(opening.orders[0].order_id, Decimal(chance.randint(1, 3))),
            )
        for account, side in accounts.items():
            here = await site.exposure(account)
            position, closing = (here.position, here.sell_qty) if side == "BUY" else (-here.position, here.buy_qty)
            assert 0 <= closing <= position, f"{account}: {here}"
    assert closes > STEPS, "the history is too easy to show anything"
