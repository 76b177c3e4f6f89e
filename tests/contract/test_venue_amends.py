"""The contract of every venue that amends orders: in place, or by an order that takes the place of the old one."""

from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from switchyard.adapters.memory.clock import ManualClock
from switchyard.adapters.memory.venue import NullVenue
from switchyard.adapters.system_clock import SystemClock
from switchyard.adapters.venues.http.adapter import http_venue
from switchyard.adapters.venues.paper.exchange import PaperExchange
from switchyard.domain.ids import VenueClientOrderId, VenueName
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.orders.amends import Amend, Amounts
from switchyard.domain.orders.keys import AMEND_ORDER
from switchyard.domain.orders.order import ALL_KINDS
from switchyard.ports.venue import Accepted, Ambiguous, AmendMode, Capabilities, Venue, VenueAmend, VenueRejected
from switchyard.venue.bridge import Bridge
from tests.support.venue_orders import an_order, by_id, open_orders, read_reports
from tests.support.venue_process import VenueProcess

FAR = "1"


@pytest.fixture(params=["paper", "null", "in_place", "cancel_replace"])
async def venue(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Venue]:
    """Venues with orders that rest."""
    match request.param:
        case "paper":
            paper = PaperExchange(
                VenueName("sim"), path=tmp_path / "paper.db", catalogue=Catalogue(), clock=ManualClock()
            )
            await paper.start()
            yield paper
            await paper.close()
        case "null":
            yield NullVenue(clock=ManualClock(), fills=False)
        case mode:
            simulator = VenueProcess(tmp_path, "--amend", mode)
            broker = broker_of(simulator, mode)
            try:
                await simulator.start()
                await broker.start()
                yield broker
            finally:
                await broker.close()
                simulator.close()


def broker_of(simulator: VenueProcess, mode: AmendMode) -> Bridge:
    capabilities = Capabilities(dedupe="permanent", lookup="all", amend=mode, kinds=ALL_KINDS)
    return http_venue(VenueName("broker"), url=simulator.url, capabilities=capabilities, clock=SystemClock())


def an_amend(number: int, orig: str, *, qty: int = 2000, price: str = FAR) -> Amend:
    return Amend(
        client_order_id=VenueClientOrderId(f"amend-{number}"),
        orig_client_order_id=VenueClientOrderId(orig),
        qty=Decimal(qty),
        price=Decimal(price),
        operation=AMEND_ORDER,
        key=f"key-{number}",
    )


async def test_an_amend_is_carried_out_once_and_found_by_its_own_id(venue: Venue) -> None:
    order = an_order("one", price=FAR)
    await venue.submit(order)
    assert await venue.find(by_id(VenueClientOrderId("amend-1"))) is None

    first = await venue.amend(order, an_amend(1, "one"))
    again = await venue.amend(order, an_amend(1, "one"))
    second = await venue.amend(order, an_amend(2, "amend-1", qty=3000))
    stale = await venue.amend(order, an_amend(3, "amend-1", qty=4000))

    assert isinstance(first, Accepted) and isinstance(again, Accepted) and isinstance(second, Accepted)
    assert again.venue_order_id == first.venue_order_id
    assert isinstance(stale, VenueRejected), "a copy of an amend that another one has followed must change nothing"
    [shown] = await open_orders(venue)
    for client_id in ("one", "amend-2"):
        found = await venue.find(by_id(VenueClientOrderId(client_id)))
        assert found is not None and replace(found, amends=()) == replace(shown, amends=())
    assert await venue.find(by_id(VenueClientOrderId("amend-3"))) is None
    replaces = venue.capabilities.amend == "cancel_replace"
    assert shown.venue_client_order_id == ("amend-2" if replaces else "one")
    assert shown.venue_order_id == second.venue_order_id


@pytest.mark.parametrize("venue", ["paper", "in_place", "cancel_replace"], indirect=True)
async def test_a_lookup_shows_the_amends_that_made_the_order_what_it_is(venue: Venue) -> None:
    order = an_order("one", price=FAR)
    await venue.submit(order)
    await venue.amend(order, an_amend(1, "one"))
    await venue.amend(order, an_amend(2, "amend-1", qty=3000, price="2"))
    replaces = venue.capabilities.amend == "cancel_replace"
    last = VenueAmend(
        client_order_id=VenueClientOrderId("amend-2"), replaces=replaces, qty=Decimal(3000), price=Decimal(2)
    )
    first = replace(last, client_order_id=VenueClientOrderId("amend-1"), qty=Decimal(2000), price=Decimal(FAR))
    found = await venue.find(by_id(VenueClientOrderId("one")))
    assert found is not None and found.amends == ((first, last) if replaces else (last,))
    await venue.submit(an_order("two", price=FAR))
    plain = await venue.find(by_id(VenueClientOrderId("two")))
    assert plain is not None and plain.amends == ()


