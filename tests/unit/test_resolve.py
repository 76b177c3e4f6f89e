"""Doubt ends by evidence: what the venue has is adopted, and only what it certainly has not is sent again."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from switchyard.adapters.memory.clock import ManualClock, SeededRandomness
from switchyard.adapters.memory.journal import MemoryJournal
from switchyard.adapters.sqlite.lanes import SqliteLanes
from switchyard.domain import decisions
from switchyard.domain.changes import Change, Outcome
from switchyard.domain.events import Quote
from switchyard.domain.ids import VenueClientOrderId, VenueName, WorkerId
from switchyard.domain.money import ZERO
from switchyard.domain.orders import Order
from switchyard.domain.outbox import OrderState, OutboxRow
from switchyard.flow.sending.dispatch import Dispatcher
from switchyard.flow.sending.lanes import HeldLanes
from switchyard.flow.sending.resolve import Resolver
from switchyard.ports.queries import Due
from switchyard.ports.venue import (
    Accepted,
    Ambiguous,
    Capabilities,
    Dedupe,
    Lookup,
    OnDeparture,
    ReportPage,
    SendOutcome,
    Unsent,
    VenueOrder,
    VenueRejected,
    VenueUnavailable,
    ignore_departure,
)
from switchyard.telemetry.metrics import Metrics
from tests.support.build import VENUE, an_accept

SECOND = timedelta(seconds=1)
WINDOW = timedelta(seconds=10)


class ScriptedVenue:
    """A venue that answers as the test says, and counts what reached it."""

    def __init__(self, dedupe: Dedupe) -> None:
        self.name: VenueName = VENUE
        lookup: Lookup = "none" if dedupe == "none" else "all"
        self.capabilities = Capabilities(dedupe=dedupe, lookup=lookup, acceptance_window=WINDOW)
        self.answer: SendOutcome = Accepted("venue-1")
        self.orders: dict[VenueClientOrderId, int] = {}
        self.takes_orders = True
        self.can_be_asked = True
        self.while_asked: Callable[[], None] | None = None

    async def submit(self, order: Order, on_departure: OnDeparture = ignore_departure) -> SendOutcome:
        if self.takes_orders:
            self.orders[order.venue_client_order_id] = self.orders.get(order.venue_client_order_id, 0) + 1
        return self.answer

    async def cancel(self, order: Order) -> SendOutcome:
        return self.answer

    async def find_by_client_order_id(self, client_id: VenueClientOrderId) -> VenueOrder | None:
        if not self.can_be_asked:
            raise VenueUnavailable("no answer")
        found = client_id in self.orders
        if self.while_asked is not None:
            self.while_asked()
        if not found:
            return None
        return VenueOrder(venue_client_order_id=client_id, venue_order_id="venue-1", status="WORKING", filled_qty=ZERO)

    async def open_orders(self) -> list[VenueOrder]:
        return []

    async def reports(self, after: int, limit: int) -> ReportPage:
        return ReportPage([], after)

    def quote(self, symbol: str) -> Quote | None:
        return None


class MemoryQueries:
    """Outbox lookups over the in-memory journal."""

    def __init__(self, journal: MemoryJournal, clock: ManualClock) -> None:
        self._journal = journal
        self._clock = clock

    async def due(
        self, now: object, limit: int, venues: Sequence[VenueName] | None = None, lanes: Sequence[int] | None = None
    ) -> list[Due]:
        rows = [row for row in self._journal.outbox.values() if row.status in ("queued", "failed")]
        return [await self._with_state(row) for row in rows if row.next_attempt_at <= self._clock.now()]

    async def unsettled(self, status: str, limit: int) -> list[Due]:
        return [await self._with_state(row) for row in list(self._journal.outbox.values()) if row.status == status]

    async def _with_state(self, row: OutboxRow) -> Due:
        return Due(row, (await self._journal.load([row.order_id]))[row.order_id])


class Everyone:
    """Liveness by a set of names."""

    def __init__(self) -> None:
        self.living: set[WorkerId] = set()
        self.send_lingers = timedelta()

    async def hold(self, worker: WorkerId) -> None:
        self.living.add(worker)

    async def dead(self, workers: Sequence[WorkerId]) -> frozenset[WorkerId]:
        return frozenset(workers) - self.living


class House:
    """One worker with its resolver over one order."""

    def __init__(self, dedupe: Dedupe, worker: str = "one") -> None:
        self.clock = ManualClock()
        self.journal = MemoryJournal()
        self.venue = ScriptedVenue(dedupe)
        self.liveness = Everyone()
        self.metrics = Metrics()
        queries = MemoryQueries(self.journal, self.clock)
        common = {
            "journal": self.journal,
            "queries": queries,
            "liveness": self.liveness,
            "commit": self.commit,
            "venues": {VENUE: self.venue},
            "clock": self.clock,
            "metrics": self.metrics,
        }
        self.resolver = Resolver(**common)  # type: ignore[arg-type]
        self.lanes = HeldLanes(SqliteLanes(), WorkerId(worker), self.clock)
        self.dispatcher = Dispatcher(
            worker=WorkerId(worker),
            lanes=self.lanes,
            randomness=SeededRandomness(),
            batch_size=8,
            parallelism=1,
            retry_max=8,
            idle_seconds=0.01,
            stuck_after=timedelta(minutes=10),
            **common,  # type: ignore[arg-type]
        )
        self.dispatcher.open_venue(VENUE)
        self._groups = 0

    async def commit(self, change: Change) -> Outcome:
        self._groups += 1
        return (await self.journal.append(0, str(self._groups), [change], self.clock.now()))[0]

    async def accept(self, time_in_force: str = "GTC") -> OrderState:
        change = an_accept(time_in_force=time_in_force, now=self.clock.now())
        await self.commit(change)
        self._order_id = change.orders[0].order_id
        return await self.state()

    async def hanging(self, attempt: int = 1) -> OutboxRow:
        """An attempt of this worker's own that somebody took to hang."""
        accepted = await self.accept()
        row = msgspec.structs.replace(accepted.row("new", 1), attempt=attempt - 1)
        begun = decisions.begin_attempt(accepted, row, WorkerId("one"), self.clock.now())
        await self.commit(begun)
        state = await self.state()
        suspected = decisions.record_doubt(
            state, state.row("new", 1), "STUCK", None, self.clock.now(), suspect=WorkerId("one")
        )
        await self.commit(suspected)
        return begun.outbox[0]

    async def state(self) -> OrderState:
        return (await self.journal.load([self._order_id]))[self._order_id]

    async def send(self) -> OrderState:
        await self.lanes.renew()
        await self.dispatcher.run_once()
        await self.dispatcher.drain(10)
        return await self.state()

    def promise(self, **capabilities: Any) -> None:
        """Let the venue declare something else."""
        self.venue.capabilities = replace(self.venue.capabilities, **capabilities)

    def sent_count(self) -> int:
        return sum(self.venue.orders.values())


