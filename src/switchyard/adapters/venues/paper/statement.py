"""The paper exchange's statement, read from its file beside the thread that trades."""

from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import msgspec

from switchyard.adapters.venues.paper.matching import PaperOrder
from switchyard.domain.reconcile.breaks import StatementFill
from switchyard.domain.reports import ExecutionReport
from switchyard.ports.statement import StatementPage
from switchyard.ports.venue import VenueUnavailable

# Every report is about an order of the same file; a report without a quantity is not an execution.
FILLS = """
SELECT reports.number, reports.body, orders.body
FROM reports CROSS JOIN orders ON orders.client_id = reports.body ->> 'venueClientOrderId'
WHERE reports.number > ? AND reports.body ->> 'lastQty' IS NOT NULL
ORDER BY reports.number LIMIT ?
"""

_report = msgspec.json.Decoder(ExecutionReport)
_order = msgspec.json.Decoder(PaperOrder)


def statement_page(path: Path, after: int, limit: int) -> StatementPage:
    """The next executions, numbered as their reports; raises VenueUnavailable."""
    try:
        with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
            rows: list[Any] = connection.execute(FILLS, (after, limit)).fetchall()
    except apsw.Error as error:
        raise VenueUnavailable(f"the paper exchange's book cannot be read: {error}") from error
    fills = [_fill(_report.decode(report), _order.decode(order)) for _, report, order in rows]
    return StatementPage(fills, rows[-1][0] if rows else after)


def _fill(report: ExecutionReport, order: PaperOrder) -> StatementFill:
    assert report.last_price is not None, "every execution has a price"
    return StatementFill(
        exec_id=report.exec_id,
        venue_client_order_id=report.venue_client_order_id,
        venue_order_id=report.venue_order_id,
        symbol=order.symbol,
        side=order.side,
        qty=report.last_qty,
        price=report.last_price,
        at=report.at,
        fee=report.fee,
        fee_currency=report.fee_currency,
    )
