"""What a venue tells us about an order after it took it."""

from datetime import datetime
from decimal import Decimal
from typing import Literal

import msgspec

from switchyard.domain.ids import VenueClientId, VenueName
from switchyard.domain.money import ZERO

ReportStatus = Literal["WORKING", "PARTIALLY_FILLED", "FILLED", "CANCELED", "REJECTED", "EXPIRED"]


class ExecutionReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One report; `exec_id` is unique within its venue, so that a repeat is recognised."""

    exec_id: str
    venue: VenueName
    venue_client_id: VenueClientId
    venue_order_id: str
    status: ReportStatus
    last_qty: Decimal = ZERO
    last_price: Decimal | None = None
    filled_qty_total: Decimal = ZERO
    reason: str | None = None
    at: datetime
