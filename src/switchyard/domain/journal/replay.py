"""Replay: folds events into orders, outbox rows, positions and kills, and says where a line does not fit. Pure."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeVar, get_args

import msgspec
from msgspec.structs import replace

from switchyard.domain.accounts.positions import (
    ACCOUNT_TOTAL,
    Position,
    PositionKey,
    account_total,
    add_result,
    apply_report,
    revised_total,
)
from switchyard.domain.decisions.reports import recorded_ids, revised
from switchyard.domain.errors import SwitchyardError
from switchyard.domain.ids import AccountId, KillId, OrderId, VenueClientOrderId, VenueName, tag_of
from switchyard.domain.journal.changes import Execution
from switchyard.domain.journal.events import position_fact
from switchyard.domain.journal.facts import (
    AcceptedFact,
    KeyFact,
    KillClearedFact,
    KillFact,
    OrderChange,
    OrderFact,
    OutboxFact,
    PositionFact,
    RejectedFact,
    ReportFact,
    ResultFact,
    RevisionFact,
    TermsFact,
)
from switchyard.domain.journal.lines import (
    AuditLine,
    decode_accepted_fact,
    decode_epoch_fact,
    decode_kill_cleared_fact,
    decode_kill_fact,
    decode_order_fact,
    decode_rejected_fact,
    decode_report_fact,
    decode_result_fact,
    decode_revision_fact,
    decode_set_aside_fact,
)
from switchyard.domain.orders.amends import amend_result, current_id, payload_of
from switchyard.domain.orders.keys import KeyEntry, KeyResult
from switchyard.domain.orders.lifecycle import ImpossibleStep, Status, Step, is_final, next_status
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OutboxKey, OutboxRow, queued_row
from switchyard.domain.orders.reasons import described
from switchyard.domain.orders.reports import OrderReport, answer_status, order_result
from switchyard.domain.risk.kills import Kill, KillOrder, covering
from switchyard.domain.values import EXACT, ZERO, canonical


def accepted(account: AccountId, order_id: OrderId, fact: AcceptedFact) -> Order:
    """The order of an `OrderAccepted` or a `RiskRejected`."""
    shown, key = fact.order, fact.idempotency
    reason = described(fact.reason, fact.detail) if isinstance(fact, RejectedFact) else None
    return Order(
        order_id=order_id,
        account_id=account,
        client_order_id=shown.client_order_id,
        venue_client_order_id=fact.venue_client_order_id,
        symbol=shown.symbol,
        side=shown.side,
        type=shown.type,
        time_in_force=shown.time_in_force,
        qty=shown.qty,
        price=shown.price,
        stop_price=shown.stop_price,
        status="ACCEPTED" if reason is None else "REJECTED",
        filled_qty=ZERO,
        filled_notional=ZERO,
        venue=shown.venue,
        venue_order_id=None,
        reason=reason,
        strategy=shown.strategy,
        tags=shown.tags,
        accepted_at=shown.accepted_at,
        updated_at=shown.accepted_at,
        version=1,
        trace_id=shown.trace_id,
        requested_at=shown.requested_at,
        operation=None if key is None else key.operation,
        idempotency_key=None if key is None else key.key,
        currency=shown.currency,
        multiplier=shown.multiplier,
        reserve_price=shown.price if shown.reserve_price is None else shown.reserve_price,
        reducing=shown.reducing,
        expires_at=shown.expires_at,
        reduce_only=shown.reduce_only,
        post_only=shown.post_only,
        display_qty=shown.display_qty,
        venue_reduce_only=shown.venue_reduce_only,
    )


def changed(order: Order, change: OrderChange, report: ReportFact | None) -> Order:
    """The order after a later event; `report` is the one whose effect the event shows."""
    filled, notional = (order.filled_qty, order.filled_notional) if report is None else with_fill(order, report)
    return replace(
        order,
        status=change.status,
        filled_qty=filled,
        filled_notional=notional,
        venue=order.venue if change.venue is None else change.venue,
        venue_order_id=order.venue_order_id if change.venue_order_id is None else change.venue_order_id,
        reason=order.reason if change.reason is None else change.reason,
        updated_at=order.updated_at if change.updated_at is None else change.updated_at,
        version=change.version,
        **({} if change.terms is None else amended_terms(change.terms)),
    )


def amended_terms(terms: TermsFact) -> dict[str, Any]:
    """The fields of an order that an amend may change."""
    return {
        "qty": terms.qty,
        "price": terms.price,
        "stop_price": terms.stop_price,
        "reserve_price": terms.price if terms.reserve_price is None else terms.reserve_price,
        "reducing": terms.reducing,
        "amend_qty": terms.amend_qty,
        "amend_reserve_price": terms.amend_reserve_price,
        "leg_client_order_id": terms.leg_client_order_id,
        "leg_end": terms.leg_end,
    }


def with_fill(order: Order, report: ReportFact) -> tuple[Decimal, Decimal]:
    """The order's filled quantity and notional after a report."""
    filled, notional = canonical(EXACT.add(order.filled_qty, report.last_qty)), order.filled_notional
    if report.last_price is not None:
        notional = canonical(EXACT.add(notional, EXACT.multiply(report.last_qty, report.last_price)))
    return filled, notional


