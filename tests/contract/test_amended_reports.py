"""Reports and sweeps of amended orders over real databases: each execution counts once, whatever id it comes under."""

from collections.abc import AsyncIterator
from decimal import Decimal

import pytest
from msgspec.structs import replace

from switchyard.domain import decisions
from switchyard.domain.ids import VenueClientOrderId
from switchyard.domain.orders.amends import Amend, last_id
from switchyard.domain.orders.keys import AMEND_ORDER
from switchyard.domain.orders.order import Order
from switchyard.ports.venue import VenueOrder
from tests.support.build import VENUE, WORKER, an_entry
from tests.support.databases import Database
from tests.support.memory.clock import START
from tests.support.sweeping import Sweeping, report

LEG = VenueClientOrderId("the-amend")


@pytest.fixture
async def sweeping(database: Database) -> AsyncIterator[Sweeping]:
    yield Sweeping(database)


async def amended(sweeping: Sweeping, *, in_doubt: bool = False) -> Order:
    """An order of 100 that an amend to 150 has replaced at the venue."""
    order = await sweeping.working()
    state = await sweeping.state(order)
    amend = Amend(
        client_order_id=LEG,
        orig_client_order_id=last_id(state),
        qty=Decimal(150),
        price=order.price,
        reserve_price=order.price,
        replaces=True,
        is_provable=True,
        operation=AMEND_ORDER,
        key="key",
    )
    key = replace(an_entry("key", order.order_id), operation=AMEND_ORDER)
    await sweeping.commit(decisions.request_amend(state, amend, key, START, reducing=True))
    state = await sweeping.state(order)
    await sweeping.commit(decisions.begin_attempt(state, state.row("amend", 1), WORKER, START))
    state = await sweeping.state(order)
    if in_doubt:
        await sweeping.commit(decisions.record_doubt(state, state.row("amend", 1), "NETWORK_TIMEOUT", None, START))
    else:
        await sweeping.commit(decisions.record_amended(state, state.row("amend", 1), "venue-2", START))
    return (await sweeping.state(order)).order


def show_leg(sweeping: Sweeping, order: Order, status: str, *fills: str, qty: int = 150) -> VenueOrder:
    """Have the order in its place at the venue, and find it by both ids."""
    sweeping.venue.show(order, status, *fills)  # type: ignore[arg-type]
    shown = sweeping.venue.shown.pop(order.venue_client_order_id)
    leg = replace(shown, venue_client_order_id=LEG, venue_order_id="venue-2", qty=Decimal(qty))
    sweeping.venue.shown[LEG] = leg
    return leg


async def test_a_fill_counts_once_under_the_ids_of_the_order_and_of_its_amend(sweeping: Sweeping) -> None:
    order = await amended(sweeping)
    state = await sweeping.state(order)
    old, new = report(state, "a", "10", "10"), report(state, "b", "20", "30")
    new = replace(new, venue_client_order_id=LEG, venue_order_id="venue-2")
    ended = replace(report(state, "x", "0", "10", "CANCELED"), last_price=None)
    await sweeping.receive(old, ended, new, old, new)

    order = (await sweeping.state(order)).order
    assert (order.status, int(order.qty), int(order.filled_qty)) == ("PARTIALLY_FILLED", 150, 30)
    assert (order.venue_order_id, int(await sweeping.held())) == ("venue-2", 30)

    show_leg(sweeping, order, "PARTIALLY_FILLED", "a:10", "b:20", "c:40")
    assert await sweeping.swept() == 1  # c alone is missing
    await sweeping.receive(replace(report(state, "c", "40", "70"), venue_client_order_id=LEG))
    assert await sweeping.held() == (await sweeping.state(order)).order.filled_qty == 70
    assert (await sweeping.queries.executions(VENUE, ["a", "b", "c", "x"])).keys() == {"a", "b", "c", "x"}
    assert sweeping.counted("venue_quantity_gaps_total") == 0


async def test_a_sweep_that_finds_the_order_in_the_place_of_another_settles_its_amend_and_its_end(
    sweeping: Sweeping,
) -> None:
    order = await amended(sweeping, in_doubt=True)
    leg = show_leg(sweeping, order, "CANCELED", "a:10")
    sweeping.venue.shown[order.venue_client_order_id] = leg  # the venue leads from the old order to the new one

    await sweeping.swept()

    state = await sweeping.state(order)
    assert (state.order.status, int(state.order.qty), int(state.order.filled_qty)) == ("CANCELED", 150, 10)
    assert (state.row("amend", 1).status, state.order.amend_qty) == ("sent", None)


async def test_another_quantity_at_the_venue_raises_an_alarm_at_the_second_sweep(sweeping: Sweeping) -> None:
    order = await amended(sweeping)
    show_leg(sweeping, order, "WORKING", qty=170)
    for sweeps, alarms in ((1, 0), (2, 1), (3, 1)):
        await sweeping.swept()
        assert sweeping.counted("venue_quantity_gaps_total") == alarms, f"after {sweeps} sweeps"
    assert (await sweeping.state(order)).order == order
