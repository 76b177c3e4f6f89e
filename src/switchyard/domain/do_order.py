"""The Do-Layer's order: `OrderRequest v1.1` as it is asked for, `ExecResult v1` as it is answered (seed 000)."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

import msgspec

from switchyard.domain.canonical import digest
from switchyard.domain.errors import InvalidField
from switchyard.domain.fields import converted, require_numbers
from switchyard.domain.instruments import Catalogue, Instrument
from switchyard.domain.lifecycle import Status
from switchyard.domain.money import EXACT, average, canonical, plain, positive_amount
from switchyard.domain.orders import LABEL_LENGTH_MAX, Order, OrderRequest, Side, average_price, check_label, checked

DO_ORDER = "do.order"
ResultStatus = Literal["accepted", "partially_filled", "filled", "canceled", "rejected", "expired", "unknown"]

# What a client is told of an order's state; what is on its way counts as accepted.
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
    """Conditions that the market and the account must meet, or the order is not taken."""

    max_dd: Decimal | None = None
    """How far realised results may be below their best, as a ratio of the best."""
    max_consecutive_loss: int | None = None
    """How many trades in a row may have ended with a loss."""
    max_spread: Decimal | None = None
    """How far apart bid and ask may be, as a ratio of the mid."""


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


class ExecResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the order so far; quantities in lots, as they were asked for."""

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
    """The body's fields with their types, or the first one that is wrong."""
    require_numbers(body, ("qty", "price"))
    constraints = body.get("risk_constraints")
    if isinstance(constraints, Mapping):
        require_numbers(constraints, ("max_dd", "max_consecutive_loss", "max_spread"), within="risk_constraints.")
    request = converted(body, DoOrderRequest)
    check_label("order_id", request.order_id, LABEL_LENGTH_MAX)
    if request.trace_id is not None:
        check_label("trace_id", request.trace_id, LABEL_LENGTH_MAX)
    if request.requested_at is not None and request.requested_at.tzinfo is None:
        raise InvalidField("requested_at", "needs a time zone, such as Z")
    for name in ("max_dd", "max_consecutive_loss", "max_spread"):
        limit = getattr(request.risk_constraints, name)
        if limit is not None and limit < 0:
            raise InvalidField(f"risk_constraints.{name}", "must not be negative")
    return request


def as_order(request: DoOrderRequest, catalogue: Catalogue) -> OrderRequest:
    """The same order in units, checked against the instruments that may be traded here."""
    instrument = catalogue.listed(request.instrument)
    if instrument is None:
        raise InvalidField("instrument", "is not one of the instruments that may be traded")
    lots = positive_amount(request.qty, "qty")
    asked = OrderRequest(
        symbol=request.instrument,
        side=request.side,
        type="MARKET" if request.price is None else "LIMIT",
        qty=canonical(EXACT.multiply(lots, instrument.lot)),
        price=request.price,
        time_in_force=request.time_in_force,
        client_order_id=request.order_id,
        tags=request.tags,
    )
    return checked(asked, catalogue)


def exec_result(
    request: DoOrderRequest, order: Order, fills: Sequence[DoFill], instrument: Instrument, *, trace_id: str | None
) -> ExecResult:
    """The order as the Do-Layer's client sees it."""
    return ExecResult(
        order_id=request.order_id,
        idempotency_key=request.idempotency_key,
        status=_RESULT_STATUS[order.status],
        broker_order_id=order.venue_order_id,
        accepted_at=order.accepted_at,
        filled_qty=lots_of(order.filled_qty, instrument),
        avg_price=average_price(order),
        fills=tuple(fills),
        reason_code=order.reason,
        trace_id=trace_id,
    )


def lots_of(units: Decimal, instrument: Instrument) -> Decimal:
    """A quantity of units in lots."""
    return average(units, instrument.lot)


def result_digest(result: ExecResult) -> str:
    """The digest of what the result says of the order, whoever asked for it."""
    fields = {name: _plain(getattr(result, name)) for name in ExecResult.__struct_fields__ if name != "trace_id"}
    return digest(fields)


def _plain(value: object) -> object:
    match value:
        case Decimal():
            return plain(value)
        case datetime():
            return value.isoformat()
        case tuple():
            return [_plain(item) for item in value]
        case DoFill():
            return {name: _plain(getattr(value, name)) for name in DoFill.__struct_fields__}
        case _:
            return value
