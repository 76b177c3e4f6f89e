"""What the read-only queries on PostgreSQL do not share with SQLite: session, dialect, keys, dumps and time."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, TypeVar

from switchyard.adapters.postgres import rows
from switchyard.adapters.postgres.connection import Record, single_connection
from switchyard.adapters.postgres.reader import Reader
from switchyard.adapters.queries import ENTRIES_BETWEEN, ENTRY, UNSETTLED, Dialect, SqlOutboxListing
from switchyard.adapters.tables import EXECUTIONS, ORDERS
from switchyard.domain.errors import OutcomeUnknown
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.orders.keys import KeyEntry
from switchyard.domain.orders.lifecycle import FINAL
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OrderState, OutboxKind
from switchyard.domain.risk.exposure import TotalsKey
from switchyard.ports.journal import StoredTime, TimeReading
from switchyard.ports.outbox import Due, KnownState
from switchyard.ports.queries import KeyId, Reaped

T = TypeVar("T")

# A cancel is due only when its order has been sent. A scalar subquery is an index lookup; EXISTS could be planned as a
# hash over every order ever sent.
_DUE_IN = """
SELECT order_id, kind, number, version, seq, venue_client_order_id FROM outbox_orders AS due
WHERE status = '{status}' AND (attempt = 0 OR next_attempt_at <= $1) AND ($3::text[] IS NULL OR venue = ANY ($3))
AND ($4::integer[] IS NULL OR lane = ANY ($4)) AND ($5::text IS NULL OR kind = $5)
AND seq > $6
AND ($7::text[] IS NULL OR (SELECT account_id FROM orders WHERE orders.order_id = due.order_id) <> ALL ($7))
AND (kind = 'new' OR 'sent' = (
    SELECT first.status FROM outbox_orders AS first
    WHERE (first.order_id, first.kind, first.number) = (due.order_id, 'new', 1)))
