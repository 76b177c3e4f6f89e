"""Builds changes as the stages make them, with defaults for every field."""

from datetime import datetime, timedelta
from decimal import Decimal
from itertools import count
from typing import Any

import msgspec

from switchyard.domain.decisions import accept
from switchyard.domain.ids import (
    AccountId,
    OrderId,
    VenueClientOrderId,
    VenueName,
    WorkerId,
    order_id,
    venue_client_order_id,
)
from switchyard.domain.journal.changes import Change
from switchyard.domain.orders.keys import PLACE_ORDER, KeyEntry
from switchyard.domain.orders.order import OrderRequest
from switchyard.domain.orders.outbox import OrderState
from switchyard.domain.orders.reports import ExecutionReport, ReportStatus
from switchyard.domain.risk.claims import Terms
from tests.support.memory.clock import START

ACCOUNT = AccountId("acc-1")
VENUE = VenueName("sim")
WORKER = WorkerId("worker-1")
_numbers = count(1)


def an_order_id(now: datetime = START) -> OrderId:
    """A new order id; ids with the same time sort in the order of their creation."""
    return order_id(int(now.timestamp() * 1000), next(_numbers))


def an_entry(
    key: str, order: OrderId, *, account: AccountId = ACCOUNT, generation: int = 0, now: datetime = START
) -> KeyEntry:
    """A key store entry."""
    return KeyEntry(
        account_id=account,
        operation=PLACE_ORDER,
        idempotency_key=key,
        generation=generation,
        version=generation + 1,
        order_id=order,
        request_digest=f"sha256:{order}",
        created_at=now,
        expires_at=now + timedelta(days=1),
    )


def an_accept(
    *,
    account: str = ACCOUNT,
    key: str | None = None,
    generation: int = 0,
    client_id: str | None = None,
    venue: VenueName = VENUE,
    now: datetime = START,
    terms: Terms | None = None,
    expires_at: datetime | None = None,
    **request: Any,
) -> Change:
    """The acceptance of a new order; `request` overrides fields of the request body."""
    owner, order = AccountId(account), an_order_id(now)
    derived = venue_client_order_id("test", owner, PLACE_ORDER, key, generation, order)
    body: dict[str, Any] = {
        "symbol": "USDJPY",
        "side": "BUY",
        "type": "LIMIT",
        "qty": Decimal(1000),
        "price": Decimal("150.125"),
        "time_in_force": "GTC",
    }
    return accept(
        OrderRequest(**body | request),
        account=owner,
        order_id=order,
        venue=venue,
        venue_client_order_id=VenueClientOrderId(client_id) if client_id else derived,
        key=None if key is None else an_entry(key, order, account=owner, generation=generation, now=now),
        quote=None,
        now=now,
        terms=terms,
        expires_at=expires_at,
    )


def a_report(
    state: OrderState, status: ReportStatus = "FILLED", *, exec_id: str = "exec-1", qty: Decimal | None = None
) -> ExecutionReport:
    """An execution report on an order; by default a fill of the whole quantity."""
    return ExecutionReport(
        exec_id=exec_id,
        venue=state.order.venue,
        venue_client_order_id=state.order.venue_client_order_id,
        venue_order_id="venue-1",
        status=status,
        last_qty=state.order.qty if qty is None else qty,
        last_price=state.order.price,
        at=START,
    )


def state_after(*changes: Change) -> OrderState:
    """The state of the order after the changes, which are all about one order."""
    rows = {(row.kind, row.number): row for change in changes for row in change.outbox}
    outbox = sorted(rows.values(), key=lambda row: (row.kind != "new", row.number))
    return OrderState(order=changes[-1].orders[0], outbox=tuple(outbox))


def numbered(state: OrderState, *seqs: int) -> OrderState:
    """The state with the journal numbers that the append gave to its outbox rows."""
    rows = zip(state.outbox, seqs, strict=True)
    return msgspec.structs.replace(state, outbox=tuple(msgspec.structs.replace(row, seq=seq) for row, seq in rows))
