"""An order that risk rejected: its first version, its answer, and evidence of a venue against it."""

from decimal import Decimal

import msgspec
import pytest

from switchyard.domain import decisions
from switchyard.domain.errors import OrderFinal
from switchyard.domain.ids import AccountId, OrderId, VenueClientOrderId, VenueName
from switchyard.domain.journal.changes import Change
from switchyard.domain.orders.do_order import exec_failure
from switchyard.domain.orders.order import OrderRequest
from switchyard.domain.orders.outbox import OrderState, is_proven_unsent
from switchyard.domain.orders.reasons import DETAIL_LENGTH_MAX
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.domain.risk.checks import Violation, violation_of
from tests.support.order_story import NOW

VENUE = VenueName("sim")
CLIENT_ID = VenueClientOrderId("test-1")
REQUEST = OrderRequest(symbol="BTC", side="BUY", type="LIMIT", qty=Decimal(2), price=Decimal(5), time_in_force="GTC")


def rejected(detail: str = "qty 2 is above 1") -> Change:
    return decisions.accept(
        REQUEST,
        account=AccountId("acct-1"),
        order_id=OrderId("ord_01JGTESTORDER0000000000001"),
        venue=VENUE,
        venue_client_order_id=CLIENT_ID,
        key=None,
        quote=None,
        now=NOW,
        violation=Violation("RISK_MAX_QTY", detail),
    )


def test_it_is_never_sent_and_its_key_is_not_free_again() -> None:
    change = rejected()
    [order] = change.orders
    assert (order.status, order.version, change.outbox) == ("REJECTED", 1, ())
    state = OrderState(order=order, outbox=())
    assert not is_proven_unsent(state)
    with pytest.raises(OrderFinal):
        decisions.request_cancel(state, NOW)


@pytest.mark.parametrize("detail", ["a: b: c", "x" * 1000, "nul \0 here", ""])
def test_its_violation_is_read_back_from_the_order(detail: str) -> None:
    violation = violation_of(rejected(detail).orders[0])
    assert violation is not None
    assert violation.reason == "RISK_MAX_QTY"
    assert violation.detail == detail[:DETAIL_LENGTH_MAX].replace("\0", "\N{REPLACEMENT CHARACTER}")


def test_a_rejection_by_the_venue_is_not_one_of_risk() -> None:
    order = msgspec.structs.replace(rejected().orders[0], version=3)
    assert violation_of(order) is None
    failure = exec_failure(order, is_first=False)
    assert failure is not None and failure.error == "BROKER_REJECTED"


def test_a_fill_wins_over_the_rejection() -> None:
    report = ExecutionReport(
        exec_id="1",
        venue=VENUE,
        venue_client_order_id=CLIENT_ID,
        venue_order_id="sim-1",
        status="FILLED",
        last_qty=Decimal(2),
        last_price=Decimal(5),
        filled_qty_total=Decimal(2),
        at=NOW,
    )
    change = decisions.apply_report(OrderState(order=rejected().orders[0], outbox=()), None, report, NOW)
    assert (change.orders[0].status, change.outbox) == ("FILLED", ())
    assert violation_of(change.orders[0]) is None
