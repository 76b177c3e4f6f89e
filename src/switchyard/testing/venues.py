"""The contract suite of venue adapters: does the adapter, with its venue, keep what its descriptor declares?

    class TestAcorn(VenueSuite):
        kind = KIND

        def world(self, folder: Path) -> World:
            return AcornWorld(folder)

is a class of tests for pytest, one for each case that the declared capabilities call for. A case sends real requests
through the adapter and the core's own judgement (`venue.bridge`) to a `World`: a counterpart of the venue that can lose
and repeat requests, and that keeps its own record of what was executed. That record is the judge. A declaration that
promises more than the world keeps fails; the message names the capability.

The suite starts no database and sends nothing by itself but what a case needs. It needs pytest only to be collected.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Final, Protocol, get_args, runtime_checkable

import msgspec
from msgspec.structs import replace

from switchyard.adapters.system_clock import SystemClock, random_installation
from switchyard.domain.ids import (
    AccountId,
    OrderId,
    VenueClientOrderId,
    VenueName,
    last_generation,
    tag_of,
    to_venue,
    venue_client_order_id,
)
from switchyard.domain.orders.amends import Amend
from switchyard.domain.orders.order import STOPS, Order, OrderType, Side, TimeInForce
from switchyard.domain.orders.reports import ExecutionReport, ReportStatus
from switchyard.domain.values import ZERO
from switchyard.ports.clock import Clock
from switchyard.ports.venue import (
    KEEPS_MARGIN,
    Accepted,
    Ambiguous,
    NeverReceived,
    ReportPage,
    SendOutcome,
    Unsent,
    VenueOrder,
    VenueRejected,
    VenueUnavailable,
    to_find,
)
from switchyard.venue.bridge import Bridge, Way
from switchyard.venue.interface import Descriptor, HasQuotes, HasStatement, Meaning
from switchyard.venue.kinds import Configuration, Kind, adapter_class, check_descriptor, check_parts
from switchyard.venue.quotes import CONNECTIONS, VenueQuotes
from switchyard.venue.transport import Transport

# Far above what any counterpart needs for what was asked: only a defect reaches it.
DEADLINE_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.02
# By so much a request is older than the venue may take it.
LATE: Final = timedelta(seconds=1)
# How long a request is under way while the venue is asked about it: shorter than any window.
DELAY: Final = timedelta(seconds=1)
CLOCK_ERROR: Final = timedelta(hours=1)
REPORTS_MAX: Final = 100
QUOTE_AGE_MAX_SECONDS: Final = 60.0
# A GTD order that is not to end, and one that is; the shortest time that every venue's clock can tell apart.
GTD_LASTS: Final = timedelta(days=1)
GTD_SOON: Final = timedelta(seconds=3)
# The case waits for the first; the other one is renewed long before it is over.
SWITCH_SECONDS: Final = 2
SWITCH_SECONDS_LONG: Final = 60
PAGES_MAX: Final = 1_000
_IS_OPEN: Final = ("WORKING", "PARTIALLY_FILLED")
_UNFILLED: Final[tuple[ReportStatus, ...]] = ("CANCELED", "REJECTED", "EXPIRED")
_VENUE: Final = VenueName("suite")


class Instrument(msgspec.Struct, frozen=True, kw_only=True):
    """What the suite trades, under the venue's names."""

    symbol: str
    qty: Decimal
    """A quantity that the venue takes; twice and three times as much must be possible, too."""
    resting: Decimal
    """The limit price of a buy order that stays open."""
    marketable: Decimal
    """The limit price of a buy order that is filled at once."""


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """What the counterpart got of an order, under its own names."""

    symbol: str
    side: Side
    time_in_force: TimeInForce
    qty: Decimal
    price: Decimal | None = None
    stop_price: Decimal | None = None
    post_only: bool = False
    reduce_only: bool = False
    display_qty: Decimal | None = None
    good_till: datetime | None = None


class World(Protocol):
    """A counterpart of the venue that the suite may break: a fake broker, or the venue's own server behind a proxy.

    Client order ids have the form that the descriptor declares (`id_form`).
    Nothing is started before `start`. A fault concerns the next request to place an order, and that one alone.
    """

    @property
    def url(self) -> str:
        """The counterpart's address."""
        ...

    @property
    def options(self) -> Mapping[str, str]:
        """The adapter's options; those that are left out have their defaults."""
        ...

    @property
    def secrets(self) -> Mapping[str, str]:
        """The adapter's secrets."""
        ...

    @property
    def instruments(self) -> tuple[Instrument, Instrument]:
        """Two symbols to trade."""
        ...

    @property
    def open_page(self) -> int:
        """How many open orders the counterpart lists in one page."""
        ...

    async def start(self) -> None:
        """Start the counterpart, with what it had recorded before; return once it answers."""
        ...

    async def stop(self) -> None:
        """End the counterpart abruptly; connections to it are refused then."""
        ...

    async def executed(self, client_order_id: str) -> Decimal:
        """The quantity that was executed under this id, over all orders with it, by the counterpart's own record."""
        ...

    async def requests(self, client_order_id: str) -> int:
        """How many requests to place an order with this id have reached the counterpart."""
        ...

    async def received(self, client_order_id: str) -> Received:
        """What the newest order with this id asked for, by the counterpart's own record."""
        ...

    async def fill(self, client_order_id: str, qty: Decimal | None = None) -> None:
        """Execute every open order with this id, or this part of it."""
        ...

    async def lose_request(self) -> None:
        """Lose the request: it never arrives, and its connection breaks."""
        ...

    async def lose_answer(self) -> None:
        """Carry the request out, and break its connection in place of an answer."""
        ...

    async def delay(self, by: timedelta) -> None:
        """Hold the request for this long on its way."""
        ...

    async def duplicate(self) -> None:
        """Deliver the request twice, the copy first."""
        ...

    async def deny_first(self) -> None:
        """Carry the request out, and send a denial in front of its answer."""
        ...

    async def second_response(self) -> None:
        """Carry the request out, and send a denial behind its answer."""
        ...

    async def fail(self, is_carried_out: bool) -> None:
        """Answer 503, without or after carrying the request out."""
        ...

    async def throttle(self) -> None:
        """Answer that the rate limit is exceeded."""
        ...

    async def answer(self, code: str) -> None:
        """Answer with this code of the descriptor, and do with the order what the venue does where it says that."""
        ...

    async def answer_question(self, status: int, body: bytes) -> None:
        """Answer the next question (a lookup, a probe, a page) with this in place of the venue's answer."""
        ...

    async def damage_report(self) -> None:
        """Make the report of the next execution unreadable."""
        ...


