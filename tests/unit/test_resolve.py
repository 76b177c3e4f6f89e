"""The dispatcher, its recovery and the resolver over one order: doubt ends only by evidence."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from switchyard.domain import decisions
from switchyard.domain.errors import ContradictsEvidence
from switchyard.domain.ids import VenueClientOrderId, WorkerId
from switchyard.domain.journal.facts import DecisionFact
from switchyard.domain.orders.amends import Amend
from switchyard.domain.orders.outbox import is_proven_unsent
from switchyard.flow.sending.outcomes import Ended
from switchyard.flow.sending.resolve import ASK_SECONDS_MAX
from switchyard.ports.venue import (
    Accepted,
    Ambiguous,
    Dedupe,
    NeverReceived,
    OrderToFind,
    SendOutcome,
    Unsent,
    VenueRejected,
)
from tests.support.build import a_report, an_entry
from tests.support.one_order import SECOND, WINDOW, Setup


@pytest.mark.parametrize(
    ("dedupe", "status", "row_status"),
    [
        ("permanent", "UNKNOWN", "failed"),
        ("while_open", "ACCEPTED", "failed"),
        ("ttl", "UNKNOWN", "uncertain"),  # the attempt itself may have begun in doubt
        ("none", "ACCEPTED", "failed"),
    ],
)
async def test_a_sender_that_was_taken_for_stuck_may_record_that_nothing_was_sent(
    dedupe: Dedupe, status: str, row_status: str
) -> None:
    setup = Setup(dedupe)
    row = await setup.stuck()
    await setup.outcomes.write([Ended(row, Unsent("BROKER_DOWN"))])
    state = await setup.state()
    assert (state.order.status, state.row("new", 1).status) == (status, row_status)


@pytest.mark.parametrize(
    ("dedupe", "outcome", "status", "row_status"),
    [
        ("while_open", Accepted("v1"), "WORKING", "sent"),
        ("while_open", VenueRejected("BAD_REQUEST"), "REJECTED", "dead"),
        ("permanent", VenueRejected("BAD_REQUEST"), "UNKNOWN", "uncertain"),  # the attempt may have begun in doubt
        ("while_open", Ambiguous("NETWORK_TIMEOUT"), "UNKNOWN", "uncertain"),
        ("none", Ambiguous("NETWORK_TIMEOUT"), "UNKNOWN", "uncertain"),
        ("permanent", Ambiguous("NETWORK_TIMEOUT"), "UNKNOWN", "failed"),  # sent again under the same id
    ],
)
async def test_the_outcome_of_an_attempt_that_was_taken_for_stuck_is_recorded_and_frees_its_sender(
    dedupe: Dedupe, outcome: SendOutcome, status: str, row_status: str
) -> None:
    setup = Setup(dedupe)
    row = await setup.stuck()
    await setup.outcomes.write([Ended(row, outcome)])
    state = await setup.state()
    after = state.row("new", 1)
    assert (state.order.status, after.status, after.worker) == (status, row_status, None)


async def test_a_doubt_of_a_stuck_attempt_settles_while_its_sender_lives_once_that_has_given_up() -> None:
    setup = Setup("while_open")
    setup.venue.takes_orders = False
    row = await setup.stuck()
    setup.liveness.living.add(WorkerId("one"))
    assert await setup.resolve(after=3 * WINDOW) == 0, "its sender may still deliver"
    await setup.outcomes.write([Ended(row, Ambiguous("NETWORK_TIMEOUT"))])
    assert await setup.resolve(after=WINDOW - SECOND) == 0
    assert await setup.resolve(after=SECOND) == 1
    assert (await setup.state()).order.status == "ACCEPTED"


async def test_an_outcome_changes_nothing_if_the_doubt_was_settled_or_is_of_another_sender() -> None:
    setup = Setup("while_open")
    row = await setup.stuck()
    state = await setup.state()
    await setup.commit(decisions.record_sent(state, state.row("new", 1), "venue-1", setup.clock.now()))
    settled = await setup.state()
    for outcome in (Accepted("v1"), VenueRejected("BAD_REQUEST"), Ambiguous("NETWORK_TIMEOUT"), Unsent("BROKER_DOWN")):
        await setup.outcomes.write([Ended(row, outcome)])
    assert await setup.state() == settled
    other = Setup("while_open", worker="two")
    row = await other.stuck()
    before = await other.state()
    await other.outcomes.write([Ended(row, Ambiguous("NETWORK_TIMEOUT"))])
    assert await other.state() == before


@pytest.mark.parametrize("outcome", [Accepted("v1"), VenueRejected("BAD_REQUEST"), Ambiguous("NETWORK_TIMEOUT")])
async def test_a_late_outcome_of_a_superseded_attempt_changes_nothing(outcome: SendOutcome) -> None:
    setup = Setup("while_open")
    state, worker, now = await setup.accept(), WorkerId("one"), setup.clock.now()
    first = decisions.begin_attempt(state, state.row("new", 1), worker, now)
    await setup.commit(first)
    state = await setup.state()
    await setup.commit(decisions.record_unsent(state, state.row("new", 1), "BROKER_DOWN", now, now))
    state = await setup.state()
    await setup.commit(decisions.begin_attempt(state, state.row("new", 1), worker, now))
    second = await setup.state()
    await setup.outcomes.write([Ended(first.outbox[0], outcome)])
    assert await setup.state() == second


async def test_a_sender_that_is_stuck_again_and_again_is_not_retried_for_ever() -> None:
    setup = Setup("while_open")
    row = await setup.stuck(attempt=9)
    await setup.outcomes.write([Ended(row, Unsent("BROKER_DOWN"))])
    state = await setup.state()
    assert (state.order.status, state.order.reason) == ("REJECTED", "RETRY_EXHAUSTED: NOT_PROCESSED")


@pytest.mark.parametrize("dedupe", ["while_open", "ttl", "none"])
async def test_a_lost_answer_is_doubt_and_the_order_is_not_sent_again(dedupe: Dedupe) -> None:
    setup = Setup(dedupe)
    setup.venue.answer = Ambiguous("NETWORK_TIMEOUT")
    await setup.accept()
    state = await setup.send()
    assert (state.order.status, state.row("new", 1).status) == ("UNKNOWN", "uncertain")
    setup.venue.can_be_asked = False
    await setup.resolve(after=timedelta(minutes=1))
    assert (await setup.send()).order.status == "UNKNOWN"
    assert setup.sent_count() == 1


async def test_an_order_that_the_venue_has_is_adopted() -> None:
    setup = Setup("while_open")
    setup.venue.answer = Ambiguous("NETWORK_TIMEOUT")
    await setup.accept()
    await setup.send()
    assert await setup.resolve() == 1
    state = await setup.state()
    assert (state.order.status, state.order.venue_order_id) == ("WORKING", "venue-1")
    assert state.row("new", 1).status == "sent"


@pytest.mark.parametrize("terms", [{"symbol": "EURUSD"}, {"side": "SELL"}, {"qty": Decimal(7)}, {"price": Decimal(7)}])
async def test_an_order_that_the_venue_shows_with_other_terms_stays_in_doubt(terms: dict[str, Any]) -> None:
    setup = Setup("while_open")
    setup.venue.answer = Ambiguous("NETWORK_TIMEOUT")
    await setup.accept()
    await setup.send()
    setup.venue.shown = terms
    assert await setup.resolve() == 0
    state = await setup.state()
    assert (state.order.status, state.row("new", 1).status) == ("UNKNOWN", "uncertain")
    contradictions = setup.metrics.registry.get_sample_value("venue_contradictions_total", {"venue": state.order.venue})
    assert contradictions == 1

    setup.venue.shown = {"symbol": state.order.symbol, "side": state.order.side, "qty": state.order.qty}
    assert await setup.resolve(after=WINDOW) == 1
    assert (await setup.state()).order.status == "WORKING"


async def test_an_absent_order_is_sent_again_only_after_the_acceptance_window() -> None:
    setup = Setup("while_open")
    setup.venue.answer, setup.venue.takes_orders = Ambiguous("BROKER_5XX"), False
    await setup.accept()
    await setup.send()
    assert await setup.resolve(after=WINDOW - SECOND) == 0
    assert await setup.resolve(after=SECOND) == 1
    setup.venue.answer, setup.venue.takes_orders = Accepted("venue-1"), True
    state = await setup.send()
    assert (state.order.status, setup.sent_count()) == ("WORKING", 1)
    assert state.row("new", 1).attempt == 2


async def test_absent_counts_from_when_the_venue_was_asked_not_from_when_it_answered() -> None:
    setup = Setup("while_open")
    setup.venue.answer, setup.venue.takes_orders = Ambiguous("BROKER_5XX"), False
    await setup.accept()
    await setup.send()
    assert await setup.resolve() == 0

    async def probed_meanwhile() -> None:
        for _ in range(2):
            setup.clock.advance(SECOND)
            await setup.watch.probe_once()

    setup.venue.while_asked = probed_meanwhile
    assert await setup.resolve(after=WINDOW - 2 * SECOND) == 0
    setup.venue.while_asked = None
    assert await setup.resolve() == 1


async def test_without_a_lookup_only_an_operator_ends_the_doubt() -> None:
    setup = Setup("none")
    setup.venue.answer, setup.venue.takes_orders = Ambiguous("BROKER_5XX"), False
    await setup.accept()
    await setup.send()
    assert await setup.resolve(after=timedelta(hours=1)) == 0
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
    assert await setup.resolve(after=timedelta(hours=1)) == 0
    setup.liveness.living.discard(paused)
    assert await setup.resolve() == 0, "its time starts when it is gone"
    assert await setup.resolve(after=WINDOW) == 1
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
    assert await setup.resolve(after=timedelta(hours=1)) == 0
    state = await setup.send()
    assert (state.order.status, state.row("new", 1).attempt) == ("UNKNOWN", 1)


async def test_where_only_open_orders_are_found_a_found_order_is_still_adopted() -> None:
    setup = Setup("while_open")
    setup.promise(lookup="open")
    setup.venue.answer = Ambiguous("NETWORK_TIMEOUT")
    await setup.accept()
    await setup.send()
    assert await setup.resolve() == 1
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
    assert await setup.resolve(after=WINDOW + SECOND) == 0
    assert await setup.resolve(after=SECOND) == 1
    assert (await setup.state()).order.status == "ACCEPTED"


async def test_absence_counts_only_after_a_dead_senders_last_byte_could_have_arrived() -> None:
    setup = Setup("while_open")
    setup.liveness.send_lingers = 7 * SECOND
    setup.venue.takes_orders = False
    state = await setup.accept()
    await setup.commit(decisions.begin_attempt(state, state.row("new", 1), WorkerId("gone"), setup.clock.now()))
    assert await setup.dispatcher.recover_once() == 1
    assert await setup.resolve(after=WINDOW + 6 * SECOND) == 0
    assert await setup.resolve(after=SECOND) == 1


async def test_an_order_found_absent_after_its_deadline_expires_instead_of_being_sent_late() -> None:
    setup = Setup("while_open")
    setup.venue.answer, setup.venue.takes_orders = Ambiguous("BROKER_5XX"), False
    await setup.accept("IOC")
    await setup.send()
    await setup.resolve(after=WINDOW + SECOND)
    state = await setup.state()
    assert (state.order.status, state.order.reason) == ("EXPIRED", "ABSENT_AT_VENUE")
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
    await setup.resolve(after=WINDOW + SECOND)
    order = (await setup.state()).order
    assert (order.status, order.reason) == ("CANCELED", "ABSENT_AT_VENUE")
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


async def test_a_day_order_is_not_sent_on_the_next_day() -> None:
    setup = Setup("permanent")
    day_end = setup.clock.now() + 3 * SECOND
    setup.venue.answer, setup.venue.takes_orders = Unsent("BROKER_DOWN"), False
    await setup.accept("DAY", day_end)
    assert (await setup.send()).order.status == "ACCEPTED"
    sent = setup.sent_count()
    setup.clock.advance(3 * SECOND)
    state = await setup.send()
    assert (state.order.status, state.order.reason, setup.sent_count()) == ("EXPIRED", "BROKER_DOWN", sent)


async def test_a_day_order_in_doubt_is_not_sent_again_on_the_next_day() -> None:
    setup = Setup("permanent")
    setup.venue.answer, setup.venue.takes_orders = Ambiguous("NETWORK_TIMEOUT"), False
    await setup.accept("DAY", setup.clock.now() + 3 * SECOND)
    assert (await setup.send()).order.status == "UNKNOWN"
    sent = setup.sent_count()
    setup.clock.advance(5 * SECOND)
    state = await setup.send()
    assert (state.order.status, setup.sent_count()) == ("UNKNOWN", sent)


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
    await setup.outcomes.write([Ended(row, Unsent("BROKER_DOWN", "name lookup failed"))])
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
    state = await setup.send()
    assert (state.order.status, state.order.reason) == ("REJECTED", reason)
    assert not is_proven_unsent(state)


async def test_an_order_that_the_venue_reported_before_is_never_sent() -> None:
    setup = Setup("while_open")
    state = await setup.accept()
    await setup.commit(decisions.unmatched_report(a_report(state, exec_id="1")))
    state = await setup.send()
    assert (state.order.status, state.row("new", 1).last_error) == ("UNKNOWN", "EXECUTED_BEFORE")
    assert await setup.resolve(after=timedelta(hours=1)) == 0, "the venue has reported on it, so absence proves nothing"
    resend = DecisionFact(verdict="not-sent", by="operator", reason="the venue confirmed it", resend=True)
    with pytest.raises(ContradictsEvidence):
        decisions.decide_by_hand(state, state.row("new", 1), resend, setup.clock.now())
    decision = DecisionFact(verdict="not-sent", by="operator", reason="the venue confirmed it")
    await setup.commit(decisions.decide_by_hand(state, state.row("new", 1), decision, setup.clock.now()))
    assert ((await setup.send()).order.status, setup.sent_count()) == ("CANCELED", 0)


async def test_a_restore_does_not_stand_for_an_operators_decision() -> None:
    setup = Setup("while_open")
    state = await setup.accept()
    await setup.commit(decisions.unmatched_report(a_report(state, exec_id="1")))
    await setup.commit(decisions.record_doubt(state, state.row("new", 1), "RESTORED", None, setup.clock.now()))
    assert await setup.resolve(after=WINDOW + SECOND) == 1
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
    await setup.outcomes.write([Ended(row, Unsent("BROKER_DOWN"))])
    assert setup.metrics.registry.get_sample_value("outbox_send_total", {"outcome": "dead"}) == 1
    resending = Setup("permanent")
    resending.venue.answer = Ambiguous("NETWORK_TIMEOUT")
    await resending.accept()
    await resending.send()
    assert resending.metrics.registry.get_sample_value("outbox_send_total", {"outcome": "retry"}) == 1


# Venues whose lookup keeps orders that have ended for a limited time.

KEEPS = timedelta(hours=1)
# What remains of it after the margin.
REACH = 0.9 * KEEPS


async def in_doubt_at_a_forgetful_venue(dedupe: Dedupe = "while_open") -> Setup:
    """An order in doubt that the venue executed, at one that keeps orders for an hour."""
    setup = Setup(dedupe)
    setup.promise(lookup_keeps=KEEPS)
    setup.venue.answer, setup.venue.takes_orders = Ambiguous("NETWORK_TIMEOUT"), False
    await setup.accept()
    await setup.send()
    return setup


async def test_absence_is_proven_while_the_venue_still_keeps_orders_of_that_age() -> None:
    setup = await in_doubt_at_a_forgetful_venue()
    setup.clock.advance(REACH - WINDOW - SECOND)
    assert await setup.resolve(after=WINDOW) == 1
    assert (await setup.state()).row("new", 1).last_error == "ABSENT_AT_VENUE"


async def test_a_lookup_that_finds_nothing_proves_nothing_about_an_order_that_the_venue_may_have_removed() -> None:
    setup = await in_doubt_at_a_forgetful_venue()
    setup.clock.advance(REACH - WINDOW)
    assert await setup.resolve(after=WINDOW) == 0
    state = await setup.state()
    row = state.row("new", 1)
    assert (state.order.status, row.status, row.last_error) == ("UNKNOWN", "uncertain", "LOOKUP_EXPIRED")
    assert await setup.resolve(after=2 * WINDOW) == 0
    assert await setup.state() == state, "it is said once"
    assert ((await setup.send()).order.status, setup.sent_count()) == ("UNKNOWN", 0)


async def test_a_doubt_that_a_lookup_cannot_settle_any_more_is_settled_by_a_find_or_by_a_person() -> None:
    found, decided = await in_doubt_at_a_forgetful_venue(), await in_doubt_at_a_forgetful_venue()
    for setup in (found, decided):
        setup.clock.advance(KEEPS)
        assert await setup.resolve(after=WINDOW) == 0
    found.venue.orders[(await found.state()).order.venue_client_order_id] = 1
    assert await found.resolve(after=WINDOW) == 1
    assert (await found.state()).order.status == "WORKING"
    state = await decided.state()
    resend = DecisionFact(verdict="not-sent", by="operator", reason="the venue confirmed it", resend=True)
    await decided.commit(decisions.decide_by_hand(state, state.row("new", 1), resend, decided.clock.now()))
    decided.venue.answer, decided.venue.takes_orders = Accepted("venue-1"), True
    assert ((await decided.send()).order.status, decided.sent_count()) == ("WORKING", 1)


async def test_after_a_jump_of_the_clock_nobody_can_tell_how_old_an_order_is() -> None:
    setup = await in_doubt_at_a_forgetful_venue()
    setup.clock.advance(SECOND)
    setup.clock.jumped_at = setup.clock.now()
    assert await setup.resolve(after=WINDOW) == 0
    assert (await setup.state()).row("new", 1).last_error == "LOOKUP_EXPIRED"


async def test_the_age_counts_when_the_answer_has_come() -> None:
    setup = await in_doubt_at_a_forgetful_venue()
    setup.clock.advance(REACH - WINDOW - SECOND)
    assert await setup.resolve(after=WINDOW - SECOND) == 0

    async def slow() -> None:
        setup.clock.advance(2 * SECOND)

    setup.clock.advance(SECOND)
    await setup.watch.probe_once()
    setup.venue.while_asked = slow
    assert await setup.resolver.run_once() == 0
    assert (await setup.state()).row("new", 1).last_error == "LOOKUP_EXPIRED"


@pytest.mark.parametrize(("shows_the_order", "status"), [(True, "dead"), (False, "uncertain")])
async def test_an_amend_of_an_old_order_is_absent_only_if_the_venue_shows_its_order_without_it(
    shows_the_order: bool, status: str
) -> None:
    setup = Setup("while_open")
    setup.promise(lookup_keeps=KEEPS, amend="in_place")
    await setup.accept()
    state = await setup.send()
    setup.clock.advance(KEEPS)
    amend = Amend(
        client_order_id=VenueClientOrderId("amend"),
        orig_client_order_id=state.order.venue_client_order_id,
        qty=Decimal(2000),
        price=state.order.price,
        is_provable=True,
        key="k",
    )
    await setup.commit(
        decisions.request_amend(state, amend, an_entry("k", state.order.order_id), setup.clock.now(), reducing=False)
    )
    setup.venue.answer = Ambiguous("NETWORK_TIMEOUT")
    await setup.send()
    if not shows_the_order:
        setup.venue.orders.clear()
    assert await setup.resolve(after=WINDOW) == shows_the_order
    row = (await setup.state()).row("amend", 1)
    expected = "ABSENT_AT_VENUE" if shows_the_order else "LOOKUP_EXPIRED"
    assert (row.status, row.last_error) == (status, expected)


# Venues that can prove that they never received a message.

PROOF = NeverReceived(evidence="it expects number 7, the order had 9")


class Proving(Setup):
    """The venue never received the order, and proves it."""

    def __init__(self, dedupe: Dedupe = "none", **capabilities: Any) -> None:
        super().__init__(dedupe)
        self.promise(sequence_proof=True, **capabilities)
        self.asked: list[int | None] = []
        self.venue.answer, self.venue.takes_orders = Ambiguous("NETWORK_DISCONNECTED"), False
        self.venue.find_or_proof = self.prove  # type: ignore[attr-defined]

    async def prove(self, order: OrderToFind) -> NeverReceived:
        self.asked.append(order.attempts)
        return PROOF


@pytest.mark.parametrize("dedupe", ["none", "while_open"])
async def test_a_proof_that_the_order_was_never_received_settles_its_doubt_at_once(dedupe: Dedupe) -> None:
    setup = Proving(dedupe)
    await setup.accept()
    await setup.send()
    assert await setup.resolve() == 1
    state = await setup.state()
    row = state.row("new", 1)
    assert (state.order.status, row.status, row.last_error) == ("ACCEPTED", "failed", "ABSENT_AT_VENUE")
    assert row.error_detail == f"never received: {PROOF.evidence}"
    assert setup.asked == [1]
    setup.venue.answer, setup.venue.takes_orders = Accepted("venue-1"), True
    assert ((await setup.send()).order.status, setup.sent_count()) == ("WORKING", 1)


async def test_a_proof_about_the_attempt_of_a_dead_sender_counts_once_that_can_no_longer_send() -> None:
    """Its process may have lost its lock and still run."""
    setup, lingers = Proving(), 5 * SECOND
    setup.liveness.send_lingers = lingers
    await setup.stuck()
    setup.liveness.living.add(WorkerId("one"))
    assert await setup.resolve(after=WINDOW) == 0, "its sender lives"
    setup.liveness.living.clear()
    assert await setup.resolve(after=lingers - SECOND) == 0
    assert await setup.resolve(after=timedelta(seconds=ASK_SECONDS_MAX)) == 1


async def test_evidence_wins_over_a_proof_that_the_order_was_never_received() -> None:
    setup = Proving()
    state = await setup.accept()
    await setup.commit(decisions.unmatched_report(a_report(state, exec_id="1")))
    state = await setup.send()
    assert state.row("new", 1).last_error == "EXECUTED_BEFORE"
    assert await setup.resolve(after=timedelta(minutes=5)) == 0
    assert ((await setup.send()).order.status, setup.sent_count()) == ("UNKNOWN", 0)


async def test_after_a_restore_a_proof_does_not_cover_the_copies_of_the_lost_history() -> None:
    setup = Proving()
    state = await setup.accept()
    await setup.commit(decisions.record_doubt(state, state.row("new", 1), "RESTORED", None, setup.clock.now()))
    assert await setup.resolve(after=timedelta(minutes=5)) == 0


async def test_a_proof_is_as_good_as_an_absence_where_it_does_not_count() -> None:
    setup = Proving("while_open")
    state = await setup.accept()
    await setup.commit(decisions.record_doubt(state, state.row("new", 1), "RESTORED", None, setup.clock.now()))
    assert await setup.resolve(after=WINDOW - SECOND) == 0
    assert await setup.resolve(after=SECOND) == 1
