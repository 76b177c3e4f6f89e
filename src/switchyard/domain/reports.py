"""Execution reports: a venue's messages about an order that it has."""

from datetime import datetime
from decimal import Decimal
from typing import Literal, assert_never

import msgspec
from msgspec.structs import replace

from switchyard.domain.ids import VenueClientOrderId, VenueName
from switchyard.domain.money import ZERO

ReportStatus = Literal["WORKING", "PARTIALLY_FILLED", "FILLED", "CANCELED", "REJECTED", "EXPIRED"]
ExecutionIdScope = Literal["venue", "symbol", "order"]


class ExecutionReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
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
    return replace(report, exec_id=f"{owner}:{report.exec_id}")