@runtime_checkable
class Ages(Protocol):
    """A world that can let its orders grow old; without it, `lookup_keeps` is not tried."""

    async def age(self, by: timedelta) -> None:
        """Treat every order from now on as if it had been placed this much earlier."""
        ...


class BrokenPromise(AssertionError):
    """The venue, or its adapter, does not keep what the descriptor declares."""


def expect(is_kept: bool, message: str) -> None:
    """Raise BrokenPromise with the message if it is not."""
    if not is_kept:
        raise BrokenPromise(message)


class Site:
    """A running world, and the adapter in the core's bridge."""

    def __init__(self, world: World, kind: Kind, venue: Bridge, clock: Clock) -> None:
        self.world = world
        self.kind = kind
        self.venue = venue
        self.clock = clock
        self.tag = random_installation().tag
        self._numbers = count(1)

    @property
    def declared(self) -> Descriptor:
        """What the suite checks."""
        return self.kind.descriptor

    def new_id(self) -> VenueClientOrderId:
        """A fresh client order id of the core, which the venue's form can carry."""
        key = f"{self.clock.monotonic()}-{next(self._numbers)}"
        form = self.declared.id_form
        return venue_client_order_id(self.tag, AccountId("suite"), "orders", key, 1, OrderId(f"ord_{key}"), form)

    async def executed(self, client_id: VenueClientOrderId) -> Decimal:
        """The quantity that the world has executed under this id."""
        return await self.world.executed(to_venue(client_id, self.declared.id_form))

    async def requests(self, client_id: VenueClientOrderId) -> int:
        """How many requests to place an order with this id have reached the world."""
        return await self.world.requests(to_venue(client_id, self.declared.id_form))

    async def fill(self, client_id: VenueClientOrderId, qty: Decimal | None = None) -> None:
        """Let the world execute every open order with this id, or this part of it."""
        await self.world.fill(to_venue(client_id, self.declared.id_form), qty)

    def order(
        self,
        *,
        rests: bool = False,
        instrument: Instrument | None = None,
        kind: OrderType = "LIMIT",
        time_in_force: TimeInForce | None = None,
        attempted_at: datetime | None = None,
        lasts: timedelta = GTD_LASTS,
        **wishes: object,
    ) -> Order:
        """A buy order that is filled at once, or rests; `lasts`: of a GTD order; `wishes`: fields of the order."""
        instrument = instrument or self.world.instruments[0]
        price = instrument.resting if rests else instrument.marketable
        times = self.declared.capabilities.kinds.times_in_force
        client_id = self.new_id()
        time_in_force = time_in_force or ("GTC" if "GTC" in times else min(times))
        order = Order(
            order_id=OrderId(f"ord_{client_id}"),
            account_id=AccountId("suite"),
            client_order_id=None,
            venue_client_order_id=client_id,
            symbol=instrument.symbol,
            side=_BUY,
            type=kind,
            time_in_force=time_in_force,
            qty=instrument.qty,
            price=None if kind in ("MARKET", "STOP") else price,
            stop_price=instrument.marketable if kind in STOPS else None,
            status="SENDING",
            filled_qty=ZERO,
            filled_notional=ZERO,
            venue=_VENUE,
            venue_order_id=None,
            reason=None,
            strategy=None,
            tags=(),
            accepted_at=attempted_at or self.clock.now(),
            updated_at=attempted_at or self.clock.now(),
            version=1,
            # Venues have times to the second or the millisecond.
            expires_at=(self.clock.now() + lasts).replace(microsecond=0) if time_in_force == "GTD" else None,
        )
        return replace(order, **wishes)

    async def received(self, order: Order) -> Received:
        """What the world got of an order."""
        return await self.world.received(to_venue(order.venue_client_order_id, self.declared.id_form))

    async def until_ended(self, order: Order, why: str, *statuses: ReportStatus) -> None:
        """Wait until a report shows one of these ends of the order."""

        async def has_ended() -> bool:
            reports = [report for page in await self.pages() for report in page.reports]
            ends = [one.status for one in reports if one.venue_client_order_id == order.venue_client_order_id]
            return bool(ends) and ends[-1] in statuses

        await until(has_ended, f"{why}: no report shows that the order is {' or '.join(statuses)}")

    async def rest(self, instrument: Instrument | None = None) -> Order:
        """Place an order that rests; it must be accepted."""
        order = self.order(rests=True, instrument=instrument)
        return await self.taken(order)

    async def taken(self, order: Order) -> Order:
        """Send an order that must be accepted; returns it with the venue's id."""
        outcome = await self.venue.submit(order)
        expect(isinstance(outcome, Accepted), f"a plain {order.type} {order.time_in_force} order led to {outcome}")
        assert isinstance(outcome, Accepted)
        return replace(order, venue_order_id=outcome.venue_order_id)

    async def until_executed(self, order: Order, qty: Decimal) -> None:
        """Wait until the world has executed this much of an order."""
        client_id = order.venue_client_order_id

        async def is_executed() -> bool:
            return await self.executed(client_id) == qty

        await until(is_executed, f"the world has not executed {qty} of {client_id}")

    async def expect_executed(self, order: Order, qty: Decimal, why: str) -> None:
        """Compare with the world's record."""
        executed = await self.executed(order.venue_client_order_id)
        expect(executed == qty, f"{why}: the world has executed {executed}, not {qty}")

    async def open_ids(self) -> list[str]:
        """The client order ids of all pages of open orders."""
        return [found.venue_client_order_id async for page in self.venue.open_orders() for found in page]

    async def pages(self, limit: int = REPORTS_MAX, after: str | None = None) -> list[ReportPage]:
        """The pages of reports that the venue has now, without the empty one at the end."""
        pages: list[ReportPage] = []
        for _ in range(PAGES_MAX):
            page = await self.venue.reports(after, limit)
            if not page.reports and not page.unreadable:
                return pages
            expect(page.cursor != after, f"reports: a page with reports did not move the cursor {after!r}")
            pages.append(page)
            after = page.cursor
        raise BrokenPromise(f"reports: the pages do not end after {PAGES_MAX}")

    async def reports_of(self, *orders: Order, filled: Sequence[Decimal]) -> list[list[ExecutionReport]]:
        """The reports of each order, once they add up to these quantities."""
        found: list[list[ExecutionReport]] = []

        async def are_complete() -> bool:
            reports = [report for page in await self.pages() for report in page.reports]
            found[:] = [
                [report for report in reports if report.venue_client_order_id == order.venue_client_order_id]
                for order in orders
            ]
            return [sum((one.last_qty for one in each), ZERO) for each in found] == list(filled)

        await until(are_complete, f"the reports do not add up to {[str(qty) for qty in filled]}")
        return found

    async def found(self, order: Order, client_id: VenueClientOrderId | None = None) -> VenueOrder | None:
        """The order in a lookup by its id, or by that of an amend."""
        return await self.venue.find(to_find(order, client_id))

    async def is_proven_unreceived(self, order: Order, attempts: int = 1) -> bool:
        """Whether the venue proves that it never received the order; an error is no proof."""
        try:
            return isinstance(await self.venue.find_or_proof(to_find(order, attempts=attempts)), NeverReceived)
        except VenueUnavailable:
            return False


