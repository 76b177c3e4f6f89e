"""The answers of `/do/order` for each state of an order, and its requests against their schema."""

import json
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from switchyard.domain.decisions import apply_report
from switchyard.domain.errors import InvalidField
from switchyard.domain.journal.events import Event, JournalEvent
from switchyard.domain.market.instruments import Catalogue, Instrument
from switchyard.domain.orders.do_order import (
    ExecResult,
    as_order,
    do_order_request,
    exec_failure,
    exec_result,
    result_digest,
)
from switchyard.domain.orders.order import Order
from tests.support.build import a_report, an_accept, state_after
from tests.support.contract import problems
from tests.support.contract_files import DO_REQUEST
from tests.support.do_order import body
from tests.support.memory.clock import START

FX = Instrument(symbol="USDJPY", lot=Decimal(1000))


def order(**changes: Any) -> Order:
    return msgspec.structs.replace(an_accept().orders[0], **changes)


def recorded(event: Event, seq: int) -> JournalEvent:
    return JournalEvent(seq, START, event.type, event.account_id, event.order_id, "{" + event.tail, "")


def in_parts(*quantities: int) -> tuple[list[Order], list[JournalEvent]]:
    """The order after each fill, and all the events."""
    accepted = an_accept()
    state, position, orders, events = state_after(accepted), None, [], list(accepted.events)
    for number, qty in enumerate(quantities):
        report = a_report(state, "PARTIALLY_FILLED", exec_id=f"e{number}", qty=Decimal(qty))
        change = apply_report(state, position, report, START)
        state, position = state_after(accepted, change), change.positions[0]
        orders.append(state.order)
        events += change.events
    return orders, [recorded(event, seq) for seq, event in enumerate(events)]


def test_fills_are_shown_in_lots() -> None:
    orders, events = in_parts(250, 750)
    result = exec_result(orders[-1], events, FX)
    assert (result.status, result.filled_qty) == ("filled", Decimal(1))
    assert [(fill.exec_id, fill.qty) for fill in result.fills] == [("e0", Decimal("0.25")), ("e1", Decimal("0.75"))]


def test_a_fill_later_than_the_orders_version_is_not_shown() -> None:
    orders, events = in_parts(250, 250, 500)
    result = exec_result(orders[1], events, FX)
    assert (result.status, result.filled_qty) == ("partially_filled", Decimal("0.5"))
    assert sum(fill.qty for fill in result.fills) == result.filled_qty


def test_an_order_that_is_being_cancelled_shows_what_is_filled() -> None:
    orders, events = in_parts(250)
    asked = msgspec.structs.replace(orders[0], status="CANCEL_REQUESTED")
    assert exec_result(asked, events, FX).status == "partially_filled"
    assert exec_result(order(status="CANCEL_REQUESTED"), (), FX).status == "accepted"


@pytest.mark.parametrize(
    ("changes", "is_first", "error", "http_status"),
    [
        ({"status": "EXPIRED", "reason": "BROKER_DOWN"}, True, "BROKER_DOWN", 503),
        ({"status": "REJECTED", "reason": "RETRY_EXHAUSTED"}, True, "BROKER_DOWN", 503),
        ({"status": "EXPIRED", "reason": "BROKER_TIMEOUT"}, True, "BROKER_TIMEOUT", 504),
        ({"status": "UNKNOWN"}, True, "BROKER_TIMEOUT", 504),
        ({"status": "REJECTED", "reason": "BAD_REQUEST: NO"}, False, "BROKER_REJECTED", 400),
        ({"status": "REJECTED", "reason": "CONFLICT"}, False, "BROKER_REJECTED", 409),
        ({"status": "REJECTED", "reason": "CONFLICT: ID_REUSED"}, False, "BROKER_REJECTED", 409),
        ({"status": "REJECTED", "reason": "CONFLICTED: NO"}, False, "BROKER_REJECTED", 400),
    ],
)
def test_an_end_without_a_result_is_an_error(
    changes: dict[str, Any], is_first: bool, error: str, http_status: int
) -> None:
    failure = exec_failure(order(**changes), is_first=is_first)
    assert failure is not None
    assert (failure.error, failure.http_status, failure.reason_code) == (error, http_status, changes.get("reason"))
    assert set(json.loads(msgspec.json.encode(failure))) == {
        "error",
        "message",
        "order_id",
        "idempotency_key",
        "reason_code",
        "trace_id",
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "UNKNOWN"},  # a repeat gets the status `unknown`, not an error
        {"status": "EXPIRED", "reason": "BROKER_DOWN", "venue_order_id": "v-1"},
        {"status": "CANCELED"},
        {"status": "REJECTED", "filled_qty": Decimal(1), "filled_notional": Decimal(150)},  # money has moved
    ],
)
def test_a_state_with_a_result_is_no_error(changes: dict[str, Any]) -> None:
    assert exec_failure(order(**changes), is_first=False) is None


def test_the_digest_depends_on_the_result_and_not_on_the_caller() -> None:
    orders, events = in_parts(250, 750)

    def result(number: int, trace_id: str) -> ExecResult:
        return exec_result(msgspec.structs.replace(orders[number], trace_id=trace_id), events, FX)

    assert result_digest(result(1, "t")) == result_digest(result(1, "another"))
    assert result_digest(result(1, "t")) != result_digest(result(0, "t"))


def test_lots_become_units() -> None:
    catalogue = Catalogue({"USDJPY": FX, "ODD": Instrument(symbol="ODD", lot=Decimal(3), step=Decimal(2))})
    request = do_order_request(body("k", qty=Decimal(1)))
    assert as_order(request, catalogue).qty == 1000
    with pytest.raises(InvalidField, match=r"qty: must be a multiple of 2 units \(a lot has 3\)"):
        as_order(msgspec.structs.replace(request, instrument="ODD"), catalogue)


GOOD = body("k")


@pytest.mark.parametrize(
    "changes",
    [
        {"price": None, "tags": [], "requested_at": None, "trace_id": None},
        {"price": 145, "time_in_force": "FOK", "requested_at": "2025-08-24T09:00:00+09:00"},
        {"risk_constraints": {"max_dd": None, "max_consecutive_loss": 3, "max_spread": 0}},
        {"order_id": "x" * 128, "tags": ["t"] * 16, "idempotency_key": "k" * 255},
    ],
)
def test_a_request_that_the_schema_allows_is_accepted(changes: dict[str, Any]) -> None:
    assert problems(DO_REQUEST, GOOD | changes) == []
    as_order(do_order_request(json.loads(json.dumps(GOOD | changes), parse_float=Decimal)), Catalogue())


@pytest.mark.parametrize(
    "changes",
    [
        {"qty": 0},
        {"qty": None},
        {"side": "buy"},
        {"order_id": "x" * 129},
        {"order_id": "a\nb"},
        {"time_in_force": None},
        {"tags": None},
        {"tags": ["t"] * 17},
        {"requested_at": "2025-08-24"},
        {"risk_constraints": None},
        {"risk_constraints": {"max_consecutive_loss": 0.5}},
        {"risk_constraints": {"max_dd": -0.1}},
        {"strategy": "s"},
    ],
)
def test_a_request_that_the_schema_forbids_is_rejected(changes: dict[str, Any]) -> None:
    assert problems(DO_REQUEST, GOOD | changes) != []
    with pytest.raises(InvalidField):
        as_order(do_order_request(json.loads(json.dumps(GOOD | changes), parse_float=Decimal)), Catalogue())
