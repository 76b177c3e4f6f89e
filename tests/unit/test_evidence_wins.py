"""Decisions against evidence: a fill or a venue order id outweighs a rejection, a person and a late answer."""

from decimal import Decimal
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from switchyard.domain import decisions
from switchyard.domain.errors import ContradictsEvidence, NotInDoubt
from switchyard.domain.journal.changes import Change
from switchyard.domain.journal.facts import DecisionFact
from switchyard.domain.orders.lifecycle import is_final, next_status
from switchyard.domain.orders.outbox import OrderState
from switchyard.domain.orders.reports import ReportStatus
from switchyard.flow.commit.states import after as state_after_change
from tests.support.build import WORKER, a_report, an_accept, state_after
from tests.support.memory.clock import START

TEN = Decimal(10)


def sending() -> OrderState:
    accepted = an_accept(qty=Decimal(100))
    return state_after(accepted, decisions.begin_attempt(state_after(accepted), accepted.outbox[0], WORKER, START))


def after(state: OrderState, change: Change) -> OrderState:
    return state_after_change(state, change.orders[0], change)


def in_doubt(state: OrderState | None = None) -> OrderState:
    state = state or sending()
    return after(state, decisions.record_doubt(state, state.row("new", 1), "NETWORK_TIMEOUT", None, START))


def reported(state: OrderState, status: ReportStatus, qty: Decimal = Decimal(0), exec_id: str = "1") -> OrderState:
    report = replace(a_report(state, status, exec_id=exec_id, qty=qty), reason="MARGIN")
    return after(state, decisions.apply_report(state, None, report, START))


def cancelled(state: OrderState) -> OrderState:
    change = decisions.request_cancel(state, START)
    assert change is not None
    return OrderState(order=change.orders[0], outbox=(*state.outbox, *change.outbox))


def decided(state: OrderState, verdict: str, *, resend: bool = False) -> Change:
    fact = DecisionFact(verdict=verdict, by="night desk", reason="console", resend=resend)  # type: ignore[arg-type]
    return decisions.decide_by_hand(state, state.row("new", 1), fact, START)


@pytest.mark.parametrize("cancels", [False, True])
def test_a_part_fill_followed_by_a_rejection_is_not_rejected(cancels: bool) -> None:
    state = reported(sending(), "PARTIALLY_FILLED", TEN)
    if cancels:
        state = cancelled(state)
    change = decisions.record_rejected(state, state.row("new", 1), "UNAUTHORIZED", START, detail="no permission")
    order, row = change.orders[0], change.outbox[0]
    assert (order.status, order.filled_qty) == ("CANCEL_REQUESTED" if cancels else "PARTIALLY_FILLED", TEN)
    assert (row.status, row.last_error) == ("sent", "CONTRADICTED")
    assert row.error_detail == "UNAUTHORIZED: no permission"


def ended_without_a_report(how: str) -> OrderState:
    """An order that ended here; the venue has not reported on it."""
    state = sending()
    match how:
        case "rejected":
            row = state.row("new", 1)
            return after(state, decisions.record_rejected(state, row, "UNAUTHORIZED", START, detail="no permission"))
        case "not sent, by a person":
            state = in_doubt(state)
            return after(state, decided(state, "not-sent"))
        case "absent":
            state = in_doubt(cancelled(state))
            return after(state, decisions.record_absent(state, state.row("new", 1), START))
        case _:
            accepted = an_accept(qty=Decimal(100))
            change = decisions.request_cancel(state_after(accepted), START)
            assert change is not None
            return after(state_after(accepted), change)