_BUY: Final[Side] = "BUY"


async def until(condition: Callable[[], Awaitable[bool]], message: str) -> None:
    """Return once the condition is true; raises BrokenPromise at the deadline."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not await condition():
        expect(time.monotonic() < deadline, f"{message} after {DEADLINE_SECONDS:.0f} s")
        await asyncio.sleep(POLL_SECONDS)


# The cases.


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One promise, and how it is tried."""

    name: str
    run: Callable[[Site], Awaitable[None]]
    applies: Callable[[Descriptor], bool]


_CASES: Final[list[Case]] = []
_Run = Callable[[Site], Awaitable[None]]


def _case(applies: Callable[[Descriptor], bool] = lambda _: True) -> Callable[[_Run], _Run]:
    def added(run: _Run) -> _Run:
        _CASES.append(Case(name=getattr(run, "__name__", ""), run=run, applies=applies))
        return run

    return added


def cases_of(descriptor: Descriptor) -> list[Case]:
    """The cases that the declared capabilities call for."""
    return [case for case in _CASES if case.applies(descriptor)]


def _finds(descriptor: Descriptor) -> bool:
    return descriptor.capabilities.lookup != "none"


def _finds_closed(descriptor: Descriptor) -> bool:
    return descriptor.capabilities.lookup == "all"


def _amends(descriptor: Descriptor) -> bool:
    return descriptor.capabilities.amend != "none"


# Sending.


@_case()
async def an_order_is_executed_once_and_reported_with_its_ids(site: Site) -> None:
    """The plain way; and the id comes back in the form in which it was sent."""
    order = await site.taken(site.order())
    [reports] = await site.reports_of(order, filled=[order.qty])
    await site.expect_executed(order, order.qty, "one order")
    last = reports[-1]
    shown = last.venue_client_order_id
    expect(tag_of(shown) == site.tag, f"id_form: the tag is lost in {shown}")
    expect(last.venue_order_id == order.venue_order_id, f"{last.venue_order_id} is not {order.venue_order_id}")
    expect((last.status, last.filled_qty_total) == ("FILLED", order.qty), f"the last report is {last}")
    expect(all(report.last_price for report in reports if report.last_qty), "an execution has no price")


@_case()
async def ids_that_differ_in_their_last_character_are_two_orders(site: Site) -> None:
    """`id_form`: the first and the last generation of a key, which a venue that cuts ids off takes for one order."""
    first = await site.rest()
    last_id = last_generation(first.venue_client_order_id)
    last = await site.taken(replace(site.order(rests=True), venue_client_order_id=last_id))
    ids = [first.venue_client_order_id, last_id]
    for order in (first, last) if _finds(site.declared) else ():
        found, client_id = await site.found(order), order.venue_client_order_id
        shown = None if found is None else (found.venue_client_order_id, found.venue_order_id)
        expect(shown == (client_id, order.venue_order_id), f"id_form: a lookup of {client_id} shows {shown}")
    if _finds(site.declared):
        listed = await site.open_ids()
        expect(sorted(listed) == sorted(ids), f"id_form: of {ids} the open orders list {listed}")
    await site.fill(first.venue_client_order_id)
    await site.expect_executed(first, first.qty, "id_form: the fill of one of two ids")
    await site.expect_executed(last, ZERO, "id_form: the other one")
    await site.reports_of(first, last, filled=[first.qty, ZERO])


@_case()
async def every_declared_type_and_time_in_force_is_taken_as_it_was_ordered(site: Site) -> None:
    """`kinds`; a market order only with a time in force that ends it."""
    kinds = site.declared.capabilities.kinds
    for order_type in sorted(kinds.types):
        ending = kinds.times_in_force & {"IOC", "FOK"} or kinds.times_in_force
        for time_in_force in sorted(ending if order_type == "MARKET" else kinds.times_in_force):
            for side in get_args(Side):
                order = site.order(kind=order_type, time_in_force=time_in_force, side=side)
                await site.taken(order)
                got = await site.received(order)
                ours = order.symbol, order.side, order.time_in_force, order.qty, order.price, order.stop_price
                theirs = got.symbol, got.side, got.time_in_force, got.qty, got.price, got.stop_price
                expect(theirs == ours, f"a {order_type} {time_in_force} order, {ours}, arrived as {theirs}")


@_case(lambda descriptor: descriptor.capabilities.dedupe != "none")
async def a_second_copy_while_the_order_is_open_executes_nothing(site: Site) -> None:
    """`dedupe` while_open, ttl, permanent."""
    order = await site.rest()
    again = await site.venue.submit(order)
    expect(not isinstance(again, Unsent | VenueRejected), f"dedupe: a second copy of an open order led to {again}")
    await site.fill(order.venue_client_order_id)
    await site.expect_executed(order, order.qty, "dedupe: two copies while the order was open")


@_case(lambda descriptor: descriptor.capabilities.dedupe != "none")
async def a_request_that_arrives_twice_executes_once(site: Site) -> None:
    """`dedupe`: a proxy repeats a request by itself, while the order is open."""
    await site.world.duplicate()
    order = site.order(rests=True)
    outcome = await site.venue.submit(order)
    expect(isinstance(outcome, Accepted | Ambiguous), f"dedupe: a doubled request led to {outcome}")
    arrived = await site.requests(order.venue_client_order_id)
    expect(arrived == 2, f"the world did not double the request: {arrived} arrived")
    await site.fill(order.venue_client_order_id)
    await site.expect_executed(order, order.qty, "dedupe: a request that arrived twice")


