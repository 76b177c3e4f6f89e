"""Orders that the lost history sent to another venue, or under a later id of their key, over every database."""

from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from switchyard.domain import decisions
from switchyard.domain.ids import KillId, VenueClientOrderId, VenueName
from switchyard.domain.journal.changes import Change, Committed
from switchyard.domain.journal.lines import AuditLine
from switchyard.domain.journal.replay import Replay
from switchyard.domain.orders.amends import current_id
from switchyard.domain.orders.keys import DO_ORDER
from switchyard.domain.orders.order import Order, Side
from switchyard.domain.orders.outbox import OrderState, OutboxRow
from switchyard.domain.orders.reports import ExecutionReport, ReportStatus
from switchyard.domain.risk.claims import Terms
from switchyard.domain.risk.kills import Kill
from switchyard.flow.executions.sync import StrayRecall
from switchyard.flow.lost_history import LostHistory
from switchyard.flow.sending.lost_keys import LostKeys
from switchyard.flow.sending.resolve import Resolver, VenueWatch
from tests.support.build import VENUE, an_accept, state_after
from tests.support.databases import Database
from tests.support.memory.clock import START
from tests.support.sweeping import Sweeping, report

OTHER = VenueName("other")
ROUTE = (VENUE, OTHER)


def always(_order: Order, _row: OutboxRow) -> bool:
    return True


class Restored:
    """A restored database with two venues in the route of every symbol."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.sites = {name: Sweeping(database, restored_seq=1, name=name, route=ROUTE) for name in ROUTE}
        self.here, self.there = self.sites.values()
        self.unread: set[VenueName] = set()

    async def repeated(self, operation: str | None = None, **changes: Any) -> OrderState:
        """An order of 100 at the first venue, whose key a client has repeated."""
        accepted = an_accept(qty=Decimal(100), key="k", **changes)
        if operation is not None:
            accepted = replace(accepted, orders=(replace(accepted.orders[0], operation=operation),))
        await self.commit(accepted)
        return state_after(accepted)

    async def closing(self) -> OrderState:
        """An order that closes a position, whose key a client has repeated."""
        terms = Terms(price=Decimal("150.125"), reducing=True, reduce_only=True)
        accepted = an_accept(qty=Decimal(100), key="k", side="SELL", terms=terms)
        await self.commit(accepted)
        return state_after(accepted)

    async def commit(self, change: Change | None) -> None:
        assert change is not None
        assert isinstance(await self.here.commit(change), Committed)

    async def cancelled(self, state: OrderState) -> None:
        await self.commit(decisions.request_cancel(state, START, always))

    async def resolved(self, site: Sweeping) -> None:
        """Ask about the rows in doubt at a venue, and again when 'absent' proves absence."""
        watch = VenueWatch(site.venue, clock=site.clock, metrics=site.metrics)
        venues = {name: one.venue for name, one in self.sites.items()}
        capabilities = {name: venue.capabilities for name, venue in venues.items()}
        history = LostHistory(START, timedelta(days=1), capabilities, site.clock)
        resolver = Resolver(
            watch,
            journal=self.database.journal,
            queries=self.database.queries,
            liveness=self.database.liveness,
            commit=site.commit,
            clock=site.clock,
            metrics=site.metrics,
            amends=site.amends,
            lost_keys=LostKeys(history, venues, lambda _symbol: ROUTE, lambda venue: venue not in self.unread),
        )
        await watch.probe_once()
        await resolver.run_once()
        for _ in range(30):
            site.clock.advance(timedelta(seconds=1))
            await watch.probe_once()
        await resolver.run_once()

    async def recalled(self, site: Sweeping) -> int:
        return await StrayRecall(site.venue, site.recorder, queries=self.database.queries).run_once()

    async def state(self, before: OrderState) -> OrderState:
        return await self.here.state(before.order)

    async def check_replay(self, before: OrderState) -> None:
        """The journal's lines make the same order and rows again."""
        replay, state = Replay(), await self.state(before)
        for event in await self.database.journal.read(0, 0, 1_000):
            replay.apply(msgspec.json.decode(event.line, type=AuditLine))
        assert replay.orders[before.order.order_id] == state.order
        assert [replay.outbox[row.key] for row in state.outbox] == list(state.outbox)


