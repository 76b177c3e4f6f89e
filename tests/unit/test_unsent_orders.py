"""An order that cannot be sent ends by time, whether attempts are made or not; an order in doubt never does."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from switchyard.domain import decisions
from switchyard.domain.ids import OrderId
from switchyard.domain.journal.facts import DecisionFact
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import is_proven_unsent
from switchyard.flow.health.venues import HealthBoard, VenueBreaker
from switchyard.flow.sending import resolve
from switchyard.ports.venue import Accepted, Ambiguous, SendOutcome, Unsent
from tests.support.build import VENUE
from tests.support.one_order import Setup
from tests.support.sending import BatchVenue, Sending

SECOND = timedelta(seconds=1)
# 2 + 4 + … + 256 s, and a tenth for the jitter.
RETRIES = timedelta(seconds=561)
HOURS = timedelta(hours=3)


def accepted(orders: Sequence[Order]) -> list[SendOutcome]:
    return [Accepted(f"v-{order.order_id}") for order in orders]


def refused(orders: Sequence[Order]) -> list[SendOutcome]:
    return [Unsent("BROKER_DOWN", "connection refused") for _ in orders]


class Outage:
    """One worker whose venue's circuit breaker is open until `end`."""

    def __init__(self, **settings: Any) -> None:
        self.venue = BatchVenue("while_open", accepted, accepted, accepted)
        health = HealthBoard()
        self.sending = Sending(self.venue, health=health, **settings)
        self.clock = self.sending.clock
        self.breaker = VenueBreaker(VENUE, faults_max=3, pause=SECOND, clock=self.clock, metrics=self.sending.metrics)
        health.watch([self.breaker])
        self.breaker.note_hanging(2)

    async def accept(self, **terms: Any) -> OrderId:
        [order_id] = await self.sending.accept(**terms)
        return order_id

    async def after(self, time: timedelta) -> None:
        self.clock.advance(time)
        await self.sending.lanes.renew()
        await self.sending.dispatcher.run_once()
        while await self.sending.dispatcher.recover_once():
            pass
        await self.sending.dispatcher.drain(10)

    def end(self) -> None:
        self.clock.advance(2 * SECOND)
        self.breaker.note_probe(None)
        self.breaker.note_probe(None)
        assert self.breaker.is_closed

    def order(self, order_id: OrderId) -> tuple[str, str | None]:
        order = self.sending.state(order_id).order
        return order.status, order.reason


@pytest.mark.parametrize("terms", [{}, {"time_in_force": "DAY"}])
async def test_an_order_without_an_attempt_ends_after_the_time_of_all_retries(terms: dict[str, Any]) -> None:
    outage = Outage()
    order_id = await outage.accept(**terms)
    await outage.after(RETRIES - SECOND)
    assert outage.order(order_id) == ("ACCEPTED", None)

    await outage.after(SECOND)

    assert outage.order(order_id) == ("REJECTED", "RETRY_EXHAUSTED")
    row = outage.sending.state(order_id).row("new", 1)
    assert (row.status, row.last_error) == ("dead", "RETRY_EXHAUSTED")
    assert row.error_detail == "not sent within 561 s: no attempt"
    assert is_proven_unsent(outage.sending.state(order_id)), "its key can be tried again"
    outage.end()
    await outage.after(SECOND)
    assert outage.venue.sent == []


async def test_orders_that_may_wait_longer_are_sent_when_the_venue_is_back_and_end_after_that_time() -> None:
    outage = Outage(wait_max=HOURS)
    first = await outage.accept()
    await outage.after(HOURS - 2 * SECOND)
    second = await outage.accept()
    await outage.after(2 * SECOND)
    assert outage.order(first) == ("REJECTED", "RETRY_EXHAUSTED")
    outage.end()
    await outage.after(SECOND)
    assert outage.venue.sent == [second]


async def test_with_a_longer_wait_attempts_go_on_after_the_last_retry_of_the_table() -> None:
    sending = Sending(BatchVenue("while_open", *[refused] * 12), wait_max=HOURS)
    [order_id] = await sending.accept()
    for _ in range(12):
        await sending.dispatcher.run_once()
        await sending.dispatcher.drain(10)
        sending.clock.advance(timedelta(seconds=300))
        await sending.lanes.renew()
    state = sending.state(order_id)
    assert (state.order.status, state.row("new", 1).attempt) == ("ACCEPTED", 12)