@_case(lambda descriptor: descriptor.capabilities.dedupe in ("permanent", "ttl"))
async def a_second_copy_after_the_fill_executes_nothing(site: Site) -> None:
    """`dedupe` permanent, and ttl within its time."""
    order = await site.taken(site.order())
    await site.until_executed(order, order.qty)
    await site.venue.submit(order)
    await site.expect_executed(
        order, order.qty, f"dedupe={site.declared.capabilities.dedupe}: a second copy after the fill"
    )


@_case(lambda descriptor: descriptor.capabilities.dedupe in ("while_open", "none"))
async def the_world_executes_a_second_copy_after_the_fill(site: Site) -> None:
    """`dedupe` while_open, none: the world can show a second execution, so the other cases can fail."""
    order = await site.taken(site.order())
    await site.until_executed(order, order.qty)
    await site.venue.submit(order)
    await site.expect_executed(order, 2 * order.qty, "the world must not be kinder than the declaration: a second copy")


@_case(_finds_closed)
async def a_lost_answer_is_settled_by_the_lookup_without_a_second_request(site: Site) -> None:
    """The core sends again only what a lookup proves absent: this one it finds."""
    await site.world.lose_answer()
    order = site.order()
    outcome = await site.venue.submit(order)
    expect(isinstance(outcome, Ambiguous), f"a lost answer led to {outcome}")
    await site.until_executed(order, order.qty)
    found = await site.found(order)
    expect(found is not None, "lookup=all: an order that was filled is not found: the core would send it again")
    requests = await site.requests(order.venue_client_order_id)
    expect(requests == 1, f"one send made {requests} requests")


@_case(lambda descriptor: not descriptor.capabilities.proves_absence)
async def a_lost_answer_is_never_proof_of_absence(site: Site) -> None:
    """Without a full lookup, a window and deduplication, only a report or a person settles the doubt."""
    await site.world.lose_answer()
    order = site.order()
    outcome = await site.venue.submit(order)
    expect(isinstance(outcome, Ambiguous), f"a lost answer led to {outcome}")
    await site.reports_of(order, filled=[order.qty])
    requests = await site.requests(order.venue_client_order_id)
    expect(requests == 1, f"one send made {requests} requests")


@_case()
async def a_lost_request_is_in_doubt_and_executes_nothing(site: Site) -> None:
    """Bytes had left, so nothing is known; the lookup shows that the venue has nothing."""
    await site.world.lose_request()
    order = site.order()
    outcome = await site.venue.submit(order)
    expect(isinstance(outcome, Ambiguous), f"a lost request led to {outcome}")
    await site.expect_executed(order, ZERO, "a lost request")
    if _finds(site.declared):
        expect(await site.found(order) is None, "lookup: an order that never arrived is found")


@_case()
async def a_venue_that_is_down_is_sent_nothing(site: Site) -> None:
    """A refused connection is proof; after a restart the venue still has what it had."""
    resting = await site.rest()
    before = await site.pages()
    await site.world.stop()
    order = site.order()
    outcome = await site.venue.submit(order)
    expect(isinstance(outcome, Unsent) and not outcome.bytes_sent, f"a refused connection led to {outcome}")
    await site.world.start()
    await site.taken(order)
    await site.until_executed(order, order.qty)
    await site.fill(resting.venue_client_order_id)
    after = before[-1].cursor if before else None
    ids = [report.venue_client_order_id for page in await site.pages(after=after) for report in page.reports]
    expect(set(ids) == {order.venue_client_order_id, resting.venue_client_order_id}, f"after a restart: {ids}")


@_case()
async def a_throttled_request_executes_nothing_and_is_sent_later(site: Site) -> None:
    """429 is unsent, never final."""
    await site.world.throttle()
    order = site.order()
    outcome = await site.venue.submit(order)
    expect(isinstance(outcome, Unsent), f"codes: a throttled request led to {outcome}")
    await site.expect_executed(order, ZERO, "a throttled request")
    await site.taken(order)


@_case()
async def a_server_error_is_in_doubt(site: Site) -> None:
    """5xx says nothing about the order, whether it was carried out or not."""
    for is_carried_out in (False, True):
        await site.world.fail(is_carried_out)
        order = site.order()
        outcome = await site.venue.submit(order)
        expect(isinstance(outcome, Ambiguous), f"a server error led to {outcome}")
        if is_carried_out:
            await site.until_executed(order, order.qty)


@_case(lambda descriptor: descriptor.capabilities.dedupe != "permanent")
async def a_denial_that_is_not_the_only_response_ends_nothing(site: Site) -> None:
    """It may be the answer to another request: the order was carried out."""
    await site.world.deny_first()
    order = site.order()
    outcome = await site.venue.submit(order)
    await site.until_executed(order, order.qty)
    expect(isinstance(outcome, Ambiguous), f"a denial with a response behind it led to {outcome}")


@_case()
async def a_second_response_decides_about_no_order(site: Site) -> None:
    """Neither about its own nor about the next one."""
    await site.world.second_response()
    first, following = site.order(), site.order()
    outcomes: list[SendOutcome] = [await site.venue.submit(order) for order in (first, following)]
    for order, outcome in zip((first, following), outcomes, strict=True):
        await site.until_executed(order, order.qty)
        expect(isinstance(outcome, Ambiguous | Accepted), f"beside a second response, an order led to {outcome}")


_NOT_CARRIED_OUT: Final[Mapping[Meaning, type[SendOutcome]]] = {
    "rejected": VenueRejected,
    "unauthorized": VenueRejected,
    "throttled": Unsent,
    "busy": Unsent,
}


@_case()
async def a_code_that_denies_an_order_executes_nothing(site: Site) -> None:
    """`codes`: for every code that the descriptor calls final or unsent."""
    for code, meaning in sorted(site.declared.codes.items()):
        if meaning not in _NOT_CARRIED_OUT:
            continue
        await site.world.answer(code)
        order = site.order()
        outcome = await site.venue.submit(order)
        await site.expect_executed(order, ZERO, f"codes: {code} is declared {meaning!r}")
        expect(isinstance(outcome, _NOT_CARRIED_OUT[meaning]), f"codes: {code}, declared {meaning!r}, led to {outcome}")


