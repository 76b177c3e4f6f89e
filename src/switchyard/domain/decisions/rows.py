"""What the decisions share: new versions of orders and outbox rows and the change that commits them, send deadlines
and backoff, results, and whether the venue is known to have the order. Pure.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from switchyard.domain.ids import VenueName
from switchyard.domain.journal.changes import Change
from switchyard.domain.journal.events import EventType, change_of, event, outbox_fact
from switchyard.domain.journal.facts import DoubtFact, OrderFact, OutboxFact, RerouteFact, ResultFact
from switchyard.domain.orders.amends import amend_of, amend_result
from switchyard.domain.orders.keys import KeyResult
from switchyard.domain.orders.lifecycle import FINAL, Step, next_status
from switchyard.domain.orders.order import Order, TimeInForce
from switchyard.domain.orders.outbox import SETTLED, MayBeLost, OrderState, OutboxRow, OutboxStatus
from switchyard.domain.orders.reasons import SendCode, bounded_detail, described
from switchyard.domain.orders.reports import answer_status, order_result


def moved(row: OutboxRow, now: datetime, **changes: object) -> OutboxRow:
    """The row's next version."""
    updated_at = now if now > row.updated_at else row.updated_at
    successor: OutboxRow = replace(row, updated_at=updated_at, version=row.version + 1, **changes)
    return successor


def ended_attempt(
    row: OutboxRow, now: datetime, status: OutboxStatus, code: SendCode | None, detail: str | None, **changes: object
) -> OutboxRow:
    """The row's next version after an attempt or a doubt has ended; no worker is sending it unless `changes` say so."""
    changes.setdefault("worker", None)
    return moved(row, now, status=status, last_error=code, error_detail=bounded_detail(detail), **changes)


def with_bytes(row: OutboxRow, bytes_sent: bool) -> OutboxRow:
    """The row, marked if an attempt may have put a byte on the wire; the mark is never removed."""
    return replace(row, bytes_sent=True) if bytes_sent else row


def touched(order: Order, now: datetime, **changes: object) -> Order:
    """The order's next version, in the same status unless the changes name another."""
    updated_at = now if now > order.updated_at else order.updated_at
    successor: Order = replace(order, updated_at=updated_at, version=order.version + 1, **changes)
    return successor


def stepped(order: Order, step: Step, now: datetime, **changes: object) -> Order:
    """The order's next version after a step of the lifecycle."""
    updated_at = now if now > order.updated_at else order.updated_at
    status = next_status(order.status, step)
    successor: Order = replace(order, status=status, updated_at=updated_at, version=order.version + 1, **changes)
    return successor


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
    released_order: Order = replace(order, amend_qty=None, amend_reserve_price=None, leg_end=None)
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
        [
            ended_attempt(row, now, "dead", "ORDER_FINAL", None)
            for row in state.outbox
            if row.kind != "new"
            and row.status not in SETTLED
            and not _stays_open(row)
            and (but is None or row.key != but.key)
        ]
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


def is_at_venue(order: Order) -> bool:
    """Whether a fill or a venue order id shows that the venue has, or had, the order."""
    return order.venue_order_id is not None or order.filled_qty > 0


def proven_rows(state: OrderState, now: datetime) -> tuple[OutboxRow, ...]:
    """The order's own row, settled as sent by a report, if it waits or is in doubt.

    A row that is being sent is left to its own attempt, whose outcome may be worth recording.
    """
    return tuple(
        [
            ended_attempt(row, now, "sent", None, None, bytes_sent=True)
            for row in state.outbox
            if row.kind == "new" and row.status not in SETTLED and row.status != "sending"
        ]
    )


def contradicted_rows(state: OrderState, now: datetime) -> tuple[OutboxRow, ...]:
    """The order's own row, settled as sent, where it had ended as rejected or unsent; it keeps that as its error."""
    return tuple(
        ended_attempt(row, now, "sent", "CONTRADICTED", _error_of(row), bytes_sent=True)
        for row in state.outbox
        if row.kind == "new" and row.status == "dead"
    )


def _error_of(row: OutboxRow) -> str | None:
    return None if row.last_error is None else described(row.last_error, row.error_detail)


def record_contradicted(
    state: OrderState, row: OutboxRow, code: SendCode, now: datetime, *, detail: str | None = None
) -> Change:
    """The venue rejected an order that it has: the row is sent, the order goes on, the row keeps the rejection."""
    sent = ended_attempt(row, now, "sent", "CONTRADICTED", described(code, detail), bytes_sent=True)
    step = evidence_step(state, "part_fill" if state.order.filled_qty else "acknowledge")
    order = stepped(state.order, step, now)
    return order_change("OrderSent", state, order, (sent,))