ORDER BY seq LIMIT $2
"""
_DUE = f"""
SELECT order_id, kind, number, version, {{reported_before}} FROM (
    ({_DUE_IN.format(status="queued")}) UNION ALL ({_DUE_IN.format(status="failed")})
    ORDER BY seq LIMIT $2
) AS due
ORDER BY seq, order_id, kind DESC, number
"""
# A binary search, because no index is on `at`: times never decrease with `seq`. Numbers between epochs belong to no
# event, so each step looks at the next event from its number on.
_FIRST_SEQ_AT = """
WITH RECURSIVE search (low, high) AS (
    SELECT 1::bigint, coalesce((SELECT seq FROM journal_heads WHERE shard = 0), 0) + 1
    UNION ALL
    SELECT
        CASE WHEN is_before THEN middle + 1 ELSE low END,
        CASE WHEN is_before THEN high ELSE middle END
    FROM (
        SELECT low, high, (low + high) / 2 AS middle, coalesce((
            SELECT at < $1 FROM events WHERE shard = 0 AND seq >= (low + high) / 2 ORDER BY seq LIMIT 1
        ), false) AS is_before
        FROM search WHERE low < high
    ) AS step
)
SELECT max(low) FROM search
"""
_OLDEST = """
SELECT requested.venue, oldest.seq, oldest.created_at
FROM unnest($1::text[]) AS requested (venue) CROSS JOIN LATERAL (
    SELECT seq, created_at FROM outbox_orders AS waiting
    WHERE status = 'queued' AND kind = 'new' AND attempt = 0 AND waiting.venue = requested.venue
    AND ($2::text[] IS NULL OR (SELECT account_id FROM orders WHERE orders.order_id = waiting.order_id) <> ALL ($2))
    ORDER BY seq LIMIT 1
) AS oldest
"""
_OPEN_ORDERS = f"""
SELECT {ORDERS.qualified("orders")} FROM {rows.UNFINISHED}
WHERE open.venue = $1 AND open.order_id > $2 AND orders.status IN ('WORKING', 'PARTIALLY_FILLED', 'CANCEL_REQUESTED')
ORDER BY open.order_id LIMIT $3
"""
_REPORTED_BEFORE = """EXISTS (
    SELECT FROM executions
    -- As in `domain.ids.last_generation`.
    WHERE stray_client_order_id BETWEEN {table}.venue_client_order_id
    AND left({table}.venue_client_order_id, 27) || 'fffff'
) AS reported_before"""
_DUE = _DUE.format(reported_before=_REPORTED_BEFORE.format(table="due"))
_NEVER_SENT = f"""
SELECT order_id, kind, number, version, {_REPORTED_BEFORE.format(table="waiting")} FROM outbox_orders AS waiting
WHERE status IN ('queued', 'failed') AND kind = 'new' AND NOT bytes_sent AND seq > $4
AND venue = ANY ($1) AND ($2::integer[] IS NULL OR lane = ANY ($2))
ORDER BY seq LIMIT $3
"""
_UNSETTLED_STATES = f"""
WITH selected AS ({UNSETTLED.format(hint="")})
SELECT selected.kind, selected.number, {_REPORTED_BEFORE.format(table="orders")}, {rows.STATE_COLUMNS}
FROM selected JOIN orders USING (order_id) JOIN outbox_orders AS outbox USING (order_id)
ORDER BY selected.order_id, selected.kind, selected.number, outbox.kind DESC, outbox.number
"""
# Materialised and by a range alone, so that the few strays are found by their partial index even before the server has
# statistics: for the other conditions it would walk the primary key, and with it every execution ever recorded.
_STRAYS = f"""(
    WITH found AS MATERIALIZED (
        SELECT {EXECUTIONS.column_list} FROM executions WHERE stray_client_order_id BETWEEN '' AND '~'
    )
    SELECT * FROM found
) AS strays"""
# With the status in the text, so that the partial index is used.
_UNSETTLED_SINCE = """
SELECT (SELECT count(*) FROM outbox_orders WHERE status = '{}' AND updated_at <= time)
FROM unnest($1::timestamptz[]) WITH ORDINALITY AS wanted (time, number) ORDER BY number
"""
_UNFINISHED = f"""
SELECT {ORDERS.qualified("orders")} FROM {rows.UNFINISHED}
WHERE open.account_id = $1 AND open.order_id > $2 AND ($3::text IS NULL OR orders.symbol = $3)
AND ($4::text IS NULL OR orders.strategy = $4) AND ($5::text IS NULL OR orders.venue = $5)
ORDER BY open.order_id LIMIT $6
"""

DIALECT = Dialect(
    rows=rows,
    any_of="= ANY ({})",
    hint="",
    of_shard="shard = 0 AND",
    outbox_indexes=("'queued'", "'failed'", "'sending', 'uncertain'"),
    due=_DUE,
    never_sent=_NEVER_SENT,
    oldest=_OLDEST,
    first_seq_at=_FIRST_SEQ_AT,
    open_orders=_OPEN_ORDERS,
    unfinished=_UNFINISHED,
    strays=_STRAYS,
    unsettled_since={"sending": _UNSETTLED_SINCE.format("sending"), "uncertain": _UNSETTLED_SINCE.format("uncertain")},
)


class PostgresSession:
    """adapters.queries.Session on the pool of reads."""

    dialect = DIALECT

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def read(self, decode: Callable[[Any], T], sql: str, *values: Any) -> list[T]:
        """Decode each row, once the synchronous standby has them."""
        return [decode(record) for record in await self._reader.rows(sql, *values)]

    async def read_unconfirmed(self, decode: Callable[[Any], T], sql: str, *values: Any) -> list[T]:
        """The same without the standby."""
        return [decode(record) for record in await self._reader.unconfirmed_rows(sql, *values)]

    async def due(self, known: KnownState, sql: str, *values: Any) -> list[Due]:
        """The rows that a statement selects, with the states of their orders."""
        selected = await self._reader.unconfirmed_rows(sql, *values)
        unknown = {order_id for order_id, *row, _ in selected if not _is_known(known(order_id), *row)}
        records = await self._reader.unconfirmed_rows(rows.STATES_BY_ORDER_ID, list(unknown)) if unknown else ()
        read = {state.order.order_id: state for state in rows.states(records)}
        due = []
        for order_id, kind, number, version, reported_before in selected:
            state = read.get(order_id) or known(order_id)
            # A row that has changed since it was selected may not be due any more.
            if state is not None and _is_known(state, kind, number, version):
                due.append(Due(state.row(kind, number), state, reported_before))
        return due

    async def unsettled(self, *values: Any) -> list[Due]:
        """The rows in doubt with the states of their orders, in one statement."""
        records = await self._reader.unconfirmed_rows(_UNSETTLED_STATES, *values)
        due = []
        for (kind, number, reported_before, _), group in groupby(records, key=lambda record: tuple(record[:4])):
            [state] = rows.states(record[3:] for record in group)
            due.append(Due(state.row(kind, number), state, reported_before))
        return due


def _is_known(state: OrderState | None, kind: OutboxKind, number: int, version: int) -> bool:
    return state is not None and state.version_of(kind, number) == version


# Pages in primary key order: an index on `expires_at` would add a write to every accepted order. A key whose order is
# missing is removed as if the order were final.
_REAP = """
WITH page AS (
    SELECT account_id, operation, idempotency_key, created_at, expires_at, order_id, version FROM idempotency_keys
    WHERE (account_id, operation, idempotency_key) > ($1, $2, $3)
    ORDER BY account_id, operation, idempotency_key LIMIT $4
), removed AS (
    DELETE FROM idempotency_keys AS stored USING page
    WHERE (stored.account_id, stored.operation, stored.idempotency_key)
        = (page.account_id, page.operation, page.idempotency_key)
    AND stored.version = page.version AND page.operation <> ALL ($8::text[])
    AND greatest(page.created_at, $7) + (page.expires_at - page.created_at) < $5 -- `KeyEntry.expiry`
    AND coalesce((SELECT orders.status FROM orders WHERE orders.order_id = page.order_id), 'FILLED') = ANY ($6::text[])
    RETURNING 1
)
SELECT (SELECT count(*) FROM removed) AS count, (SELECT count(*) FROM page) AS seen, last.*
FROM (SELECT 1) AS one LEFT JOIN LATERAL (
    SELECT account_id, operation, idempotency_key FROM page
    ORDER BY account_id DESC, operation DESC, idempotency_key DESC LIMIT 1
) AS last ON true
"""


class PostgresKeyStore:
    """ports.queries.KeyStore on PostgreSQL."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def entry(self, account: AccountId, operation: str, key: str) -> KeyEntry | None:
        """The entry of a key, expired or not; None if there is none."""
        # 'Unavailable' would mean that the request has no order.
        async with self._reader.barrier.confirmed(OutcomeUnknown) as read:
            records = await self._reader.unconfirmed_rows(ENTRY, account, operation, key)
            if not records:
                read.needs_standby = False  # no proof of anything: the append decides
                return None
            entry = rows.key_entry(records[0])
            # The keys of requests without an order are written without an event.
            read.must_write = not entry.order_id
        return entry

    async def entries(
        self, account: AccountId, operation: str, first: str, last: str, since: datetime, limit: int
    ) -> list[KeyEntry]:
        """Entries created after `since` whose keys lie between `first` and `last`, inclusive."""
        records = await self._reader.unconfirmed_rows(ENTRIES_BETWEEN, account, operation, first, last, since, limit)
        return [rows.key_entry(record) for record in records]

    async def reap(
        self, now: datetime, jumped_at: datetime | None, after: KeyId | None, limit: int, kept: Collection[str] = ()
    ) -> Reaped:
        """Check the next entries and remove those that have expired and whose order is final."""
        arguments = (*(after or ("", "", "")), limit, now, sorted(FINAL), jumped_at, list(kept))
        [row] = await self._reader.unconfirmed_rows(_REAP, *arguments)
        is_last = row["seen"] < limit
        return Reaped(row["count"], None if is_last else (row["account_id"], row["operation"], row["idempotency_key"]))