# Requests that arrive late.


def _expires(descriptor: Descriptor) -> bool:
    return descriptor.capabilities.request_expiry


@_case(_expires)
async def the_request_of_a_paused_sender_is_rejected(site: Site) -> None:
    """`request_expiry`: the attempt was committed, and its process stood still before it sent."""
    window = site.declared.capabilities.acceptance_window
    assert window is not None, "check_descriptor demands it"
    order = site.order(attempted_at=site.clock.now() - window - LATE)
    outcome = await site.venue.submit(order)
    await site.expect_executed(order, ZERO, f"request_expiry: a request of {window + LATE} ago")
    expect(not isinstance(outcome, Accepted), f"request_expiry: a request that came too late led to {outcome}")


@_case(_expires)
async def a_request_that_is_held_on_its_way_is_rejected(site: Site) -> None:
    """`request_expiry`: the venue judges the time of arrival."""
    window = site.declared.capabilities.acceptance_window
    assert window is not None, "check_descriptor demands it"
    await site.world.delay(window + LATE)
    order = site.order()
    outcome = await site.venue.submit(order)

    async def has_arrived() -> bool:
        return await site.requests(order.venue_client_order_id) == 1

    await until(has_arrived, "the delayed request has not arrived")
    await site.expect_executed(order, ZERO, f"request_expiry: a request that was held for {window + LATE}")
    expect(not isinstance(outcome, Accepted), f"request_expiry: a request that came too late led to {outcome}")


class _WrongClock(SystemClock):
    """A clock that was set wrong."""

    def __init__(self, ahead: timedelta) -> None:
        self._ahead = ahead

    def now(self) -> datetime:
        return super().now() + self._ahead


@_case(_expires)
async def a_wrong_clock_of_ours_changes_nothing(site: Site) -> None:
    """`request_expiry`: requests have the venue's time, which is learnt from its answers."""
    for ahead in (-CLOCK_ERROR, CLOCK_ERROR):
        try:
            async with opened(site.world, site.kind, _WrongClock(ahead)) as wrong:
                order = await wrong.taken(wrong.order())
                await wrong.until_executed(order, order.qty)
        except VenueUnavailable as error:
            raise BrokenPromise(
                f"with a clock that is {ahead} ahead, the venue's time is never learnt: {error}"
            ) from None


# Finding.


@_case(_finds)
async def an_open_order_is_found_with_its_amounts(site: Site) -> None:
    """`lookup` open, all."""
    order = await site.rest()
    found = await site.found(order)
    expect(found is not None, "lookup: an open order is not found")
    assert found is not None
    expect(found.status in _IS_OPEN, f"lookup: an open order is {found.status}")
    shown = found.venue_order_id, found.qty or order.qty, found.price or order.price
    expect(shown == (order.venue_order_id, order.qty, order.price), f"lookup: it shows {shown}")


@_case(_finds_closed)
async def closed_orders_are_found(site: Site) -> None:
    """`lookup` all: filled ones with their executions, and canceled ones."""
    filled, canceled = await site.taken(site.order()), await site.rest()
    await site.until_executed(filled, filled.qty)
    await site.venue.cancel(canceled)
    for order, status, qty in ((filled, "FILLED", filled.qty), (canceled, "CANCELED", ZERO)):
        found = await site.found(order)
        expect(found is not None, f"lookup=all: an order that is {status} is not found")
        assert found is not None
        shown = found.status, found.filled_qty
        expect(shown == (status, qty), f"lookup=all: an order that is {status} shows {shown}")
        if found.fills:
            listed = sum((fill.qty for fill in found.fills), ZERO)
            expect(listed == qty, f"lookup=all: the fills of an order add up to {listed}, not {qty}")


@_case(lambda descriptor: _finds_closed(descriptor) and descriptor.capabilities.lookup_keeps is not None)
async def closed_orders_are_found_for_as_long_as_is_declared(site: Site) -> None:
    """`lookup_keeps`: a lookup that finds nothing counts as absence for nine tenths of it."""
    keeps = site.declared.capabilities.lookup_keeps
    if not isinstance(site.world, Ages) or keeps is None:
        return
    filled, canceled = await site.taken(site.order()), await site.rest()
    await site.until_executed(filled, filled.qty)
    await site.venue.cancel(canceled)
    await site.world.age(keeps * (1 - KEEPS_MARGIN))
    for order, status in ((filled, "FILLED"), (canceled, "CANCELED")):
        found = await site.found(order)
        expect(found is not None, f"lookup_keeps={keeps}: an order that is {status} is not found")


@_case(lambda descriptor: descriptor.capabilities.sequence_proof)
async def a_lost_request_is_proven_never_to_have_arrived(site: Site) -> None:
    """`sequence_proof`: and the same order can be sent again after it."""
    order = site.order()
    await site.world.lose_request()
    outcome = await site.venue.submit(order)
    expect(isinstance(outcome, Ambiguous), f"a lost request led to {outcome}")

    async def is_proven() -> bool:
        return await site.is_proven_unreceived(order)

    await until(is_proven, "sequence_proof: a request that was lost is not proven never to have arrived")
    await site.taken(order)
    await site.until_executed(order, order.qty)


@_case(lambda descriptor: descriptor.capabilities.sequence_proof)
async def a_request_that_arrived_is_never_proven_not_to_have(site: Site) -> None:
    """`sequence_proof`: its answer was lost, or it was rejected."""
    lost = site.order()
    await site.world.lose_answer()
    await site.venue.submit(lost)
    resting = await site.rest()
    for order in (lost, resting):
        is_proven = await site.is_proven_unreceived(order)
        expect(not is_proven, "sequence_proof: an order that the venue has was proven never to have arrived")
    await site.expect_executed(lost, lost.qty, "sequence_proof: an order whose answer was lost")


@_case(lambda descriptor: descriptor.capabilities.sequence_proof)
async def a_proof_covers_every_attempt(site: Site) -> None:
    """`sequence_proof`: an attempt of another process, which this adapter has not seen, may have arrived."""
    order = site.order()
    async with opened(site.world, site.kind) as another:
        await site.world.lose_answer()
        await another.venue.submit(order)
    await site.world.lose_request()
    await site.venue.submit(order)
    is_proven = await site.is_proven_unreceived(order, attempts=2)
    expect(not is_proven, "sequence_proof: an order that the venue has from another process was proven never to arrive")
    await site.expect_executed(order, order.qty, "sequence_proof: an order of another process")


