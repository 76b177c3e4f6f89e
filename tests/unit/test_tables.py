"""The generated column lists: an insert of first versions leaves out columns, so none of them may have a value then."""

from datetime import timedelta

from switchyard.adapters.tables import ORDERS, OUTBOX_ORDERS
from switchyard.domain import decisions
from switchyard.domain.orders.outbox import OrderState
from tests.support.build import an_accept
from tests.support.memory.clock import START


def test_first_versions_have_no_value_in_the_columns_that_their_insert_leaves_out() -> None:
    accepted = an_accept(strategy="s", tags=["t"], type="LIMIT", price=1.5)
    state = OrderState(order=accepted.orders[0], outbox=accepted.outbox)
    working = decisions.record_sent(state, accepted.outbox[0], "venue-1", START)
    assert working is not None
    sent = OrderState(order=working.orders[0], outbox=working.outbox)
    cancel = decisions.request_cancel(sent, START + timedelta(seconds=1))
    assert cancel is not None
    first_orders = [row for change in (accepted, cancel) for row in change.orders if row.version == 1]
    first_rows = [row for change in (accepted, cancel) for row in change.outbox if row.version == 1]
    assert [row.kind for row in first_rows] == ["new", "cancel"]
    assert [getattr(row, column) for row in first_orders for column in ORDERS.unset] == [None] * 5
    assert [getattr(row, column) for row in first_rows for column in OUTBOX_ORDERS.unset] == [None] * 4
