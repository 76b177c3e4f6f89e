"""What the read-only queries on SQLite do not share with PostgreSQL: the session, the dialect, keys and dumps."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import apsw

from switchyard.adapters.queries import (
    ENTRIES_BETWEEN,
    ENTRY,
    FINAL_STATUSES,
    UNSETTLED,
    Dialect,
    SqlOutboxListing,
)
from switchyard.adapters.sqlite import rows
from switchyard.adapters.sqlite.append import OPEN_ORDERS, SELECT_OUTBOX_OF, SELECT_STATES, reported_before
from switchyard.adapters.sqlite.connections import Connections, connect
from switchyard.adapters.sqlite.journal import SqliteJournal
from switchyard.adapters.system_clock import SystemClock
from switchyard.adapters.tables import ORDERS
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.journal.lines import stamp
from switchyard.domain.orders.keys import KeyEntry, counted_from
from switchyard.domain.orders.lifecycle import FINAL
from switchyard.domain.orders.order import Order
from switchyard.domain.risk.exposure import TotalsKey
from switchyard.ports.outbox import Due, KnownState, nothing_known
from switchyard.ports.queries import KeyId, Reaped

T = TypeVar("T")

# The planner uses a partial index only where a statement repeats the condition of the index: hence the status lists.
_DUE = """
SELECT order_id, kind, number, version FROM outbox_orders AS due
WHERE status IN ('queued', 'failed') AND (attempt = 0 OR next_attempt_at <= $1)
AND ($3 IS NULL OR venue IN (SELECT value FROM json_each($3)))
AND ($4 IS NULL OR lane IN (SELECT value FROM json_each($4))) AND ($5 IS NULL OR kind = $5)
AND seq > $6
AND ($7 IS NULL OR (SELECT account_id FROM orders WHERE orders.order_id = due.order_id)
    NOT IN (SELECT value FROM json_each($7)))
AND (kind = 'new' OR EXISTS (
    SELECT 1 FROM outbox_orders AS first
    WHERE first.order_id = due.order_id AND first.kind = 'new' AND first.status = 'sent'))