@pytest.mark.parametrize("how", ["rejected", "not sent, by a person", "absent", "cancelled before it was sent"])
@pytest.mark.parametrize(("status", "qty"), [("PARTIALLY_FILLED", TEN), ("WORKING", Decimal(0))])
def test_an_order_that_ended_without_a_report_is_open_again_if_the_venue_reports_it_at_work(
    how: str, status: ReportStatus, qty: Decimal
) -> None:
    ended = ended_without_a_report(how)
    assert is_final(ended.order.status)
    state = reported(ended, status, qty)
    assert (state.order.status, state.order.filled_qty) == (status, qty)
    assert (state.order.reason or "").startswith("CONTRADICTED")
    assert (state.row("new", 1).status, state.row("new", 1).last_error) == ("sent", "CONTRADICTED")
    assert reported(state, "CANCELED", exec_id="2").order.status == "CANCELED"


def test_a_rejection_and_a_part_fill_lead_to_the_same_order_whichever_comes_first() -> None:
    filled_first = reported(sending(), "PARTIALLY_FILLED", TEN)
    row = filled_first.row("new", 1)
    later = after(
        filled_first, decisions.record_rejected(filled_first, row, "UNAUTHORIZED", START, detail="no permission")
    )
    sooner = reported(ended_without_a_report("rejected"), "PARTIALLY_FILLED", TEN)
    for one in (later, sooner):
        assert (one.order.status, one.order.filled_qty) == ("PARTIALLY_FILLED", TEN)
        assert one.row("new", 1).error_detail == "UNAUTHORIZED: no permission"


def test_an_order_that_ended_by_a_report_stays_ended_when_an_earlier_fill_is_reported() -> None:
    ended = reported(sending(), "REJECTED")
    assert reported(ended, "PARTIALLY_FILLED", TEN, exec_id="2").order.status == "CANCELED"


def test_an_order_with_a_venue_order_id_is_not_rejected_by_a_late_answer() -> None:
    state = reported(sending(), "WORKING")
    change = decisions.record_rejected(state, state.row("new", 1), "BAD_REQUEST", START)
    assert (change.orders[0].status, change.outbox[0].status) == ("WORKING", "sent")


def test_a_venues_own_rejection_after_a_fill_ends_the_rest_of_the_order() -> None:
    order = reported(reported(sending(), "PARTIALLY_FILLED", TEN), "REJECTED", exec_id="2").order
    assert (order.status, order.filled_qty, order.reason) == ("CANCELED", TEN, "MARGIN")


def test_a_fill_after_a_rejection_shows_that_the_order_was_not_rejected() -> None:
    order = reported(reported(sending(), "REJECTED"), "PARTIALLY_FILLED", TEN, exec_id="2").order
    assert (order.status, order.filled_qty, order.reason) == ("CANCELED", TEN, "MARGIN")


@pytest.mark.parametrize("status", get_args(ReportStatus))
def test_a_report_settles_the_row_that_it_proves(status: ReportStatus) -> None:
    state = reported(in_doubt(), status, TEN if "FILLED" in status else Decimal(0))
    assert (state.row("new", 1).status, state.row("new", 1).bytes_sent) == ("sent", True)


def test_a_report_leaves_a_row_that_is_being_sent_to_its_attempt() -> None:
    assert reported(sending(), "WORKING").row("new", 1).status == "sending"


def test_a_part_fill_releases_the_cancel_that_waits_for_the_orders_fate() -> None:
    state = cancelled(in_doubt())
    assert (state.order.status, state.row("cancel", 1).status) == ("UNKNOWN", "queued")
    state = reported(state, "PARTIALLY_FILLED", TEN)
    assert (state.row("new", 1).status, state.row("cancel", 1).status) == ("sent", "queued")


@pytest.mark.parametrize("evidence", [{"filled_qty": TEN, "filled_notional": TEN}, {"venue_order_id": "v-1"}])
@pytest.mark.parametrize("cancels", [False, True])
def test_absent_ends_no_order_that_a_fill_or_a_venue_order_id_shows(evidence: dict[str, Any], cancels: bool) -> None:
    state = cancelled(in_doubt()) if cancels else in_doubt()
    state = OrderState(order=replace(state.order, **evidence), outbox=state.outbox)
    change = decisions.record_absent(state, state.row("new", 1), START)
    assert (change.outbox[0].status, is_final(change.orders[0].status)) == ("sent", False)


