"""The dispatcher, its recovery and the resolver over one order: doubt ends only by evidence."""

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from switchyard.adapters.memory.clock import ManualClock, SeededRandomness
from switchyard.adapters.memory.database import MemoryDatabase
from switchyard.domain import decisions
from switchyard.domain.changes import Change, Outcome
from switchyard.domain.events import DecisionFact, Quote
from switchyard.domain.ids import VenueClientOrderId, VenueName, WorkerId
from switchyard.domain.money import ZERO
from switchyard.domain.orders import Order, is_proven_unsent
from switchyard.domain.outbox import OrderState, OutboxRow
from switchyard.flow.sending.dispatch import Dispatcher
from switchyard.flow.sending.lanes import HeldLanes
from switchyard.flow.sending.outcomes import OutcomeWriter
from switchyard.flow.sending.resolve import Resolver
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
from tests.support.build import VENUE, a_report, an_accept

SECOND = timedelta(seconds=1)
WINDOW = timedelta(seconds=10)


class ScriptedVenue:
    """A venue with scripted answers that counts the orders that reached it."""

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

    async def open_orders(self) -> AsyncIterator[list[VenueOrder]]:
        yield []

    async def reports(self, after: int, limit: int) -> ReportPage:
        return ReportPage([], after)

    def quote(self, symbol: str) -> Quote | None:
        return None