ORDER BY seq LIMIT $2
"""
_NEVER_SENT = """
SELECT order_id, kind, number, version FROM outbox_orders
WHERE status IN ('queued', 'failed') AND kind = 'new' AND NOT bytes_sent AND seq > $4
AND venue IN (SELECT value FROM json_each($1)) AND ($2 IS NULL OR lane IN (SELECT value FROM json_each($2)))
ORDER BY seq LIMIT $3
"""
# A binary search, because no index is on `at`: times never decrease with `seq`. Numbers between epochs belong to no
# event, so each step looks at the next event from its number on.
_IS_BEFORE = "(SELECT at FROM events WHERE seq >= (low + high) / 2 ORDER BY seq LIMIT 1) < $1"
_FIRST_SEQ_AT = f"""
WITH RECURSIVE search (low, high) AS (
    SELECT 1, (SELECT seq FROM journal_heads WHERE shard = 0) + 1
    UNION ALL
    SELECT iif({_IS_BEFORE}, (low + high) / 2 + 1, low), iif({_IS_BEFORE}, high, (low + high) / 2)
    FROM search WHERE low < high
)
SELECT max(low) FROM search
"""
_OLDEST = """
SELECT venue, seq, created_at FROM json_each($1) AS requested JOIN outbox_orders ON (order_id, kind, number) = (
    SELECT order_id, kind, number FROM outbox_orders
    WHERE status IN ('queued', 'failed') AND status = 'queued' AND kind = 'new' AND attempt = 0
    AND venue = requested.value
    AND ($2 IS NULL OR (SELECT account_id FROM orders WHERE orders.order_id = outbox_orders.order_id)
        NOT IN (SELECT value FROM json_each($2)))
    ORDER BY seq LIMIT 1
)
"""
_OPEN_ORDERS = f"""
SELECT {ORDERS.column_list} FROM orders
WHERE status IN ('WORKING', 'PARTIALLY_FILLED', 'CANCEL_REQUESTED') AND venue = $1 AND order_id > $2
ORDER BY order_id LIMIT $3
"""
# By the millisecond: this column is written without trailing zeros, so its text order is not its time order.
_UNSETTLED_SINCE = """
SELECT (
    SELECT count(*) FROM outbox_orders WHERE status = '{}' AND status IN ('sending', 'uncertain')
    AND julianday(updated_at) <= julianday(time.value)
)
FROM json_each($1) AS time
"""
_UNFINISHED = f"""
SELECT {ORDERS.column_list} FROM ({OPEN_ORDERS})
WHERE account_id = $1 AND order_id > $2 AND ($3 IS NULL OR symbol = $3) AND ($4 IS NULL OR strategy = $4)
AND ($5 IS NULL OR venue = $5) AND status NOT IN ({FINAL_STATUSES})
ORDER BY order_id LIMIT $6
"""

DIALECT = Dialect(
    rows=rows,
    any_of="IN (SELECT value FROM json_each({}))",
    hint="INDEXED BY {}",
    of_shard="",
    outbox_indexes=("'queued', 'failed'", "'sending', 'uncertain'"),
    due=_DUE,
    never_sent=_NEVER_SENT,
    oldest=_OLDEST,
    first_seq_at=_FIRST_SEQ_AT,
    open_orders=_OPEN_ORDERS,
    unfinished=_UNFINISHED,
    # Without the hint it would read every execution ever recorded, by the primary key.
    strays="executions AS strays INDEXED BY executions_stray",
    unsettled_since={"sending": _UNSETTLED_SINCE.format("sending"), "uncertain": _UNSETTLED_SINCE.format("uncertain")},
)
# Without the hint the planner may walk the primary key, and with it every order ever sent.
_UNSETTLED = UNSETTLED.format(hint="INDEXED BY outbox_unsettled")


class SqliteSession:
    """adapters.queries.Session in the reader threads."""

    dialect = DIALECT

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def read(self, decode: Callable[[Any], T], sql: str, *values: Any) -> list[T]:
        """Decode each row in the thread; what can be read is flushed to the only file."""
        given = rows.parameters(values)
        return await self._connections.read(lambda connection: list(map(decode, connection.execute(sql, given))))

    read_unconfirmed = read

    async def due(self, known: KnownState, sql: str, *values: Any) -> list[Due]:
        """The rows that a statement selects, with the states of their orders, in one snapshot."""
        given = rows.parameters(values)

        def select(connection: apsw.Connection) -> list[Due]:
            with connection:  # one snapshot for the rows and their orders
                selected: list[Any] = connection.execute(sql, given).fetchall()
                if not selected:
                    return []
                states = {
                    order_id: state
                    for order_id, kind, number, version in selected
                    if (state := known(order_id)) is not None and state.version_of(kind, number) == version
                }
                unknown = {order_id for order_id, *_ in selected} - states.keys()
                if unknown:
                    ids = (rows.json_array(list(unknown)),)
                    orders, outbox = connection.execute(SELECT_STATES, ids), connection.execute(SELECT_OUTBOX_OF, ids)
                    states |= rows.states(orders, outbox)
                strays = reported_before(connection, [state.order.venue_client_order_id for state in states.values()])
            return [
                Due(state.row(kind, number), state, state.order.venue_client_order_id in strays)
                for order_id, kind, number, _ in selected
                for state in (states[order_id],)
            ]

        return await self._connections.read(select)

    async def unsettled(self, *values: Any) -> list[Due]:
        """The same for rows in doubt."""
        return await self.due(nothing_known, _UNSETTLED, *values)


# Pages in primary key order: an index on `expires_at` would add a write to every accepted order.
_PAGE = """
SELECT account_id, operation, idempotency_key, order_id, created_at, expires_at FROM idempotency_keys
WHERE (account_id, operation, idempotency_key) > (?, ?, ?)
ORDER BY account_id, operation, idempotency_key LIMIT ?
"""
# A key whose order is missing is removed as if the order were final.
_REMOVE = """
DELETE FROM idempotency_keys WHERE (account_id, operation, idempotency_key) IN (
    SELECT expired.value->>0, expired.value->>1, expired.value->>2 FROM jsonb_each(?) AS expired
    WHERE coalesce((SELECT status FROM orders WHERE order_id = expired.value->>3), 'FILLED')
        IN (SELECT value FROM json_each(?))
)
"""


class SqliteKeyStore:
    """ports.queries.KeyStore on SQLite."""

    def __init__(self, connections: Connections, journal: SqliteJournal) -> None:
        self._connections = connections
        self._journal = journal
        self._asked: list[KeyId] = []
        self._answers: asyncio.Task[list[Any]] | None = None
        self._one_at_a_time = asyncio.Lock()

    async def entry(self, account: AccountId, operation: str, key: str) -> KeyEntry | None:
        """The entry of a key, expired or not; None if there is none."""
        # Lookups that arrive while others are under way are made together: a thread per lookup costs ten times as much.
        if self._answers is None:
            self._answers = asyncio.create_task(self._look_up())
        answers, place = self._answers, len(self._asked)
        self._asked.append((account, operation, key))
        row = (await asyncio.shield(answers))[place]
        return None if row is None else rows.key_entry(row)

    async def _look_up(self) -> list[Any]:
        async with self._one_at_a_time:
            asked, self._asked, self._answers = self._asked, [], None
            return await self._connections.read(
                lambda connection: [connection.execute(ENTRY, rows.parameters(key)).fetchone() for key in asked]
            )

    async def entries(
        self, account: AccountId, operation: str, first: str, last: str, since: datetime, limit: int
    ) -> list[KeyEntry]:
        """Entries created after `since` whose keys lie between `first` and `last`, inclusive."""
        given = rows.parameters((account, operation, first, last, since, limit))
        return await self._connections.read(
            lambda connection: list(map(rows.key_entry, connection.execute(ENTRIES_BETWEEN, given)))
        )

    async def reap(
        self, now: datetime, jumped_at: datetime | None, after: KeyId | None, limit: int, kept: Collection[str] = ()
    ) -> Reaped:
        """Check the next entries and remove those that have expired and whose order is final."""

        def remove_expired(connection: apsw.Connection) -> Reaped:
            page: list[Any] = connection.execute(_PAGE, (*(after or ("", "", "")), limit)).fetchall()
            expired = [row[:4] for row in page if row[1] not in kept and _has_expired(row[4], row[5], now, jumped_at)]
            count = 0
            if expired:
                connection.execute(_REMOVE, (rows.json_array(expired), rows.json_array(sorted(FINAL))))
                count = connection.changes()
            return Reaped(count, tuple(page[-1][:3]) if len(page) == limit else None)

        return await self._journal.maintain(remove_expired)


def _has_expired(created: str, expires: str, now: datetime, jumped_at: datetime | None) -> bool:
    """`KeyEntry.expiry`, on the text of the row; most keys have not expired, and their dates are not parsed."""
    if expires >= stamp(now):
        return False
    created_at, expires_at = datetime.fromisoformat(created), datetime.fromisoformat(expires)
    return counted_from(created_at, jumped_at) + (expires_at - created_at) < now


# A few megabytes of orders at a time.
PAGE = 5_000


class SqliteOrderDump:
    """ports.queries.OrderDump, usable while another process holds the file lock."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def all_orders(self) -> AsyncIterator[Order]:
        """Every order of one snapshot, sorted by id."""
        connection = await asyncio.to_thread(connect, self._path, readonly=True)
        try:
            cursor = connection.execute(f"SELECT {ORDERS.column_list} FROM orders ORDER BY order_id")
            while page := await asyncio.to_thread(lambda: list(map(rows.order, islice(cursor, PAGE)))):
                for order in page:
                    yield order
        finally:
            connection.close()

    async def wrong_totals(self) -> list[TotalsKey]:
        """None: the file has no totals, each process adds the orders up itself."""
        return []

    async def wrong_unfinished(self) -> list[OrderId]:
        """None: unfinished orders are found by an index of the orders."""
        return []


_CURSORS = "SELECT name, hash FROM reader_cursors WHERE name IN (SELECT value FROM json_each($1))"


class SqliteOutboxListing(SqlOutboxListing):
    """ports.outbox.OutboxListing, usable while another process holds the file lock."""

    decode = rows

    def __init__(self, path: Path) -> None:
        self._path = path

    async def cursors(self, names: Sequence[str]) -> tuple[Mapping[str, str], datetime]:
        """The texts of cursors, and the machine's time, which is the database's."""
        return dict(await self._read(_CURSORS, list(names))), SystemClock().now()

    async def _read(self, sql: str, *values: Any) -> list[Any]:
        def read() -> list[Any]:
            connection = connect(self._path, readonly=True)
            try:
                return connection.execute(sql, rows.parameters(values)).fetchall()
            finally:
                connection.close()

        return await asyncio.to_thread(read)