@pytest.mark.parametrize("venue", ["paper", "in_place", "cancel_replace"], indirect=True)
@pytest.mark.parametrize("changed", [{"qty": Decimal(1500)}, {"price": Decimal(2)}])
async def test_a_repeated_amend_with_other_amounts_changes_nothing_and_is_not_taken_for_carried_out(
    venue: Venue, changed: dict[str, Any]
) -> None:
    """As after a restore, where a client repeats the key of a lost amend with another body."""
    order = an_order("one", price=FAR)
    await venue.submit(order)
    await venue.amend(order, an_amend(1, "one"))
    assert isinstance(await venue.amend(order, replace(an_amend(1, "one"), **changed)), Ambiguous)
    found = await venue.find(by_id(VenueClientOrderId("amend-1")))
    assert found is not None and found.amounts == Amounts(qty=Decimal(2000), price=Decimal(FAR))


async def test_an_amended_order_is_cancelled_by_the_id_that_it_has_now(venue: Venue) -> None:
    order = an_order("one", price=FAR)
    await venue.submit(order)
    await venue.amend(order, an_amend(1, "one"))
    replaced = venue.capabilities.amend == "cancel_replace"
    # By its first id, as before the outcome of the amend is known here, and then by the one that it has now.
    assert isinstance(await venue.cancel(order), Accepted)
    if replaced:
        order = replace(order, leg_client_order_id=VenueClientOrderId("amend-1"))
    assert isinstance(await venue.cancel(order), Accepted)
    assert await open_orders(venue) == []
    assert isinstance(await venue.amend(order, an_amend(2, "amend-1")), VenueRejected)
    reports = await read_reports(venue, 2 if replaced else 1)
    ended = ["one", "amend-1"] if replaced else ["one"]
    assert [(report.venue_client_order_id, report.status) for report in reports] == [(leg, "CANCELED") for leg in ended]


async def test_an_amend_of_an_unknown_order_is_rejected(venue: Venue) -> None:
    outcome = await venue.amend(an_order("one", price=FAR), an_amend(1, "one"))
    assert outcome == VenueRejected("UNKNOWN_ORDER")


@pytest.mark.parametrize("venue", ["paper", "in_place", "cancel_replace"], indirect=True)
async def test_an_amend_to_the_market_fills_the_new_quantity(venue: Venue) -> None:
    order = an_order("one", price=FAR)
    await venue.submit(order)
    await venue.amend(order, an_amend(1, "one", qty=1700, price="1000"))
    replaced = venue.capabilities.amend == "cancel_replace"
    report = (await read_reports(venue, 2 if replaced else 1))[-1]
    assert (report.status, report.filled_qty_total) == ("FILLED", Decimal(1700))
    assert report.venue_client_order_id == ("amend-1" if replaced else "one")


@pytest.mark.parametrize("venue", ["paper", "in_place", "cancel_replace"], indirect=True)
async def test_the_stop_price_of_a_waiting_order_is_amended_and_no_limit_price_is_added(venue: Venue) -> None:
    stop = replace(an_order("one", order_type="STOP", time_in_force="GTC"), stop_price=Decimal(1000))
    assert isinstance(await venue.submit(stop), Accepted)
    moved = replace(an_amend(1, "one"), price=None, stop_price=Decimal(1001))
    assert isinstance(await venue.amend(stop, moved), Accepted)
    limited = replace(an_amend(2, "amend-1"), stop_price=Decimal(1000))
    assert isinstance(await venue.amend(stop, limited), VenueRejected)
    assert await venue.find(by_id(VenueClientOrderId("amend-1"))) is not None


async def test_an_amend_survives_a_restart_of_the_paper_exchange(tmp_path: Path) -> None:
    def exchange() -> PaperExchange:
        return PaperExchange(VenueName("sim"), path=tmp_path / "paper.db", catalogue=Catalogue(), clock=ManualClock())

    first, order = exchange(), an_order("one", price=FAR)
    await first.start()
    await first.submit(order)
    await first.amend(order, an_amend(1, "one"))
    await first.close()
    second = exchange()
    await second.start()
    assert await second.find(by_id(VenueClientOrderId("amend-1"))) is not None
    assert isinstance(await second.amend(order, an_amend(1, "one")), Accepted)
    assert isinstance(await second.amend(order, an_amend(2, "amend-1")), Accepted)
    await second.close()


async def test_a_simulator_that_restarts_keeps_the_order_that_replaced_another(tmp_path: Path) -> None:
    simulator = VenueProcess(tmp_path, "--amend", "cancel_replace")
    broker, order = broker_of(simulator, "cancel_replace"), an_order("one", price=FAR)
    try:
        await simulator.start()
        await broker.start()
        await broker.submit(order)
        await broker.amend(order, an_amend(1, "one"))
        before = await open_orders(broker)
        simulator.kill()
        await simulator.start()
        assert await open_orders(broker) == before
        assert isinstance(await broker.amend(order, an_amend(2, "amend-1")), Accepted)
        assert len(await open_orders(broker)) == 1
    finally:
        await broker.close()
        simulator.close()