@pytest.mark.parametrize(
    ("dedupe", "status"), [("forever", "UNKNOWN"), ("open_only", "ACCEPTED"), ("ttl", "ACCEPTED"), ("none", "ACCEPTED")]
)
async def test_a_sender_that_was_taken_to_hang_may_say_that_nothing_has_left(dedupe: Dedupe, status: str) -> None:
    house = House(dedupe)
    row = await house.hanging()
    await house.dispatcher._settle(row, Unsent("BROKER_DOWN"), await house.state())
    state = await house.state()
    assert (state.order.status, state.row("new", 1).status) == (status, "failed")


@pytest.mark.parametrize("outcome", [Accepted("v1"), VenueRejected("BAD_REQUEST"), Ambiguous("NETWORK_TIMEOUT")])
async def test_nothing_else_that_it_says_changes_a_row(outcome: SendOutcome) -> None:
    house = House("open_only")
    row = await house.hanging()
    before = await house.state()
    await house.dispatcher._settle(row, outcome, before)
    assert await house.state() == before


async def test_a_sender_that_hangs_again_and_again_is_not_tried_for_ever() -> None:
    house = House("open_only")
    row = await house.hanging(attempt=9)
    await house.dispatcher._settle(row, Unsent("BROKER_DOWN"), await house.state())
    state = await house.state()
    assert (state.order.status, state.order.reason) == ("REJECTED", "RETRY_EXHAUSTED")


@pytest.mark.parametrize("dedupe", ["open_only", "ttl", "none"])
async def test_a_lost_answer_is_doubt_and_nothing_is_sent_again(dedupe: Dedupe) -> None:
    house = House(dedupe)
    house.venue.answer = Ambiguous("NETWORK_TIMEOUT")
    await house.accept()
    state = await house.send()
    assert (state.order.status, state.row("new", 1).status) == ("UNKNOWN", "uncertain")
    house.clock.advance(timedelta(days=1))
    house.venue.can_be_asked = False
    await house.resolver.run_once()
    assert (await house.send()).order.status == "UNKNOWN"
    assert house.sent_count() == 1


