"""Read-only queries on PostgreSQL: orders, events, accounts, keys, kills, strategies, and the lists of the command
line.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, Literal

import asyncpg

from switchyard.adapters.postgres import rows
from switchyard.adapters.postgres.connection import single_connection
from switchyard.adapters.postgres.reader import Reader
from switchyard.adapters.tables import (
    EVENT_COLUMNS,
    EXECUTIONS,
    IDEMPOTENCY_KEYS,
    KILLS,
    ORDERS,
    OUTBOX_ORDERS,
    POSITIONS,
)
from switchyard.domain.accounts.positions import ACCOUNT_TOTAL, Position
from switchyard.domain.errors import OutcomeUnknown
from switchyard.domain.ids import AccountId, KillId, OrderId, VenueName
from switchyard.domain.journal.changes import Execution
from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.orders.keys import KeyEntry
from switchyard.domain.orders.lifecycle import FINAL
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OrderState, OutboxKey, OutboxKind, OutboxRow
from switchyard.domain.risk.exposure import TotalsKey
from switchyard.domain.risk.kills import Kill
from switchyard.domain.strategies.metrics import READ_EVENTS, OrderRow, StrategyOrder, Window, id_range, strategy_orders
from switchyard.ports.journal import PAGE_MAX, SEQ_LIMIT, StoredTime, TimeReading
from switchyard.ports.outbox import DOUBTS_MAX, Due, KnownState, OutboxCount, QueueHead, nothing_known
from switchyard.ports.queries import KeyId, OrderFilter, Reaped, UnfinishedFilter
from switchyard.ports.strategies import ORDERS_MAX

# A cancel is due only when its order has been sent. A scalar subquery is an index lookup; EXISTS could be planned as a
# hash over every order ever sent.
_DUE_IN = """
SELECT order_id, kind, number, version, seq, venue_client_order_id FROM outbox_orders AS due
WHERE status = '{status}' AND (attempt = 0 OR next_attempt_at <= $1) AND ($3::text[] IS NULL OR venue = ANY ($3))
AND ($4::integer[] IS NULL OR lane = ANY ($4)) AND ($5::text IS NULL OR kind = $5)
AND seq > $6
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
    WHERE status = 'queued' AND kind = 'new' AND attempt = 0 AND waiting.venue = requested.venue ORDER BY seq LIMIT 1
) AS oldest
"""
_OPEN_ORDERS = f"""
SELECT {ORDERS.qualified("orders")} FROM {rows.UNFINISHED}
WHERE open.venue = $1 AND open.order_id > $2 AND orders.status IN ('WORKING', 'PARTIALLY_FILLED', 'CANCEL_REQUESTED')
ORDER BY open.order_id LIMIT $3
"""
# The planner uses a partial index only where a statement repeats the condition of the index: hence the status lists.
_UNSETTLED = """
SELECT order_id, kind, number FROM outbox_orders
WHERE status IN ('sending', 'uncertain') AND status = $1 AND ($3::text IS NULL OR venue = $3)
AND (order_id, kind, number) > ($4, $5, $6)
ORDER BY order_id, kind, number LIMIT $2
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
WITH selected AS ({_UNSETTLED})
SELECT selected.kind, selected.number, {_REPORTED_BEFORE.format(table="orders")}, {rows.STATE_COLUMNS}
FROM selected JOIN orders USING (order_id) JOIN outbox_orders AS outbox USING (order_id)
ORDER BY selected.order_id, selected.kind, selected.number, outbox.kind DESC, outbox.number
"""
# Materialised and by a range alone, so that the few strays are found by their partial index even before the server has
# statistics: for the other conditions it would walk the primary key, and with it every execution ever recorded.
_MATCHED_STRAYS = f"""
WITH strays AS MATERIALIZED (
    SELECT {EXECUTIONS.column_list} FROM executions WHERE stray_client_order_id BETWEEN '' AND '~'
)
SELECT {EXECUTIONS.qualified("strays")} FROM strays
WHERE strays.venue = $1 AND exec_id > $2
AND (
    EXISTS (SELECT FROM orders WHERE orders.venue_client_order_id = stray_client_order_id)
    -- An earlier generation of the same key, whose order may be the stray.
    OR EXISTS (
        SELECT FROM orders WHERE orders.venue_client_order_id
        BETWEEN left(stray_client_order_id, 27) || '00000' AND stray_client_order_id
        AND orders.status IN ('ACCEPTED', 'UNKNOWN', 'CANCEL_REQUESTED')
    )
    OR EXISTS (
        SELECT FROM outbox_orders AS amend
        WHERE amend.venue_client_order_id = stray_client_order_id AND amend.kind = 'amend'
    )
)
ORDER BY exec_id LIMIT $3
"""
_ACCEPTED_SINCE = "SELECT count(*) FROM events WHERE shard = 0 AND seq > $1 AND type = 'OrderAccepted'"
# One SELECT for each partial index: the planner does not combine them.
# With the status in the text, so that the partial index is used.
_UNSETTLED_SINCE = {
    status: f"""
