"""Request expiry: `expires_at` is in the broker's time, whatever our own clock shows."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from msgspec.structs import replace

from switchyard.adapters.memory.clock import START, ManualClock
from switchyard.adapters.venues.http.adapter import http_venue
from switchyard.domain.ids import VenueName
from switchyard.ports.venue import Capabilities, Unsent
from switchyard.venue.bridge import Bridge
from switchyard.venue.wire import VenueTime
from tests.support.scripted_server import reply, scripted_server
from tests.support.venue_orders import an_order

WINDOW = timedelta(seconds=3)
ABSENT = {"error": "UNKNOWN_ORDER"}


@asynccontextmanager
async def broker(url: str, clock: ManualClock, *, request_expiry: bool = True) -> AsyncIterator[Bridge]:
    venue = http_venue(
        VenueName("broker"),
        url=url,
        capabilities=Capabilities(
            dedupe="while_open", lookup="all", acceptance_window=WINDOW, request_expiry=request_expiry
        ),
        clock=clock,
    )
    await venue.start()
    try:
        yield venue
    finally:
        await venue.close()


@pytest.mark.parametrize("request_expiry", [False, True])
async def test_expires_at_is_sent_only_to_a_broker_with_request_expiry(request_expiry: bool) -> None:
    async with (
        scripted_server(reply(404, ABSENT, X_Venue_Time=START.isoformat()), reply(200, {})) as server,
        broker(server.url, ManualClock(), request_expiry=request_expiry) as venue,
    ):
        assert await venue.probe() == "answered"
        await venue.submit(an_order("one"))
        [body] = server.posted
        assert body.get("expires_at") == ("2026-01-05T09:00:03Z" if request_expiry else None)


async def test_the_skew_of_the_broker_is_measured_by_the_probe() -> None:
    clock = ManualClock()
    ahead = reply(404, ABSENT, X_Venue_Time="2026-01-05T09:01:00.500000+00:00", Date="Mon, 05 Jan 2026 07:00:00 GMT")
    async with scripted_server(ahead, reply(200, {})) as server, broker(server.url, clock) as venue:
        assert await venue.probe() == "answered"
        clock.advance(timedelta(seconds=10))
        # The attempt was committed 4 s ago: the expiry counts from there.
        await venue.submit(replace(an_order("one"), updated_at=START + timedelta(seconds=6)))
        [body] = server.posted
        assert body["expires_at"] == "2026-01-05T09:01:09.500000Z"


async def test_nothing_is_sent_with_an_expiry_before_the_brokers_clock_is_known() -> None:
    clock = ManualClock()
    async with scripted_server(reply(404, ABSENT), reply(200, {})) as server, broker(server.url, clock) as venue:
        assert await venue.probe() == "answered"  # without a time
        assert await venue.submit(an_order("one")) == Unsent("VENUE_DOWN", "its clock is not known yet")
        assert server.posted == []


async def test_an_expiry_does_not_count_from_a_time_that_is_still_to_come() -> None:
    clock = ManualClock()
    known = reply(404, ABSENT, X_Venue_Time=START.isoformat())
    async with scripted_server(known, reply(200, {})) as server, broker(server.url, clock) as venue:
        assert await venue.probe() == "answered"
        # The process that accepted the order has a clock that is ahead of this one's.
        await venue.submit(replace(an_order("one"), updated_at=START + timedelta(seconds=4)))
        [body] = server.posted
        assert body["expires_at"] == "2026-01-05T09:00:03Z"


def test_the_skew_counts_as_zero_until_it_is_known() -> None:
    time = VenueTime(ManualClock(), "X-Venue-Time")
    assert time.skew == timedelta()
    for headers in ({}, {"x-venue-time": "soon", "date": "later"}, {"x-venue-time": "2026-01-05T09:00:00"}):
        time.measure(headers, 0.0)
        assert time.skew == timedelta()


def test_the_date_header_is_used_where_the_broker_sends_no_better_time() -> None:
    clock = ManualClock()
    time = VenueTime(clock, "X-Venue-Time")
    time.measure({"x-venue-time": "soon", "date": "Mon, 05 Jan 2026 08:59:30 GMT"}, clock.monotonic())
    assert time.skew == timedelta(seconds=-30)


def test_a_slow_answer_does_not_replace_a_measurement() -> None:
    clock = ManualClock()
    time = VenueTime(clock, "X-Venue-Time")
    time.measure({"x-venue-time": "2026-01-05T09:00:07Z"}, clock.monotonic())
    asked_at = clock.monotonic()
    clock.advance(timedelta(seconds=1.5))
    time.measure({"x-venue-time": "2026-01-05T10:00:00Z"}, asked_at)
    assert time.skew == timedelta(seconds=7)


def test_a_step_of_our_clock_does_not_move_the_expiry_in_venue_time() -> None:
    clock = ManualClock()
    time = VenueTime(clock, "X-Venue-Time")
    time.measure({"x-venue-time": "2026-01-05T09:00:07Z"}, clock.monotonic())
    clock.step(timedelta(hours=1))
    # An attempt that is committed after the step is an hour later in our time; the skew takes it back.
    assert clock.now() + time.skew == START + timedelta(seconds=7)
