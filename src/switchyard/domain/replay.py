"""Replay: folds the journal's lines back into the rows they made, and checks each line against the ones before.

Pure: reads lines that the caller has parsed, writes nothing.
"""

from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeVar, get_args

import msgspec

from switchyard.domain.changes import Execution
from switchyard.domain.errors import SwitchyardError
from switchyard.domain.events import KeyFact, OrderFact, OutboxFact, PositionFact, ReportFact, ResultFact, position_fact
from switchyard.domain.idempotency import KeyEntry, KeyResult
from switchyard.domain.ids import AccountId, OrderId, VenueClientOrderId, VenueName, tag_of
from switchyard.domain.lifecycle import ImpossibleStep, Status, Step, next_status
from switchyard.domain.lines import (
    AuditLine,
    decode_epoch_fact,
    decode_order_fact,
    decode_report_fact,
    decode_result_fact,
    decode_set_aside_fact,
)
from switchyard.domain.money import EXACT, ZERO, canonical
from switchyard.domain.orders import Order, OrderSnapshot, snapshot
from switchyard.domain.outbox import OutboxKey, OutboxRow, lane_of
from switchyard.domain.positions import ACCOUNT_TOTAL, Position, PositionKey, account_total, add_result, apply_report
from switchyard.domain.results import order_result

KeyId = tuple[AccountId, str, str]