SELECT (SELECT count(*) FROM outbox_orders WHERE status = '{status}' AND updated_at <= time)
FROM unnest($1::timestamptz[]) WITH ORDINALITY AS wanted (time, number) ORDER BY number
"""
    for status in ("sending", "uncertain")
}
_COUNTS = " UNION ALL ".join(
    f"SELECT status, count(*), min(created_at) FROM outbox_orders WHERE status IN ({statuses}) GROUP BY status"
    for statuses in ("'queued'", "'failed'", "'sending', 'uncertain'")
)


class PostgresQueries:
    """ports.queries.Queries on PostgreSQL."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def order(self, order_id: OrderId) -> Order | None:
        """One order."""
        records = await self._reader.rows(f"SELECT {ORDERS.column_list} FROM orders WHERE order_id = $1", order_id)
        return rows.order(records[0]) if records else None

    async def orders(self, wanted: OrderFilter) -> list[Order]:
        """One page of an account's orders, newest first."""
        terms: list[tuple[str, Any]] = [("account_id = ", wanted.account_id)]
        if wanted.statuses:
            terms.append(("status = ANY", list(wanted.statuses)))
        columns = ("symbol", "side", "strategy", "client_order_id")
        terms += [(f"{column} = ", value) for column in columns if (value := getattr(wanted, column)) is not None]
        if wanted.before is not None:
            terms.append(("order_id < ", wanted.before))
        where = " AND ".join(f"{term}(${place})" for place, (term, _) in enumerate(terms, 1))
        sql = f"SELECT {ORDERS.column_list} FROM orders WHERE {where} ORDER BY order_id DESC LIMIT ${len(terms) + 1}"
        records = await self._reader.rows(sql, *(value for _, value in terms), min(wanted.limit, PAGE_MAX))
        return [rows.order(record) for record in records]

    async def last_events(
        self,
        *,
        account_id: AccountId | None = None,
        order_id: OrderId | None = None,
        after: int = 0,
        before: int | None = None,
        limit: int,
    ) -> list[JournalEvent]:
        """The newest events of an order or an account, in journal order."""
        column, value = _owner(account_id, order_id)
        where = f"{column} = $1 AND seq > $2 AND seq < $3"
        sql = f"SELECT {EVENT_COLUMNS} FROM journal WHERE {where} ORDER BY seq DESC LIMIT $4"
        end = SEQ_LIMIT if before is None else before
        records = await self._reader.rows(sql, value, after, end, min(limit, PAGE_MAX))
        return [rows.journal_event(record) for record in reversed(records)]

    async def events_after(
        self, seq: int, *, account_id: AccountId | None = None, order_id: OrderId | None = None, limit: int
    ) -> list[JournalEvent]:
        """The next events of an order or an account after a journal number."""
        column, value = _owner(account_id, order_id)
        sql = f"SELECT {EVENT_COLUMNS} FROM journal WHERE {column} = $1 AND seq > $2 ORDER BY seq LIMIT $3"
        return [rows.journal_event(record) for record in await self._reader.rows(sql, value, seq, min(limit, PAGE_MAX))]

    async def first_seq_at(self, at: datetime) -> int:
        """A number above every event before that time and not above any event at or after it."""
        [record] = await self._reader.rows(_FIRST_SEQ_AT, at)
        return int(record[0])

    async def due(
        self,
        now: datetime,
        limit: int,
        venues: Sequence[VenueName] | None = None,
        lanes: Sequence[int] | None = None,
        *,
        kind: OutboxKind | None = None,
        after: int = 0,
        known: KnownState = nothing_known,
    ) -> list[Due]:
        """Rows to send now, in journal order; a cancel only when its order has been sent."""
        return await self._with_states(known, _DUE, now, min(limit, PAGE_MAX), venues, lanes, kind, after)

    async def never_sent(
        self, venues: Sequence[VenueName], lanes: Sequence[int] | None, limit: int, *, after: int = 0
    ) -> list[Due]:
        """The waiting orders of these venues of which no byte was sent, in journal order, due or not."""
        return await self._with_states(nothing_known, _NEVER_SENT, venues, lanes, min(limit, PAGE_MAX), after)

    async def _with_states(self, known: KnownState, sql: str, *values: Any) -> list[Due]:
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

    async def unsettled(
        self,
        status: Literal["sending", "uncertain"],
        limit: int,
        *,
        venue: VenueName | None = None,
        after: OutboxKey | None = None,
    ) -> list[Due]:
        """Rows whose attempt has no outcome yet or an uncertain one, sorted by their keys."""
        page = (status, min(limit, PAGE_MAX), venue, *(after or ("", "", 0)))
        records = await self._reader.unconfirmed_rows(_UNSETTLED_STATES, *page)
        due = []
        for (kind, number, reported_before, _), group in groupby(records, key=lambda record: tuple(record[:4])):
            [state] = rows.states(record[3:] for record in group)
            due.append(Due(state.row(kind, number), state, reported_before))
        return due

    async def oldest_unsent(self, venues: Sequence[VenueName]) -> Mapping[VenueName, QueueHead]:
        """For each venue, the first order in journal order that waits for its first attempt."""
        records = await self._reader.unconfirmed_rows(_OLDEST, venues)
        return {VenueName(venue): QueueHead(seq, at) for venue, seq, at in records}

    async def positions(self, account_id: AccountId, *, after: str = ACCOUNT_TOTAL, limit: int) -> list[Position]:
        """One page of an account's positions, including flat ones, sorted by the bytes of their symbols."""
        where = "account_id = $1 AND symbol > $2"
        sql = f"SELECT {POSITIONS.column_list} FROM positions WHERE {where} ORDER BY symbol LIMIT $3"
        return [
            rows.position(record) for record in await self._reader.rows(sql, account_id, after, min(limit, PAGE_MAX))
        ]

    async def open_orders(self, venue: VenueName, *, after: OrderId | None = None, limit: int) -> list[Order]:
        """One page of the orders that are open at a venue according to the journal, sorted by id."""
        records = await self._reader.unconfirmed_rows(_OPEN_ORDERS, venue, after or "", min(limit, PAGE_MAX))
        return [rows.order(record) for record in records]

    async def executions(self, venue: VenueName, exec_ids: Sequence[str]) -> Mapping[str, Execution]:
        """Those of the named execution ids that were recorded."""
        sql = f"SELECT {EXECUTIONS.column_list} FROM executions WHERE venue = $1 AND exec_id = ANY($2)"
        stored = [Execution(*record) for record in await self._reader.unconfirmed_rows(sql, venue, exec_ids)]
        return {execution.exec_id: execution for execution in stored}

    async def matched_strays(self, venue: VenueName, *, after: str = "", limit: int) -> list[Execution]:
        """One page of the strays whose order exists now."""
        return [
            Execution(*record)
            for record in await self._reader.unconfirmed_rows(_MATCHED_STRAYS, venue, after, min(limit, PAGE_MAX))
        ]

    async def accepted_since(self, seq: int) -> int:
        """How many orders were accepted after this event."""
        [record] = await self._reader.unconfirmed_rows(_ACCEPTED_SINCE, seq)
        return int(record[0])

    async def unsettled_since(self, status: Literal["sending", "uncertain"], times: Sequence[datetime]) -> list[int]:
        """For each time, how many rows have had this status since then or longer."""
        return [count for (count,) in await self._reader.unconfirmed_rows(_UNSETTLED_SINCE[status], times)]

    async def outbox_counts(self) -> Sequence[OutboxCount]:
        """Unfinished outbox rows by status."""
        return [OutboxCount(*record) for record in await self._reader.unconfirmed_rows(_COUNTS)]


