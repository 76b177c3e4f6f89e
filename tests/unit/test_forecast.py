"""Orders that would leave too late are refused while the queue is that slow, and only those."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import pytest

from switchyard.adapters.memory.clock import ManualClock
from switchyard.domain.errors import QueueDelayed
from switchyard.domain.ids import VenueName
from switchyard.domain.orders import TimeInForce
from switchyard.flow.forecast import STALE_SECONDS, Forecast

SIM, OTHER = VenueName("sim"), VenueName("other")


class Heads:
    """When the order at the head of each queue was accepted."""

    def __init__(self) -> None:
        self.accepted_at: dict[VenueName, datetime] = {}

    async def oldest_unsent(self, venues: Sequence[VenueName]) -> Mapping[VenueName, datetime]:
        return self.accepted_at


def forecast(waited_seconds: float, clock: ManualClock) -> Forecast:
    heads = Heads()
    heads.accepted_at[SIM] = clock.now() - timedelta(seconds=waited_seconds)
    return Forecast(heads, [SIM, OTHER], clock)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("waited_seconds", "time_in_force", "is_too_slow"),
    [(2.4, "IOC", False), (2.6, "IOC", True), (4.9, "FOK", False), (5.1, "FOK", True), (60, "GTC", False)],
)
async def test_the_wait_is_held_against_the_deadline(
    waited_seconds: float, time_in_force: TimeInForce, is_too_slow: bool
) -> None:
    clock = ManualClock()
    seen = forecast(waited_seconds, clock)
    await seen.run_once()
    assert seen.is_too_slow(SIM, time_in_force) == is_too_slow
    assert not seen.is_too_slow(OTHER, time_in_force)


async def test_what_was_seen_long_ago_refuses_nobody() -> None:
    clock = ManualClock()
    seen = forecast(10, clock)
    assert not seen.is_too_slow(SIM, "IOC"), "nothing was looked at yet"
    await seen.run_once()
    assert seen.is_too_slow(SIM, "IOC")
    clock.advance(timedelta(seconds=STALE_SECONDS + 1))
    assert not seen.is_too_slow(SIM, "IOC")


async def test_the_refusal_says_how_long_orders_wait() -> None:
    clock = ManualClock()
    seen = forecast(3, clock)
    await seen.run_once()
    assert str(seen.refusal(SIM)) == "orders to sim wait 3.0 s: it would leave too late"
    assert QueueDelayed.reason == "QUEUE_DELAY"