def venue_order_id(order: Order, report: ReportFact) -> str | None:
    """The venue's id of the order, according to the report; `order` is the order before the report."""
    return order.venue_order_id if report.venue_order_id is None else report.venue_order_id


def reported(order: Order, report: ReportFact) -> OrderReport:
    """A report on the order as clients see it; `order` is the order before the report."""
    client_id = report.venue_client_order_id
    return OrderReport(
        exec_id=report.exec_id,
        venue=order.venue if report.venue is None else report.venue,
        venue_client_order_id=order.venue_client_order_id if client_id is None else client_id,
        venue_order_id=venue_order_id(order, report),
        status=report.status,
        last_qty=report.last_qty,
        last_price=report.last_price,
        filled_qty_total=report.filled_qty_total,
        reason=report.reason,
        at=report.at,
        order_id=order.order_id,
        symbol=order.symbol,
        side=order.side,
        fee=report.fee,
        fee_currency=report.fee_currency,
        exec_type=report.exec_type,
        ref_exec_id=report.ref_exec_id,
    )


def new_row(order: Order, fact: OutboxFact, at: datetime) -> OutboxRow:
    """A new outbox row of the order, as its event shows it."""
    if fact.amend is None:
        return queued_row(order, fact.kind, fact.number, at)
    client_id, payload = fact.amend.client_order_id, payload_of(fact.amend)
    return queued_row(order, fact.kind, fact.number, at, client_order_id=client_id, payload=payload)


class ReplayMismatch(SwitchyardError):
    """The event at `seq` does not follow from those before it."""

    def __init__(self, seq: int, why: str) -> None:
        super().__init__(f"event {seq}: {why}")
        self.seq = seq
        self.why = why


class KillReplay:
    """The kills after the lines so far, and the orders that each of them covered."""

    def __init__(self) -> None:
        self.rows: dict[KillId, Kill] = {}
        self.orders: list[KillOrder] = []
        self._active: dict[KillId, Kill] = {}

    def set(self, line: AuditLine, fact: KillFact, orders: Iterable[Order]) -> None:
        """Apply a `KillSwitchSet`; `orders` are all orders before it."""
        if fact.kill_id in self.rows:
            raise ReplayMismatch(line.seq, f"kill {fact.kill_id} was set before")
        kill = Kill(
            kill_id=fact.kill_id,
            account_id=fact.account_id,
            strategy=fact.strategy,
            venue=fact.venue,
            symbol=fact.symbol,
            mode=fact.mode,
            set_by=fact.by,
            set_reason=fact.reason,
            set_at=fact.set_at,
            version=1,
            seq=line.seq,
        )
        self.rows[kill.kill_id] = self._active[kill.kill_id] = kill
        self.orders += [
            KillOrder(kill.kill_id, order.order_id)
            for order in orders
            if not is_final(order.status) and kill.covers(order)
        ]

    def clear(self, line: AuditLine, fact: KillClearedFact) -> None:
        """Apply a `KillSwitchCleared`."""
        kill = self._active.pop(fact.kill_id, None)
        if kill is None:
            raise ReplayMismatch(line.seq, f"kill {fact.kill_id} is not active")
        self.rows[kill.kill_id] = msgspec.structs.replace(
            kill,
            cleared_by=fact.by,
            cleared_reason=fact.reason,
            cleared_at=fact.cleared_at,
            version=kill.version + 1,
        )

    def expect_none(self, line: AuditLine, order: Order) -> None:
        """Raise ReplayMismatch where an active kill covers an order that the line accepts or begins to send."""
        kill = covering(self._active.values(), order) if self._active else None
        if kill is not None:
            raise ReplayMismatch(line.seq, f"order {order.order_id} was placed although kill {kill.kill_id} covers it")