# Rows per fetch of the cursor: well under a megabyte.
PAGE = 1_000


class PostgresOrderDump:
    """ports.queries.OrderDump, usable while other processes write."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def all_orders(self) -> AsyncIterator[Order]:
        """Every order of one snapshot, sorted by id."""
        sql = f"SELECT {ORDERS.column_list} FROM orders ORDER BY order_id"
        async with (
            single_connection(self._url) as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            async for record in connection.cursor(sql, prefetch=PAGE):
                yield rows.order(record)

    async def wrong_totals(self) -> list[TotalsKey]:
        """The keys whose totals in `exposures` are not the sums of the open orders, in one snapshot."""
        async with single_connection(self._url) as connection:
            return [(key[0], key[1], key[2]) for key in await connection.fetch("SELECT * FROM wrong_exposures()")]

    async def wrong_unfinished(self) -> list[OrderId]:
        """Orders of which `unfinished_orders` is wrong, in one snapshot; a page at most."""
        async with single_connection(self._url) as connection:
            return [OrderId(row[0]) for row in await connection.fetch("SELECT wrong_unfinished_orders()")]


# One row at least, for the time.
_CURSORS = """
SELECT clock_timestamp() AS now, name, hash FROM (SELECT 1) AS once LEFT JOIN reader_cursors ON name = ANY($1)
"""


class PostgresOutboxListing(SqlOutboxListing):
    """ports.outbox.OutboxListing on PostgreSQL."""

    decode = rows

    def __init__(self, url: str) -> None:
        self._url = url

    async def cursors(self, names: Sequence[str]) -> tuple[Mapping[str, str], datetime]:
        """The texts of cursors, and the database's time."""
        found = await self._read(_CURSORS, list(names))
        return {record["name"]: record["hash"] for record in found if record["name"] is not None}, found[0]["now"]

    async def _read(self, sql: str, *values: Any) -> list[Record]:
        async with single_connection(self._url) as connection:
            records: list[Record] = await connection.fetch(sql, *values)
            return records