@_case(lambda descriptor: descriptor.capabilities.sequence_proof)
async def what_is_proven_never_to_have_arrived_does_not_arrive_later(site: Site) -> None:
    """`sequence_proof`: the request is on its way while the venue is asked."""
    order = site.order()
    await site.world.delay(DELAY)
    sending = asyncio.create_task(site.venue.submit(order))
    is_proven = False
    while not sending.done() and not is_proven:
        is_proven = await site.is_proven_unreceived(order)
        await asyncio.sleep(POLL_SECONDS)
    await sending

    async def has_arrived() -> bool:
        return await site.requests(order.venue_client_order_id) == 1

    await until(has_arrived, "the delayed request has not arrived")
    if is_proven:
        await site.expect_executed(order, ZERO, "sequence_proof: a request that was proven never to arrive")


@_case(_finds)
async def an_order_that_the_venue_never_had_is_absent(site: Site) -> None:
    """None, not an error; and an error is not None."""
    expect(await site.found(site.order()) is None, "lookup: an order that was never sent is found")
    await site.world.stop()
    try:
        found = await site.found(site.order())
    except VenueUnavailable:
        return
    finally:
        await site.world.start()
    raise BrokenPromise(f"lookup: a venue that is down 'answered' {found}")


@_case(lambda descriptor: not _finds(descriptor))
async def without_a_lookup_nothing_is_absent(site: Site) -> None:
    """`lookup` none."""
    try:
        found = await site.found(site.order())
    except VenueUnavailable:
        return
    raise BrokenPromise(f"lookup=none: a lookup 'answered' {found}")


@_case(_finds)
async def the_open_orders_are_complete(site: Site) -> None:
    """Over all pages; those that have ended are not among them."""
    ended = await site.taken(site.order())
    resting = [await site.rest() for _ in range(2 * site.world.open_page + 1)]
    listed = await site.open_ids()
    expected = {order.venue_client_order_id for order in resting}
    expect(len(listed) == len(set(listed)), "open orders: an order is listed twice")
    missing = expected - set(listed)
    expect(not missing, f"open orders: {len(missing)} of {len(expected)} are missing: the core would end them")
    expect(ended.venue_client_order_id not in listed, "open orders: a filled order is listed")


# Of a proxy, of a server that is starting, of a venue that is down, and of one that has changed its schema.
_NO_ANSWERS: Final = ((404, b"<html>Not Found</html>"), (200, b"<html>Welcome</html>"), (503, b""), (200, b"{}"))


@_case()
async def an_answer_that_is_none_of_the_venue_raises(site: Site) -> None:
    """An error that is read as 'nothing' would be a proof of absence: the core would send or end the order again."""
    order = await site.rest()
    venue, lookups = site.venue, _finds(site.declared)
    questions: dict[str, Callable[[], Awaitable[object]]] = {"reports": lambda: venue.reports(None, REPORTS_MAX)}
    if lookups:
        questions |= {"find": lambda: site.found(order), "open_orders": site.open_ids, "probe": venue.probe}
    if isinstance(venue.adapter, HasStatement):
        questions["statement"] = lambda: venue.statement(None, REPORTS_MAX)
    for name, ask in questions.items():
        for status, body in _NO_ANSWERS:
            await site.world.answer_question(status, body)
            try:
                result = await ask()
            except VenueUnavailable:
                continue
            raise BrokenPromise(f"{name}: HTTP {status} with {body.decode()!r} was taken for {result!r}")


# Cancels and amends.


@_case()
async def a_cancel_ends_an_order_and_its_copy_has_no_effect(site: Site) -> None:
    """The report shows the end; nothing is executed."""
    order = await site.rest()
    outcome = await site.venue.cancel(order)
    expect(isinstance(outcome, Accepted), f"a cancel of an open order led to {outcome}")
    again = await site.venue.cancel(order)
    expect(not isinstance(again, Unsent), f"a second cancel led to {again}")
    await site.until_ended(order, "a cancel", "CANCELED")
    await site.expect_executed(order, ZERO, "a canceled order")


@_case()
async def a_fill_wins_over_a_cancel(site: Site) -> None:
    """The cancel of an order that was filled, or that the venue never had, does not look carried out."""
    order = await site.taken(site.order())
    await site.until_executed(order, order.qty)
    for late in (order, site.order()):
        outcome = await site.venue.cancel(late)
        expect(not isinstance(outcome, Accepted), f"a cancel without an open order led to {outcome}")
    await site.expect_executed(order, order.qty, "a cancel after the fill")


def _amend(site: Site, order: Order, factor: int, orig: VenueClientOrderId | None = None) -> Amend:
    return Amend(
        client_order_id=site.new_id(),
        orig_client_order_id=orig or order.venue_client_order_id,
        qty=factor * order.qty,
        price=order.price,
        replaces=site.declared.capabilities.amend == "cancel_replace",
    )


async def _executed_after_fill(site: Site, order: Order, *amends: Amend) -> Decimal:
    names = [order.venue_client_order_id, *(amend.client_order_id for amend in amends)]
    for name in names:
        await site.fill(name)
    return sum([await site.executed(name) for name in names], ZERO)


@_case(_amends)
async def an_amend_is_carried_out_once(site: Site) -> None:
    """`amend`: a second copy changes nothing, and the id of the amend finds the order."""
    order = await site.rest()
    amend = _amend(site, order, 2)
    outcome = await site.venue.amend(order, amend)
    expect(isinstance(outcome, Accepted), f"amend: it led to {outcome}")
    again = await site.venue.amend(order, amend)
    expect(not isinstance(again, Unsent), f"amend: a second copy led to {again}")
    if _finds(site.declared):
        found = await site.found(order, amend.client_order_id)
        expect(found is not None and found.qty == amend.qty, f"amend: a lookup by its id shows {found}")
    executed = await _executed_after_fill(site, order, amend)
    expect(executed == amend.qty, f"amend: the world has executed {executed}, not {amend.qty}")