class ReplayMismatch(SwitchyardError):
    """The event at `seq` does not follow from those before it."""

    def __init__(self, seq: int, why: str) -> None:
        super().__init__(f"event {seq}: {why}")
        self.seq = seq
        self.why = why


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
# A snapshot has all fields of the order's row except the ones that accounts do not see, and some derived ones.
_SHARED_FIELDS = tuple(name for name in OrderSnapshot.__struct_fields__ if name in Order.__struct_fields__)
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
            case "ReportUnmatched":
                self._expect_no_report(line)
                self._add_execution(line, _decoded(decode_report_fact, line), OrderId(""))
            case "ReportSetAside":
                self._expect_no_report(line)
                fact = _decoded(decode_set_aside_fact, line)
                self._put_execution(
                    line, Execution(VenueName(fact.venue), fact.exec_id, OrderId(""), fact.venue_client_order_id)
                )
            case "AuditFileCut":
                self._expect_no_report(line)
            case "EpochOpened":
                self._expect_no_report(line)
                opened = _decoded(decode_epoch_fact, line)
                self.installation_id, self.tag = opened.installation, opened.tag
            case "ResultRecorded":
                self._expect_no_report(line)
                self._apply_result(line, _decoded(decode_result_fact, line))
            case (
                "OrderAccepted"
                | "OrderSending"
                | "OrderSent"
                | "OrderUpdated"
                | "OrderUncertain"
                | "OperatorDecision"
                | "CancelRequested"
                | "CancelSent"
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

    def _expect_no_report(self, line: AuditLine) -> None:
        if self._report is not None:
            raise ReplayMismatch(line.seq, f"the order's update is missing after report {self._report[1].exec_id}")

    def _apply_order(self, line: AuditLine, fact: OrderFact) -> None:
        shown = fact.order
        report = None
        if self._report is not None:
            if self._report[0] != shown.order_id:
                self._expect_no_report(line)
            report = self._report[1]
        if shown.order_id != line.order_id or shown.account_id != line.account_id:
            raise ReplayMismatch(line.seq, "the line and its order name different orders or accounts")
        before = self.orders.get(shown.order_id)
        _check_step(line, before, shown)
        filled, notional = _filled(before, report)
        if shown.filled_qty != filled:
            raise ReplayMismatch(line.seq, f"filledQty is {shown.filled_qty}, the fills add up to {filled}")
        client_id = fact.venue_client_order_id if before is None else before.venue_client_order_id
        if client_id is None:
            raise ReplayMismatch(line.seq, "an accepted order without a venueClientOrderId")
        if before is None:
            self.tag = tag_of(client_id) or self.tag
        key = (None, None) if before is None else (before.operation, before.idempotency_key)
        if before is None and fact.idempotency is not None:
            key = fact.idempotency.operation, fact.idempotency.key
        order = _order(shown, client_id, filled, notional, key)
        if snapshot(order) != shown:
            raise ReplayMismatch(line.seq, "remainingQty or avgPrice does not follow from the fills")
        held = self.positions.get((order.account_id, order.symbol))
        position = self._position(line, order, report, fact.position)
        total = self._total(line, order.account_id, held, position, fact.account_total)
        if report is not None:
            self._add_execution(line, report, order.order_id)
            self._report = None
        if position is not None:
            self.positions[position.key] = position
        if total is not None:
            self.positions[total.key] = total
        self.orders[order.order_id] = order
        for row in fact.outbox:
            self._apply_row(line.seq, order, row)
        if fact.idempotency is not None:
            self._apply_key(order, fact.idempotency)
        result = order_result(order)
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
        position = apply_report(before, order, report.last_qty, report.last_price, shown.updated_at)
        if position is None or position_fact(position) != shown:
            raise ReplayMismatch(line.seq, "the position does not follow from the fills")
        return position

    def _total(
        self,
        line: AuditLine,
        account: AccountId,
        held: Position | None,
        position: Position | None,
        shown: PositionFact | None,
    ) -> Position | None:
        """The account's results over all symbols after the line; none where the line does not show them."""
        if shown is None:
            return None
        before = self.positions.get((account, ACCOUNT_TOTAL)) or account_total(account, shown.updated_at)
        total = before if position is None else add_result(before, held, position)
        if total is before or position_fact(total) != shown:
            raise ReplayMismatch(line.seq, "the account's results do not follow from the fills")
        return total

    def _add_execution(self, line: AuditLine, report: ReportFact, order_id: OrderId) -> None:
        stray = report.venue_client_order_id if order_id == "" else None
        self._put_execution(line, Execution(VenueName(report.venue), report.exec_id, order_id, stray))

    def _put_execution(self, line: AuditLine, execution: Execution) -> None:
        key = (execution.venue, execution.exec_id)
        order = self.orders.get(execution.order_id)
        client_id = None if order is None else order.venue_client_order_id
        if not execution.may_replace(self.executions.get(key), client_id):
            raise ReplayMismatch(line.seq, f"execution {execution.exec_id} of {execution.venue} was applied before")
        self.executions[key] = execution

    def _apply_row(self, seq: int, order: Order, fact: OutboxFact) -> None:
        key = (order.order_id, fact.kind, fact.number)
        before = self.outbox.get(key)
        self.outbox[key] = OutboxRow(
            order_id=order.order_id,
            kind=fact.kind,
            number=fact.number,
            venue=order.venue,
            venue_client_order_id=order.venue_client_order_id,
            status=fact.status,
            attempt=fact.attempt,
            next_attempt_at=fact.next_attempt_at,
            last_error=fact.last_error,
            error_detail=fact.error_detail,
            bytes_sent=fact.bytes_sent,
            worker=fact.worker,
            created_at=fact.updated_at if before is None else before.created_at,
            updated_at=fact.updated_at,
            version=1 if before is None else before.version + 1,
            lane=lane_of(order.account_id, order.symbol),
            seq=seq if before is None else before.seq,
        )

    def _apply_key(self, order: Order, fact: KeyFact) -> None:
        self.keys[order.account_id, fact.operation, fact.key] = KeyEntry(
            account_id=order.account_id,
            operation=fact.operation,
            idempotency_key=fact.key,
            generation=fact.generation,
            order_id=order.order_id,
            request_digest=fact.digest,
            created_at=fact.created_at or order.accepted_at,
            expires_at=fact.expires_at,
            version=fact.version,
        )

    def _apply_result(self, line: AuditLine, fact: ResultFact) -> None:
        key = (line.account_id, fact.operation, fact.key)
        order = None if line.order_id is None else self.orders.get(line.order_id)
        if order is None or (order.account_id, order.operation, order.idempotency_key) != key:
            raise ReplayMismatch(line.seq, "a result of a request that was never accepted")
        self._put_result(
            KeyResult(
                account_id=line.account_id,
                operation=fact.operation,
                idempotency_key=fact.key,
                order_id=order.order_id,
                status=fact.status,
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


def _check_step(line: AuditLine, before: Order | None, shown: OrderSnapshot) -> None:
    if before is None:
        if line.type != "OrderAccepted" or shown.status != "ACCEPTED":
            raise ReplayMismatch(line.seq, f"order {shown.order_id} was never accepted")
    elif shown.status not in _REACHABLE[before.status]:
        raise ReplayMismatch(line.seq, f"no step leads from {before.status} to {shown.status}")
    version = 0 if before is None else before.version
    if shown.version != version + 1:
        raise ReplayMismatch(line.seq, f"version {shown.version} follows version {version}")


def _filled(before: Order | None, report: ReportFact | None) -> tuple[Decimal, Decimal]:
    filled, notional = (ZERO, ZERO) if before is None else (before.filled_qty, before.filled_notional)
    if report is None:
        return filled, notional
    filled = canonical(EXACT.add(filled, report.last_qty))
    if report.last_price is not None:
        notional = canonical(EXACT.add(notional, EXACT.multiply(report.last_qty, report.last_price)))
    return filled, notional


def _order(
    shown: OrderSnapshot,
    client_id: VenueClientOrderId,
    filled: Decimal,
    notional: Decimal,
    key: tuple[str | None, str | None],
) -> Order:
    fields: dict[str, Any] = {name: getattr(shown, name) for name in _SHARED_FIELDS}
    fields.update(venue_client_order_id=client_id, filled_qty=filled, filled_notional=notional)
    fields.update(operation=key[0], idempotency_key=key[1])
    return Order(**fields)