def _is_known(state: OrderState | None, kind: OutboxKind, number: int, version: int) -> bool:
    return state is not None and state.version_of(kind, number) == version


def _owner(account_id: AccountId | None, order_id: OrderId | None) -> tuple[str, str]:
    if order_id is not None:
        assert account_id is None, "give an account or an order, not both"
        return "order_id", order_id
    assert account_id is not None, "give an account or an order, not both"
    return "account_id", account_id


_UNFINISHED = f"""
SELECT {ORDERS.qualified("orders")} FROM {rows.UNFINISHED}
WHERE open.account_id = $1 AND open.order_id > $2 AND ($3::text IS NULL OR orders.symbol = $3)
AND ($4::text IS NULL OR orders.strategy = $4) AND ($5::text IS NULL OR orders.venue = $5)
ORDER BY open.order_id LIMIT $6
"""
_POSITIONS = f"""
SELECT {POSITIONS.column_list} FROM positions
WHERE account_id = $1 AND symbol > $2 AND qty <> 0 ORDER BY symbol LIMIT $3
"""


class PostgresAccounts:
    """ports.queries.Accounts on PostgreSQL."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def unfinished_orders(self, wanted: UnfinishedFilter) -> list[Order]:
        """One page of the orders that have not ended, sorted by id."""
        limit = min(wanted.limit, PAGE_MAX)
        values = (wanted.account_id, wanted.after or "", wanted.symbol, wanted.strategy, wanted.venue, limit)
        return [rows.order(record) for record in await self._reader.rows(_UNFINISHED, *values)]

    async def open_positions(self, account_id: AccountId, *, after: str = "", limit: int) -> list[Position]:
        """One page of the positions that are not flat, sorted by the bytes of their symbols."""
        values = (account_id, max(after, ACCOUNT_TOTAL), min(limit, PAGE_MAX))
        return [rows.position(record) for record in await self._reader.rows(_POSITIONS, *values)]


_ENTRY = f"""
SELECT {IDEMPOTENCY_KEYS.column_list} FROM idempotency_keys
WHERE (account_id, operation, idempotency_key) = ($1, $2, $3)
"""
_BETWEEN = f"""
SELECT {IDEMPOTENCY_KEYS.column_list} FROM idempotency_keys
WHERE account_id = $1 AND operation = $2 AND idempotency_key BETWEEN $3 AND $4 AND created_at > $5 LIMIT $6
"""
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
            records = await self._reader.unconfirmed_rows(_ENTRY, account, operation, key)
            if not records:
                read.needs_standby = False  # no proof of anything: the append decides
                return None
            entry = KeyEntry(**records[0])
            # The keys of requests without an order are written without an event.
            read.must_write = not entry.order_id
        return entry

    async def entries(
        self, account: AccountId, operation: str, first: str, last: str, since: datetime, limit: int
    ) -> list[KeyEntry]:
        """Entries created after `since` whose keys lie between `first` and `last`, inclusive."""
        records = await self._reader.unconfirmed_rows(_BETWEEN, account, operation, first, last, since, limit)
        return [KeyEntry(**record) for record in records]

    async def reap(
        self, now: datetime, jumped_at: datetime | None, after: KeyId | None, limit: int, kept: Collection[str] = ()
    ) -> Reaped:
        """Check the next entries and remove those that have expired and whose order is final."""
        arguments = (*(after or ("", "", "")), limit, now, sorted(FINAL), jumped_at, list(kept))
        [row] = await self._reader.unconfirmed_rows(_REAP, *arguments)
        is_last = row["seen"] < limit
        return Reaped(row["count"], None if is_last else (row["account_id"], row["operation"], row["idempotency_key"]))


_KILLS = f"SELECT {KILLS.column_list} FROM kills"
_KILL_ORDERS = """
SELECT listed.order_id FROM kill_orders AS listed JOIN orders USING (order_id)
WHERE listed.kill_id = $1 AND listed.order_id > $2 AND (NOT $3::boolean OR NOT is_final(orders.status))
ORDER BY listed.order_id LIMIT $4
"""


class PostgresKills:
    """ports.queries.Kills on PostgreSQL."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def active(self) -> Sequence[Kill]:
        """All active kills, the oldest first."""
        return [rows.kill(row) for row in await self._reader.rows(f"{_KILLS} WHERE cleared_at IS NULL ORDER BY seq")]

    async def find(self, kill_id: KillId) -> Kill | None:
        """One kill."""
        found = await self._reader.rows(f"{_KILLS} WHERE kill_id = $1", kill_id)
        return rows.kill(found[0]) if found else None

    async def newest(self, *, before: int | None = None, limit: int) -> Sequence[Kill]:
        """One page of all kills, newest first."""
        end = SEQ_LIMIT if before is None else before
        sql = f"{_KILLS} WHERE seq < $1 ORDER BY seq DESC LIMIT $2"
        return [rows.kill(row) for row in await self._reader.rows(sql, end, min(limit, PAGE_MAX))]

    async def orders_of(
        self, kill_id: KillId, *, after: OrderId | None = None, only_open: bool = False, limit: int
    ) -> Sequence[OrderId]:
        """One page of the orders that were open when the kill was set, sorted by id."""
        found = await self._reader.rows(_KILL_ORDERS, kill_id, after or "", only_open, min(limit, PAGE_MAX))
        return [OrderId(record["order_id"]) for record in found]