# How long after acceptance an IOC or FOK order may still be sent: as long as a venue may take to answer one (seed 000).
SEND_DEADLINES: Mapping[TimeInForce, timedelta] = {"IOC": timedelta(seconds=2.5), "FOK": timedelta(seconds=5)}

# The ends of a doubt after which an order is sent again: the time that it was in doubt was no waiting.
_DOUBT_ENDED: Final[frozenset[SendCode]] = frozenset({"ABSENT_AT_VENUE", "NOT_SENT_BY_DECISION"})


def is_past_deadline(order: Order, at: datetime) -> bool:
    """Whether the order must not be sent at that time any more; a GTC order has no deadline.

    A DAY order that was not sent on its trading day must not be valid on the next one.
    """
    if order.expires_at is not None:
        return at >= order.expires_at
    deadline = SEND_DEADLINES.get(order.time_in_force)
    return deadline is not None and at >= order.accepted_at + deadline


def backoff(attempt: int, jitter: float) -> timedelta:
    """2, 4 … 256 seconds; `jitter` in [-1, 1] moves it by up to a tenth."""
    seconds = 2.0 ** min(max(attempt, 1), 8)
    return timedelta(seconds=seconds * (1 + jitter / 10))


def _as_it_is(time: datetime) -> datetime:
    return time


def _never_paused(_venue: VenueName) -> datetime | None:
    return None


class RetryLimits(msgspec.Struct, frozen=True):
    """How often, and for how long after its acceptance, an order that is proven unsent is sent again.

    The time is counted whether attempts are made or not: while a circuit breaker is open or a venue is closed, none
    are made. It is counted around the clock: venues have no trading session here, whose closed hours would not count.
    """

    retries_max: int
    wait_max: timedelta
    counted_from: Callable[[datetime], datetime] = _as_it_is
    """When the wait of an order of that time began: later, if the clock was stepped ahead since."""
    resumed_at: Callable[[VenueName], datetime | None] = _never_paused
    """When the last pause of the venue's credential ended: the time before it is not counted."""
    ends_by_time_only: bool = False
    """Whether orders are sent again for as long as they may wait, however often; cancels and amends are counted."""

    def are_used_up(self, row: OutboxRow) -> bool:
        """Whether the row's last attempt was its last retry."""
        return row.attempt > self.retries_max and not (self.ends_by_time_only and row.kind == "new")

    def is_too_old(self, order: Order, row: OutboxRow, at: datetime) -> bool:
        """Whether the order is proven unsent and has waited for too long at that time; never one in doubt.

        An order that was in doubt counts from the end of the doubt, until its next attempt.
        """
        if order.status != "ACCEPTED":
            return False
        since = row.updated_at if row.last_error in _DOUBT_ENDED else order.accepted_at
        return at >= self.waits_since(since, row.venue) + self.wait_max

    def waits_since(self, time: datetime, venue: VenueName) -> datetime:
        """When the wait of an order of that time began."""
        counted, resumed = self.counted_from(time), self.resumed_at(venue)
        return counted if resumed is None else max(counted, resumed)


def retry_limits(
    retries_max: int,
    wait_max: timedelta | None = None,
    counted_from: Callable[[datetime], datetime] = _as_it_is,
    resumed_at: Callable[[VenueName], datetime | None] = _never_paused,
) -> RetryLimits:
    """The limits of an order that cannot be sent; without a `wait_max`, it may wait as long as all retries take.

    That is the sum of their backoffs with the largest jitter: 561 s for 8 retries. At least the longest send deadline,
    because orders wait in a queue without any failure, too.
    """
    if wait_max is not None:
        return RetryLimits(retries_max, wait_max, counted_from, resumed_at, ends_by_time_only=True)
    retries = sum((backoff(attempt, 1) for attempt in range(1, retries_max + 1)), timedelta())
    return RetryLimits(retries_max, max(retries, *SEND_DEADLINES.values()), counted_from, resumed_at)


def record_result(order: Order, http_status: int, response: str, result_digest: str) -> Change:
    """Keep the final answer to the order's request, so that every repeat of it gets the same one."""
    assert order.operation is not None and order.idempotency_key is not None, "the order has no key"
    result = KeyResult(
        account_id=order.account_id,
        operation=order.operation,
        idempotency_key=order.idempotency_key,
        order_id=order.order_id,
        status=answer_status(http_status),
        http_status=http_status,
        response_payload_json=response,
        result_digest=result_digest,
    )
    fact = ResultFact(http_status=http_status, response=response, result_digest=result_digest)
    return Change(events=(event("ResultRecorded", order.account_id, order.order_id, fact),), results=(result,))
