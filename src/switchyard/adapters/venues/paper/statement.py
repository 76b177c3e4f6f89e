"""The paper exchange's statement and open orders, read from its file beside the process that trades."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import msgspec

from switchyard.adapters.venues.paper.matching import PaperOrder
from switchyard.domain.ids import VenueName
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.domain.reconcile.breaks import StatementFill
from switchyard.ports.venue import Capabilities, StatementPage, VenueAmend, VenueOrder, VenueUnavailable

# Every report is about an order of the same file; a report without a quantity is not an execution.
FILLS = """
SELECT reports.number, reports.body, orders.body
FROM reports CROSS JOIN orders ON orders.client_id = reports.body ->> 'venueClientOrderId'
WHERE reports.number > ? AND reports.body ->> 'lastQty' IS NOT NULL
ORDER BY reports.number LIMIT ?
"""
OPEN_ORDERS = "SELECT number, body FROM orders WHERE open AND number > ? ORDER BY number LIMIT ?"
PAGE = 1_000

_report = msgspec.json.Decoder(ExecutionReport)
_order = msgspec.json.Decoder(PaperOrder)


class PaperStatement:
    """ports.statement.VenueStatement on the file of a paper exchange that trades in another process."""

    def __init__(self, name: VenueName, path: Path, capabilities: Capabilities) -> None:
        self.name = name
        self.capabilities = capabilities
        self._path = path

    async def statement(self, after: int, limit: int) -> StatementPage:
        """Return the next executions, numbered as their reports."""
        rows = await asyncio.to_thread(self._rows, FILLS, (after, limit))
        fills = [_fill(_report.decode(report), _order.decode(order)) for _, report, order in rows]
        return StatementPage(fills, rows[-1][0] if rows else after)

    async def open_orders(self) -> AsyncIterator[Sequence[VenueOrder]]:
        """Yield every order that may still be filled, in pages."""
        after = 0
        while rows := await asyncio.to_thread(self._rows, OPEN_ORDERS, (after, PAGE)):
            yield [venue_order(_order.decode(body)) for _, body in rows]
            after = rows[-1][0]

    def _rows(self, sql: str, values: tuple[int, int]) -> list[Any]:
        try:
            with closing(apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
                return connection.execute(sql, values).fetchall()
        except apsw.Error as error:
            raise VenueUnavailable(f"the paper exchange's book cannot be read: {error}") from error


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


def venue_order(order: PaperOrder) -> VenueOrder:
    """The order as lookups and lists show it."""
    return VenueOrder(
        venue_client_order_id=order.client_id,
        venue_order_id=order.venue_order_id,
        status=order.status,
        filled_qty=order.filled_qty,
        fills=order.fills,
        qty=order.qty,
        symbol=order.symbol,
        amends=()
        if order.amended_by is None
        else (
            VenueAmend(
                client_order_id=order.amended_by,
                replaces=False,
                qty=order.qty,
                price=order.limit_price,
                stop_price=order.stop_price,
            ),
        ),
    )