@_case(_amends)
async def an_amend_of_an_older_state_changes_nothing(site: Site) -> None:
    """`amend`: one that was overtaken arrives late."""
    order = await site.rest()
    amend, stale = _amend(site, order, 2), _amend(site, order, 3)
    await site.venue.amend(order, amend)
    outcome = await site.venue.amend(order, stale)
    expect(not isinstance(outcome, Accepted | Unsent), f"amend: one that does not name the last id led to {outcome}")
    executed = await _executed_after_fill(site, order, amend, stale)
    expect(executed == amend.qty, f"amend: the world has executed {executed}, not {amend.qty}")


@_case(lambda descriptor: descriptor.capabilities.cancel_all)
async def cancel_all_leaves_no_open_order(site: Site) -> None:
    """`cancel_all`."""
    orders = [await site.rest(instrument) for instrument in site.world.instruments]
    await site.venue.cancel_all()
    for order in orders:
        await site.fill(order.venue_client_order_id)
        await site.expect_executed(order, ZERO, "cancel_all")


@_case(lambda descriptor: descriptor.capabilities.cancel_all_after)
async def a_switch_that_is_not_renewed_cancels_every_open_order(site: Site) -> None:
    """`cancel_all_after`; one that is renewed or switched off in time cancels nothing."""
    switch, orders = site.venue.cancel_all_after, [await site.rest(each) for each in site.world.instruments]
    ends_at = site.clock.monotonic() + 2 * SWITCH_SECONDS

    async def is_over() -> bool:
        return site.clock.monotonic() > ends_at

    for seconds in (SWITCH_SECONDS, SWITCH_SECONDS_LONG, SWITCH_SECONDS, 0):
        await switch(seconds)
    await until(is_over, "its own time")
    for order in orders:
        found = await site.found(order) if _finds(site.declared) else None
        status = "WORKING" if found is None else found.status
        expect(status in _IS_OPEN, f"cancel_all_after: a switch that was switched off left the order {status}")
    await switch(SWITCH_SECONDS)
    for order in orders:
        await site.until_ended(order, "cancel_all_after", "CANCELED")
        await site.expect_executed(order, ZERO, "cancel_all_after")


# Members of an order that only some venues have.


@_case(lambda descriptor: descriptor.capabilities.post_only)
async def a_post_only_order_rests_or_ends_and_never_trades_at_once(site: Site) -> None:
    """`post_only`."""
    plain, resting = await site.rest(), await site.taken(site.order(rests=True, post_only=True))
    shown = (await site.received(plain)).post_only, (await site.received(resting)).post_only
    expect(shown == (False, True), f"post_only: of a plain and a post-only order the world got {shown}")
    crossing = site.order(post_only=True)
    outcome = await site.venue.submit(crossing)
    expect(isinstance(outcome, Accepted | VenueRejected), f"post_only: an order that would trade led to {outcome}")
    if isinstance(outcome, Accepted):
        await site.until_ended(crossing, "post_only: an order that would trade", *_UNFILLED)
    await site.expect_executed(crossing, ZERO, "post_only: an order that would trade")


@_case(lambda descriptor: descriptor.capabilities.reduce_only)
async def a_reduce_only_order_opens_no_position(site: Site) -> None:
    """`reduce_only`; the world has no position yet."""
    order = site.order(venue_reduce_only=True)
    outcome = await site.venue.submit(order)
    expect(isinstance(outcome, Accepted | VenueRejected), f"reduce_only: an order without a position led to {outcome}")
    if isinstance(outcome, Accepted):
        expect((await site.received(order)).reduce_only, "reduce_only: the world got a plain order")
        await site.until_ended(order, "reduce_only: an order without a position", *_UNFILLED)
    await site.expect_executed(order, ZERO, "reduce_only: an order without a position")
    plain = await site.taken(site.order())
    expect(
        not (await site.received(plain)).reduce_only, "reduce_only: of a plain order the world got a reduce-only one"
    )


@_case(lambda descriptor: descriptor.capabilities.display_qty)
async def an_iceberg_order_shows_a_part_of_its_quantity(site: Site) -> None:
    """`display_qty`."""
    qty = site.world.instruments[0].qty
    plain = await site.rest()
    iceberg = await site.taken(site.order(rests=True, qty=2 * qty, display_qty=qty))
    shown = (await site.received(plain)).display_qty, (await site.received(iceberg)).display_qty
    expect(shown == (None, qty), f"display_qty: of a plain and an iceberg order the world got {shown}")
    await site.fill(iceberg.venue_client_order_id)
    await site.expect_executed(iceberg, 2 * qty, "display_qty: an iceberg order")


@_case(lambda descriptor: "GTD" in descriptor.capabilities.kinds.times_in_force)
async def a_gtd_order_ends_at_its_time(site: Site) -> None:
    """`kinds`, GTD; and another one stays open."""
    staying = await site.taken(site.order(rests=True, time_in_force="GTD"))
    ending = await site.taken(site.order(rests=True, time_in_force="GTD", lasts=GTD_SOON))
    for order in (staying, ending):
        good_till = (await site.received(order)).good_till
        expect(good_till == order.expires_at, f"GTD: of {order.expires_at} the world got {good_till}")
    await site.until_ended(ending, "GTD", "EXPIRED")
    await site.fill(ending.venue_client_order_id)
    await site.expect_executed(ending, ZERO, "GTD: an order after its time")
    await site.fill(staying.venue_client_order_id)
    await site.expect_executed(staying, staying.qty, "GTD: an order before its time")


# Reports, statements and quotes.


@_case()
async def an_execution_id_is_unique_in_its_declared_scope(site: Site) -> None:
    """`execution_ids`: with too wide a scope, a fill would be dropped as a repeat of another one."""
    one, other = site.world.instruments
    orders = [await site.rest(instrument) for instrument in (one, one, other)]
    for order in orders:
        await site.fill(order.venue_client_order_id, order.qty / 2)
        await site.fill(order.venue_client_order_id)
    reports = await site.reports_of(*orders, filled=[order.qty for order in orders])
    scope = site.declared.capabilities.execution_ids
    owners = {"venue": [""] * len(orders), "symbol": [order.symbol for order in orders]}
    of_order = [str(order.order_id) for order in orders]
    owned = zip(owners.get(scope, of_order), reports, strict=True)
    ids = [(owner, one.exec_id) for owner, each in owned for one in each if one.last_qty]
    expect(len(ids) >= 2 * len(orders), "two executions of an order have one id, or one report")
    repeated = sorted({one for one in ids if ids.count(one) > 1})
    expect(not repeated, f"execution_ids={scope}: these ids repeat: {repeated}")


