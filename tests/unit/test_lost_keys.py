"""Which orders are looked up before their first send, because a restore may have lost the order of their key."""

from datetime import timedelta
from typing import cast

import pytest
from msgspec.structs import replace

from switchyard.adapters.memory.clock import START, ManualClock
from switchyard.domain.orders import Order
from switchyard.domain.outbox import OrderState, OutboxRow
from switchyard.flow.sending.lost_keys import LostKeys
from switchyard.ports.venue import Dedupe, Venue
from tests.support.build import an_accept, state_after
from tests.support.one_order import ScriptedVenue

TTL = timedelta(hours=24)


def lost_keys(clock: ManualClock, dedupe: Dedupe = "while_open") -> LostKeys:
    venue = ScriptedVenue(dedupe)
    return LostKeys(START, TTL, {venue.name: cast(Venue, venue)}, clock)


def order_and_row(state: OrderState | None = None) -> tuple[Order, OutboxRow]:
    accepted = state or state_after(an_accept(key="k"))
    return accepted.order, accepted.outbox[0]


def test_an_order_accepted_after_a_restore_is_looked_up_for_as_long_as_a_lost_key_lives() -> None:
    clock = ManualClock()
    keys = lost_keys(clock)
    assert keys.may_include(*order_and_row())
    clock.advance(TTL - timedelta(seconds=1))
    assert keys.may_include(*order_and_row())
    clock.advance(timedelta(seconds=1))
    assert not keys.may_include(*order_and_row())


def test_a_jump_of_the_clock_does_not_end_that_time() -> None:
    clock = ManualClock()
    keys = lost_keys(clock)
    clock.advance(TTL)
    clock.jumped_at = clock.now()
    assert keys.may_include(*order_and_row())


@pytest.mark.parametrize("dedupe", ["permanent", "none"])
def test_a_venue_that_recognises_the_order_or_has_no_lookup_is_not_asked(dedupe: Dedupe) -> None:
    assert not lost_keys(ManualClock(), dedupe).may_include(*order_and_row())


def test_an_order_from_before_the_restore_and_a_later_attempt_are_not_looked_up() -> None:
    keys, state = lost_keys(ManualClock()), state_after(an_accept(key="k"))
    earlier = replace(state, order=replace(state.order, accepted_at=START - timedelta(seconds=1)))
    assert not keys.may_include(*order_and_row(earlier))
    assert not keys.may_include(*order_and_row(replace(state, outbox=(replace(state.outbox[0], attempt=1),))))
