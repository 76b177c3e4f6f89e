"""Several orders in one call at a venue whose requests carry one order each."""

import asyncio
from collections.abc import Sequence

from switchyard.adapters.venues.one_by_one import OneByOne
from switchyard.domain.orders.order import Order
from switchyard.ports.venue import Accepted, Ambiguous, OnDeparture, SendOutcome, ignore_departure
from tests.support.venue_orders import an_order

ORDERS = [an_order(name) for name in ("one", "two", "three")]


class SlowVenue(OneByOne):
    """Answers when the test says so; `log` has the starts, the departures and the answers."""

    def __init__(self, *, reports_departures: bool, defects: Sequence[str] = ()) -> None:
        self.log: list[str] = []
        self.answers = asyncio.Event()
        self._reports_departures = reports_departures
        self._defects = defects

    async def submit(self, order: Order, on_departure: OnDeparture = ignore_departure) -> SendOutcome:
        name = order.venue_client_order_id
        self.log.append(f"{name} starts")
        await asyncio.sleep(0)
        if name in self._defects:
            raise RuntimeError("a defect")
        if self._reports_departures:
            self.log.append(f"{name} departs")
            on_departure()
            await self.answers.wait()
        self.log.append(f"{name} answered")
        return Accepted(name)


async def test_an_order_leaves_when_the_one_before_has_departed() -> None:
    venue = SlowVenue(reports_departures=True)
    departed = asyncio.Event()
    call = asyncio.create_task(venue.submit_many(ORDERS, departed.set))
    await departed.wait()
    assert venue.log == [f"{name} {step}" for name in ("one", "two", "three") for step in ("starts", "departs")]
    venue.answers.set()
    assert await call == [Accepted("one"), Accepted("two"), Accepted("three")]


async def test_an_order_waits_for_the_outcome_where_departures_are_not_detected() -> None:
    venue = SlowVenue(reports_departures=False)
    assert await venue.submit_many(ORDERS) == [Accepted("one"), Accepted("two"), Accepted("three")]
    assert venue.log == [f"{name} {step}" for name in ("one", "two", "three") for step in ("starts", "answered")]


async def test_a_defect_leaves_one_order_in_doubt_and_the_others_keep_their_outcomes() -> None:
    venue = SlowVenue(reports_departures=True, defects=("two",))
    venue.answers.set()
    outcomes = await venue.submit_many(ORDERS)
    in_doubt = Ambiguous("ADAPTER_FAILED", "RuntimeError('a defect')")
    assert outcomes == [Accepted("one"), in_doubt, Accepted("three")]
    assert await venue.submit_many([an_order("two")]) == [in_doubt]
