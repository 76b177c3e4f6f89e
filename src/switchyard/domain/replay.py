"""Replay: folds journal lines back into the rows they made, and checks each line against the ones before. Pure."""

from collections.abc import Callable
from datetime import datetime
from typing import TypeVar, get_args

import msgspec

from switchyard.domain import fold
from switchyard.domain.amends import amend_result, current_id
from switchyard.domain.changes import Execution
from switchyard.domain.decisions.revise import recorded_ids
from switchyard.domain.events import position_fact
from switchyard.domain.facts import (
    AcceptedFact,
    KeyFact,
    OrderChange,
    OrderFact,
    OutboxFact,
    PositionFact,
    RejectedFact,
    ReportFact,
    ResultFact,
    RevisionFact,
)
from switchyard.domain.idempotency import KeyEntry, KeyResult
from switchyard.domain.ids import AccountId, OrderId, VenueClientOrderId, VenueName, tag_of
from switchyard.domain.lifecycle import ImpossibleStep, Status, Step, next_status
from switchyard.domain.lines import (
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
from switchyard.domain.orders import Order
from switchyard.domain.outbox import OutboxKey, OutboxRow, queued_row
from switchyard.domain.positions import ACCOUNT_TOTAL, Position, PositionKey, account_total, add_result, apply_report
from switchyard.domain.replay_kills import KillReplay
from switchyard.domain.replay_mismatch import ReplayMismatch
from switchyard.domain.replay_reroutes import check_reroute
from switchyard.domain.replay_revisions import revised_positions
from switchyard.domain.results import answer_status, order_result

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
        order = fold.accepted(line.account_id, line.order_id, fact)
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
        order = fold.changed(before, fact.order, report)
        shown = before.filled_qty if fact.order.filled_qty is None else fact.order.filled_qty
        if shown != order.filled_qty:
            raise ReplayMismatch(line.seq, f"filledQty is {shown}, the fills add up to {order.filled_qty}")
        is_of_leg = report is not None and (report.leg_client_order_id or before.venue_client_order_id) == current_id(
            order
        )
        if report is not None and is_of_leg and order.venue_order_id != fold.venue_order_id(before, report):
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
            row, version = fold.new_row(order, fact, updated_at), 1
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