_STRATEGY_ORDERS = """
SELECT order_id, accepted_at, status, reason FROM orders
WHERE strategy IS NOT NULL AND account_id = $1 AND strategy = $2 AND order_id > $3 AND order_id < $4
AND accepted_at >= $5 AND accepted_at < $6
ORDER BY order_id LIMIT $7
"""
_EVENTS = "SELECT order_id, type, data FROM events WHERE order_id = ANY ($1::text[]) AND type = ANY ($2::text[])"


class PostgresStrategyOrders:
    """ports.strategies.StrategyOrders on PostgreSQL."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def page(
        self, account: AccountId, strategy: str, window: Window, after: OrderId | None, limit: int
    ) -> list[StrategyOrder]:
        """A page of the strategy's orders in the window."""
        first, last = id_range(window)
        start = max(first, after or first)
        records = await self._reader.rows(
            _STRATEGY_ORDERS, account, strategy, start, last, window.start, window.end, min(limit, ORDERS_MAX)
        )
        found = [OrderRow(*record) for record in records]
        events = await self._reader.rows(_EVENTS, [row.order_id for row in found], list(READ_EVENTS))
        return strategy_orders(found, [(record[0], record[1], record[2]) for record in events])


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


_SELECT = f"SELECT {OUTBOX_ORDERS.column_list} FROM outbox_orders WHERE status = $1 ORDER BY seq LIMIT $2"
_SELECT_OF = f"SELECT {OUTBOX_ORDERS.column_list} FROM outbox_orders WHERE order_id = $1 ORDER BY kind, number"
_SELECT_ORDER = f"SELECT {ORDERS.column_list} FROM orders WHERE order_id = $1"
_SELECT_EVENTS = f"SELECT {EVENT_COLUMNS} FROM journal WHERE order_id = $1 ORDER BY seq LIMIT $2"
_SELECT_DOUBTS = f"""
SELECT {EVENT_COLUMNS} FROM journal WHERE order_id = $1 AND type = 'OrderUncertain'
ORDER BY seq DESC LIMIT {DOUBTS_MAX}
"""

