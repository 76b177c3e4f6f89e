"""Failover in the dispatcher, over the database in memory: what moves, when, and in which order it leaves."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from functools import partial
from types import MappingProxyType
from typing import Any, cast

import pytest
from msgspec.structs import replace

from switchyard.adapters.memory.cache import MemoryBuckets
from switchyard.adapters.memory.venue import FixedQuotes
from switchyard.adapters.system_clock import SystemRandomness
from switchyard.domain import decisions
from switchyard.domain.ids import WHOLE, AccountId, IdForm, KillId, OrderId, VenueName, WorkerId, venue_client_order_id
from switchyard.domain.market.instruments import DEFAULT_INSTRUMENTS, Catalogue
from switchyard.domain.market.routing import Route, Router
from switchyard.domain.orders.order import ALL_KINDS, Order
from switchyard.domain.risk.claims import Terms
from switchyard.domain.risk.kills import Kill
from switchyard.flow.active_kills import ActiveKills
from switchyard.flow.clock import Wake
from switchyard.flow.health.venues import HealthBoard, VenueBreaker, VenueChoice
from switchyard.flow.lost_history import LostHistory
from switchyard.flow.quotes import QuoteBoard
from switchyard.flow.sending.dispatch import Dispatcher, VenueRates
from switchyard.flow.sending.lanes import HeldLanes, WaitingLanes
from switchyard.flow.sending.lost_keys import LostKeys
from switchyard.ports.cache import TokenBuckets
from switchyard.ports.venue import (
    Accepted,
    Ambiguous,
    Capabilities,
    OnDeparture,
    OrderToFind,
    SendOutcome,
    Unsent,
    Venue,
    ignore_departure,
)
from switchyard.telemetry.metrics import Metrics
from tests.support.build import an_accept
from tests.support.memory.clock import START, ManualClock
from tests.support.memory.database import MemoryDatabase
from tests.support.sequencing import running_sequencer

ONE, TWO = VenueName("one"), VenueName("two")
OWN = WorkerId("own")
NOTHING: Mapping[VenueName, Capabilities] = {}


class LoggingVenue:
    """Gives every order the same outcome, and appends it to a log that venues share."""

    def __init__(self, name: VenueName, log: list[tuple[VenueName, OrderId]]) -> None:
        self.name = name
        self.capabilities = Capabilities(dedupe="while_open", lookup="all", acceptance_window=timedelta(seconds=1))
        self.outcome: SendOutcome = Accepted("v-1")
        self.found: object = None
        self._log = log

    async def submit_many(
        self, orders: Sequence[Order], on_departure: OnDeparture = ignore_departure
    ) -> list[SendOutcome]:
        on_departure()
        self._log += [(self.name, order.order_id) for order in orders]
        return [self.outcome] * len(orders)

    async def find(self, order: OrderToFind) -> object:
        return self.found


class Site:
    """A worker with two venues in one route; `one` is preferred."""

    def __init__(
        self,
        *,
        restored: bool = False,
        per_second: int | None = None,
        id_forms: Mapping[VenueName, IdForm] = MappingProxyType({}),
        taken: Mapping[VenueName, Capabilities] = NOTHING,
    ) -> None:
        self.clock, self.metrics = ManualClock(), Metrics()
        self.database = MemoryDatabase(self.clock)
        waiting = WaitingLanes(Wake())
        self.sequencer = running_sequencer(self.database.journal, self.clock, self.metrics, note=waiting.note)
        self.lanes = HeldLanes(self.database.lanes, OWN, self.clock)
        self.kills = ActiveKills(self.database.kills, self.metrics)
        self.sent: list[tuple[VenueName, OrderId]] = []
        self.venues = {name: LoggingVenue(name, self.sent) for name in (ONE, TWO)}
        venues = cast(dict[VenueName, Venue], self.venues)
        self.health = HealthBoard()
        self.breakers = {
            name: VenueBreaker(name, faults_max=3, pause=timedelta(seconds=2), clock=self.clock, metrics=self.metrics)
            for name in self.venues
        }
        self.health.watch(self.breakers.values())
        quotes = QuoteBoard(self.clock, self.metrics, age_max=timedelta(seconds=5))
        quotes.add(TWO, FixedQuotes(self.clock))
        router = Router(Route((ONE, TWO)), {"EURUSD": Route((ONE,))})
        catalogue = Catalogue(DEFAULT_INSTRUMENTS)
        self.choice = choice = VenueChoice(
            router,
            quotes,
            catalogue=catalogue,
            health=self.health,
            fees_percent={},
            taken=taken,
            id_forms=id_forms,
        )
        restored_at = self.clock.now() if restored else None
        buckets: dict[VenueName, TokenBuckets] = (
            {TWO: MemoryBuckets(Decimal(per_second), 1, clock=self.clock)} if per_second else {}
        )
        self.dispatcher = Dispatcher(
            worker=OWN,
            sequencer=self.sequencer,
            queries=self.database.queries,
            liveness=self.database.liveness,
            lanes=self.lanes,
            venues=venues,
            clock=self.clock,
            randomness=SystemRandomness(),
            metrics=self.metrics,
            batch_size=32,
            parallelism=1,
            retry_max=8,
            idle_seconds=0.01,
            stuck_after=timedelta(minutes=10),
            kills=self.kills,
            lost_keys=LostKeys(
                LostHistory(
                    restored_at,
                    timedelta(days=1),
                    {name: venue.capabilities for name, venue in venues.items()},
                    self.clock,
                ),
                venues,
                lambda symbol: router.route_for(symbol).venues,
            ),
            waiting=waiting,
            health=self.health,
            choice=choice,
            rates=VenueRates(buckets, self.clock, self.metrics),
        )
        for name in self.venues:
            self.dispatcher.open_venue(name)

    async def accept(self, venue: VenueName = ONE, **changes: Any) -> OrderId:
        change = an_accept(now=self.clock.now(), venue=venue, **changes)
        await self.sequencer.commit(change)
        await self.lanes.renew()
        return change.orders[0].order_id

    async def turn(self, times: int = 3) -> None:
        """Let the dispatcher claim, and its sends end."""
        for _ in range(times):
            await self.dispatcher.run_once()
            await self.dispatcher._sends.drain()

    def order(self, order_id: OrderId) -> Order:
        return self.database.journal.state(order_id).order

    def down(self, venue: VenueName = ONE) -> None:
        self.breakers[venue].note_hanging(2)


async def test_waiting_orders_leave_a_venue_that_hangs_and_keep_their_order() -> None:
    site = Site()
    first, second = await site.accept(), await site.accept()
    site.down()
    third = await site.accept(TWO)  # a gateway that knows more routes it to the other venue at once

    await site.turn()

    assert site.sent == [(TWO, first), (TWO, second), (TWO, third)]
    assert site.order(first).venue == TWO
    labels: dict[str, str] = {"from_venue": ONE, "to_venue": TWO}
    assert site.metrics.registry.get_sample_value("venue_failovers_total", labels) == 2


PLAIN = Capabilities(dedupe="permanent", lookup="all")
WISHES: list[tuple[dict[str, Any], Capabilities]] = [
    ({"post_only": True}, replace(PLAIN, post_only=True)),
    ({"display_qty": Decimal(100)}, replace(PLAIN, display_qty=True)),
    ({"reduce_only": True}, replace(PLAIN, reduce_only=True)),
    ({"time_in_force": "GTD", "expires_at": START + timedelta(days=1)}, replace(PLAIN, kinds=ALL_KINDS)),
]


@pytest.mark.parametrize(("wish", "enough"), WISHES)
async def test_an_order_moves_only_to_a_venue_that_has_what_it_asks_for(
    wish: dict[str, Any], enough: Capabilities
) -> None:
    for taken, venue in (({TWO: PLAIN}, ONE), ({TWO: enough}, TWO)):
        site = Site(taken=taken)
        order_id = await site.accept(**wish)
        site.down()

        await site.turn()

        assert site.order(order_id).venue == venue, taken


async def test_a_close_moves_to_a_venue_without_reduce_only_orders() -> None:
    site = Site(taken={TWO: PLAIN})
    order_id = await site.accept(terms=Terms(reducing=True, reduce_only=True))
    site.down()

    await site.turn()

    assert site.order(order_id).venue == TWO


@pytest.mark.parametrize("outcome", [Ambiguous("NETWORK_TIMEOUT"), Unsent("RATE_LIMITED", bytes_sent=True)])
async def test_an_order_that_the_venue_may_have_seen_stays(outcome: SendOutcome) -> None:
    site = Site()
    site.venues[ONE].outcome = outcome
    order_id = await site.accept()
    await site.turn(1)
    site.down()
    site.clock.advance(timedelta(hours=1))
    await site.lanes.renew()

    await site.turn()

    assert site.sent == [(ONE, order_id)]
    assert site.order(order_id).venue == ONE


async def test_orders_that_were_refused_go_elsewhere_without_their_backoff() -> None:
    site = Site()
    site.venues[ONE].outcome = Unsent("BROKER_DOWN")
    ids = [await site.accept(time_in_force="IOC") for _ in range(4)]

    await site.turn()

    assert [order_id for venue, order_id in site.sent if venue == TWO] == ids
    assert {site.order(order_id).status for order_id in ids} == {"WORKING"}


async def test_an_order_whose_route_has_one_venue_waits_for_it() -> None:
    site = Site()
    order_id = await site.accept(symbol="EURUSD")
    site.down()
    await site.turn()
    assert site.sent == []
    for _ in range(5):
        site.clock.advance(timedelta(seconds=1))
        site.breakers[ONE].note_probe(None)
    await site.lanes.renew()
    await site.turn()
    assert site.sent == [(ONE, order_id)], "it gets orders again without a restart"


async def test_an_order_moves_only_to_a_venue_whose_form_has_room_for_its_id() -> None:
    short = IdForm(length_max=18)
    site = Site(id_forms={ONE: WHOLE, TWO: short})
    name = partial(venue_client_order_id, "abcd", AccountId("acc-1"), "orders")
    # The first was accepted before the second venue joined the route.
    whole = await site.accept(client_id=name("one", 0, OrderId("")), account="acc-1")
    form = site.choice.id_form("USDJPY", ONE, AccountId("acct"))
    narrow = await site.accept(client_id=name("two", 0, OrderId(""), form), account="acc-2")
    site.down()

    await site.turn()

    assert form == short
    assert site.sent == [(TWO, narrow)]
    assert site.order(whole).venue == ONE
    assert not site.choice.among(site.order(whole), Route((TWO,))).candidates[0].healthy


async def test_the_first_orders_after_a_pause_are_sent_one_at_a_time() -> None:
    site = Site()
    site.down()
    for _ in range(5):
        site.clock.advance(timedelta(seconds=1))
        site.breakers[ONE].note_probe(None)
    for _ in range(3):
        await site.accept()
    await site.dispatcher.run_once()
    await asyncio.sleep(0)
    assert len(site.sent) <= 1
    await site.turn(5)
    assert len(site.sent) == 3


@pytest.mark.parametrize("killed", [ONE, TWO])
async def test_an_order_that_a_kill_covers_at_either_venue_is_not_sent_elsewhere(killed: VenueName) -> None:
    site = Site()
    order_id = await site.accept()
    site.down()
    kill = Kill(
        kill_id=KillId("kill_1"), venue=killed, set_by="ann", set_reason="test", set_at=site.clock.now(), version=1
    )
    await site.sequencer.commit(decisions.set_kill(kill))  # this process does not know it yet: the append judges

    await site.turn()

    assert site.sent == []
    assert site.order(order_id).venue == ONE


async def test_after_a_restore_an_order_with_a_key_keeps_its_venue() -> None:
    site = Site(restored=True)
    site.clock.advance(timedelta(seconds=1))
    keyed, other = await site.accept(key="k"), await site.accept(account="acc-2")
    site.down()
    await site.turn()
    assert site.sent == [(TWO, other)]
    assert site.order(keyed).venue == ONE


async def test_after_a_restore_every_venue_of_the_route_is_asked_before_the_first_send() -> None:
    site = Site(restored=True)
    site.clock.advance(timedelta(seconds=1))
    site.venues[TWO].found = object()
    order_id = await site.accept(key="k")
    await site.turn()
    assert site.sent == []
    assert site.order(order_id).status == "UNKNOWN"


async def test_a_rate_lets_one_after_the_other_through_and_holds_up_no_other_venue() -> None:
    site = Site(per_second=1)
    limited = [await site.accept(TWO) for _ in range(3)]
    others = [await site.accept(ONE, account="acc-2") for _ in range(3)]
    await site.turn()
    assert [order_id for venue, order_id in site.sent if venue == TWO] == limited[:1]
    assert [order_id for venue, order_id in site.sent if venue == ONE] == others
    for _ in range(2):
        site.clock.advance(timedelta(seconds=1))
        await site.lanes.renew()
        await site.turn()
    assert [order_id for venue, order_id in site.sent if venue == TWO] == limited