async def test_what_the_venue_has_is_adopted() -> None:
    house = House("open_only")
    house.venue.answer = Ambiguous("NETWORK_TIMEOUT")
    await house.accept()
    await house.send()
    assert await house.resolver.run_once() == 1
    state = await house.state()
    assert (state.order.status, state.order.venue_order_id) == ("WORKING", "venue-1")
    assert state.row("new", 1).status == "sent"


async def test_what_is_absent_is_sent_again_only_after_the_acceptance_window() -> None:
    house = House("open_only")
    house.venue.answer, house.venue.takes_orders = Ambiguous("BROKER_5XX"), False
    await house.accept()
    await house.send()
    house.clock.advance(WINDOW - SECOND)
    assert await house.resolver.run_once() == 0
    house.clock.advance(2 * SECOND)
    assert await house.resolver.run_once() == 1
    house.venue.answer, house.venue.takes_orders = Accepted("venue-1"), True
    state = await house.send()
    assert (state.order.status, house.sent_count()) == ("WORKING", 1)
    assert state.row("new", 1).attempt == 2


async def test_absent_counts_from_when_the_venue_was_asked_not_from_when_it_answered() -> None:
    house = House("open_only")
    house.venue.answer, house.venue.takes_orders = Ambiguous("BROKER_5XX"), False
    await house.accept()
    await house.send()
    house.clock.advance(WINDOW - SECOND)
    house.venue.while_asked = lambda: house.clock.advance(5 * SECOND)
    assert await house.resolver.run_once() == 0
    house.venue.while_asked = None
    assert await house.resolver.run_once() == 1


async def test_without_lookup_only_a_person_can_tell() -> None:
    house = House("none")
    house.venue.answer, house.venue.takes_orders = Ambiguous("BROKER_5XX"), False
    await house.accept()
    await house.send()
    house.clock.advance(timedelta(days=30))
    assert await house.resolver.run_once() == 0
    assert (await house.state()).order.status == "UNKNOWN"


async def test_nothing_is_sent_in_place_of_a_sender_that_may_be_alive() -> None:
    house = House("open_only", worker="two")
    state = await house.accept()
    paused = WorkerId("paused")
    house.liveness.living.add(paused)
    await house.commit(decisions.begin_attempt(state, state.row("new", 1), paused, house.clock.now()))
    house.clock.advance(timedelta(minutes=11))
    assert await house.dispatcher.recover_once() == 1
    assert (await house.state()).row("new", 1).status == "uncertain"
    house.clock.advance(timedelta(hours=1))
    assert await house.resolver.run_once() == 0
    house.liveness.living.discard(paused)
    assert await house.resolver.run_once() == 1
    assert (await house.state()).order.status == "ACCEPTED"


@pytest.mark.parametrize("dedupe", ["open_only", "ttl", "forever"])
@pytest.mark.parametrize("time_in_force", ["GTC", "IOC"])
async def test_where_only_open_orders_are_found_absent_proves_nothing(dedupe: Dedupe, time_in_force: str) -> None:
    house = House(dedupe)
    house.promise(lookup="open")
    house.venue.answer, house.venue.takes_orders = Ambiguous("NETWORK_TIMEOUT"), False
    state = await house.accept(time_in_force)
    sending = decisions.begin_attempt(state, state.row("new", 1), WorkerId("one"), house.clock.now())
    await house.commit(sending)
    await house.commit(
        decisions.record_doubt(await house.state(), sending.outbox[0], "NETWORK_TIMEOUT", None, house.clock.now())
    )
    house.clock.advance(timedelta(days=30))
    assert await house.resolver.run_once() == 0
    state = await house.send()
    assert (state.order.status, state.row("new", 1).attempt) == ("UNKNOWN", 1)


async def test_where_only_open_orders_are_found_a_found_one_is_adopted_all_the_same() -> None:
    house = House("open_only")
    house.promise(lookup="open")
    house.venue.answer = Ambiguous("NETWORK_TIMEOUT")
    await house.accept()
    await house.send()
    assert await house.resolver.run_once() == 1
    assert (await house.state()).order.status == "WORKING"


