"""The file of the paper exchange: orders and reports, and the statement that the books are compared with."""

import asyncio
import os
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import apsw
import msgspec

from switchyard.adapters.files.durable import create_file, lock_beside
from switchyard.adapters.sqlite.connections import OpenFiles
from switchyard.adapters.venues.paper.book import Book, cursor_text, number_of
from switchyard.adapters.venues.paper.matching import PaperOrder
from switchyard.domain.errors import AlreadyRunning, SchemaMismatch
from switchyard.domain.ids import VenueClientOrderId, VenueName, ulid
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.domain.reconcile.breaks import StatementFill
from switchyard.ports.venue import Capabilities, StatementPage, VenueAmend, VenueOrder, VenueUnavailable

SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE book (
    id TEXT NOT NULL            -- prefix of every venue order id: a new book does not reuse the ids of a lost one
) STRICT;
CREATE TABLE orders (
    number INTEGER PRIMARY KEY,
    client_id TEXT NOT NULL UNIQUE,
    open INTEGER NOT NULL,
    body TEXT NOT NULL          -- the PaperOrder as JSON
) STRICT;
CREATE INDEX open_orders ON orders (number) WHERE open;
CREATE INDEX amended_orders ON orders (body ->> 'amended_by') WHERE body ->> 'amended_by' IS NOT NULL;
CREATE TABLE rejections (
    client_id TEXT PRIMARY KEY,
    reason TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE reports (
    number INTEGER PRIMARY KEY, -- from 1, without a gap
    body TEXT NOT NULL          -- the ExecutionReport as JSON
) STRICT;
"""
# An insert into the view writes a group: one statement is one transaction, and its commit is durable. Both are
# temporary: they belong to the connection and are no part of the file's schema.
GROUP_TRIGGER = """
CREATE TEMP VIEW settled_group (orders, rejections, first_report, reports) AS SELECT NULL, NULL, NULL, NULL;
CREATE TEMP TRIGGER write_group INSTEAD OF INSERT ON settled_group BEGIN
    INSERT INTO orders (number, client_id, open, body)
    SELECT
        value ->> 'number',
        value ->> 'client_id',
        ifnull(value ->> 'status', 'WORKING') IN ('WORKING', 'PARTIALLY_FILLED'),
        value
    FROM json_each(NEW.orders) WHERE true
    ON CONFLICT (number) DO UPDATE SET open = excluded.open, body = excluded.body;
    INSERT INTO rejections (client_id, reason) SELECT key, value FROM json_each(NEW.rejections);
    INSERT INTO reports (number, body) SELECT NEW.first_report + key, value FROM json_each(NEW.reports);
END;
"""
WRITE_GROUP = "INSERT INTO settled_group (orders, rejections, first_report, reports) VALUES (?, ?, ?, ?)"
# CROSS JOIN: for each id a search of the index, never a scan of the table.
FIND = """
WITH ids AS MATERIALIZED (SELECT value AS client_id FROM json_each(?))
SELECT
    (SELECT '[' || group_concat(body) || ']' FROM ids CROSS JOIN orders USING (client_id)),
    (SELECT json_group_object(client_id, reason) FROM ids CROSS JOIN rejections USING (client_id))
"""
FIND_AMENDED = "SELECT '[' || group_concat(body) || ']' FROM orders WHERE body ->> 'amended_by' = ?"
OPEN_ORDERS = """
SELECT '[' || group_concat(body) || ']'
FROM (SELECT body FROM orders WHERE open AND number > ? ORDER BY number LIMIT ?)
"""
REPORTS = "SELECT '[' || group_concat(body ORDER BY number) || ']' FROM reports WHERE number >= ? AND number < ?"

# A reader or a backup may lock the file briefly; a longer lock is an error.
BUSY_MILLISECONDS = 5_000
# 16 MiB of WAL between two checkpoints: a page that changes often is copied into the file once.
CHECKPOINT_PAGES = 4_000
# Client order ids are random, so that each order changes another page of their index; 32 MiB keep it in memory.
CACHE_KIBIBYTES = 32_768
# Open orders per page when the book is loaded.
LOAD_MAX = 10_000

_orders = msgspec.json.Decoder(list[PaperOrder])
_reports = msgspec.json.Decoder(list[ExecutionReport])
_reasons = msgspec.json.Decoder(dict[VenueClientOrderId, str])


class Store:
    """Reads and writes the book file; all calls must come from one thread."""

    def __init__(self, path: Path, venue: VenueName, now: datetime) -> None:
        self._lock = _locked(path)
        try:
            create_file(path)
            self._connection = apsw.Connection(str(path))
            self.book_id = self._prepared(venue, now)
            self.files = OpenFiles(path)
        except BaseException:
            os.close(self._lock)
            raise

    def load(self) -> Book:
        """Load the open orders and the last numbers."""
        last_order, last_report = self._connection.execute(
            "SELECT ifnull((SELECT max(number) FROM orders), 0), ifnull((SELECT max(number) FROM reports), 0)"
        ).get
        return Book(last_order, last_report, self.open_orders())

    def open_orders(self) -> list[PaperOrder]:
        """Return every order that may still be filled, in the order of acceptance."""
        orders: list[PaperOrder] = []
        after = 0
        while page := _orders.decode(self._connection.execute(OPEN_ORDERS, (after, LOAD_MAX)).get or "[]"):
            orders += page
            after = page[-1].number
        return orders

    def find(
        self, client_ids: Collection[VenueClientOrderId]
    ) -> tuple[list[PaperOrder], dict[VenueClientOrderId, str]]:
        """Return the orders with these client order ids, open or ended, and the reasons of those that were rejected."""
        orders, reasons = self._connection.execute(FIND, (_json(client_ids),)).get
        return _orders.decode(orders or "[]"), _reasons.decode(reasons)

    def find_amended(self, amend_id: VenueClientOrderId) -> list[PaperOrder]:
        """Return the order whose last amend has this client order id, or nothing."""
        return _orders.decode(self._connection.execute(FIND_AMENDED, (amend_id,)).get or "[]")

    def commit(
        self,
        orders: Collection[PaperOrder],
        rejections: Mapping[VenueClientOrderId, str],
        reports: Sequence[ExecutionReport],
        first_report: int,
    ) -> None:
        """Write a group in one transaction; it is durable when this returns."""
        if orders or rejections:  # every report changes an order
            self._connection.execute(
                WRITE_GROUP, (_json(list(orders)), _json(rejections), first_report, _json(reports))
            )
            self.files.check()

    def reports(self, numbers: range) -> list[ExecutionReport]:
        """Return the reports with these numbers, in order."""
        return _reports.decode(self._connection.execute(REPORTS, (numbers.start, numbers.stop)).get or "[]")

    def close(self) -> None:
        """Close the file and release its lock."""
        self._connection.close()
        os.close(self._lock)

    def _prepared(self, venue: VenueName, now: datetime) -> str:
        connection = self._connection
        connection.set_busy_timeout(BUSY_MILLISECONDS)
        assert connection.pragma("journal_mode", "wal") == "wal"
        connection.pragma("synchronous", "full")
        connection.pragma("wal_autocheckpoint", CHECKPOINT_PAGES)
        connection.pragma("cache_size", -CACHE_KIBIBYTES)
        with connection:
            version = connection.pragma("user_version")
            if version == 0:
                connection.execute(SCHEMA)
                created = ulid(int(now.timestamp() * 1000), 0)[:10]
                connection.execute("INSERT INTO book (id) VALUES (?)", (f"{venue}-{created}",))
                connection.pragma("user_version", SCHEMA_VERSION)
            elif version != SCHEMA_VERSION:
                raise SchemaMismatch(
                    f"the paper exchange's book has schema version {version}, this Switchyard needs {SCHEMA_VERSION}"
                )
        connection.execute(GROUP_TRIGGER)
        return str(connection.execute("SELECT id FROM book").get)


def _locked(path: Path) -> int:
    lock = lock_beside(path)
    if lock is None:
        raise AlreadyRunning(f"another process holds the paper exchange's book {path}: stop it first")
    return lock


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


# Every report is about an order of the same file; a report without a quantity is not an execution.
FILLS = """
SELECT reports.number, reports.body, orders.body
FROM reports CROSS JOIN orders ON orders.client_id = reports.body ->> 'venueClientOrderId'
WHERE reports.number > ? AND reports.body ->> 'lastQty' IS NOT NULL
ORDER BY reports.number LIMIT ?
"""
OPEN_ORDERS_PAGE = "SELECT number, body FROM orders WHERE open AND number > ? ORDER BY number LIMIT ?"
PAGE = 1_000

_report = msgspec.json.Decoder(ExecutionReport)
_order = msgspec.json.Decoder(PaperOrder)


class PaperStatement:
    """ports.venue.VenueStatement on the file of a paper exchange that trades in another process."""

    def __init__(self, name: VenueName, path: Path, capabilities: Capabilities) -> None:
        self.name = name
        self.capabilities = capabilities
        self._path = path

    async def statement(self, after: str | None, limit: int) -> StatementPage:
        """Return the next executions, numbered as their reports."""
        rows = await asyncio.to_thread(self._rows, FILLS, (number_of(after), limit))
        fills = [_fill(_report.decode(report), _order.decode(order)) for _, report, order in rows]
        return StatementPage(fills, cursor_text(rows[-1][0]) if rows else after)

    async def open_orders(self) -> AsyncIterator[Sequence[VenueOrder]]:
        """Yield every order that may still be filled, in pages."""
        after = 0
        while rows := await asyncio.to_thread(self._rows, OPEN_ORDERS_PAGE, (after, PAGE)):
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
        price=order.limit_price,
        stop_price=order.stop_price,
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