@pytest.mark.parametrize("evidence", ["answer", "report", "fill", "verdict", "contradiction"])
def test_an_order_in_doubt_that_is_found_waits_for_its_pending_cancel(evidence: str) -> None:
    state = cancelled(in_doubt())
    row = state.row("new", 1)
    match evidence:
        case "answer":
            state = after(state, decisions.record_sent(state, row, "venue-1", START))
        case "report":
            state = reported(state, "WORKING")
        case "fill":
            state = reported(state, "PARTIALLY_FILLED", TEN)
        case "verdict":
            state = after(state, decided(state, "sent"))
        case "contradiction":
            shown = OrderState(order=replace(state.order, venue_order_id="venue-1"), outbox=state.outbox)
            state = after(shown, decisions.record_rejected(shown, row, "UNAUTHORIZED", START))
    assert (state.order.status, state.row("cancel", 1).status) == ("CANCEL_REQUESTED", "queued")


def test_not_sent_is_rejected_against_a_fill_and_against_a_venue_order_id() -> None:
    filled = in_doubt()
    filled = OrderState(order=replace(filled.order, filled_qty=TEN, filled_notional=TEN), outbox=filled.outbox)
    known = OrderState(order=replace(filled.order, filled_qty=Decimal(0), venue_order_id="v-1"), outbox=filled.outbox)
    for state in (filled, known):
        for resend in (False, True):
            with pytest.raises(ContradictsEvidence):
                decided(state, "not-sent", resend=resend)
        assert decided(state, "sent").outbox[0].status == "sent"


@pytest.mark.parametrize("cancels", [False, True])
def test_not_sent_ends_the_order_and_never_sends_it(cancels: bool) -> None:
    state = cancelled(in_doubt()) if cancels else in_doubt()
    change = decided(state, "not-sent")
    assert (change.orders[0].status, change.orders[0].reason) == ("CANCELED", "NOT_SENT_BY_DECISION")
    assert {row.status for row in change.outbox} == {"dead"}
    with pytest.raises(NotInDoubt):
        decided(after(state, change), "not-sent")


def test_a_resend_is_a_separate_act_and_never_later_than_the_deadline() -> None:
    assert decided(in_doubt(), "not-sent", resend=True).outbox[0].status == "failed"
    assert decided(in_doubt(), "not-sent", resend=True).orders[0].status == "ACCEPTED"
    accepted = an_accept(time_in_force="IOC")
    attempt = decisions.begin_attempt(state_after(accepted), accepted.outbox[0], WORKER, START)
    late = in_doubt(state_after(accepted, attempt))
    late = OrderState(
        order=replace(late.order, accepted_at=late.order.accepted_at.replace(year=2020)), outbox=late.outbox
    )
    ended = decided(late, "not-sent", resend=True).orders[0]
    assert (ended.status, ended.reason) == ("CANCELED", "NOT_SENT_BY_DECISION")


def test_a_repeated_cancel_is_queued_once_the_last_one_is_settled() -> None:
    state = sending()
    state = after(state, decisions.record_sent(state, state.row("new", 1), "v-1", START))
    state = cancelled(state)
    assert decisions.request_cancel(state, START) is None, "the first one is under way"
    state = after(state, decisions.record_sent(state, state.row("cancel", 1), None, START))
    again = decisions.request_cancel(state, START)
    assert again is not None
    assert (again.outbox[0].number, again.outbox[0].status, again.orders[0].status) == (2, "queued", "CANCEL_REQUESTED")


def test_an_order_with_fills_never_ends_rejected() -> None:
    for status in ("SENDING", "UNKNOWN", "WORKING", "PARTIALLY_FILLED", "CANCEL_REQUESTED", "ACCEPTED", "REJECTED"):
        assert next_status(status, "reject_part_filled") == "CANCELED"