async def test_a_venue_that_turns_late_requests_away_is_sent_to_again_whether_or_not_the_sender_lives() -> None:
    house = House("open_only", worker="two")
    house.promise(request_expiry=True)
    house.liveness.send_lingers = 100 * WINDOW
    state = await house.accept()
    paused = WorkerId("paused")
    house.liveness.living.add(paused)
    await house.commit(decisions.begin_attempt(state, state.row("new", 1), paused, house.clock.now()))
    house.clock.advance(timedelta(minutes=11))
    await house.dispatcher.recover_once()
    house.clock.advance(WINDOW - SECOND)
    assert await house.resolver.run_once() == 0
    house.clock.advance(SECOND)
    assert await house.resolver.run_once() == 1
    assert (await house.state()).order.status == "ACCEPTED"


async def test_a_sender_that_only_looks_dead_gets_the_time_to_give_up_and_its_order_the_time_to_turn_up() -> None:
    house = House("open_only")
    house.liveness.send_lingers = 7 * SECOND
    house.venue.takes_orders = False
    state = await house.accept()
    await house.commit(decisions.begin_attempt(state, state.row("new", 1), WorkerId("gone"), house.clock.now()))
    assert await house.dispatcher.recover_once() == 1
    house.clock.advance(WINDOW + 6 * SECOND)
    assert await house.resolver.run_once() == 0
    house.clock.advance(SECOND)
    assert await house.resolver.run_once() == 1


async def test_an_order_found_absent_after_its_deadline_expires_instead_of_being_sent_late() -> None:
    house = House("open_only")
    house.venue.answer, house.venue.takes_orders = Ambiguous("BROKER_5XX"), False
    await house.accept("IOC")
    await house.send()
    house.clock.advance(WINDOW + SECOND)
    await house.resolver.run_once()
    state = await house.state()
    assert (state.order.status, state.order.reason) == ("EXPIRED", "BROKER_DOWN")
    assert state.row("new", 1).status == "dead"


async def test_a_cancel_that_waited_for_a_doubt_ends_an_order_that_never_arrived() -> None:
    house = House("open_only")
    house.venue.answer, house.venue.takes_orders = Ambiguous("BROKER_5XX"), False
    await house.accept()
    state = await house.send()
    cancel = decisions.request_cancel(state, house.clock.now())
    assert cancel is not None
    await house.commit(cancel)
    assert (await house.state()).order.status == "UNKNOWN"
    house.clock.advance(WINDOW + SECOND)
    await house.resolver.run_once()
    assert (await house.state()).order.status == "CANCELED"
    assert house.sent_count() == 0


async def test_a_venue_that_deduplicates_for_good_is_sent_to_again_at_once_but_not_too_late() -> None:
    house = House("forever")
    house.venue.answer, house.venue.takes_orders = Ambiguous("NETWORK_TIMEOUT"), False
    await house.accept()
    assert (await house.send()).row("new", 1).status == "failed"
    late = House("forever")
    late.venue.answer, late.venue.takes_orders = Ambiguous("NETWORK_TIMEOUT"), False
    await late.accept("IOC")
    late.clock.advance(SECOND)
    assert (await late.send()).row("new", 1).status == "uncertain"


@pytest.mark.parametrize("answer", [Unsent("CONNECTION_REFUSED"), VenueRejected("DUPLICATE_ID")])
async def test_a_resend_that_fails_leaves_the_doubt_about_the_first_send(answer: SendOutcome) -> None:
    house = House("forever")
    house.venue.answer = Ambiguous("NETWORK_TIMEOUT")  # and yet the venue took it
    await house.accept()
    await house.send()
    house.clock.advance(5 * SECOND)
    house.venue.answer, house.venue.takes_orders = answer, False
    state = await house.send()
    assert state.row("new", 1).attempt == 2
    assert state.order.status == "UNKNOWN"
    cancel = decisions.request_cancel(state, house.clock.now())
    assert cancel is not None
    assert cancel.orders[0].status == "UNKNOWN", "an order that may be at the venue is not cancelled on the spot"


async def test_an_order_that_could_not_leave_in_time_expires_unsent() -> None:
    house = House("open_only")
    house.venue.answer = Unsent("CONNECTION_REFUSED")
    house.venue.takes_orders = False
    await house.accept("IOC")
    state = await house.send()
    assert (state.order.status, state.row("new", 1).status) == ("ACCEPTED", "failed")
    house.clock.advance(3 * SECOND)
    state = await house.send()
    assert (state.order.status, state.order.reason) == ("EXPIRED", "BROKER_DOWN")


async def test_an_order_that_waited_too_long_in_the_queue_is_never_sent() -> None:
    house = House("forever")
    await house.accept("FOK")
    house.clock.advance(6 * SECOND)
    state = await house.send()
    assert (state.order.status, state.order.reason) == ("EXPIRED", "BROKER_TIMEOUT")
    assert house.sent_count() == 0
