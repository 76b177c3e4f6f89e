"""The simulator's breaches of what a venue promises: lost cancels, damaged or renumbered reports, late copies."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from switchyard.adapters.system_clock import SystemClock
from switchyard.adapters.venues.http.adapter import FINAL_ERRORS, FinalErrors, http_venue
from switchyard.domain.ids import VenueName
from switchyard.domain.orders.order import Order
from switchyard.ports.venue import Accepted, Ambiguous, Capabilities, VenueRejected, VenueUnavailable
from switchyard.venue.bridge import Bridge
from tests.support.polling import until
from tests.support.venue_orders import an_order, by_id, open_orders, read_reports, unlocated
from tests.support.venue_process import VenueProcess

# A buy limit far below the market: the order rests.
FAR = "1"


@asynccontextmanager
async def running(folder: Path, *options: str) -> AsyncIterator[VenueProcess]:
    simulator = VenueProcess(folder, *options)
    try:
        await simulator.start()
        yield simulator
        assert "Traceback" not in simulator.log
    finally:
        simulator.close()


@asynccontextmanager
async def adapter(
    simulator: VenueProcess, *, final_errors: FinalErrors = FINAL_ERRORS, expiry: timedelta | None = None
) -> AsyncIterator[Bridge]:
    venue = http_venue(
        VenueName("broker"),
        url=simulator.url,
        capabilities=Capabilities(
            dedupe="while_open", lookup="all", acceptance_window=expiry, request_expiry=expiry is not None
        ),
        clock=SystemClock(),
        final_errors=final_errors,
    )
    await venue.start()
    try:
        yield venue
    finally:
        await venue.close()


def now(order: Order) -> Order:
    """The order, attempted now."""
    return replace(order, updated_at=datetime.now(UTC))


# What a copy of an order does, by deduplication.


@pytest.mark.parametrize(
    ("dedupe", "after_fill", "after_cancel", "while_open"),
    [
        ("permanent", 1, 1, 1),  # Bybit; Alpaca also after a cancel
        ("ttl", 1, 1, 1),
        ("while_open", 2, 2, 1),  # Binance once filled, Kraken once closed
        ("none", 2, 2, 2),
    ],
)
async def test_a_late_copy_executes_as_the_deduplication_says(
    tmp_path: Path, dedupe: str, after_fill: int, after_cancel: int, while_open: int
) -> None:
    filled, cancelled, working = an_order("filled"), an_order("cancelled", price=FAR), an_order("working", price=FAR)
    async with running(tmp_path, "--dedupe", dedupe) as simulator, adapter(simulator) as venue:
        for order in (filled, cancelled, working):
            assert isinstance(await venue.submit(order), Accepted)
        assert isinstance(await venue.cancel(cancelled), Accepted)
        for order in (filled, cancelled, working):
            assert isinstance(await venue.submit(order), Accepted)
        assert simulator.orders() == {"filled": after_fill, "cancelled": after_cancel, "working": while_open}
        fills = Counter(line["client_order_id"] for line in simulator.events("fill"))
        assert fills["filled"] == after_fill


async def test_an_id_is_free_again_after_its_time(tmp_path: Path) -> None:
    async with running(tmp_path, "--dedupe", "ttl", "--dedupe-ttl", "0.3") as simulator, adapter(simulator) as venue:
        order = an_order("one")
        await venue.submit(order)
        await venue.submit(order)
        assert simulator.orders() == {"one": 1}

        async def repeated() -> bool:
            await venue.submit(order)
            return simulator.orders()["one"] == 2

        await until(repeated, pause_seconds=0.1)


# Cancels and rejections.


async def test_a_cancel_may_be_acknowledged_and_lost(tmp_path: Path) -> None:
    order = an_order("one", price=FAR)
    async with running(tmp_path, "--fault", "cancel_lost=1") as simulator, adapter(simulator) as venue:
        await venue.submit(order)
        assert isinstance(await venue.cancel(order), Accepted)
        assert simulator.events("cancel") == []
        assert [found.status for found in await open_orders(venue)] == ["WORKING"]
        await simulator.clear_faults()
        await venue.cancel(order)
        assert len(simulator.events("cancel")) == 1


async def test_an_order_may_be_rejected_after_a_part_fill(tmp_path: Path) -> None:
    order = an_order("one")
    async with running(tmp_path, "--fault", "reject_after_part_fill=1") as simulator, adapter(simulator) as venue:
        assert await venue.submit(order) == VenueRejected("UNAUTHORIZED", "FORBIDDEN")
        assert simulator.orders() == {"one": 1}
        [fill] = simulator.events("fill")
        assert (fill["status"], fill["qty"]) == ("PARTIALLY_FILLED", 500)
        [found] = await open_orders(venue)
        assert found.filled_qty == 500
        [report] = await read_reports(venue, 1)
        assert report.last_qty == 500


@pytest.mark.parametrize(
    ("final_errors", "outcome"),
    [
        (FINAL_ERRORS, VenueRejected("BAD_REQUEST", "TRY_AGAIN")),
        (frozenset({(400, "REJECTED_BY_VENUE")}), Ambiguous("UNKNOWN", "HTTP 400")),
    ],
)
async def test_a_400_is_doubt_where_the_venue_does_not_call_it_final(
    tmp_path: Path, final_errors: FinalErrors, outcome: object
) -> None:
    faults = "--fault", "accept_late=0.1", "--fault", "accept_late_400=1"
    async with running(tmp_path, *faults) as simulator, adapter(simulator, final_errors=final_errors) as venue:
        assert unlocated(await venue.submit(an_order("one"))) == outcome
        await until(lambda: simulator.orders() == {"one": 1})


# Reports.


@pytest.mark.parametrize("fault", ["nul_in_report", "unreadable_report"])
async def test_a_damaged_report_stands_among_good_ones(tmp_path: Path, fault: str) -> None:
    async with running(tmp_path) as simulator, adapter(simulator) as venue:
        await venue.submit(an_order("one"))
        await simulator.set_faults(**{fault: 1})
        await venue.submit(an_order("two"))
        await simulator.clear_faults()
        await venue.submit(an_order("three"))
        page = await venue.reports(None, 100)
        assert [report.venue_client_order_id for report in page.reports] == ["one", "three"]
        [unreadable] = page.unreadable
        assert unreadable.text and unreadable.error
        assert page.cursor == "3"


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_report_numbers_may_start_again(tmp_path: Path, is_restarted: bool) -> None:
    async with running(tmp_path) as simulator:
        async with adapter(simulator) as venue:
            for name in ("one", "two", "three"):
                await venue.submit(an_order(name))
            await simulator.set_faults(restart_report_numbers=1)
            await venue.submit(an_order("four"))
        if is_restarted:
            simulator.kill()
            await simulator.start()
        async with adapter(simulator) as venue:
            page = await venue.reports("3", 100)
            assert [report.venue_client_order_id for report in page.reports] == ["four"]
            assert (page.cursor, page.restarted) == ("1", True)


async def test_an_execution_id_may_belong_to_two_orders(tmp_path: Path) -> None:
    async with running(tmp_path) as simulator:
        async with adapter(simulator) as venue:
            await venue.submit(an_order("one"))
            await simulator.set_faults(reuse_exec_ids=1)
            await venue.submit(an_order("two"))
            first, second = await read_reports(venue, 2)
            assert first.exec_id == second.exec_id
            found = await venue.find(by_id(second.venue_client_order_id))
            assert found is not None
            assert [fill.exec_id for fill in found.fills] == [first.exec_id]
        simulator.kill()
        await simulator.start()
        async with adapter(simulator) as venue:
            assert [report.venue_client_order_id for report in await read_reports(venue, 2)] == ["one", "two"]


@pytest.mark.parametrize("basis_points", [25, -10])
async def test_a_fill_may_have_a_fee(tmp_path: Path, basis_points: int) -> None:
    async with running(tmp_path) as simulator:
        async with adapter(simulator) as venue:
            await venue.submit(an_order("free"))
            await simulator.set_faults(fee_basis_points=basis_points, partial_fills=2)
            await venue.submit(an_order("charged"))
            reports = await read_reports(venue, 3)
        simulator.kill()
        await simulator.start()
        async with adapter(simulator) as venue:
            assert await read_reports(venue, 3) == reports
            found = await venue.find(by_id(reports[1].venue_client_order_id))
    assert (reports[0].fee, reports[0].fee_currency) == (None, None)
    assert found is not None
    for report, fill in zip(reports[1:], found.fills, strict=True):
        assert report.last_price is not None
        assert report.fee == report.last_qty * report.last_price * basis_points / 10_000
        assert (fill.fee, fill.fee_currency) == (report.fee, report.fee_currency) == (report.fee, "JPY")


@pytest.mark.parametrize(
    ("fault", "exec_type", "suffix"), [("correct_fills", "CORRECT", "correct"), ("bust_fills", "CANCEL", "bust")]
)
async def test_a_fill_may_be_corrected_or_busted(tmp_path: Path, fault: str, exec_type: str, suffix: str) -> None:
    async with running(tmp_path) as simulator:
        await simulator.set_faults(**{fault: 1})
        async with adapter(simulator) as venue:
            await venue.submit(an_order("one"))
            fill, revision = reports = await read_reports(venue, 2)
        simulator.kill()
        await simulator.start()
        async with adapter(simulator) as venue:
            assert await read_reports(venue, 2) == reports
            found = await venue.find(by_id(fill.venue_client_order_id))
        assert len(simulator.events("fill")) == len(simulator.events("revise")) == 1
    assert (fill.exec_type, fill.ref_exec_id) == (None, None)
    assert (revision.exec_type, revision.ref_exec_id) == (exec_type, fill.exec_id)
    assert revision.exec_id == f"{fill.exec_id}-{suffix}"
    assert (revision.last_price == fill.last_price) == (exec_type == "CANCEL")
    assert found is not None
    assert [one.exec_id for one in found.fills] == [fill.exec_id]


async def test_reports_and_open_orders_may_fail_while_lookups_answer(tmp_path: Path) -> None:
    order = an_order("one", price=FAR)
    async with running(tmp_path) as simulator, adapter(simulator) as venue:
        await venue.submit(order)
        await simulator.set_faults(reports_5xx=1)
        with pytest.raises(VenueUnavailable):
            await venue.reports(None, 100)
        assert len(await open_orders(venue)) == 1
        await simulator.set_faults(reports_5xx=0, open_orders_5xx=1)
        with pytest.raises(VenueUnavailable):
            await open_orders(venue)
        assert await venue.find(by_id(order.venue_client_order_id)) is not None


async def test_more_than_two_hundred_pages_of_open_orders_are_read(tmp_path: Path) -> None:
    async with running(tmp_path, "--fault", "open_orders_page=1") as simulator, adapter(simulator) as venue:
        names = [f"order-{number}" for number in range(220)]
        await asyncio.gather(*(venue.submit(an_order(name, price=FAR)) for name in names))
        assert {order.venue_client_order_id for order in await open_orders(venue)} == set(names)


# Request expiry, on a clock that differs from ours.


@pytest.mark.parametrize("offset", ["-3600", "0", "3600"])
async def test_request_expiry_holds_under_skew(tmp_path: Path, offset: str) -> None:
    window = timedelta(seconds=5)
    async with (
        running(tmp_path, f"--clock-offset={offset}") as simulator,
        adapter(simulator, expiry=window) as venue,
    ):
        assert await venue.probe() == "answered"
        assert isinstance(await venue.submit(now(an_order("in-time"))), Accepted)
        late = now(an_order("late"))
        late = replace(late, updated_at=late.updated_at - window - timedelta(seconds=1))
        assert unlocated(await venue.submit(late)) == Ambiguous("REQUEST_EXPIRED")
        assert simulator.orders() == {"in-time": 1}


async def test_an_order_that_would_be_accepted_after_its_expiry_is_not_accepted(tmp_path: Path) -> None:
    window = timedelta(seconds=0.3)
    async with (
        running(tmp_path, "--fault", "accept_late=1") as simulator,
        adapter(simulator, expiry=window) as venue,
        adapter(simulator) as unbounded,
    ):
        await venue.submit(now(an_order("late")))
        await unbounded.submit(an_order("later"))
        # Timers fire in the order in which they were set.
        await until(lambda: simulator.orders()["later"] == 1)
        assert simulator.orders()["late"] == 0
