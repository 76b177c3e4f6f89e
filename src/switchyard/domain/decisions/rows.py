"""New versions of orders and outbox rows, and the change that commits them. Shared by the decisions only."""

from datetime import datetime

import msgspec

from switchyard.domain.amends import amend_of, amend_result
from switchyard.domain.changes import Change
from switchyard.domain.events import EventType, change_of, event, outbox_fact
from switchyard.domain.facts import DoubtFact, OrderFact, OutboxFact, RerouteFact
from switchyard.domain.idempotency import KeyResult
from switchyard.domain.lifecycle import FINAL, Step, next_status
from switchyard.domain.orders import Order
from switchyard.domain.outbox import SETTLED, MayBeLost, OrderState, OutboxRow, OutboxStatus
from switchyard.domain.reasons import SendCode, bounded_detail
from switchyard.domain.results import order_result


def moved(row: OutboxRow, now: datetime, **changes: object) -> OutboxRow:
    """The row's next version."""
    successor: OutboxRow = msgspec.structs.replace(
        row, updated_at=max(now, row.updated_at), version=row.version + 1, **changes
    )
    return successor


def ended_attempt(
    row: OutboxRow, now: datetime, status: OutboxStatus, code: SendCode | None, detail: str | None, **changes: object
) -> OutboxRow:
    """The row's next version after an attempt or a doubt has ended; no worker is sending it now."""
    fields = {"worker": None, "last_error": code, "error_detail": bounded_detail(detail), **changes}
    return moved(row, now, status=status, **fields)


def with_bytes(row: OutboxRow, bytes_sent: bool) -> OutboxRow:
    """The row, marked if an attempt may have put a byte on the wire; the mark is never removed."""
    return msgspec.structs.replace(row, bytes_sent=True) if bytes_sent else row


def touched(order: Order, now: datetime, **changes: object) -> Order:
    """The order's next version, in the same status unless the changes name another."""
    successor: Order = msgspec.structs.replace(
        order, updated_at=max(now, order.updated_at), version=order.version + 1, **changes
    )
    return successor


def stepped(order: Order, step: Step, now: datetime, **changes: object) -> Order:
    """The order's next version after a step of the lifecycle."""
    return touched(order, now, status=next_status(order.status, step), **changes)


def order_change(
    kind: EventType,
    before: OrderState,
    order: Order,
    rows: tuple[OutboxRow, ...],
    doubt: DoubtFact | None = None,
    *,
    reroute: RerouteFact | None = None,
) -> Change:
    """One event about an order, with the rows that changed; an order that ends gives its key its result."""
    if order.amend_qty is not None:
        order = released(order, before, rows)
    fact = OrderFact(
        order=change_of(order, before.order), outbox=row_facts(rows, before, order), doubt=doubt, reroute=reroute
    )
    return Change(
        events=(event(kind, order.account_id, order.order_id, fact),),
        orders=(order,),
        outbox=rows,
        results=results_of(order, rows),
    )


def released(order: Order, before: OrderState, rows: tuple[OutboxRow, ...]) -> Order:
    """The order, without the reservation of an amend that ended with it."""
    if order.amend_qty is None or order.status not in FINAL:
        return order
    moved_rows = {row.key for row in rows}
    kept = [row for row in before.outbox if row.key not in moved_rows]
    if any(row.kind == "amend" and row.status not in SETTLED for row in (*kept, *rows)):
        return order  # its own outcome settles it
    released_order: Order = msgspec.structs.replace(order, amend_qty=None, amend_reserve_price=None, leg_end=None)
    return released_order


def row_facts(rows: tuple[OutboxRow, ...], before: OrderState, order: Order) -> tuple[OutboxFact, ...]:
    """The rows as the event shows them that made `order` out of `before`."""
    if len(rows) == 1:
        [row] = rows
        return (outbox_fact(row, before.find(row.kind, row.number), order),)
    return tuple([outbox_fact(row, before.find(row.kind, row.number), order) for row in rows])


def results_of(order: Order, rows: tuple[OutboxRow, ...] = ()) -> tuple[KeyResult, ...]:
    """The results that a change writes into the rows of keys: of the order that ends, and of amends that settle."""
    if order.status not in FINAL and (not rows or (len(rows) == 1 and rows[0].kind != "amend")):
        return ()  # nearly every change
    results = [order_result(order)] if order.status in FINAL else []
    results += [amend_result(order, row) for row in rows if row.kind == "amend"]
    return tuple([result for result in results if result is not None])


def has_pending_cancel(state: OrderState) -> bool:
    """Whether a cancel of the order is not settled yet."""
    return any(row.kind == "cancel" and row.status not in SETTLED for row in state.outbox)


def evidence_step(state: OrderState, step: Step) -> Step:
    """The step for evidence that the venue has the order; an order in doubt goes on to wait for its pending cancel.

    Only in that status is a cancel watched: one that the venue acknowledges and does not carry out is sent again.
    """
    is_awaited = state.order.status == "UNKNOWN" and has_pending_cancel(state)
    return "acknowledge_with_cancel" if is_awaited and step in ("acknowledge", "part_fill") else step


def closed_rows(state: OrderState, now: datetime, *, but: OutboxRow | None = None) -> tuple[OutboxRow, ...]:
    """The cancels and amends that need not be sent any more because the order has ended.

    One that is being sent is left to its own attempt; `but` is settled by the caller.
    """
    return tuple(
        ended_attempt(row, now, "dead", "ORDER_FINAL", None)
        for row in state.outbox
        if row.kind != "new"
        and row.status not in SETTLED
        and not _stays_open(row)
        and (but is None or row.key != but.key)
    )


def _stays_open(row: OutboxRow) -> bool:
    """Whether the row is settled by its attempt, or an amend in doubt whose venue tells whether it was carried out."""
    return row.status == "sending" or (row.kind == "amend" and row.status == "uncertain" and amend_of(row).is_provable)


def dropped_amends(state: OrderState, may_be_lost: MayBeLost, now: datetime) -> tuple[OutboxRow, ...]:
    """The amends that were not sent and need not be, because the order is to be cancelled.

    One that may be at the venue stays: it is settled before the next amend. One that a lost history may have sent comes
    into doubt.
    """
    return tuple(
        ended_attempt(row, now, "uncertain", "RESTORED", None, bytes_sent=True)
        if may_be_lost(state.order, row)
        else ended_attempt(row, now, "dead", "CANCEL_REQUESTED", None)
        for row in state.outbox
        if row.kind == "amend" and row.status in ("queued", "failed")
    )