@pytest.fixture
async def restored(database: Database) -> AsyncIterator[Restored]:
    yield Restored(database)


def generation(order: Order, number: int) -> VenueClientOrderId:
    return VenueClientOrderId(f"{order.venue_client_order_id[:27]}{number:05x}")


def at(
    venue: VenueName,
    state: OrderState,
    exec_id: str,
    qty: str,
    total: str,
    status: ReportStatus = "PARTIALLY_FILLED",
    number: int = 0,
) -> ExecutionReport:
    """A report of the venue on the order, under the id of a generation of its key."""
    made = report(state, exec_id, qty, total, status)
    return replace(made, venue=venue, venue_client_order_id=generation(state.order, number))


def with_id(order: Order, number: int) -> Order:
    return replace(order, venue_client_order_id=generation(order, number))


def show_close(restored: Restored, state: OrderState, qty: int, side: Side = "SELL") -> None:
    """Have the lost close at its venue, filled."""
    shown = restored.here.venue.shown
    restored.here.venue.show(state.order, "FILLED", f"a:{qty}")
    client_id = state.order.venue_client_order_id
    shown[client_id] = replace(shown[client_id], qty=Decimal(qty), side=side)


@pytest.mark.parametrize("is_cancelled", [False, True])
@pytest.mark.parametrize("reported", ["before", "after"])
async def test_an_order_that_another_venue_of_its_route_reports_goes_on_there(
    restored: Restored, is_cancelled: bool, reported: str
) -> None:
    lost = state_after(an_accept(qty=Decimal(100), key="k"))
    if reported == "before":
        await restored.there.receive(at(OTHER, lost, "a", "30", "30"))
    state = await restored.repeated()
    if is_cancelled:
        await restored.cancelled(state)
    if reported == "before":
        assert await restored.recalled(restored.there) == 1
    else:
        restored.unread.add(OTHER)
        await restored.resolved(restored.here)
        assert (await restored.state(state)).order.status == ("UNKNOWN" if is_cancelled else "ACCEPTED")
        await restored.there.receive(at(OTHER, lost, "a", "30", "30"))

    after = await restored.state(state)
    assert (after.order.venue, int(after.order.filled_qty)) == (OTHER, 30)
    assert after.order.status == ("CANCEL_REQUESTED" if is_cancelled else "PARTIALLY_FILLED")
    assert {(row.kind, row.status, row.venue) for row in after.outbox} == (
        {("new", "sent", OTHER), ("cancel", "queued", OTHER)} if is_cancelled else {("new", "sent", OTHER)}
    )
    await restored.there.receive(at(OTHER, lost, "b", "70", "100", "FILLED"))
    assert ((await restored.state(state)).order.status, int(await restored.there.held())) == ("FILLED", 100)
    await restored.check_replay(state)


async def test_an_order_in_doubt_is_absent_only_if_every_venue_of_its_route_was_asked(restored: Restored) -> None:
    state = await restored.repeated()
    await restored.cancelled(state)
    restored.unread.add(OTHER)
    await restored.resolved(restored.here)
    restored.unread.clear()
    restored.there.venue.can_be_asked = False
    await restored.resolved(restored.here)
    assert (await restored.state(state)).order.status == "UNKNOWN"
    restored.there.venue.can_be_asked = True
    await restored.resolved(restored.here)
    after = await restored.state(state)
    assert (after.order.status, after.row("new", 1).last_error) == ("CANCELED", "ABSENT_AT_VENUE")


async def test_an_order_that_only_a_lookup_of_another_venue_shows_goes_on_there(restored: Restored) -> None:
    state = await restored.repeated()
    await restored.cancelled(state)
    restored.there.venue.show(state.order, "FILLED", "a:100")
    await restored.resolved(restored.here)
    assert (await restored.state(state)).order.venue == OTHER
    assert await restored.there.swept() == 1
    after = await restored.state(state)
    assert (after.order.status, int(await restored.there.held())) == ("FILLED", 100)
    await restored.check_replay(state)