class Setup:
    """One worker with its resolver over one order."""

    def __init__(self, dedupe: Dedupe, worker: str = "one") -> None:
        self.clock = ManualClock()
        database = MemoryDatabase(self.clock)
        self.journal = database.journal
        self.venue = ScriptedVenue(dedupe)
        self.liveness = database.liveness
        self.metrics = Metrics()
        common = {
            "journal": self.journal,
            "queries": database.queries,
            "liveness": self.liveness,
            "commit": self.commit,
            "venues": {VENUE: self.venue},
            "clock": self.clock,
            "metrics": self.metrics,
        }
        self.resolver = Resolver(**common)  # type: ignore[arg-type]
        randomness = SeededRandomness()
        self.outcomes = OutcomeWriter(
            worker=WorkerId(worker),
            journal=self.journal,
            commit=self.commit,
            venues={VENUE: self.venue},  # type: ignore[dict-item]
            clock=self.clock,
            randomness=randomness,
            metrics=self.metrics,
            retry_max=8,
        )
        self.lanes = HeldLanes(database.lanes, WorkerId(worker), self.clock)
        self.dispatcher = Dispatcher(
            worker=WorkerId(worker),
            lanes=self.lanes,
            randomness=randomness,
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

    async def stuck(self, attempt: int = 1) -> OutboxRow:
        """An attempt of this worker that another worker took for stuck."""
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
        """Change the venue's declared capabilities."""
        self.venue.capabilities = replace(self.venue.capabilities, **capabilities)

    def sent_count(self) -> int:
        return sum(self.venue.orders.values())


@pytest.mark.parametrize(
    ("dedupe", "status"),
    [("permanent", "UNKNOWN"), ("while_open", "ACCEPTED"), ("ttl", "ACCEPTED"), ("none", "ACCEPTED")],
)
async def test_a_sender_that_was_taken_for_stuck_may_record_that_nothing_was_sent(dedupe: Dedupe, status: str) -> None:
    setup = Setup(dedupe)
    row = await setup.stuck()
    await setup.outcomes.write(row, Unsent("BROKER_DOWN"), await setup.state())
    state = await setup.state()
    assert (state.order.status, state.row("new", 1).status) == (status, "failed")


@pytest.mark.parametrize("outcome", [Accepted("v1"), VenueRejected("BAD_REQUEST"), Ambiguous("NETWORK_TIMEOUT")])
async def test_no_other_outcome_of_a_stuck_sender_changes_the_row(outcome: SendOutcome) -> None:
    setup = Setup("while_open")
    row = await setup.stuck()
    before = await setup.state()
    await setup.outcomes.write(row, outcome, before)
    assert await setup.state() == before


async def test_a_sender_that_is_stuck_again_and_again_is_not_retried_for_ever() -> None:
    setup = Setup("while_open")
    row = await setup.stuck(attempt=9)
    await setup.outcomes.write(row, Unsent("BROKER_DOWN"), await setup.state())
    state = await setup.state()
    assert (state.order.status, state.order.reason) == ("REJECTED", "RETRY_EXHAUSTED")


@pytest.mark.parametrize("dedupe", ["while_open", "ttl", "none"])
async def test_a_lost_answer_is_doubt_and_the_order_is_not_sent_again(dedupe: Dedupe) -> None:
    setup = Setup(dedupe)
    setup.venue.answer = Ambiguous("NETWORK_TIMEOUT")
    await setup.accept()
    state = await setup.send()
    assert (state.order.status, state.row("new", 1).status) == ("UNKNOWN", "uncertain")
    setup.clock.advance(timedelta(days=1))
    setup.venue.can_be_asked = False
    await setup.resolver.run_once()
    assert (await setup.send()).order.status == "UNKNOWN"
    assert setup.sent_count() == 1


async def test_an_order_that_the_venue_has_is_adopted() -> None:
    setup = Setup("while_open")
    setup.venue.answer = Ambiguous("NETWORK_TIMEOUT")
    await setup.accept()
    await setup.send()
    assert await setup.resolver.run_once() == 1
    state = await setup.state()
    assert (state.order.status, state.order.venue_order_id) == ("WORKING", "venue-1")
    assert state.row("new", 1).status == "sent"


async def test_an_absent_order_is_sent_again_only_after_the_acceptance_window() -> None:
    setup = Setup("while_open")
    setup.venue.answer, setup.venue.takes_orders = Ambiguous("BROKER_5XX"), False
    await setup.accept()
    await setup.send()
    setup.clock.advance(WINDOW - SECOND)
    assert await setup.resolver.run_once() == 0
    setup.clock.advance(2 * SECOND)
    assert await setup.resolver.run_once() == 1
    setup.venue.answer, setup.venue.takes_orders = Accepted("venue-1"), True
    state = await setup.send()
    assert (state.order.status, setup.sent_count()) == ("WORKING", 1)
    assert state.row("new", 1).attempt == 2


async def test_absent_counts_from_when_the_venue_was_asked_not_from_when_it_answered() -> None:
    setup = Setup("while_open")
    setup.venue.answer, setup.venue.takes_orders = Ambiguous("BROKER_5XX"), False
    await setup.accept()
    await setup.send()
    setup.clock.advance(WINDOW - SECOND)
    setup.venue.while_asked = lambda: setup.clock.advance(5 * SECOND)
    assert await setup.resolver.run_once() == 0
    setup.venue.while_asked = None
    assert await setup.resolver.run_once() == 1


async def test_without_a_lookup_only_an_operator_ends_the_doubt() -> None:
    setup = Setup("none")
    setup.venue.answer, setup.venue.takes_orders = Ambiguous("BROKER_5XX"), False
    await setup.accept()
    await setup.send()
    setup.clock.advance(timedelta(days=30))
    assert await setup.resolver.run_once() == 0
    assert (await setup.state()).order.status == "UNKNOWN"


async def test_nothing_is_sent_in_place_of_a_sender_that_may_be_alive() -> None:
    setup = Setup("while_open", worker="two")
    state = await setup.accept()
    paused = WorkerId("paused")
    setup.liveness.living.add(paused)
    await setup.commit(decisions.begin_attempt(state, state.row("new", 1), paused, setup.clock.now()))
    setup.clock.advance(timedelta(minutes=11))
    assert await setup.dispatcher.recover_once() == 1
    assert (await setup.state()).row("new", 1).status == "uncertain"
    setup.clock.advance(timedelta(hours=1))
    assert await setup.resolver.run_once() == 0
    setup.liveness.living.discard(paused)
    assert await setup.resolver.run_once() == 1
    assert (await setup.state()).order.status == "ACCEPTED"


@pytest.mark.parametrize("dedupe", ["while_open", "ttl", "permanent"])
@pytest.mark.parametrize("time_in_force", ["GTC", "IOC"])
async def test_where_only_open_orders_are_found_absent_proves_nothing(dedupe: Dedupe, time_in_force: str) -> None:
    setup = Setup(dedupe)
    setup.promise(lookup="open")
    setup.venue.answer, setup.venue.takes_orders = Ambiguous("NETWORK_TIMEOUT"), False
    state = await setup.accept(time_in_force)
    sending = decisions.begin_attempt(state, state.row("new", 1), WorkerId("one"), setup.clock.now())
    await setup.commit(sending)
    await setup.commit(
        decisions.record_doubt(await setup.state(), sending.outbox[0], "NETWORK_TIMEOUT", None, setup.clock.now())
    )
    setup.clock.advance(timedelta(days=30))
    assert await setup.resolver.run_once() == 0
    state = await setup.send()
    assert (state.order.status, state.row("new", 1).attempt) == ("UNKNOWN", 1)


async def test_where_only_open_orders_are_found_a_found_order_is_still_adopted() -> None:
    setup = Setup("while_open")
    setup.promise(lookup="open")
    setup.venue.answer = Ambiguous("NETWORK_TIMEOUT")
    await setup.accept()
    await setup.send()
    assert await setup.resolver.run_once() == 1
    assert (await setup.state()).order.status == "WORKING"


async def test_with_request_expiry_an_absent_order_is_sent_again_whether_or_not_its_sender_lives() -> None:
    setup = Setup("while_open", worker="two")
    setup.promise(request_expiry=True)
    setup.liveness.send_lingers = 100 * WINDOW
    state = await setup.accept()
    paused = WorkerId("paused")
    setup.liveness.living.add(paused)
    await setup.commit(decisions.begin_attempt(state, state.row("new", 1), paused, setup.clock.now()))
    setup.clock.advance(timedelta(minutes=11))
    await setup.dispatcher.recover_once()
    setup.clock.advance(WINDOW - SECOND)
    assert await setup.resolver.run_once() == 0
    setup.clock.advance(SECOND)
    assert await setup.resolver.run_once() == 1
    assert (await setup.state()).order.status == "ACCEPTED"


async def test_absence_counts_only_after_a_dead_senders_last_byte_could_have_arrived() -> None:
    setup = Setup("while_open")
    setup.liveness.send_lingers = 7 * SECOND
    setup.venue.takes_orders = False
    state = await setup.accept()
    await setup.commit(decisions.begin_attempt(state, state.row("new", 1), WorkerId("gone"), setup.clock.now()))
    assert await setup.dispatcher.recover_once() == 1
    setup.clock.advance(WINDOW + 6 * SECOND)
    assert await setup.resolver.run_once() == 0
    setup.clock.advance(SECOND)
    assert await setup.resolver.run_once() == 1


async def test_an_order_found_absent_after_its_deadline_expires_instead_of_being_sent_late() -> None:
    setup = Setup("while_open")
    setup.venue.answer, setup.venue.takes_orders = Ambiguous("BROKER_5XX"), False
    await setup.accept("IOC")
    await setup.send()
    setup.clock.advance(WINDOW + SECOND)
    await setup.resolver.run_once()
    state = await setup.state()
    assert (state.order.status, state.order.reason) == ("EXPIRED", "BROKER_DOWN")
    assert state.row("new", 1).status == "dead"


async def test_a_cancel_that_waited_for_a_doubt_ends_an_order_that_never_arrived() -> None:
    setup = Setup("while_open")
    setup.venue.answer, setup.venue.takes_orders = Ambiguous("BROKER_5XX"), False
    await setup.accept()
    state = await setup.send()
    cancel = decisions.request_cancel(state, setup.clock.now())
    assert cancel is not None
    await setup.commit(cancel)
    assert (await setup.state()).order.status == "UNKNOWN"
    setup.clock.advance(WINDOW + SECOND)
    await setup.resolver.run_once()
    assert (await setup.state()).order.status == "CANCELED"
    assert setup.sent_count() == 0


async def test_a_venue_that_deduplicates_for_good_is_sent_to_again_at_once_but_not_too_late() -> None:
    setup = Setup("permanent")
    setup.venue.answer, setup.venue.takes_orders = Ambiguous("NETWORK_TIMEOUT"), False
    await setup.accept()
    assert (await setup.send()).row("new", 1).status == "failed"
    late = Setup("permanent")
    late.venue.answer, late.venue.takes_orders = Ambiguous("NETWORK_TIMEOUT"), False
    await late.accept("IOC")
    late.clock.advance(SECOND)
    assert (await late.send()).row("new", 1).status == "uncertain"


@pytest.mark.parametrize("answer", [Unsent("BROKER_DOWN"), VenueRejected("BAD_REQUEST", "DUPLICATE_ID")])
async def test_a_resend_that_fails_leaves_the_doubt_about_the_first_send(answer: SendOutcome) -> None:
    setup = Setup("permanent")
    setup.venue.answer = Ambiguous("NETWORK_TIMEOUT")  # the venue has the order
    await setup.accept()
    await setup.send()
    setup.clock.advance(5 * SECOND)
    setup.venue.answer, setup.venue.takes_orders = answer, False
    state = await setup.send()
    assert state.row("new", 1).attempt == 2
    assert state.order.status == "UNKNOWN"
    cancel = decisions.request_cancel(state, setup.clock.now())
    assert cancel is not None
    assert cancel.orders[0].status == "UNKNOWN", "an order that may be at the venue is not cancelled at once"


async def test_an_order_that_could_not_leave_in_time_expires_unsent() -> None:
    setup = Setup("while_open")
    setup.venue.answer = Unsent("BROKER_DOWN")
    setup.venue.takes_orders = False
    await setup.accept("IOC")
    state = await setup.send()
    assert (state.order.status, state.row("new", 1).status) == ("ACCEPTED", "failed")
    setup.clock.advance(3 * SECOND)
    state = await setup.send()
    assert (state.order.status, state.order.reason) == ("EXPIRED", "BROKER_DOWN")


async def test_an_order_that_waited_too_long_in_the_queue_is_never_sent() -> None:
    setup = Setup("permanent")
    await setup.accept("FOK")
    setup.clock.advance(6 * SECOND)
    state = await setup.send()
    assert (state.order.status, state.order.reason) == ("EXPIRED", "BROKER_TIMEOUT")
    assert setup.sent_count() == 0


@pytest.mark.parametrize(
    ("answer", "code", "detail"),
    [
        (Unsent("BROKER_DOWN", "name lookup failed"), "BROKER_DOWN", "name lookup failed"),
        (VenueRejected("BAD_REQUEST", "INVALID_QTY"), "BAD_REQUEST", "INVALID_QTY"),
        (Ambiguous("UNKNOWN", "x" * 501), "UNKNOWN", "x" * 500),
        (Ambiguous("UNKNOWN", "a\0b"), "UNKNOWN", "a\N{REPLACEMENT CHARACTER}b"),
        (Accepted("venue-1"), None, None),
        (Accepted("venue-1", already_processed=True), "CONFLICT_PROCESSED", None),
    ],
)
async def test_last_error_is_a_bare_code_and_the_text_is_beside_it(
    answer: SendOutcome, code: str | None, detail: str | None
) -> None:
    setup = Setup("while_open")
    setup.venue.answer = answer
    await setup.accept()
    row = (await setup.send()).row("new", 1)
    assert (row.last_error, row.error_detail) == (code, detail)


async def test_the_last_error_of_an_exhausted_order_is_kept_as_detail() -> None:
    setup = Setup("while_open")
    row = await setup.stuck(attempt=9)
    await setup.outcomes.write(row, Unsent("BROKER_DOWN", "name lookup failed"), await setup.state())
    row = (await setup.state()).row("new", 1)
    assert (row.last_error, row.error_detail) == ("RETRY_EXHAUSTED", "BROKER_DOWN: name lookup failed")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (VenueRejected("BAD_REQUEST", "INVALID_QTY"), "BAD_REQUEST: INVALID_QTY"),
        (VenueRejected("UNAUTHORIZED"), "UNAUTHORIZED"),
        (VenueRejected("BROKER_REJECTED"), "BROKER_REJECTED"),
        (VenueRejected("BROKER_REJECTED", "REJECTED_BY_VENUE"), "REJECTED_BY_VENUE"),
        (VenueRejected("BROKER_REJECTED", "BROKER_DOWN"), "BROKER_REJECTED: BROKER_DOWN"),
    ],
)
async def test_a_venues_words_never_make_a_rejected_order_look_unsent(answer: SendOutcome, reason: str) -> None:
    setup = Setup("while_open")
    setup.venue.answer = answer
    await setup.accept()
    order = (await setup.send()).order
    assert (order.status, order.reason) == ("REJECTED", reason)
    assert not is_proven_unsent(order)