def check_reroute(line: AuditLine, before: Order, row: OutboxRow | None, fact: OrderFact, kills: KillReplay) -> None:
    """Raise ReplayMismatch where the line moves an order that may be at its venue, or that a kill covers.

    `before` and `row` are the order and its own outbox row before the line.
    """
    to = fact.order.venue
    if line.type != "OrderRerouted":
        if to is not None or fact.reroute is not None:
            raise ReplayMismatch(line.seq, f"{line.type} moves order {before.order_id} to another venue")
        return
    shown = fact.reroute
    if to is None or shown is None or (shown.from_venue, shown.to) != (before.venue, to) or to == before.venue:
        raise ReplayMismatch(line.seq, f"order {before.order_id} is at {before.venue}, and the line moves another way")
    if row is not None and row.status == "uncertain" and (not row.attempt or row.last_error == "RESTORED"):
        return  # found there after a restore: nothing is sent
    if row is None or row.bytes_sent or row.status not in ("queued", "failed") or before.status != "ACCEPTED":
        raise ReplayMismatch(line.seq, f"order {before.order_id} was moved although it may be at {before.venue}")
    kills.expect_none(line, before)


def revised_positions(
    line: AuditLine, order: Order, held: Mapping[PositionKey, Position], fact: RevisionFact
) -> list[Position]:
    """The positions after the line, or ReplayMismatch; none where the revision took nothing back."""
    if fact.revised is None:
        if fact.position is not None or fact.account_total is not None:
            raise ReplayMismatch(line.seq, "a position without a revised execution")
        return []
    before = held.get((order.account_id, order.symbol))
    if before is None or fact.position is None:
        raise ReplayMismatch(line.seq, f"the position is missing after the revision {fact.exec_id}")
    now = fact.position.updated_at or order.updated_at
    after = revised(order, before, fact, now, fact.position.day)
    if position_fact(after, order) != fact.position:
        raise ReplayMismatch(line.seq, "the position does not follow from the revision")
    total = held.get((order.account_id, ACCOUNT_TOTAL)) or account_total(order.account_id, now)
    result = revised_total(total, before, after)
    shown = None if result is total else position_fact(result, order)
    if shown != fact.account_total:
        raise ReplayMismatch(line.seq, "the account's results do not follow from the revision")
    return [after] if result is total else [after, result]


__all__ = ["Replay", "ReplayMismatch"]

KeyId = tuple[AccountId, str, str]


def _reachable() -> dict[Status, frozenset[Status]]:
    reachable: dict[Status, frozenset[Status]] = {}
    for status in get_args(Status):
        statuses = {status}  # an event about a cancel does not change its order's status
        for step in get_args(Step):
            try:
                statuses.add(next_status(status, step))
            except ImpossibleStep:
                continue
        reachable[status] = frozenset(statuses)
    return reachable


_REACHABLE = _reachable()
_T = TypeVar("_T")


