"""Each fault of the simulator: what the venue did, and the outcome that the adapter returned."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import aiohttp
import pytest

from switchyard.adapters.system_clock import SystemClock
from switchyard.adapters.venues.http.adapter import http_venue
from switchyard.adapters.venues.paper.book import cursor_text
from switchyard.domain.ids import VenueClientOrderId, VenueName
from switchyard.domain.orders.order import Order
from switchyard.ports.venue import (
    Accepted,
    Ambiguous,
    Capabilities,
    SendOutcome,
    Unsent,
    VenueRejected,
    VenueUnavailable,
)
from switchyard.venue.bridge import RESPONSE_SECONDS, Bridge
from tests.support.polling import until
from tests.support.process import run_command
from tests.support.venue_orders import an_order, bare, by_id, open_orders, read_reports, unlocated
from tests.support.venue_process import VenueProcess

# A buy limit far below the market: the order rests.
FAR = "1"
FOREVER = 3600.0
_numbers = count(1)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VenueProcess]:
    simulator = VenueProcess(tmp_path_factory.mktemp("simulator"))
    try:
        asyncio.run(_start(simulator))
        yield simulator
        assert "Traceback" not in simulator.log
    finally:
        simulator.close()


async def _start(simulator: VenueProcess) -> None:
    await simulator.start()


@pytest.fixture
async def simulator(shared: VenueProcess) -> AsyncIterator[VenueProcess]:
    await shared.clear_faults()
    yield shared
    await shared.clear_faults()


@pytest.fixture
async def venue(simulator: VenueProcess) -> AsyncIterator[Bridge]:
    venue = a_venue(simulator)
    await venue.start()
    yield venue
    await venue.close()


@pytest.fixture
def order() -> Order:
    return a_fresh_order()


def a_fresh_order(price: str | None = None) -> Order:
    return an_order(f"order-{next(_numbers)}", price=price)


def a_venue(simulator: VenueProcess, response_seconds: float | None = None) -> Bridge:
    limits = RESPONSE_SECONDS if response_seconds is None else dict.fromkeys(RESPONSE_SECONDS, response_seconds)
    return http_venue(
        VenueName("broker"),
        url=simulator.url,
        capabilities=Capabilities(dedupe="permanent", lookup="all"),
        clock=SystemClock(),
        response_seconds=limits,
    )


def times_accepted(simulator: VenueProcess, order: Order) -> int:
    return simulator.orders()[order.venue_client_order_id]


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        ("drop_answer", Ambiguous("NETWORK_DISCONNECTED")),
        ("accepted_5xx", Ambiguous("BROKER_5XX")),
        ("garbage", Ambiguous("UNKNOWN", "the answer cannot be read")),
        ("close_mid_body", Ambiguous("NETWORK_DISCONNECTED")),
    ],
)
async def test_an_order_accepted_without_a_valid_response_is_ambiguous_and_can_be_found(
    simulator: VenueProcess, venue: Bridge, order: Order, fault: str, outcome: SendOutcome
) -> None:
    await simulator.set_faults(**{fault: 1})
    assert unlocated(await venue.submit(order)) == outcome
    assert times_accepted(simulator, order) == 1
    found = await venue.find(by_id(order.venue_client_order_id))
    await simulator.clear_faults()
    assert found is not None
    assert bare(await venue.submit(order)) == Accepted(found.venue_order_id)
    assert times_accepted(simulator, order) == 1


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        ("refused_5xx", Ambiguous("BROKER_5XX")),
        ("reject", VenueRejected("BAD_REQUEST", "REJECTED_BY_VENUE")),
    ],
)
async def test_an_order_that_is_not_accepted_is_not_found(
    simulator: VenueProcess, venue: Bridge, order: Order, fault: str, outcome: SendOutcome
) -> None:
    await simulator.set_faults(**{fault: 1})
    assert unlocated(await venue.submit(order)) == outcome
    assert await venue.find(by_id(order.venue_client_order_id)) is None
    assert times_accepted(simulator, order) == 0


async def test_a_throttled_order_has_a_retry_after(simulator: VenueProcess, venue: Bridge, order: Order) -> None:
    await simulator.set_faults(rate_limit=1)
    outcome = await venue.submit(order)
    assert isinstance(outcome, Unsent)
    assert outcome.code == "RATE_LIMITED"
    assert outcome.retry_after is not None and outcome.retry_after.total_seconds() == 1
    assert times_accepted(simulator, order) == 0


async def test_an_order_may_be_accepted_after_an_error_response(
    simulator: VenueProcess, venue: Bridge, order: Order
) -> None:
    await simulator.set_faults(accept_late=0.2)
    outcome = unlocated(await venue.submit(order))
    assert outcome in (Ambiguous("BROKER_5XX"), Ambiguous("NETWORK_DISCONNECTED"))
    await until(lambda: times_accepted(simulator, order) == 1)
    assert await venue.find(by_id(order.venue_client_order_id)) is not None


async def test_a_late_order_is_recognised_after_its_own_resend(
    simulator: VenueProcess, venue: Bridge, order: Order
) -> None:
    later = a_fresh_order()
    await simulator.set_faults(accept_late=0.2)
    await venue.submit(order)
    await venue.submit(later)
    await simulator.set_faults(accept_late=0)
    assert isinstance(await venue.submit(order), Accepted)
    # Timers fire in the order in which they were set.
    await until(lambda: times_accepted(simulator, later) == 1)
    assert times_accepted(simulator, order) == 1


async def test_a_response_byte_by_byte_is_ambiguous_when_it_takes_too_long(
    simulator: VenueProcess, order: Order
) -> None:
    await simulator.set_faults(slow_bytes=0.05)
    venue = a_venue(simulator, response_seconds=0.5)
    await venue.start()
    assert unlocated(await venue.submit(order)) == Ambiguous("NETWORK_TIMEOUT")
    await venue.close()
    assert times_accepted(simulator, order) == 1


async def test_a_response_byte_by_byte_in_time_is_a_valid_response(
    simulator: VenueProcess, venue: Bridge, order: Order
) -> None:
    await simulator.set_faults(slow_bytes=0.0001)
    assert isinstance(await venue.submit(order), Accepted)


async def test_a_timed_share_of_zero_switches_timed_faults_off(
    simulator: VenueProcess, venue: Bridge, order: Order
) -> None:
    await simulator.set_faults(slow_bytes=FOREVER, accept_late=FOREVER, late_reports=FOREVER, timed_share=0)
    assert isinstance(await venue.submit(order), Accepted)


async def test_a_lookup_may_lag(simulator: VenueProcess, venue: Bridge, order: Order) -> None:
    await simulator.set_faults(lagging_lookup=FOREVER)
    await venue.submit(order)
    assert await venue.find(by_id(order.venue_client_order_id)) is None
    await simulator.set_faults(lagging_lookup=0)
    assert await venue.find(by_id(order.venue_client_order_id)) is not None


async def test_a_lookup_may_miss_a_filled_order(simulator: VenueProcess, venue: Bridge, order: Order) -> None:
    resting = a_fresh_order(price=FAR)
    await simulator.set_faults(not_found_after_fill=1)
    await venue.submit(order)
    await venue.submit(resting)
    assert await venue.find(by_id(order.venue_client_order_id)) is None
    assert await venue.find(by_id(resting.venue_client_order_id)) is not None


async def test_a_failed_lookup_does_not_mean_that_the_order_is_absent(
    simulator: VenueProcess, venue: Bridge, order: Order
) -> None:
    await simulator.set_faults(lookup_5xx=1)
    assert isinstance(await venue.submit(order), Accepted)
    with pytest.raises(VenueUnavailable):
        await venue.find(by_id(order.venue_client_order_id))
    with pytest.raises(VenueUnavailable):
        await open_orders(venue)


async def test_a_conflict_on_a_resend_is_accepted_as_the_same_order(
    simulator: VenueProcess, venue: Bridge, order: Order
) -> None:
    await simulator.set_faults(conflict=1)
    first = await venue.submit(order)
    assert isinstance(first, Accepted)
    assert bare(await venue.submit(order)) == Accepted(first.venue_order_id, already_processed=True)
    assert times_accepted(simulator, order) == 1


async def test_the_same_faults_apply_to_a_cancel(simulator: VenueProcess, venue: Bridge) -> None:
    resting = a_fresh_order(price=FAR)
    accepted = await venue.submit(resting)
    await simulator.set_faults(refused_5xx=1)
    assert unlocated(await venue.cancel(resting)) == Ambiguous("BROKER_5XX")
    await simulator.set_faults(refused_5xx=0, drop_answer=1)
    assert unlocated(await venue.cancel(resting)) == Ambiguous("NETWORK_DISCONNECTED")
    found = await venue.find(by_id(resting.venue_client_order_id))
    assert found is not None and found.status == "CANCELED"
    await simulator.set_faults(drop_answer=0)
    assert await venue.cancel(resting) == bare(accepted)


async def reported(simulator: VenueProcess, venue: Bridge, orders: list[Order], count: int) -> list[VenueClientOrderId]:
    """Send the orders and return the client order ids of the next reports, in order."""
    after = cursor_text(len(simulator.events("report")))
    for order in orders:
        await venue.submit(order)
    return [report.venue_client_order_id for report in await read_reports(venue, count, after=after)]


async def test_an_execution_may_be_reported_twice(simulator: VenueProcess, venue: Bridge, order: Order) -> None:
    await simulator.set_faults(duplicate_reports=1)
    assert await reported(simulator, venue, [order], 2) == [order.venue_client_order_id] * 2
    lines = [line for line in simulator.events("report") if line["client_order_id"] == order.venue_client_order_id]
    assert lines[0]["exec_id"] == lines[1]["exec_id"]


async def test_reports_may_overtake_each_other(simulator: VenueProcess, venue: Bridge, order: Order) -> None:
    await simulator.set_faults(reordered_reports=1, partial_fills=4)
    await reported(simulator, venue, [order], 4)
    lines = [line for line in simulator.events("report") if line["client_order_id"] == order.venue_client_order_id]
    assert [line["exec_id"][-2:] for line in lines] == ["-2", "-1", "-4", "-3"]


async def test_a_report_may_be_late(simulator: VenueProcess, venue: Bridge, order: Order) -> None:
    on_time = a_fresh_order()
    after = cursor_text(len(simulator.events("report")))
    await simulator.set_faults(late_reports=0.3)
    await venue.submit(order)
    await simulator.set_faults(late_reports=0)
    await venue.submit(on_time)
    reports = await read_reports(venue, 2, after=after)
    assert {report.venue_client_order_id for report in reports} == {
        order.venue_client_order_id,
        on_time.venue_client_order_id,
    }
    assert times_accepted(simulator, order) == 1


async def test_a_report_may_be_dropped(simulator: VenueProcess, venue: Bridge, order: Order) -> None:
    reported_order, resting = a_fresh_order(), a_fresh_order(price=FAR)
    await venue.submit(resting)
    await simulator.set_faults(drop_reports=1)
    after = cursor_text(len(simulator.events("report")))
    await venue.submit(order)
    await venue.cancel(resting)
    await simulator.set_faults(drop_reports=0)
    await venue.submit(reported_order)
    assert [report.venue_client_order_id for report in await read_reports(venue, 1, after=after)] == [
        reported_order.venue_client_order_id
    ]
    dropped = [line["client_order_id"] for line in simulator.events("drop")]
    assert dropped[-2:] == [order.venue_client_order_id, resting.venue_client_order_id]
    found = await venue.find(by_id(order.venue_client_order_id))
    assert found is not None and (found.status, len(found.fills)) == ("FILLED", 1)


async def test_a_fill_may_come_in_parts(simulator: VenueProcess, venue: Bridge, order: Order) -> None:
    await simulator.set_faults(partial_fills=4)
    assert await reported(simulator, venue, [order], 4) == [order.venue_client_order_id] * 4
    fills = [line for line in simulator.events("fill") if line["client_order_id"] == order.venue_client_order_id]
    assert [line["qty"] for line in fills] == [250] * 4
    assert [line["filled_qty"] for line in fills] == [250, 500, 750, 1000]


async def test_connections_may_be_refused(tmp_path: Path, order: Order) -> None:
    simulator = VenueProcess(tmp_path)
    try:
        await simulator.start()
        venue = a_venue(simulator)
        await venue.start()
        assert isinstance(await venue.submit(a_fresh_order()), Accepted)
        await simulator.set_faults(refuse_connections=FOREVER)

        async def is_unsent() -> bool:
            return isinstance(await venue.submit(order), Unsent)

        # The fault also closes connections that are already open.
        await until(is_unsent)
        await venue.close()
    finally:
        simulator.close()


async def test_connections_are_accepted_again_after_the_fault(simulator: VenueProcess, order: Order) -> None:
    await simulator.set_faults(refuse_connections=0.1)
    venue = a_venue(simulator)
    await venue.start()

    async def is_accepted() -> bool:
        return isinstance(await venue.submit(order), Accepted)

    await until(lambda: "venue-sim is open again" in simulator.log)
    await until(is_accepted)
    await venue.close()
    assert times_accepted(simulator, order) == 1


async def test_faults_are_shown_and_unknown_ones_rejected(simulator: VenueProcess) -> None:
    async with aiohttp.ClientSession(simulator.url) as session:
        async with session.post("/admin/faults", json={"drop_answer": 0.25, "partial_fills": 3}) as response:
            assert response.status == 200
        for wrong in ({"drop_anwser": 1}, {"drop_answer": 2}, {"drop_answer": "often"}, [1]):
            async with session.post("/admin/faults", json=wrong) as response:
                assert response.status == 422
        async with session.get("/admin/faults") as response:
            faults = await response.json()
    assert (faults["drop_answer"], faults["partial_fills"], faults["accept_late"]) == (0.25, 3, 0)


@pytest.mark.parametrize("option", ["drop_anwser=1", "drop_answer=2", "drop_answer"])
def test_a_fault_that_does_not_exist_is_rejected_on_the_command_line(tmp_path: Path, option: str) -> None:
    rejected = run_command("venue-sim", "--port", "0", "--log", str(tmp_path / "log"), "--fault", option)
    assert rejected.returncode == 2


async def test_the_same_seed_gives_the_same_faults(tmp_path: Path) -> None:
    async def pattern(folder: str, seed: int) -> list[bool]:
        faults = "--fault", "refused_5xx=0.5", "--fault", "drop_answer=0.3"
        simulator = VenueProcess(tmp_path / folder, "--seed", str(seed), *faults)
        try:
            await simulator.start()
            venue = a_venue(simulator)
            await venue.start()
            outcomes = [await venue.submit(an_order(f"order-{n}")) for n in range(40)]
            await venue.close()
        finally:
            simulator.close()
        return [isinstance(outcome, Accepted) for outcome in outcomes]

    first, again, other = await asyncio.gather(pattern("first", 7), pattern("again", 7), pattern("other", 8))
    assert first == again
    assert first != other