@_case()
async def reading_resumes_after_every_page(site: Site) -> None:
    """A process that dies after any page reads on at its cursor, and misses and repeats nothing."""
    orders = [await site.rest(instrument) for instrument in site.world.instruments]
    for order in orders:
        await site.fill(order.venue_client_order_id, order.qty / 2)
        await site.fill(order.venue_client_order_id)
    await site.reports_of(*orders, filled=[order.qty for order in orders])
    pages = await site.pages(limit=1)
    whole = [report for page in pages for report in page.reports]
    large = [report for page in await site.pages() for report in page.reports]
    expect(whole == large, f"reports: in pages of one there are {len(whole)}, in a large page {len(large)}")
    expect(len(whole) >= 4, f"reports: two orders in two parts each made {len(whole)} reports")
    for read in range(1, len(pages) + 1):
        async with opened(site.world, site.kind) as another:
            rest = [report for page in await another.pages(after=pages[read - 1].cursor) for report in page.reports]
        before = [report for page in pages[:read] for report in page.reports]
        expect([*before, *rest] == whole, f"reports: reading on at page {read} of {len(pages)} differs")


@_case()
async def an_unreadable_report_holds_up_no_other(site: Site) -> None:
    """It is set aside with its text, and the cursor moves on."""
    damaged, order = await site.rest(), await site.rest()
    await site.world.damage_report()
    await site.fill(damaged.venue_client_order_id)
    await site.fill(order.venue_client_order_id)
    await site.reports_of(order, filled=[order.qty])
    unreadable = [one for page in await site.pages() for one in page.unreadable]
    expect(len(unreadable) == 1 and bool(unreadable[0].text), f"reports: unreadable are {unreadable}")


@_case()
async def a_statement_has_every_execution_once(site: Site) -> None:
    """If the adapter has one: under the ids of the reports, in pages."""
    if not isinstance(site.venue.adapter, HasStatement):
        return
    orders = [await site.taken(site.order(instrument=instrument)) for instrument in site.world.instruments]
    reports = await site.reports_of(*orders, filled=[order.qty for order in orders])
    listed: list[tuple[str, str, Decimal]] = []
    after: str | None = None
    for _ in range(PAGES_MAX):
        page = await site.venue.statement(after, 1)
        if not page.fills:
            break
        listed += [(fill.venue_client_order_id, fill.exec_id, fill.qty) for fill in page.fills]
        after = page.cursor
    expected = [
        (one.venue_client_order_id, one.exec_id, one.last_qty) for each in reports for one in each if one.last_qty
    ]
    expect(sorted(listed) == sorted(expected), f"statement: it has {listed}, the reports have {expected}")


@_case()
async def quotes_have_an_age(site: Site) -> None:
    """If the adapter has quotes: by the venue's clock, which its answers show."""
    adapter = site.venue.adapter
    if not isinstance(adapter, HasQuotes):
        return
    feed = VenueQuotes(
        _VENUE,
        adapter,
        transport=Transport(site.world.url, CONNECTIONS),
        clock=site.clock,
        time_header=site.declared.time_header,
    )
    await feed.start()
    try:
        page = await feed.read([instrument.symbol for instrument in site.world.instruments])
    finally:
        await feed.close()
    expect(not page.unusable, f"quotes: unusable are {page.unusable}")
    for instrument in site.world.instruments:
        quote = page.quotes.get(instrument.symbol)
        expect(quote is not None, f"quotes: none for {instrument.symbol}")
        assert quote is not None
        age = site.clock.monotonic() - quote.as_of
        expect(0 <= age <= QUOTE_AGE_MAX_SECONDS, f"quotes: {instrument.symbol} is {age:.0f} s old")


@_case()
async def a_probe_is_answered_by_the_venue_itself(site: Site) -> None:
    """And by nothing else: proof of absence counts only while it is answered."""
    expect(await site.venue.probe() == "answered", "the probe of a venue that is up was not answered")
    await site.world.stop()
    try:
        result = await site.venue.probe()
    except VenueUnavailable:
        return
    finally:
        await site.world.start()
    raise BrokenPromise(f"the probe of a venue that is down led to {result!r}")


# How cases are run.


@asynccontextmanager
async def opened(world: World, kind: Kind, clock: Clock | None = None) -> AsyncIterator[Site]:
    """The adapter, opened as a process opens it, with the venue's clock known."""
    clock = clock or SystemClock()
    descriptor = kind.descriptor
    capabilities = descriptor.capabilities
    defaults = {option.name: option.default for option in descriptor.options if not option.is_secret}
    configuration = Configuration(
        venue=_VENUE,
        url=world.url,
        capabilities=capabilities,
        options={**defaults, **world.options},
        secret=world.secrets.__getitem__,
    )
    venue = Bridge(_VENUE, descriptor, kind.build(configuration), clock=clock, way=Way(world.url))
    await venue.start()
    try:
        await venue.probe()
        yield Site(world, kind, venue, clock)
    finally:
        await venue.close()


async def check(case: Case, world: World, kind: Kind) -> None:
    """Run one case in a fresh world; raises BrokenPromise."""
    check_descriptor(kind.descriptor, "the suite")
    adapter = adapter_class(kind)
    if adapter is not None:
        check_parts(kind.descriptor, adapter, "the suite")
    await world.start()
    try:
        async with opened(world, kind) as site:
            await case.run(site)
    finally:
        await world.stop()


class _Metafunc(Protocol):
    """What the suite uses of `pytest.Metafunc`."""

    def parametrize(self, argnames: str, argvalues: Sequence[Case], *, ids: Sequence[str]) -> None: ...


class VenueSuite:
    """The base of a test class; see the module."""

    kind: Kind

    def world(self, folder: Path) -> World:
        """A world that is not started and has no orders; its files go to the folder."""
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc: _Metafunc) -> None:
        """One test for each case that the capabilities call for."""
        cases = cases_of(self.kind.descriptor)
        metafunc.parametrize("case", cases, ids=[case.name for case in cases])

    def test_contract(self, case: Case, tmp_path: Path) -> None:
        """The venue and its adapter keep what the descriptor declares."""
        asyncio.run(check(case, self.world(tmp_path), self.kind))