class Replay:
    """The rows that the lines so far have made.

    A rejected line changes nothing, so the state is always that of the last valid line.
    """

    def __init__(self) -> None:
        self.orders: dict[OrderId, Order] = {}
        self.outbox: dict[OutboxKey, OutboxRow] = {}
        self.keys: dict[KeyId, KeyEntry] = {}
        self.positions: dict[PositionKey, Position] = {}
        self.executions: dict[tuple[VenueName, str], Execution] = {}
        self.kills = KillReplay()
        self.installation_id: str | None = None
        """The installation's id, if the lines show it: they do from the second epoch on."""
        self.tag: str | None = None
        """The installation's tag, with which the client order ids begin."""
        self._report: tuple[OrderId, ReportFact] | None = None

    @property
    def within_change(self) -> bool:
        """Whether the last line was a report whose `OrderUpdated` has not come yet."""
        return self._report is not None

    def apply(self, line: AuditLine) -> None:
        """Apply the next line, or raise ReplayMismatch."""
        match line.type:
            case "ExecutionReport":
                self._apply_report(line)
            case "ExecutionRevised":
                self._expect_no_report(line)
                self._apply_revision(line, _decoded(decode_revision_fact, line))
            case "ReportUnmatched":
                self._expect_no_report(line)
                self._apply_unmatched(line, _decoded(decode_report_fact, line))
            case "ReportSetAside":
                self._expect_no_report(line)
                fact = _decoded(decode_set_aside_fact, line)
                self._put_execution(
                    line, Execution(VenueName(fact.venue), fact.exec_id, OrderId(""), fact.venue_client_order_id)
                )
            case "AuditFileCut":
                self._expect_no_report(line)
            case "KillSwitchSet":
                self._expect_no_report(line)
                self.kills.set(line, _decoded(decode_kill_fact, line), self.orders.values())
            case "KillSwitchCleared":
                self._expect_no_report(line)
                self.kills.clear(line, _decoded(decode_kill_cleared_fact, line))
            case "EpochOpened":
                self._expect_no_report(line)
                opened = _decoded(decode_epoch_fact, line)
                self.installation_id, self.tag = opened.installation, opened.tag
            case "ResultRecorded":
                self._expect_no_report(line)
                self._apply_result(line, _decoded(decode_result_fact, line))
            case "OrderAccepted":
                self._expect_no_report(line)
                self._accept(line, _decoded(decode_accepted_fact, line))
            case "RiskRejected":
                self._expect_no_report(line)
                self._accept(line, _decoded(decode_rejected_fact, line))
            case (
                "OrderSending"
                | "OrderSent"
                | "OrderUpdated"
                | "OrderUncertain"
                | "OrderRerouted"
                | "OperatorDecision"
                | "CancelRequested"
                | "CancelSent"
                | "AmendRequested"
                | "Amended"
                | "AmendRefused"
            ):
                self._apply_order(line, _decoded(decode_order_fact, line))
            case _:
                raise ReplayMismatch(
                    line.seq,
                    f"unknown event type {line.type!r}: written by a newer Switchyard; replay it with that version",
                )

    def sorted_orders(self) -> list[Order]:
        """All orders sorted by id, as `state_digest` needs them."""
        return sorted(self.orders.values(), key=lambda order: order.order_id)

    def _apply_report(self, line: AuditLine) -> None:
        self._expect_no_report(line)
        if line.order_id not in self.orders:
            raise ReplayMismatch(line.seq, f"a report on order {line.order_id}, which was never accepted")
        self._report = (line.order_id, _decoded(decode_report_fact, line))

    def _apply_revision(self, line: AuditLine, fact: RevisionFact) -> None:
        order = None if line.order_id is None else self.orders.get(line.order_id)
        if order is None or order.account_id != line.account_id:
            raise ReplayMismatch(line.seq, f"a revision of order {line.order_id}, which was never accepted")
        moved = revised_positions(line, order, self.positions, fact)
        venue = fact.venue or order.venue
        first, *marks = recorded_ids(fact)
        self._put_execution(line, Execution(venue, first, order.order_id))
        for mark in marks:  # of two early revisions, the first has marked the execution
            self.executions.setdefault((venue, mark), Execution(venue, mark, order.order_id))
        self.positions |= {position.key: position for position in moved}

    def _apply_unmatched(self, line: AuditLine, report: ReportFact) -> None:
        if report.venue is None or report.venue_client_order_id is None:
            raise ReplayMismatch(line.seq, "a report on an unknown order without its venue or client order id")
        self._put_execution(line, Execution(report.venue, report.exec_id, OrderId(""), report.venue_client_order_id))

    def _expect_no_report(self, line: AuditLine) -> None:
        if self._report is not None:
            raise ReplayMismatch(line.seq, f"the order's update is missing after report {self._report[1].exec_id}")

    def _accept(self, line: AuditLine, fact: AcceptedFact) -> None:
        if line.order_id is None or line.order_id in self.orders:
            raise ReplayMismatch(line.seq, f"order {line.order_id} was accepted before, or has no id")
        order = accepted(line.account_id, line.order_id, fact)
        if not isinstance(fact, RejectedFact):
            self.kills.expect_none(line, order)
        self.tag = tag_of(order.venue_client_order_id) or self.tag
        self.orders[order.order_id] = order
        if not isinstance(fact, RejectedFact):
            self._put_row(queued_row(order, "new", 1, order.accepted_at), line.seq)
        if fact.idempotency is not None:
            self._apply_key(order, fact.idempotency, order.accepted_at)
        result = order_result(order)
        if result is not None:
            self._put_result(result)

    def _apply_order(self, line: AuditLine, fact: OrderFact) -> None:
        report = None
        if self._report is not None:
            if self._report[0] != line.order_id:
                self._expect_no_report(line)
            report = self._report[1]
        before = None if line.order_id is None else self.orders.get(line.order_id)
        if before is None:
            raise ReplayMismatch(line.seq, f"order {line.order_id} was never accepted")
        if before.account_id != line.account_id:
            raise ReplayMismatch(line.seq, f"order {line.order_id} belongs to another account")
        _check_step(line, before, fact.order)
        check_reroute(line, before, self.outbox.get((before.order_id, "new", 1)), fact, self.kills)
        order = changed(before, fact.order, report)
        shown = before.filled_qty if fact.order.filled_qty is None else fact.order.filled_qty
        if shown != order.filled_qty:
            raise ReplayMismatch(line.seq, f"filledQty is {shown}, the fills add up to {order.filled_qty}")
        is_of_leg = report is not None and (report.leg_client_order_id or before.venue_client_order_id) == current_id(
            order
        )
        if report is not None and is_of_leg and order.venue_order_id != venue_order_id(before, report):
            raise ReplayMismatch(line.seq, f"venueOrderId is not that of report {report.exec_id}")
        rows = [self._row(line, order, row) for row in fact.outbox]
        begins = line.type == "AmendRequested" or any(row.kind != "cancel" and row.status == "sending" for row in rows)
        if begins or (fact.reroute is not None and order.status == "ACCEPTED"):
            self.kills.expect_none(line, order)
        held = self.positions.get((order.account_id, order.symbol))
        position = self._position(line, order, report, fact.position)
        total = self._total(line, order, held, position, fact.account_total)
        if report is not None:
            venue = order.venue if report.venue is None else report.venue
            self._put_execution(line, Execution(venue, report.exec_id, order.order_id))
            self._report = None
        if position is not None:
            self.positions[position.key] = position
        if total is not None:
            self.positions[total.key] = total
        self.orders[order.order_id] = order
        for row in rows:
            self._put_row(row, line.seq)
        if fact.idempotency is not None:
            self._apply_key(order, fact.idempotency, order.updated_at)
        for result in (order_result(order), *(amend_result(order, row) for row in rows if row.kind == "amend")):
            if result is not None:
                self._put_result(result)

    def _position(
        self, line: AuditLine, order: Order, report: ReportFact | None, shown: PositionFact | None
    ) -> Position | None:
        """The account's position after the line; none where the line is not a fill."""
        if report is None or not report.last_qty:
            if shown is not None:
                raise ReplayMismatch(line.seq, "a position without a fill")
            return None
        if shown is None:
            raise ReplayMismatch(line.seq, f"the position is missing after fill {report.exec_id}")
        before = self.positions.get((order.account_id, order.symbol))
        position = apply_report(before, order, report.last_qty, report.last_price, _updated_at(shown, order), shown.day)
        if position is None or position_fact(position, order) != shown:
            raise ReplayMismatch(line.seq, "the position does not follow from the fills")
        return position

    def _total(
        self,
        line: AuditLine,
        order: Order,
        held: Position | None,
        position: Position | None,
        shown: PositionFact | None,
    ) -> Position | None:
        """The account's results over all symbols after the line; none where the line does not show them."""
        if shown is None:
            return None
        account = order.account_id
        before = self.positions.get((account, ACCOUNT_TOTAL)) or account_total(account, _updated_at(shown, order))
        total = before if position is None else add_result(before, held, position)
        if total is before or position_fact(total, order) != shown:
            raise ReplayMismatch(line.seq, "the account's results do not follow from the fills")
        return total

    def _put_execution(self, line: AuditLine, execution: Execution) -> None:
        key = (execution.venue, execution.exec_id)
        earlier = self.executions.get(key)
        if not execution.may_replace(earlier, () if earlier is None else self._client_ids(execution.order_id)):
            raise ReplayMismatch(line.seq, f"execution {execution.exec_id} of {execution.venue} was applied before")
        self.executions[key] = execution

    def _client_ids(self, order_id: OrderId) -> list[VenueClientOrderId]:
        """The ids of the order and of its amends."""
        order = self.orders.get(order_id)
        ids = [] if order is None else [order.venue_client_order_id]
        while (amend := self.outbox.get((order_id, "amend", len(ids)))) is not None:
            ids.append(amend.venue_client_order_id)
        return ids

    def _row(self, line: AuditLine, order: Order, fact: OutboxFact) -> OutboxRow:
        """An outbox row of the order after the line."""
        before = self.outbox.get((order.order_id, fact.kind, fact.number))
        updated_at = _updated_at(fact, order)
        if before is None:
            row, version = new_row(order, fact, updated_at), 1
            # An amend of a history that a restore has lost is known only as carried out.
            is_adopted = (line.type, fact.status) in (("Amended", "sent"), ("AmendRefused", "dead"))
            if fact.status != row.status and not is_adopted:
                raise ReplayMismatch(line.seq, f"outbox row {row.outbox_id} is {fact.status} and was never queued")
        else:
            row, version = before, before.version + 1
            if before.bytes_sent and not fact.bytes_sent:
                raise ReplayMismatch(line.seq, f"bytesSent of outbox row {row.outbox_id} was reset")
        return msgspec.structs.replace(
            row,
            venue=order.venue,
            status=fact.status,
            attempt=row.attempt if fact.attempt is None else fact.attempt,
            next_attempt_at=row.next_attempt_at if fact.next_attempt_at is None else fact.next_attempt_at,
            last_error=fact.last_error,
            error_detail=fact.error_detail,
            bytes_sent=fact.bytes_sent,
            worker=fact.worker,
            updated_at=updated_at,
            version=version,
        )

    def _put_row(self, row: OutboxRow, seq: int) -> None:
        # A row keeps the number of the event that created it.
        self.outbox[row.key] = msgspec.structs.replace(row, seq=seq) if row.version == 1 else row

    def _apply_key(self, order: Order, fact: KeyFact, at: datetime) -> None:
        self.keys[order.account_id, fact.operation, fact.key] = KeyEntry(
            account_id=order.account_id,
            operation=fact.operation,
            idempotency_key=fact.key,
            generation=fact.generation,
            order_id=order.order_id,
            request_digest=fact.digest,
            created_at=fact.created_at or at,
            expires_at=fact.expires_at,
            version=fact.version,
        )

    def _apply_result(self, line: AuditLine, fact: ResultFact) -> None:
        order = None if line.order_id is None else self.orders.get(line.order_id)
        if order is None or order.account_id != line.account_id:
            raise ReplayMismatch(line.seq, "a result of a request that was never accepted")
        if order.operation is None or order.idempotency_key is None:
            raise ReplayMismatch(line.seq, "a result of a request without a key")
        self._put_result(
            KeyResult(
                account_id=order.account_id,
                operation=order.operation,
                idempotency_key=order.idempotency_key,
                order_id=order.order_id,
                status=answer_status(fact.http_status),
                http_status=fact.http_status,
                response_payload_json=fact.response,
                result_digest=fact.result_digest,
            )
        )

    def _put_result(self, result: KeyResult) -> None:
        key = (result.account_id, result.operation, result.idempotency_key)
        entry = result.written_to(self.keys.get(key))
        if entry is not None:  # otherwise the key has another order by now
            self.keys[key] = entry


def _decoded(decode: Callable[[msgspec.Raw], _T], line: AuditLine) -> _T:
    try:
        return decode(line.data)
    except msgspec.DecodeError as error:
        raise ReplayMismatch(line.seq, f"its data cannot be read: {error}") from None


def _check_step(line: AuditLine, before: Order, shown: OrderChange) -> None:
    if shown.status not in _REACHABLE[before.status]:
        raise ReplayMismatch(line.seq, f"no step leads from {before.status} to {shown.status}")
    if shown.version != before.version + 1:
        raise ReplayMismatch(line.seq, f"version {shown.version} follows version {before.version}")
    if shown.updated_at is not None and shown.updated_at < before.updated_at:
        raise ReplayMismatch(line.seq, f"updatedAt is before that of version {before.version}")


def _updated_at(shown: PositionFact | OutboxFact, order: Order) -> datetime:
    return order.updated_at if shown.updated_at is None else shown.updated_at
