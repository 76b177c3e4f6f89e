"""The contract of every venue of class A (permanent deduplication, full lookup), run against each adapter."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pytest

from switchyard.adapters.memory.venue import NullVenue
from switchyard.adapters.system_clock import SystemClock
from switchyard.adapters.venues.http.adapter import http_venue
from switchyard.adapters.venues.paper.exchange import PaperExchange
from switchyard.adapters.venues.paper.store import PaperStatement
from switchyard.domain.ids import VenueClientOrderId, VenueName
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.orders.order import ALL_KINDS
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.domain.values import ZERO
from switchyard.ports.venue import (
    Accepted,
    Capabilities,
    Venue,
    VenueOrder,
    VenueRejected,
    VenueStatement,
)
from tests.support.memory.clock import ManualClock
from tests.support.polling import DEADLINE_SECONDS
from tests.support.venue_orders import an_order, bare, by_id, open_orders, read_reports
from tests.support.venue_process import VenueProcess

# A buy limit far below the market: the order rests.
FAR = "1"


@pytest.fixture(params=["paper", "null", "http"])
async def venue(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Venue]:
    async with OPENED[request.param](tmp_path) as venue:
        yield venue


@pytest.fixture(params=["paper", "http"])
async def market(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Venue]:
    """The venues that can leave an order open or reject it."""
    async with OPENED[request.param](tmp_path) as venue:
        yield venue


@asynccontextmanager
async def null_venue(folder: Path) -> AsyncIterator[Venue]:
    yield NullVenue(clock=ManualClock())


@asynccontextmanager
async def paper_exchange(folder: Path, parts: int = 1) -> AsyncIterator[Venue]:
    exchange = PaperExchange(
        VenueName("sim"),
        path=folder / "paper.db",
        catalogue=Catalogue(),
        clock=ManualClock(),
        partial_steps=parts,
    )
    await exchange.start()
    yield exchange
    await exchange.close()


@asynccontextmanager
async def simulated_broker(folder: Path, parts: int = 1) -> AsyncIterator[Venue]:
    """The HTTP adapter, connected to the simulator in its own process."""
    simulator = VenueProcess(folder, "--fault", f"partial_fills={parts}")
    venue = http_venue(
        VenueName("broker"),
        url=simulator.url,
        capabilities=Capabilities(dedupe="permanent", lookup="all", kinds=ALL_KINDS),
        clock=SystemClock(),
    )
    try:
        await simulator.start()
        await venue.start()
        yield venue
    finally:
        await venue.close()
        simulator.close()


@pytest.fixture(params=["paper", "http"])
async def in_parts(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Venue]:
    """The venues that can fill an order in parts: here three."""
    async with IN_PARTS[request.param](tmp_path, 3) as venue:
        yield venue


OPENED: dict[str, Callable[[Path], AbstractAsyncContextManager[Venue]]] = {
    "paper": paper_exchange,
    "null": null_venue,
    "http": simulated_broker,
}
IN_PARTS: dict[str, Callable[[Path, int], AbstractAsyncContextManager[Venue]]] = {
    "paper": paper_exchange,
    "http": simulated_broker,
}


def executions(found: VenueOrder) -> list[tuple[str, Decimal, Decimal | None, datetime]]:
    return [(fill.exec_id, fill.qty, fill.price, fill.at) for fill in found.fills]


def executed(report: ExecutionReport) -> tuple[str, Decimal, Decimal | None, datetime]:
    return (report.exec_id, report.last_qty, report.last_price, report.at)


async def test_an_order_is_accepted_and_then_reported_as_filled(venue: Venue) -> None:
    outcome = await venue.submit(an_order("one", qty="1000"))
    assert isinstance(outcome, Accepted)
    [report] = await read_reports(venue, 1)
    assert (report.venue, report.venue_client_order_id, report.venue_order_id) == (
        venue.name,
        "one",
        outcome.venue_order_id,
    )
    assert (report.status, report.last_qty, report.filled_qty_total) == ("FILLED", Decimal(1000), Decimal(1000))
    assert report.last_price is not None and report.last_price > 0
    assert set(outcome.reports) <= {report}  # what comes with the answer is in the stream, too


def statement_of(market: Venue, folder: Path) -> VenueStatement:
    """The venue's statement; the paper exchange's is read from its file, as another process does."""
    if isinstance(market, VenueStatement):
        return market
    return PaperStatement(market.name, folder / "paper.db", market.capabilities)


async def test_the_statement_has_every_fill_once_in_pages_and_nothing_else(market: Venue, tmp_path: Path) -> None:
    statement = statement_of(market, tmp_path).statement
    assert (await statement(None, 10)).fills == []
    for name in ("one", "one", "two"):
        await market.submit(an_order(name, side="SELL" if name == "two" else "BUY"))
    await market.submit(an_order("rests", price=FAR))
    reports = await read_reports(market, 2)
    first = await statement(None, 1)
    rest = await statement(first.cursor, 10)
    fills = [*first.fills, *rest.fills]
    assert [(fill.exec_id, fill.qty, fill.price, fill.at) for fill in fills] == list(map(executed, reports))
    assert [(fill.venue_client_order_id, fill.symbol, fill.side) for fill in fills] == [
        ("one", "USDJPY", "BUY"),
        ("two", "USDJPY", "SELL"),
    ]
    assert (await statement(rest.cursor, 10)).fills == []


async def test_a_repeated_submit_has_the_same_outcome_and_executes_nothing(venue: Venue) -> None:
    first = await venue.submit(an_order("one"))
    again = await venue.submit(an_order("one"))
    await venue.submit(an_order("two"))
    assert bare(again) == bare(first)
    assert [report.venue_client_order_id for report in await read_reports(venue, 2)] == ["one", "two"]


async def test_equal_submits_at_the_same_time_become_one_order(venue: Venue) -> None:
    outcomes = await asyncio.gather(*(venue.submit(an_order("one")) for _ in range(20)))
    await venue.submit(an_order("two"))
    assert isinstance(outcomes[0], Accepted)
    assert list(map(bare, outcomes)) == [bare(outcomes[0])] * 20
    assert [report.venue_client_order_id for report in await read_reports(venue, 2)] == ["one", "two"]


async def test_a_stop_order_that_the_market_has_passed_is_triggered_and_then_filled(market: Venue) -> None:
    passed = an_order("passed", order_type="STOP", time_in_force="GTC", stop="1")
    waiting = an_order("waiting", order_type="STOP_LIMIT", time_in_force="DAY", stop="9000", price="9001")
    held, first, again = [await market.submit(order) for order in (waiting, passed, passed)]
    assert isinstance(held, Accepted) and isinstance(first, Accepted) and isinstance(again, Accepted)
    assert again.venue_order_id == first.venue_order_id
    triggered, fill = await read_reports(market, 2)
    assert (triggered.exec_type, triggered.status, triggered.last_qty) == ("TRIGGERED", "WORKING", ZERO)
    assert (fill.status, fill.last_qty, fill.venue_order_id) == ("FILLED", Decimal(1000), triggered.venue_order_id)
    [still_open] = await open_orders(market)
    assert still_open.venue_order_id == held.venue_order_id
    assert await market.cancel(waiting) == Accepted(held.venue_order_id)
    [_, _, report] = await read_reports(market, 3)
    assert (report.status, report.filled_qty_total) == ("CANCELED", ZERO)


async def test_orders_sent_together_have_their_outcomes_in_the_same_order(venue: Venue) -> None:
    names = [f"order-{n}" for n in range(20)]
    outcomes = await venue.submit_many([an_order(name) for name in names])
    reported = {report.venue_client_order_id: report.venue_order_id for report in await read_reports(venue, 20)}
    assert list(map(bare, outcomes)) == [Accepted(reported[VenueClientOrderId(name)]) for name in names]
    if venue.capabilities.batch_max > 1:  # requests on several connections may overtake each other
        assert list(reported) == names


async def test_orders_sent_together_depart_once(venue: Venue) -> None:
    departures: list[str] = []
    await venue.submit_many([an_order("one"), an_order("two")], lambda: departures.append("departed"))
    await venue.submit_many([an_order("three")], lambda: departures.append("departed"))
    assert departures == ["departed"] * 2


async def test_an_order_twice_in_one_call_is_executed_once(venue: Venue) -> None:
    first, other, again = await venue.submit_many([an_order("one"), an_order("two"), an_order("one")])
    assert isinstance(first, Accepted)
    assert bare(again) == bare(first) != bare(other)
    repeated = await venue.submit_many([an_order("two"), an_order("one")])
    assert list(map(bare, repeated)) == [bare(other), bare(first)]
    await venue.submit(an_order("three"))
    reported = [report.venue_client_order_id for report in await read_reports(venue, 3)]
    assert sorted(reported) == ["one", "three", "two"]


async def test_a_rejected_order_does_not_affect_those_sent_with_it(market: Venue) -> None:
    rejected = an_order("rejected", price="150.0001")
    outcomes = await market.submit_many([an_order("one"), rejected, an_order("two"), rejected])
    assert [type(outcome) for outcome in outcomes] == [Accepted, VenueRejected, Accepted, VenueRejected]
    assert {report.venue_client_order_id for report in await read_reports(market, 2)} == {"one", "two"}


async def test_no_orders_have_no_outcomes(venue: Venue) -> None:
    assert await venue.submit_many([]) == []


async def test_an_order_is_found_by_its_client_id(venue: Venue) -> None:
    outcome = await venue.submit(an_order("one", qty="7000"))
    found = await venue.find(by_id(VenueClientOrderId("one")))
    assert isinstance(outcome, Accepted) and found is not None
    assert (found.venue_client_order_id, found.venue_order_id) == ("one", outcome.venue_order_id)
    assert (found.status, found.filled_qty) == ("FILLED", Decimal(7000))


async def test_an_order_is_found_with_its_fills_under_the_ids_of_their_reports(venue: Venue) -> None:
    await venue.submit(an_order("one", qty="7000"))
    found = await venue.find(by_id(VenueClientOrderId("one")))
    assert found is not None
    assert executions(found) == [executed(report) for report in await read_reports(venue, 1)]


async def test_every_partial_fill_is_shown(in_parts: Venue) -> None:
    await in_parts.submit(an_order("one", qty="7000"))
    found = await in_parts.find(by_id(VenueClientOrderId("one")))
    reports = await read_reports(in_parts, 3)
    assert found is not None
    assert executions(found) == [executed(report) for report in reports]
    assert (sum(fill.qty for fill in found.fills), found.filled_qty) == (7000, Decimal(7000))
    assert [report.filled_qty_total for report in reports][-1] == 7000


async def test_a_cancelled_order_is_found_as_cancelled_and_has_no_fills(market: Venue) -> None:
    resting = an_order("resting", price=FAR)
    await market.submit(resting)
    await market.cancel(resting)
    found = await market.find(by_id(VenueClientOrderId("resting")))
    assert found is not None
    assert (found.status, found.filled_qty, found.fills) == ("CANCELED", ZERO, ())


async def test_an_order_that_was_never_sent_is_not_found(venue: Venue) -> None:
    assert await venue.find(by_id(VenueClientOrderId("unknown"))) is None


async def test_a_cancel_of_an_unknown_order_is_rejected(venue: Venue) -> None:
    assert await venue.cancel(an_order("unknown")) == VenueRejected("UNKNOWN_ORDER")


async def test_a_cancel_of_a_filled_order_is_rejected_and_reports_nothing(venue: Venue) -> None:
    await venue.submit(an_order("one"))
    assert await venue.cancel(an_order("one")) == VenueRejected("ORDER_FINAL")
    await venue.submit(an_order("two"))
    assert [report.status for report in await read_reports(venue, 2)] == ["FILLED", "FILLED"]


async def test_reports_are_numbered_without_gaps_and_can_be_read_again(venue: Venue) -> None:
    await asyncio.gather(*(venue.submit(an_order(f"order-{n}")) for n in range(50)))
    at_once = await read_reports(venue, 50)
    in_pages: list[ExecutionReport] = []
    for after in range(0, 50, 7):
        page = await venue.reports(str(after) if after else None, 7)
        assert page.cursor == str(after + len(page.reports))
        in_pages += page.reports
    assert in_pages == at_once
    assert len({report.exec_id for report in at_once}) == 50


async def test_without_new_reports_the_page_is_empty_and_the_cursor_stays(venue: Venue) -> None:
    await venue.submit(an_order("one"))
    page = await venue.reports("1", 100)
    assert (list(page.reports), page.cursor, page.restarted) == ([], "1", False)


async def test_a_waiting_reader_is_woken_by_the_next_report(venue: Venue) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        reading = asyncio.create_task(read_reports(venue, 1))
        await asyncio.sleep(0)
        await venue.submit(an_order("one"))
        assert [report.venue_client_order_id for report in await reading] == ["one"]


async def test_a_cursor_beyond_the_last_report_restarts_at_the_first(venue: Venue) -> None:
    await venue.submit(an_order("one"))
    page = await venue.reports("5000", 100)
    assert [report.venue_client_order_id for report in page.reports] == ["one"]
    assert (page.cursor, page.restarted) == ("1", True)


async def test_a_resting_order_is_open_until_it_is_cancelled(market: Venue) -> None:
    await market.submit(an_order("filled"))
    resting = an_order("resting", price=FAR)
    outcome = await market.submit(resting)
    assert isinstance(outcome, Accepted)
    [found] = await open_orders(market)
    assert (found.venue_client_order_id, found.venue_order_id, found.status) == (
        "resting",
        outcome.venue_order_id,
        "WORKING",
    )
    assert await market.cancel(resting) == bare(outcome)
    assert await market.cancel(resting) == bare(outcome)
    assert await open_orders(market) == []
    assert [report.status for report in await read_reports(market, 2)] == ["FILLED", "CANCELED"]


async def test_a_rejected_order_is_not_at_the_venue(market: Venue) -> None:
    outcome = await market.submit(an_order("one", price="150.0001"))
    assert isinstance(outcome, VenueRejected)
    assert outcome.detail == "INVALID_PRICE"
    assert await market.find(by_id(VenueClientOrderId("one"))) is None


async def test_class_a_capabilities_are_declared(venue: Venue) -> None:
    assert (venue.capabilities.dedupe, venue.capabilities.lookup) == ("permanent", "all")


async def test_unsupported_capabilities_are_not_declared(venue: Venue) -> None:
    capabilities = venue.capabilities
    assert (capabilities.request_expiry, capabilities.cancel_all) == (False, False)
    assert capabilities.execution_ids == "venue"


async def test_the_null_venue_can_leave_orders_open_until_they_are_cancelled() -> None:
    venue = NullVenue(clock=ManualClock(), fills=False)
    outcome = await venue.submit(an_order("one"))
    await venue.submit(an_order("two"))
    assert isinstance(outcome, Accepted)
    assert [(found.venue_client_order_id, found.status) for found in await open_orders(venue)] == [
        ("one", "WORKING"),
        ("two", "WORKING"),
    ]
    assert await venue.cancel(an_order("one")) == outcome
    assert await venue.cancel(an_order("one")) == outcome
    assert [found.venue_client_order_id for found in await open_orders(venue)] == ["two"]
    [report] = (await venue.reports(None, 100)).reports
    assert (report.venue_client_order_id, report.status, report.filled_qty_total) == ("one", "CANCELED", Decimal(0))


async def test_the_null_venue_keeps_a_bounded_number_of_orders() -> None:
    venue = NullVenue(clock=ManualClock(), kept_max=3)
    for number in range(5):
        await venue.submit(an_order(f"order-{number}"))
    assert await venue.find(by_id(VenueClientOrderId("order-1"))) is None
    page = await venue.reports(None, 100)
    assert [report.venue_client_order_id for report in page.reports] == ["order-2", "order-3", "order-4"]
    assert page.cursor == "5"