# One row at least, for the time.
_SELECT_CURSORS = """
SELECT clock_timestamp() AS now, name, hash FROM (SELECT 1) AS once LEFT JOIN reader_cursors ON name = ANY($1)
"""


class PostgresOutboxListing:
    """ports.outbox.OutboxListing on PostgreSQL."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def rows(self, status: str, limit: int) -> Sequence[OutboxRow]:
        """Rows of one status, oldest first."""
        return [rows.outbox_row(record) for record in await self._read(_SELECT, status, min(limit, PAGE_MAX))]

    async def rows_of(self, order_id: OrderId) -> Sequence[OutboxRow]:
        """The rows of one order."""
        return [rows.outbox_row(record) for record in await self._read(_SELECT_OF, order_id)]

    async def history_of(self, order_id: OrderId, limit: int) -> tuple[Order, Sequence[JournalEvent]] | None:
        """One order with its first events."""
        found = await self._read(_SELECT_ORDER, order_id)
        if not found:
            return None
        events = await self._read(_SELECT_EVENTS, order_id, min(limit, PAGE_MAX))
        return rows.order(found[0]), list(map(rows.journal_event, events))

    async def doubts_of(self, order_id: OrderId) -> Sequence[JournalEvent]:
        """The last `OrderUncertain` events of one order, newest first."""
        return [rows.journal_event(record) for record in await self._read(_SELECT_DOUBTS, order_id)]

    async def cursors(self, names: Sequence[str]) -> tuple[Mapping[str, str], datetime]:
        """The texts of cursors, and the database's time."""
        found = await self._read(_SELECT_CURSORS, list(names))
        return {record["name"]: record["hash"] for record in found if record["name"] is not None}, found[0]["now"]

    async def _read(self, sql: str, *values: str | int | list[str]) -> list[asyncpg.Record]:
        async with single_connection(self._url) as connection:
            records: list[asyncpg.Record] = await connection.fetch(sql, *values)
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
