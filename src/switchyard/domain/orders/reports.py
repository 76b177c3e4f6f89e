"""Execution reports of a venue, and the `ExecResult` that `/do/order` answers from an order. Pure."""

from datetime import datetime
from decimal import Decimal
from typing import Final, Literal, assert_never

import msgspec
from msgspec.structs import replace

from switchyard.domain.ids import OrderId, VenueClientOrderId, VenueName
from switchyard.domain.orders.keys import DO_ORDER, KeyResult, KeyStatus
from switchyard.domain.orders.lifecycle import FINAL
from switchyard.domain.orders.order import Order, Side, average_price, ended_unsent
from switchyard.domain.values import ZERO, struct_digest

# Enough to recognise a report; a whole page of garbage in one event would bloat the journal.
ESCAPED_LENGTH_MAX: Final = 2_000

ReportStatus = Literal["WORKING", "PARTIALLY_FILLED", "FILLED", "CANCELED", "REJECTED", "EXPIRED"]
ExecutionIdScope = Literal["venue", "symbol", "order"]
# How the report relates to the executions before it, as FIX's ExecType says it. An order's own cancel is not among
# them: `status` shows that an order ended.
ExecType = Literal[
    "NEW",  # the venue has the order; no execution (FIX 0, New)
    "FILL",  # an execution (FIX F, Trade)
    "CORRECT",  # another quantity or price of the execution `ref_exec_id` (FIX G, Trade Correct)
    "CANCEL",  # the execution `ref_exec_id` is void: a bust (FIX H, Trade Cancel)
    "TRIGGERED",  # the market reached the stop price; no execution (FIX L, Triggered or Activated by System)
]


class ExecutionReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One report; `exec_id` is unique within the scope that its venue declares, so that a repeat is recognised."""

    exec_id: str
    venue: VenueName
    venue_client_order_id: VenueClientOrderId
    venue_order_id: str
    status: ReportStatus
    last_qty: Decimal = ZERO
    last_price: Decimal | None = None
    filled_qty_total: Decimal = ZERO
    reason: str | None = None
    at: datetime
    fee: Decimal | None = None
    """What the venue charges for this execution; negative for a rebate, none where the venue does not say."""
    fee_currency: str | None = None
    """None: the currency in which the instrument is settled."""
    exec_type: ExecType | None = None
    """None where the venue does not say: the report is a fill if `last_qty` is not zero."""
    ref_exec_id: str | None = None
    """The execution that a correction or a bust refers to, in the same form as `exec_id`."""
    leg_client_order_id: VenueClientOrderId | None = None
    """Set by the recorder: the amend under whose id the venue reports, where that is not the order's own id."""


class OrderReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A report as clients see it in streams, with the order that it is about."""

    exec_id: str
    venue: VenueName
    venue_client_order_id: VenueClientOrderId
    venue_order_id: str | None
    """None: the venue rejected the order and gave it no id."""
    status: ReportStatus
    last_qty: Decimal
    last_price: Decimal | None
    filled_qty_total: Decimal
    reason: str | None
    at: datetime
    order_id: OrderId
    symbol: str
    side: Side
    fee: Decimal | None = None
    fee_currency: str | None = None
    exec_type: ExecType | None = None
    ref_exec_id: str | None = None


def rejection_id(client_order_id: VenueClientOrderId) -> str:
    """The execution id of a rejection in the answer to an order: the venue gives none, and there is one per order."""
    return f"rejected:{client_order_id}"


def with_unique_id(report: ExecutionReport, scope: ExecutionIdScope, symbol: str | None) -> ExecutionReport:
    """The report with an execution id that is unique within its venue.

    `symbol` is the order's, or none where the order is not in this database; the client order id then qualifies the id.
    """
    match scope:
        case "venue":
            return report
        case "symbol" if symbol is not None:
            # Escaped, so that the first colon is always the separator: `A:B` and `C` must differ from `A` and `B:C`.
            owner = symbol.replace("%", "%25").replace(":", "%3A")
        case "symbol" | "order":
            owner = report.venue_client_order_id
        case unreachable:
            assert_never(unreachable)
    referred = None if report.ref_exec_id is None else f"{owner}:{report.ref_exec_id}"
    return replace(report, exec_id=f"{owner}:{report.exec_id}", ref_exec_id=referred)


def revises_execution(report: ExecutionReport) -> bool:
    """Whether the report corrects or voids an earlier execution: its quantity is not a new fill."""
    return report.exec_type in ("CORRECT", "CANCEL")


def qualified(report: ExecutionReport) -> ExecutionReport:
    """The report under an execution id that names its order, for an id that was recorded for another order."""
    return replace(report, exec_id=f"{_qualifier(report)}{report.exec_id}")


def is_qualified(report: ExecutionReport) -> bool:
    """Whether the report's id was made by `qualified`."""
    return report.exec_id.startswith(_qualifier(report))


def is_storable(text: str) -> bool:
    """Whether every engine can store the text: no NUL, no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def escaped(text: str) -> str:
    """The text, cut to its bound, with every character escaped that is not printable ASCII."""
    return ascii(text[:ESCAPED_LENGTH_MAX])[1:-1]


def _qualifier(report: ExecutionReport) -> str:
    return f"{report.venue_client_order_id}:exec:"


class _Result(msgspec.Struct, frozen=True):
    """What the digest of a result covers."""

    order_id: str
    status: str
    filled_qty: Decimal
    avg_price: Decimal | None
    venue_order_id: str | None
    reason: str | None


def order_result(order: Order) -> KeyResult | None:
    """The result of an order that has ended; none while it is open and for an order without a key.

    The result of a `/do/order` request includes its answer, which shows the order's fills: `flow/results.py` adds it.
    """
    if order.status not in FINAL or order.idempotency_key is None or order.operation == DO_ORDER:
        return None
    assert order.operation is not None, "a key belongs to an operation"
    return KeyResult(
        account_id=order.account_id,
        operation=order.operation,
        idempotency_key=order.idempotency_key,
        order_id=order.order_id,
        status=result_status(order),
        result_digest=struct_digest(
            _Result(
                order_id=order.order_id,
                status=order.status,
                filled_qty=order.filled_qty,
                avg_price=average_price(order),
                venue_order_id=order.venue_order_id,
                reason=order.reason,
            )
        ),
    )


def answer_status(http_status: int) -> KeyStatus:
    """Whether a request with this final answer succeeded."""
    return "succeeded" if http_status < 400 else "failed"


def result_status(order: Order) -> KeyStatus:
    """Whether the request of an order that has ended succeeded: it failed if it was rejected or could not be sent."""
    return "failed" if (order.status == "REJECTED" and not order.filled_qty) or ended_unsent(order) else "succeeded"