async def test_an_order_that_the_venue_reported_before_is_sent_only_after_an_operators_decision() -> None:
    setup = Setup("while_open")
    state = await setup.accept()
    await setup.commit(decisions.unmatched_report(a_report(state, exec_id="1")))
    state = await setup.send()
    assert (state.order.status, state.row("new", 1).last_error) == ("UNKNOWN", "EXECUTED_BEFORE")
    setup.clock.advance(timedelta(days=1))
    assert await setup.resolver.run_once() == 0, "the venue has reported on it, so absence proves nothing"
    decision = DecisionFact(verdict="not-sent", by="operator", reason="the venue confirmed it")
    await setup.commit(decisions.decide_by_hand(state, state.row("new", 1), decision, setup.clock.now()))
    assert ((await setup.send()).order.status, setup.sent_count()) == ("WORKING", 1)


async def test_a_restore_does_not_stand_for_an_operators_decision() -> None:
    setup = Setup("while_open")
    state = await setup.accept()
    await setup.commit(decisions.unmatched_report(a_report(state, exec_id="1")))
    await setup.commit(decisions.record_doubt(state, state.row("new", 1), "RESTORED", None, setup.clock.now()))
    setup.clock.advance(WINDOW + SECOND)
    assert await setup.resolver.run_once() == 1
    state = await setup.send()
    assert (state.row("new", 1).last_error, setup.sent_count()) == ("EXECUTED_BEFORE", 0)


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        (Accepted("venue-1"), "success"),
        (Accepted("venue-1", already_processed=True), "conflict_processed"),
        (Unsent("BROKER_DOWN"), "retry"),
        (VenueRejected("BAD_REQUEST"), "dead"),
        (Ambiguous("NETWORK_TIMEOUT"), "uncertain"),
    ],
)
async def test_sends_are_counted_by_the_status_that_they_give_to_the_row(answer: SendOutcome, label: str) -> None:
    setup = Setup("while_open")
    setup.venue.answer = answer
    await setup.accept()
    await setup.send()
    assert setup.metrics.registry.get_sample_value("outbox_send_total", {"outcome": label}) == 1


async def test_an_exhausted_order_counts_as_dead_and_a_resend_as_a_retry() -> None:
    setup = Setup("while_open")
    row = await setup.stuck(attempt=9)
    await setup.outcomes.write(row, Unsent("BROKER_DOWN"), await setup.state())
    assert setup.metrics.registry.get_sample_value("outbox_send_total", {"outcome": "dead"}) == 1
    resending = Setup("permanent")
    resending.venue.answer = Ambiguous("NETWORK_TIMEOUT")
    await resending.accept()
    await resending.send()
    assert resending.metrics.registry.get_sample_value("outbox_send_total", {"outcome": "retry"}) == 1
