"""Execution reports: a venue's messages about an order that it has."""

from datetime import datetime
from decimal import Decimal
from typing import Final, Literal, assert_never

import msgspec
from msgspec.structs import replace

from switchyard.domain.ids import OrderId, VenueClientOrderId, VenueName
from switchyard.domain.money import ZERO
from switchyard.domain.orders import Side

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