@pytest.mark.parametrize("venue", ROUTE)
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_an_order_that_a_venue_reports_under_a_later_id_of_its_key_goes_on_under_that(
    restored: Restored, venue: VenueName, is_cancelled: bool
) -> None:
    site = restored.sites[venue]
    lost = state_after(an_accept(qty=Decimal(100), key="k"))
    await site.receive(at(venue, lost, "a", "30", "30", number=2))
    state = await restored.repeated()
    if is_cancelled:
        await restored.cancelled(state)
    assert await restored.recalled(site) == 1
    after = await restored.state(state)
    assert (after.order.venue, int(after.order.filled_qty)) == (venue, 30)
    assert current_id(after.order) == generation(state.order, 2)
    assert after.order.status == ("CANCEL_REQUESTED" if is_cancelled else "PARTIALLY_FILLED")
    await site.receive(at(venue, lost, "b", "70", "100", "FILLED", number=2))
    assert ((await restored.state(state)).order.status, int(await site.held())) == ("FILLED", 100)
    assert await restored.recalled(site) == 0
    await restored.check_replay(state)


@pytest.mark.parametrize("venue", ROUTE)
async def test_an_order_that_only_a_lookup_shows_under_a_later_id_goes_on_under_that(
    restored: Restored, venue: VenueName
) -> None:
    state, site = await restored.repeated(DO_ORDER), restored.sites[venue]
    await restored.cancelled(state)
    site.venue.show(with_id(state.order, 1), "FILLED", "a:100")
    await restored.resolved(restored.here)
    after = await restored.state(state)
    assert (after.order.venue, current_id(after.order)) == (venue, generation(state.order, 1))
    assert await site.swept() == 1
    assert ((await restored.state(state)).order.status, int(await site.held())) == ("FILLED", 100)


async def test_an_order_that_was_sent_from_here_since_stays_at_its_venue(restored: Restored) -> None:
    state = await restored.repeated()
    await restored.commit(decisions.begin_attempt(state, state.row("new", 1), VENUE, START))  # type: ignore[arg-type]
    await restored.there.receive(at(OTHER, state, "a", "30", "30"))
    assert (await restored.state(state)).order.venue == VENUE
    assert await restored.there.held() == 0
    [aside] = [event for event in await restored.database.journal.read(0, 0, 100) if event.type == "ReportSetAside"]
    assert state.order.order_id in aside.text


async def test_a_kill_does_not_hold_up_what_a_venue_shows(restored: Restored) -> None:
    state = await restored.repeated()
    kill = Kill(kill_id=KillId("kill_1"), set_by="ann", set_reason="drill", set_at=START, version=1)
    await restored.commit(decisions.set_kill(kill))
    await restored.there.receive(at(OTHER, state, "a", "30", "30"))
    assert ((await restored.state(state)).order.venue, int(await restored.there.held())) == (OTHER, 30)
    await restored.check_replay(state)


@pytest.mark.parametrize("first", ["report", "lookup"])
@pytest.mark.parametrize("qty", [40, 150])
async def test_a_repeated_close_has_the_quantity_of_the_lost_one(restored: Restored, first: str, qty: int) -> None:
    state = await restored.closing()
    show_close(restored, state, qty)
    if first == "report":
        await restored.here.receive(at(VENUE, state, "a", str(qty), str(qty), "FILLED"))
    else:
        await restored.commit(decisions.record_doubt(state, state.row("new", 1), "EXECUTED_BEFORE", None, START))
        await restored.resolved(restored.here)
        assert await restored.here.swept() == 1
    after = (await restored.state(state)).order
    assert (after.status, int(after.qty), int(after.filled_qty)) == ("FILLED", qty, qty)
    assert restored.here.counted("order_overfills_total") == 0
    await restored.check_replay(state)


async def test_fills_of_a_lost_close_to_the_other_side_wait_for_a_person(restored: Restored) -> None:
    state = await restored.closing()
    show_close(restored, state, 40, side="BUY")
    await restored.here.receive(at(VENUE, state, "a", "40", "40", "FILLED"))
    assert (await restored.state(state)).order.filled_qty == await restored.here.held() == 0
    assert restored.here.recorder.gate._waiting is not None
