"""Applies the product's own decisions (`switchyard.domain.decisions`) to the model's records."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache, lru_cache

import msgspec

from switchyard.domain import decisions
from switchyard.domain.ids import AccountId, OrderId, VenueClientOrderId, VenueName, WorkerId
from switchyard.domain.journal.changes import Change
from switchyard.domain.orders.order import OrderRequest, TimeInForce
from switchyard.domain.orders.outbox import OrderState, OutboxRow, is_proven_unsent
from switchyard.domain.orders.reasons import PROVEN_UNSENT, DoubtCode
from switchyard.domain.orders.reports import ExecutionReport
from tests.model.state import Assumptions, Record

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
# Past every send deadline.
LATER = NOW + timedelta(hours=1)
VENUE = VenueName("sim")
WORKER = WorkerId("worker")
QTY = Decimal(1000)

Decision = Callable[[OrderState, OutboxRow, datetime], Change]


@lru_cache(maxsize=4)
def accepted(time_in_force: TimeInForce) -> OrderState:
    """The order as `decisions.accept` makes it."""
    request = OrderRequest(
        symbol="USDJPY", side="BUY", type="LIMIT", qty=QTY, price=Decimal(150), time_in_force=time_in_force
    )
    change = decisions.accept(
        request,
        account=AccountId("demo"),
        order_id=OrderId("ord_1"),
        venue=VENUE,
        venue_client_order_id=VenueClientOrderId("client-1"),
        key=None,
        quote=None,
        now=NOW,
    )
    return OrderState(order=change.orders[0], outbox=change.outbox)


def new_record(generation: int) -> Record:
    """The database after the key was accepted for the first time, or again."""
    return Record(generation, "ACCEPTED", "queued")


@cache
def order_state(record: Record, time_in_force: TimeInForce) -> OrderState:
    """The record as the product's own types."""
    template = accepted(time_in_force)
    order = msgspec.structs.replace(
        template.order,
        status=record.status,
        reason=record.reason,
        venue_order_id="venue-1" if record.at_venue else None,
        filled_qty=QTY if record.filled else Decimal(0),
    )
    row = msgspec.structs.replace(
        template.outbox[0],
        status=record.row,
        attempt=int(record.attempted),
        worker=WORKER if record.row == "sending" else None,
        bytes_sent=record.bytes_sent,
        last_error=record.code,
    )
    return OrderState(order=order, outbox=(row,))


def changed(record: Record, change: Change, **fields: object) -> Record:
    """The record after a change."""
    order = change.orders[0]
    row = change.outbox[0] if change.outbox else None
    after = record._replace(
        status=order.status,
        reason=order.reason,
        at_venue=order.venue_order_id is not None,
        filled=order.filled_qty >= order.qty,
        own_attempt=False,
    )
    if row is not None:
        after = after._replace(row=row.status, attempted=row.attempt > 0, code=row.last_error)
        after = after._replace(bytes_sent=record.bytes_sent or row.bytes_sent)
    return after._replace(**fields)  # type: ignore[arg-type]


class Decisions:
    """The decisions for one time in force, remembered: the search asks for the same ones many times."""

    def __init__(self, assumptions: Assumptions) -> None:
        self._tif = assumptions.time_in_force
        self._permanent = assumptions.dedupe == "permanent"
        self._known: dict[tuple[object, ...], Record] = {}

    def attempt(self, record: Record) -> Record:
        """Commit an attempt."""
        return self._decide("attempt", record, False, lambda s, r, now: decisions.begin_attempt(s, r, WORKER, now))

    def sent(self, record: Record) -> Record:
        """The venue answered that it has the order, or a lookup found it."""
        return self._decide("sent", record, False, lambda s, r, now: decisions.record_sent(s, r, "venue-1", now))

    def unsent(self, record: Record, is_late: bool) -> Record:
        """The attempt failed before the first byte; after an earlier attempt in doubt that proves nothing."""
        if record.status == "UNKNOWN":
            return self._doubt(record, "TOO_LATE_TO_RESEND", is_late, resend=self._permanent)
        return self._decide(
            "unsent", record, is_late, lambda s, r, now: decisions.record_unsent(s, r, "BROKER_DOWN", now, now)
        )

    def lost(self, record: Record, code: DoubtCode, is_late: bool) -> Record:
        """The outcome of an attempt is unknown."""
        return self._doubt(record, code, is_late, resend=self._permanent)

    def doubted(self, record: Record, code: DoubtCode) -> Record:
        """The row comes into doubt without an attempt of this process."""
        return self._doubt(record, code, False, resend=False)

    def expired(self, record: Record) -> Record:
        """The send deadline passed and nothing was sent."""
        return self._decide(
            "expired", record, True, lambda s, r, now: decisions.record_expired(s, r, "BROKER_TIMEOUT", now)
        )

    def requeued(self, record: Record, is_late: bool) -> Record:
        """Absent taken for unsent: the rule before `absent_keeps_id`."""
        return self._decide(
            "requeued", record, is_late, lambda s, r, now: decisions.record_unsent(s, r, "ABSENT_AT_VENUE", now, now)
        )

    def reported(self, record: Record) -> Record:
        """The venue reported that the order is filled; the report also proves that the row was sent."""
        report = ExecutionReport(
            venue=VENUE,
            exec_id="exec-1",
            venue_client_order_id=VenueClientOrderId("client-1"),
            venue_order_id="venue-1",
            status="FILLED",
            last_qty=QTY,
            last_price=Decimal(150),
            filled_qty_total=QTY,
            at=NOW,
        )
        after = self._decide("reported", record, False, lambda s, r, now: decisions.apply_report(s, None, report, now))
        return after._replace(row="sent", own_attempt=record.own_attempt)

    def absent(self, record: Record, is_late: bool) -> Record:
        """Proven absent: settles this client order id, and permits no other one."""
        return self._decide("absent", record, is_late, decisions.record_absent)

    def is_proven_unsent(self, record: Record) -> bool:
        """Whether no attempt has put a byte on the wire, so that the key may stand for another order."""
        return is_proven_unsent(order_state(record, self._tif))

    def may_start_generation(self, record: Record) -> bool:
        """Whether the order's end alone looks proven unsent: the rule before `absent_keeps_id`."""
        return record.status in ("EXPIRED", "REJECTED") and record.reason in PROVEN_UNSENT and not record.at_venue

    def _doubt(self, record: Record, code: DoubtCode, is_late: bool, *, resend: bool) -> Record:
        return self._decide(
            f"doubt {code} {resend}",
            record,
            is_late,
            lambda s, r, now: decisions.record_doubt(s, r, code, now if resend else None, now),
        )._replace(bytes_sent=True)

    def _decide(self, name: str, record: Record, is_late: bool, decision: Decision) -> Record:
        known = self._known.get((name, record, is_late))
        if known is None:
            state = order_state(record, self._tif)
            change = decision(state, state.row("new", 1), LATER if is_late else NOW)
            known = self._known[(name, record, is_late)] = changed(record, change)
        return known
