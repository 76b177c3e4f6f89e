"""One account whose orders hang at a venue: the orders of the others go on."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from switchyard.domain.ids import AccountId
from switchyard.domain.orders.order import Order
from switchyard.flow.health.venues import PAUSE_MAX, HealthBoard, VenueBreaker
from switchyard.flow.routing.window import Forecast
from switchyard.ports.venue import Accepted, Ambiguous, OnDeparture, SendOutcome, ignore_departure
from switchyard.telemetry.metrics import Metrics
from tests.support.build import VENUE, an_accept
from tests.support.memory.clock import ManualClock
from tests.support.polling import until
from tests.support.sending import SLOTS, BatchVenue, Sending

HANGING, OTHER = AccountId("hanging"), AccountId("other")
FAULTS_MAX = 5
SHARE = SLOTS - SLOTS // 16


class HangingVenue(BatchVenue):
    """Answers the orders of all accounts but one; those have no answer once `open` is set."""

    async def submit_many(
        self, orders: Sequence[Order], on_departure: OnDeparture = ignore_departure
    ) -> list[SendOutcome]:
        on_departure()
        [order] = orders
        self.sent.append(order.order_id)
        if order.account_id != HANGING:
            return [Accepted(f"venue-{order.order_id}")]
        await self.open.wait()
        return [Ambiguous("NETWORK_TIMEOUT")]


class Site:
    def __init__(self) -> None:
        self.venue = HangingVenue("while_open", batch_max=1)
        self.venue.open.clear()
        self.health = HealthBoard()
        self.sending = Sending(self.venue, health=self.health)
        self.clock = self.sending.clock
        self.breaker = VenueBreaker(
            VENUE, faults_max=FAULTS_MAX, pause=timedelta(seconds=2), clock=self.clock, metrics=Metrics()
        )
        self.health.watch([self.breaker])
        self.dispatcher = self.sending.dispatcher

    async def accept(self, account: AccountId, count: int = 1) -> None:
        """Queue orders of the account, each in a symbol of its own."""
        for number in range(count):
            symbol = f"{account}-{len(self.sending.database.journal.orders)}-{number}"
            await self.sending.accept(account=account, symbol=symbol)

    async def send(self) -> None:
        """Send what may be sent now."""
        await self.sending.lanes.renew()
        while await self.dispatcher.run_once():
            pass
        await asyncio.sleep(0)

    async def until_sent(self, account: AccountId, count: int) -> None:
        """Send until so many orders of the account were sent."""

        async def are_sent() -> bool:
            await self.send()
            return self.count(account) == count

        await until(are_sent)

    async def time_out(self) -> None:
        """Let those that hang end without an answer."""
        self.clock.advance(timedelta(seconds=5))
        self.venue.open.set()
        await self.dispatcher.drain(60)
        self.venue.open.clear()

    def recover(self, pause: timedelta = PAUSE_MAX) -> None:
        """The pause passes, and the venue answers probes."""
        self.clock.advance(pause)
        for _ in range(2):
            self.breaker.note_probe(None)

    def count(self, account: AccountId) -> int:
        """How many orders of the account were sent."""
        orders = self.sending.database.journal.orders
        return sum(orders[order_id].account_id == account for order_id in self.venue.sent)


async def test_an_account_whose_orders_hang_leaves_a_share_of_the_slots_to_the_others() -> None:
    site = Site()
    await site.accept(HANGING, SLOTS + 20)
    await site.accept(OTHER, 20)
    await site.send()
    assert site.count(HANGING) == SHARE
    await site.until_sent(OTHER, 20)
    assert site.count(HANGING) == SHARE
    assert site.dispatcher.is_held(VENUE, HANGING) and not site.dispatcher.is_held(VENUE, OTHER)


async def test_an_account_whose_orders_keep_failing_sends_one_at_a_time_and_the_others_go_on() -> None:
    site = Site()
    await site.accept(HANGING, 3 * SLOTS)
    await site.send()
    await site.accept(OTHER)
    await site.send()
    await site.time_out()
    assert (site.breaker.is_closed, site.breaker.is_suspect(HANGING)) == (True, True)
    await site.accept(OTHER, 10)
    await site.until_sent(OTHER, 11)
    assert site.count(HANGING) == SHARE + 1
    await site.time_out()
    await site.send()
    assert site.count(HANGING) == SHARE + 2


async def test_the_first_order_after_a_pause_is_not_one_of_the_account_whose_orders_failed() -> None:
    site = Site()
    await site.accept(HANGING, 2 * SLOTS)
    await site.send()
    await site.time_out()
    assert not site.breaker.is_closed
    site.recover()
    await site.accept(OTHER, 3)
    await site.send()
    assert site.sending.database.journal.orders[site.venue.sent[SHARE]].account_id == OTHER
    await site.until_sent(OTHER, 3)
    await site.until_sent(HANGING, SHARE + 1)


async def test_an_order_of_another_account_is_sent_although_the_trial_hangs_or_has_failed() -> None:
    site = Site()
    await site.accept(HANGING, 2 * SLOTS)
    await site.send()
    await site.time_out()
    site.recover()
    await site.send()
    assert site.count(HANGING) == SHARE + 1, "no other account has an order"
    await site.time_out()
    assert not site.breaker.is_closed
    await site.accept(OTHER)
    await site.send()
    assert site.count(OTHER) == 0, "the venue has not answered probes since"
    site.recover(timedelta(0))
    await site.send()
    await site.until_sent(OTHER, 1)
    assert site.breaker.is_closed


async def test_an_order_of_another_account_does_not_wait_for_a_trial_that_hangs() -> None:
    site = Site()
    await site.accept(HANGING, 2 * SLOTS)
    await site.send()
    await site.time_out()
    site.recover()
    await site.send()
    assert site.dispatcher.is_held(VENUE, HANGING)
    await site.accept(OTHER)
    await site.send()
    await site.until_sent(OTHER, 1)


async def test_the_wait_of_an_account_that_is_held_back_delays_no_order_of_another_one() -> None:
    clock = ManualClock()
    site = Site()
    database = site.sending.database
    held: set[AccountId] = {HANGING}
    forecast = Forecast(database.queries, [VENUE], clock, lambda _: held)
    await site.sending.sequencer.commit(an_accept(account=HANGING, now=clock.now()))
    await forecast.run_once()
    clock.advance(timedelta(seconds=60))
    await forecast.run_once()
    assert forecast.is_too_slow(VENUE, "IOC", HANGING)
    assert not forecast.is_too_slow(VENUE, "IOC", OTHER)
    assert forecast.age(VENUE) == timedelta(0)
    await site.sending.sequencer.commit(an_accept(account=OTHER, now=clock.now()))
    await forecast.run_once()
    clock.advance(timedelta(seconds=2))
    await forecast.run_once()
    assert forecast.is_too_slow(VENUE, "IOC", OTHER), "it has a queue of its own"
    held.clear()
    await forecast.run_once()
    assert forecast.is_too_slow(VENUE, "IOC", OTHER)
