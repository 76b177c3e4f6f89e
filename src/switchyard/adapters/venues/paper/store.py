"""The paper exchange's durable book: one SQLite file, used by one process and one thread.

Each statement reads or writes a whole group as one JSON text: a call per row would release and take the interpreter
lock for every row.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import apsw
import msgspec

from switchyard.adapters.files.lock import lock_beside
from switchyard.adapters.files.private import create_file
from switchyard.adapters.venues.paper.book import Book
from switchyard.adapters.venues.paper.matching import PaperOrder
from switchyard.domain.errors import AlreadyRunning, SchemaMismatch
from switchyard.domain.ids import VenueClientOrderId, VenueName, ulid
from switchyard.domain.reports import ExecutionReport

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
CREATE TABLE rejections (
    client_id TEXT PRIMARY KEY,
    reason TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE reports (
    number INTEGER PRIMARY KEY, -- from 1, without a gap
    body TEXT NOT NULL          -- the ExecutionReport as JSON
) STRICT;
"""
PUT_ORDERS = """
INSERT INTO orders (number, client_id, open, body)
SELECT value ->> 'number', value ->> 'client_id', value ->> 'status' IN ('WORKING', 'PARTIALLY_FILLED'), value
FROM json_each(?) WHERE true
ON CONFLICT (number) DO UPDATE SET open = excluded.open, body = excluded.body
"""
ADD_REJECTIONS = "INSERT INTO rejections (client_id, reason) SELECT key, value FROM json_each(?)"
ADD_REPORTS = "INSERT INTO reports (number, body) SELECT ?1 + key, value FROM json_each(?2)"
FIND_ORDERS = """
SELECT '[' || group_concat(body) || ']' FROM orders WHERE client_id IN (SELECT value FROM json_each(?))
"""
FIND_REJECTIONS = """
SELECT json_group_object(client_id, reason) FROM rejections WHERE client_id IN (SELECT value FROM json_each(?))
"""
OPEN_ORDERS = """
SELECT '[' || group_concat(body) || ']'
FROM (SELECT body FROM orders WHERE open AND number > ? ORDER BY number LIMIT ?)
"""
REPORTS = "SELECT '[' || group_concat(body ORDER BY number) || ']' FROM reports WHERE number >= ? AND number < ?"

# A reader or a backup may lock the file briefly; a longer lock is an error.
BUSY_MILLISECONDS = 5_000
# Open orders per page when the book is loaded.
LOAD_MAX = 10_000

_orders = msgspec.json.Decoder(list[PaperOrder])
_reports = msgspec.json.Decoder(list[ExecutionReport])


class Store:
    """Reads and writes the book file; all calls must come from one thread."""

    def __init__(self, path: Path, venue: VenueName, now: datetime) -> None:
        self._lock = _locked(path)
        try:
            create_file(path)
            self._connection = apsw.Connection(str(path))
            self.book_id = self._prepared(venue, now)
        except BaseException:
            os.close(self._lock)
            raise

    def load(self) -> Book:
        """Load the open orders and the last numbers."""
        if self._connection.in_transaction:
            # A failed commit can leave its transaction open; no caller was told that it succeeded.
            self._connection.execute("ROLLBACK")
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

    def find_orders(self, client_ids: Sequence[VenueClientOrderId]) -> list[PaperOrder]:
        """Return the orders with these client order ids, open or ended."""
        return _orders.decode(self._connection.execute(FIND_ORDERS, (_json(client_ids),)).get or "[]")

    def find_rejections(self, client_ids: Sequence[VenueClientOrderId]) -> dict[VenueClientOrderId, str]:
        """Return the reasons of the rejected orders among these client order ids."""
        text = self._connection.execute(FIND_REJECTIONS, (_json(client_ids),)).get
        return msgspec.json.decode(text, type=dict[VenueClientOrderId, str])

    def commit(
        self,
        orders: Collection[PaperOrder],
        rejections: Mapping[VenueClientOrderId, str],
        reports: Sequence[ExecutionReport],
        first_report: int,
    ) -> None:
        """Write a group in one transaction; it is durable when this returns."""
        with self._connection:
            if orders:
                self._connection.execute(PUT_ORDERS, (_json(list(orders)),))
            if rejections:
                self._connection.execute(ADD_REJECTIONS, (_json(rejections),))
            if reports:
                self._connection.execute(ADD_REPORTS, (first_report, _json(reports)))

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
        return str(connection.execute("SELECT id FROM book").get)


def _locked(path: Path) -> int:
    lock = lock_beside(path)
    if lock is None:
        raise AlreadyRunning(f"another process holds the paper exchange's book {path}: stop it first")
    return lock


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
