"""The Do-Layer's order (seed 000): the request `OrderRequest v1.1` and the answer `ExecResult v1`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal

import msgspec

from switchyard.domain.errors import InvalidField
from switchyard.domain.journal.events import Event, JournalEvent
from switchyard.domain.journal.facts import ReportFact
from switchyard.domain.journal.lines import data_of, decode_report_fact, stamp, version_of
from switchyard.domain.market.instruments import Catalogue, Instrument
from switchyard.domain.orders.lifecycle import Status
from switchyard.domain.orders.order import Order, OrderRequest, Side, average_price, checked, ended_unsent
from switchyard.domain.orders.reasons import described, is_conflict
from switchyard.domain.risk.checks import violation_of
from switchyard.domain.values import (
    EXACT,
    STRATEGY,
    average,
    canonical,
    check_label,
    converted,
    digest,
    is_multiple,
    plain,
    positive_amount,
    require_numbers,
)

ResultStatus = Literal["accepted", "partially_filled", "filled", "canceled", "rejected", "expired", "unknown"]

FailureCode = Literal["BROKER_REJECTED", "BROKER_DOWN", "BROKER_TIMEOUT", "VALIDATION_ERROR"]
_MESSAGES: Mapping[FailureCode, str] = {
    "BROKER_REJECTED": "the broker rejected the order",
    "BROKER_DOWN": "the broker could not be reached and the order was not sent: repeat with the same key",
    "BROKER_TIMEOUT": "the broker did not answer in time: repeat with the same key to learn what became of it",
    "VALIDATION_ERROR": "a pre-trade check rejected the order",
}

# The venue answered 429, for example, until the deadline or the last retry: the order is not sent again.
_NOT_PROCESSED = ("NOT_PROCESSED", described("RETRY_EXHAUSTED", "NOT_PROCESSED"))

# A tag with this beginning names the strategy that the order belongs to.
STRATEGY_TAG = "strategy:"
# The order's status as `/do/order` shows it; an order that is being sent counts as accepted.
_RESULT_STATUS: Mapping[Status, ResultStatus] = {
    "ACCEPTED": "accepted",
    "SENDING": "accepted",
    "UNKNOWN": "unknown",
    "WORKING": "accepted",
    "PARTIALLY_FILLED": "partially_filled",
    "CANCEL_REQUESTED": "accepted",
    "FILLED": "filled",
    "CANCELED": "canceled",
    "REJECTED": "rejected",
    "EXPIRED": "expired",
}


class RiskConstraints(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conditions on the market and the account; the order is rejected where one does not hold."""

    max_dd: Decimal | None = None
    """The largest drawdown of realised P&L, as a ratio of its high-water mark."""
    max_consecutive_loss: Decimal | None = None
    """The largest number of consecutive losing trades."""
    max_spread: Decimal | None = None
    """The largest spread between bid and ask, as a ratio of the mid price."""


class DoOrderRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /do/order`."""

    order_id: str
    instrument: str
    side: Side
    qty: Decimal
    """In lots."""
    idempotency_key: str
    price: Decimal | None = None
    """None: a market order."""
    time_in_force: Literal["IOC", "FOK", "GTC"] = "IOC"
    tags: tuple[str, ...] = ()
    requested_at: datetime | None = None
    risk_constraints: RiskConstraints = RiskConstraints()
    trace_id: str | None = None


class DoFill(msgspec.Struct, frozen=True, kw_only=True):
    """One execution of the order."""

    exec_id: str
    qty: Decimal
    price: Decimal | None
    at: datetime


class ExecFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an error answer of `/do/order`."""

    error: FailureCode
    message: str
    order_id: str
    idempotency_key: str
    reason_code: str | None
    trace_id: str | None

    @property
    def http_status(self) -> int:
        """The status of the answer; a rejection is 409 where its code is CONFLICT, otherwise 400."""
        if self.error == "BROKER_REJECTED":
            return 409 if is_conflict(self.reason_code) else 400
        if self.error == "VALIDATION_ERROR":
            return 422
        return 504 if self.error == "BROKER_TIMEOUT" else 503


class ExecResult(msgspec.Struct, frozen=True, kw_only=True):
    """The order's state so far; quantities in lots, as in the request."""

    order_id: str
    idempotency_key: str
    status: ResultStatus
    broker_order_id: str | None
    accepted_at: datetime
    filled_qty: Decimal
    avg_price: Decimal | None
    fills: tuple[DoFill, ...]
    reason_code: str | None
    trace_id: str | None


def do_order_request(body: Mapping[str, Any]) -> DoOrderRequest:
    """The body as a request; raises InvalidField for the first wrong field."""
    require_numbers(body, ("qty", "price"))
    constraints = body.get("risk_constraints")
    if isinstance(constraints, Mapping):
        require_numbers(constraints, ("max_dd", "max_consecutive_loss", "max_spread"), within="risk_constraints.")
    request = converted(body, DoOrderRequest)
    check_label("order_id", request.order_id)
    if request.trace_id is not None:
        check_label("trace_id", request.trace_id)
    if request.requested_at is not None:
        if request.requested_at.tzinfo is None:
            raise InvalidField("requested_at", "needs a time zone, such as Z")
        request = msgspec.structs.replace(request, requested_at=request.requested_at.astimezone(UTC))
    for name in ("max_dd", "max_consecutive_loss", "max_spread"):
        limit = getattr(request.risk_constraints, name)
        if limit is not None and limit < 0:
            raise InvalidField(f"risk_constraints.{name}", "must not be negative")
    losses = request.risk_constraints.max_consecutive_loss
    if losses is not None and losses != losses.to_integral_value():
        raise InvalidField("risk_constraints.max_consecutive_loss", "must be a whole number")
    return request


def request_digest(request: DoOrderRequest) -> str:
    """The digest of a request after its defaults: equal meaning, equal digest; `trace_id` has no part in it."""
    members: dict[str, Any] = {
        name: getattr(request, name)
        for name in ("order_id", "instrument", "side", "qty", "idempotency_key", "price", "time_in_force")
    }
    members["tags"] = list(request.tags)
    members["requested_at"] = None if request.requested_at is None else stamp(request.requested_at)
    members |= msgspec.structs.asdict(request.risk_constraints)
    return digest({name: value for name, value in members.items() if value not in (None, [])})


def as_order(request: DoOrderRequest, catalogue: Catalogue) -> OrderRequest:
    """The order in units, checked against the catalogue."""
    instrument = catalogue.tradable(request.instrument, "instrument", listed_only=True)  # only they have a lot
    units = canonical(EXACT.multiply(positive_amount(request.qty, "qty"), instrument.lot))
    if not is_multiple(units, instrument.step):
        raise InvalidField(
            "qty", f"must be a multiple of {plain(instrument.step)} units (a lot has {plain(instrument.lot)})"
        )
    order_request = OrderRequest(
        symbol=request.instrument,
        side=request.side,
        type="MARKET" if request.price is None else "LIMIT",
        qty=units,
        price=request.price,
        time_in_force=request.time_in_force,
        client_order_id=request.order_id,
        strategy=_strategy_of(request.tags),
        tags=request.tags,
    )
    return checked(order_request, catalogue)


def _strategy_of(tags: Sequence[str]) -> str | None:
    """The strategy that a tag `strategy:<name>` names."""
    named = [tag.removeprefix(STRATEGY_TAG) for tag in tags if tag.startswith(STRATEGY_TAG)]
    if len(named) > 1:
        raise InvalidField("tags", f"must name one strategy, not {len(named)}")
    if named and not STRATEGY.fullmatch(named[0]):
        raise InvalidField("tags", f"a strategy must match {STRATEGY.pattern}")
    return named[0] if named else None


def exec_failure(order: Order, *, is_first: bool) -> ExecFailure | None:
    """The error answer for the order's state; none where the answer is an `ExecResult`."""
    code: FailureCode
    violation = violation_of(order)
    if violation is not None:
        code = "VALIDATION_ERROR"
    elif order.reason == "NOT_PROCESSED":
        code = "BROKER_REJECTED"
    elif ended_unsent(order):
        code = "BROKER_TIMEOUT" if order.reason == "BROKER_TIMEOUT" else "BROKER_DOWN"
    elif order.status == "REJECTED" and not order.filled_qty:
        code = "BROKER_REJECTED"
    elif order.status == "UNKNOWN" and is_first:
        code = "BROKER_TIMEOUT"
    else:
        return None
    message = _MESSAGES[code] if violation is None else f"{_MESSAGES[code]}: {violation.detail}"
    if code == "BROKER_REJECTED" and order.reason in _NOT_PROCESSED:
        message = "the broker did not process the order in time, and the order has ended: place it again with a new key"
    return ExecFailure(
        error=code,
        message=message,
        order_id=order.client_order_id or "",
        idempotency_key=order.idempotency_key or "",
        reason_code=order.reason if violation is None else violation.reason,
        trace_id=order.trace_id,
    )


def exec_result(order: Order, events: Iterable[JournalEvent | Event], instrument: Instrument) -> ExecResult:
    """The order as the Do-Layer's client sees it, with the fills found in the order's events."""
    status = _RESULT_STATUS[order.status]
    return ExecResult(
        order_id=order.client_order_id or "",
        idempotency_key=order.idempotency_key or "",
        status="partially_filled" if status == "accepted" and order.filled_qty else status,
        broker_order_id=order.venue_order_id,
        accepted_at=order.accepted_at,
        filled_qty=_lots(order.filled_qty, instrument),
        avg_price=average_price(order),
        fills=tuple(_fills(order, events, instrument)),
        reason_code=order.reason,
        trace_id=order.trace_id,
    )


def result_digest(result: ExecResult | ExecFailure) -> str:
    """The digest of the result; the same for every caller."""
    # Decimals stay decimals, so that `digest` writes them in canonical form; it leaves out `trace_id` itself.
    return digest(msgspec.to_builtins(result, builtin_types=(Decimal,)))


def _fills(order: Order, events: Iterable[JournalEvent | Event], instrument: Instrument) -> Iterator[DoFill]:
    """The fills up to the order's version: the events were read after the order and may contain later ones."""
    report: ReportFact | None = None
    for event in events:
        if event.type == "ExecutionReport":
            report = decode_report_fact(data_of(event))
        elif report is not None and (version := version_of(event)) is not None:  # the report's effect on the order
            if version > order.version:
                return
            if report.last_qty:
                qty = _lots(report.last_qty, instrument)
                yield DoFill(exec_id=report.exec_id, qty=qty, price=report.last_price, at=report.at)
            report = None


def _lots(units: Decimal, instrument: Instrument) -> Decimal:
    return average(units, instrument.lot)