_READ = """
SELECT wall_clock() AS wall, (SELECT max(at) FROM journal_heads) AS newest_event_at,
    stored.ahead, stored.written_at, stored.boot_id, stored.boot_seconds, stored.jumped_at,
    stored.stepped_ahead
FROM (SELECT true) AS reading LEFT JOIN steady_clock AS stored ON true
"""
# Dated by the reading that `ahead` comes from: the wall clock may have been stepped since.
_STORE = """
INSERT INTO steady_clock (ahead, written_at, boot_id, boot_seconds, jumped_at, stepped_ahead)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (only_row) DO UPDATE SET ahead = excluded.ahead, written_at = excluded.written_at,
    boot_id = excluded.boot_id, boot_seconds = excluded.boot_seconds, jumped_at = excluded.jumped_at,
    stepped_ahead = excluded.stepped_ahead
WHERE (steady_clock.ahead, steady_clock.written_at) = ($7, $8)
RETURNING 1
"""


class PostgresTime:
    """ports.journal.DatabaseTime on PostgreSQL."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.is_shared = True

    async def read(self) -> TimeReading:
        """The server's times, in one statement."""
        [row] = await self._reader.unconfirmed_rows(_READ)
        stored = None
        if row["written_at"] is not None:
            stored = StoredTime(**{name: row[name] for name in StoredTime.__struct_fields__})
        return TimeReading(row["wall"], row["newest_event_at"], stored)

    async def store(self, time: StoredTime, *, read: StoredTime | None) -> bool:
        """Replace the row that was read."""
        values = (time.ahead, time.written_at, time.boot_id, time.boot_seconds, time.jumped_at, time.stepped_ahead)
        before = (None, None) if read is None else (read.ahead, read.written_at)
        return bool(await self._reader.unconfirmed_rows(_STORE, *values, *before))