async def test_a_worker_that_was_away_does_not_send_an_order_at_an_old_price() -> None:
    sending = Sending(venue := BatchVenue("while_open", accepted))
    [old] = await sending.accept()
    sending.clock.advance(RETRIES)
    [new] = await sending.accept()
    await sending.dispatcher.run_once()
    await sending.dispatcher.drain(10)
    assert venue.sent == [new]
    assert sending.state(old).order.reason == "RETRY_EXHAUSTED"


async def test_all_retries_of_the_table_are_made_with_any_jitter() -> None:
    limits = decisions.retry_limits(8)
    assert sum((decisions.backoff(attempt, 1) for attempt in range(1, 9)), timedelta()) == limits.wait_max == RETRIES
    assert decisions.retry_limits(0).wait_max == timedelta(seconds=5), "a queue is no outage"


async def test_a_venue_that_asks_for_a_longer_pause_than_an_order_may_wait_ends_it() -> None:
    def later(orders: Sequence[Order]) -> list[SendOutcome]:
        return [Unsent("RATE_LIMITED", retry_after=HOURS, bytes_sent=True) for _ in orders]

    sending = Sending(BatchVenue("while_open", later, later))
    [patient] = await sending.accept()
    [hasty] = await sending.accept(time_in_force="IOC")
    await sending.dispatcher.run_once()
    await sending.dispatcher.drain(10)
    assert sending.state(patient).order.reason == "RETRY_EXHAUSTED: NOT_PROCESSED"
    assert sending.state(hasty).order.status == "EXPIRED"


@pytest.mark.parametrize("dedupe", ["permanent", "while_open", "none"])
async def test_an_order_in_doubt_does_not_end_by_time(dedupe: Any) -> None:
    setup = Setup(dedupe)
    setup.venue.answer = Ambiguous("NETWORK_TIMEOUT")
    await setup.accept()
    await setup.send()
    setup.clock.advance(HOURS)
    setup.venue.can_be_asked = False
    await setup.lanes.renew()
    await setup.dispatcher.recover_once()
    assert (await setup.send()).order.status == "UNKNOWN"


async def test_an_order_whose_doubt_has_ended_is_sent_again_however_old_it_is() -> None:
    setup = Setup("while_open")
    setup.venue.answer, setup.venue.takes_orders = Ambiguous("NETWORK_TIMEOUT"), False
    await setup.accept()
    await setup.send()
    await setup.resolve(after=timedelta(minutes=11))
    assert (await setup.state()).row("new", 1).last_error == "ABSENT_AT_VENUE"
    setup.venue.answer, setup.venue.takes_orders = Accepted("v-1"), True
    assert (await setup.send()).order.status == "WORKING"


async def test_an_operators_resend_waits_for_its_venue_as_long_as_a_new_order() -> None:
    setup = Setup("none")
    setup.venue.answer = Ambiguous("NETWORK_TIMEOUT")
    await setup.accept()
    state = await setup.send()
    setup.clock.advance(HOURS)
    verdict = DecisionFact(verdict="not-sent", resend=True, by="ops", reason="their log does not have it")
    decided = decisions.decide_by_hand(state, state.row("new", 1), verdict, setup.clock.now())
    order, row = decided.orders[0], decided.outbox[0]
    limits = decisions.retry_limits(8)
    assert not limits.is_too_old(order, row, setup.clock.now() + RETRIES - SECOND)
    assert limits.is_too_old(order, row, setup.clock.now() + RETRIES)


async def test_nothing_ends_by_time_at_a_venue_that_may_have_it_from_a_lost_history() -> None:
    outage = Outage()
    order_id = await outage.accept()
    outage.sending.dispatcher.close_venue(VENUE)
    await outage.after(HOURS)
    assert outage.order(order_id) == ("ACCEPTED", None)


async def test_orders_that_may_wait_do_not_hide_those_that_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "PAGE", 2)
    outage = Outage()
    waiting = [await outage.accept() for _ in range(3)]
    late = await outage.accept(time_in_force="IOC")
    await outage.after(10 * SECOND)
    await outage.after(SECOND)
    assert outage.order(late) == ("EXPIRED", "BROKER_DOWN")
    assert {outage.order(order_id)[0] for order_id in waiting} == {"ACCEPTED"}
