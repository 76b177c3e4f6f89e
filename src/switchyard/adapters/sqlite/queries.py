"""Read-only queries on SQLite: orders, events, accounts, keys, kills, strategies, and the lists of the command line."""

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import apsw

from switchyard.adapters.sqlite import rows
from switchyard.adapters.sqlite.append import (
    ACTIVE_KILLS,
    OPEN_ORDERS,
    SELECT_OUTBOX_OF,
    SELECT_STATES,
    reported_before,
)
from switchyard.adapters.sqlite.connections import Connections, connect
from switchyard.adapters.sqlite.journal import SqliteJournal
from switchyard.adapters.sqlite.rows import json_array
from switchyard.adapters.system_clock import SystemClock
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
from switchyard.domain.ids import AccountId, KillId, OrderId, VenueName
from switchyard.domain.journal.changes import Execution
from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.journal.lines import stamp
from switchyard.domain.orders.keys import KeyEntry, counted_from
from switchyard.domain.orders.lifecycle import FINAL
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OutboxKey, OutboxKind, OutboxRow
from switchyard.domain.risk.exposure import TotalsKey
from switchyard.domain.risk.kills import Kill
from switchyard.domain.strategies.metrics import READ_EVENTS, OrderRow, StrategyOrder, Window, id_range, strategy_orders
from switchyard.ports.journal import PAGE_MAX, SEQ_LIMIT
from switchyard.ports.outbox import DOUBTS_MAX, Due, KnownState, OutboxCount, QueueHead, nothing_known
from switchyard.ports.queries import KeyId, OrderFilter, Reaped, UnfinishedFilter
from switchyard.ports.strategies import ORDERS_MAX

# The planner uses a partial index only where a statement repeats the condition of the index: hence the status lists.
_DUE = """
SELECT order_id, kind, number, version FROM outbox_orders AS due
WHERE status IN ('queued', 'failed') AND (attempt = 0 OR next_attempt_at <= ?1)
AND (?2 IS NULL OR venue IN (SELECT value FROM json_each(?2)))
AND (?4 IS NULL OR lane IN (SELECT value FROM json_each(?4))) AND (?5 IS NULL OR kind = ?5)
AND seq > ?6
AND (kind = 'new' OR EXISTS (
    SELECT 1 FROM outbox_orders AS first
    WHERE first.order_id = due.order_id AND first.kind = 'new' AND first.status = 'sent'))
ORDER BY seq LIMIT ?3
"""
_NEVER_SENT = """
SELECT order_id, kind, number, version FROM outbox_orders
WHERE status IN ('queued', 'failed') AND kind = 'new' AND NOT bytes_sent AND seq > ?4
AND venue IN (SELECT value FROM json_each(?1)) AND (?2 IS NULL OR lane IN (SELECT value FROM json_each(?2)))
ORDER BY seq LIMIT ?3
"""
# A binary search, because no index is on `at`: times never decrease with `seq`. Numbers between epochs belong to no
# event, so each step looks at the next event from its number on.
_IS_BEFORE = "(SELECT at FROM events WHERE seq >= (low + high) / 2 ORDER BY seq LIMIT 1) < ?1"
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
SELECT venue, seq, created_at FROM json_each(?) AS requested JOIN outbox_orders ON (order_id, kind, number) = (
    SELECT order_id, kind, number FROM outbox_orders
    WHERE status IN ('queued', 'failed') AND status = 'queued' AND kind = 'new' AND attempt = 0
    AND venue = requested.value ORDER BY seq LIMIT 1
)
"""
_OPEN_ORDERS = f"""
SELECT {ORDERS.column_list} FROM orders
WHERE status IN ('WORKING', 'PARTIALLY_FILLED', 'CANCEL_REQUESTED') AND venue = ? AND order_id > ?
ORDER BY order_id LIMIT ?
"""
# Without the hint the planner may walk the primary key, and with it every order ever sent.
_UNSETTLED = """
SELECT order_id, kind, number, version FROM outbox_orders INDEXED BY outbox_unsettled
WHERE status IN ('sending', 'uncertain') AND status = ?1 AND (?3 IS NULL OR venue = ?3)
AND (order_id, kind, number) > (?4, ?5, ?6)
ORDER BY order_id, kind, number LIMIT ?2
"""
# With a hint too: by the primary key it would read every execution ever recorded.
_MATCHED_STRAYS = f"""
SELECT {EXECUTIONS.qualified("executions")} FROM executions INDEXED BY executions_stray
WHERE stray_client_order_id IS NOT NULL AND executions.venue = ? AND exec_id > ?
AND (
    EXISTS (SELECT 1 FROM orders WHERE orders.venue_client_order_id = stray_client_order_id)
    -- An earlier generation of the same key, whose order may be the stray.
    OR EXISTS (
        SELECT 1 FROM orders WHERE orders.venue_client_order_id
        BETWEEN substr(stray_client_order_id, 1, 27) || '00000' AND stray_client_order_id
        AND orders.status IN ('ACCEPTED', 'UNKNOWN', 'CANCEL_REQUESTED')
    )
    OR EXISTS (
        SELECT 1 FROM outbox_orders AS amend
        WHERE amend.venue_client_order_id = stray_client_order_id AND amend.kind = 'amend'
    )
)
ORDER BY exec_id LIMIT ?
"""
_ACCEPTED_SINCE = "SELECT count(*) FROM events WHERE seq > ? AND type = 'OrderAccepted'"
# By the millisecond: this column is written without trailing zeros, so its text order is not its time order.
_UNSETTLED_SINCE = """
SELECT (
    SELECT count(*) FROM outbox_orders WHERE status = ?2 AND status IN ('sending', 'uncertain')
    AND julianday(updated_at) <= julianday(time.value)
)
FROM json_each(?1) AS time
"""
_COUNTS = """
SELECT status, count(*), min(created_at) FROM outbox_orders
WHERE status IN ('queued', 'failed') GROUP BY status
UNION ALL
SELECT status, count(*), min(created_at) FROM outbox_orders
WHERE status IN ('sending', 'uncertain') GROUP BY status
"""


class SqliteQueries:
    """ports.queries.Queries on SQLite."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def order(self, order_id: OrderId) -> Order | None:
        """One order."""
        sql = f"SELECT {ORDERS.column_list} FROM orders WHERE order_id = ?"
        row = await self._connections.read(lambda connection: connection.execute(sql, (order_id,)).fetchone())
        return None if row is None else rows.order(row)

    async def orders(self, wanted: OrderFilter) -> list[Order]:
        """One page of an account's orders, newest first."""
        terms: list[tuple[str, Any]] = [("account_id = ?", wanted.account_id)]
        if wanted.statuses:
            terms.append(("status IN (SELECT value FROM json_each(?))", rows.json_array(wanted.statuses)))
        columns = ("symbol", "side", "strategy", "client_order_id")
        terms += [(f"{column} = ?", value) for column in columns if (value := getattr(wanted, column)) is not None]
        if wanted.before is not None:
            terms.append(("order_id < ?", wanted.before))
        where = " AND ".join(term for term, _ in terms)
        sql = f"SELECT {ORDERS.column_list} FROM orders WHERE {where} ORDER BY order_id DESC LIMIT ?"
        values = (*(value for _, value in terms), min(wanted.limit, PAGE_MAX))
        return await self._connections.read(lambda connection: list(map(rows.order, connection.execute(sql, values))))

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
        where = f"{column} = ? AND seq > ? AND seq < ?"
        sql = f"SELECT {EVENT_COLUMNS} FROM journal WHERE {where} ORDER BY seq DESC LIMIT ?"
        page = await self._events(sql, (value, after, SEQ_LIMIT if before is None else before, min(limit, PAGE_MAX)))
        return page[::-1]

    async def events_after(
        self, seq: int, *, account_id: AccountId | None = None, order_id: OrderId | None = None, limit: int
    ) -> list[JournalEvent]:
        """The next events of an order or an account after a journal number."""
        column, value = _owner(account_id, order_id)
        sql = f"SELECT {EVENT_COLUMNS} FROM journal WHERE {column} = ? AND seq > ? ORDER BY seq LIMIT ?"
        return await self._events(sql, (value, seq, min(limit, PAGE_MAX)))

    async def first_seq_at(self, at: datetime) -> int:
        """A number above every event before that time and not above any event at or after it."""
        seq: Any = await self._connections.read(lambda connection: connection.execute(_FIRST_SEQ_AT, (stamp(at),)).get)
        return int(seq)

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
        to_venues, in_lanes = (None if names is None else rows.json_array(names) for names in (venues, lanes))
        return await self._with_states(
            _DUE, (stamp(now), to_venues, min(limit, PAGE_MAX), in_lanes, kind, after), known
        )

    async def never_sent(
        self, venues: Sequence[VenueName], lanes: Sequence[int] | None, limit: int, *, after: int = 0
    ) -> list[Due]:
        """The waiting orders of these venues of which no byte was sent, in journal order, due or not."""
        in_lanes = None if lanes is None else rows.json_array(lanes)
        values = (rows.json_array(venues), in_lanes, min(limit, PAGE_MAX), after)
        return await self._with_states(_NEVER_SENT, values)

    async def unsettled(
        self,
        status: Literal["sending", "uncertain"],
        limit: int,
        *,
        venue: VenueName | None = None,
        after: OutboxKey | None = None,
    ) -> list[Due]:
        """Rows whose attempt has no outcome yet or an uncertain one, sorted by their keys."""
        order_id, kind, number = after or ("", "", 0)
        return await self._with_states(_UNSETTLED, (status, min(limit, PAGE_MAX), venue, order_id, kind, number))

    async def oldest_unsent(self, venues: Sequence[VenueName]) -> Mapping[VenueName, QueueHead]:
        """For each venue, the first order in journal order that waits for its first attempt."""
        names = (rows.json_array(venues),)
        oldest: list[Any] = await self._connections.read(
            lambda connection: connection.execute(_OLDEST, names).fetchall()
        )
        return {venue: QueueHead(seq, datetime.fromisoformat(at)) for venue, seq, at in oldest}

    async def positions(self, account_id: AccountId, *, after: str = ACCOUNT_TOTAL, limit: int) -> list[Position]:
        """One page of an account's positions, including flat ones, sorted by the bytes of their symbols."""
        where = "account_id = ? AND symbol > ?"
        sql = f"SELECT {POSITIONS.column_list} FROM positions WHERE {where} ORDER BY symbol LIMIT ?"
        values = (account_id, after, min(limit, PAGE_MAX))
        return await self._connections.read(
            lambda connection: list(map(rows.position, connection.execute(sql, values)))
        )

    async def open_orders(self, venue: VenueName, *, after: OrderId | None = None, limit: int) -> list[Order]:
        """One page of the orders that are open at a venue according to the journal, sorted by id."""
        values = (venue, after or "", min(limit, PAGE_MAX))
        return await self._connections.read(
            lambda connection: list(map(rows.order, connection.execute(_OPEN_ORDERS, values)))
        )

    async def executions(self, venue: VenueName, exec_ids: Sequence[str]) -> Mapping[str, Execution]:
        """Those of the named execution ids that were recorded."""
        sql = f"""
        SELECT {EXECUTIONS.column_list} FROM executions
        WHERE venue = ? AND exec_id IN (SELECT value FROM json_each(?))
        """
        values = (venue, rows.json_array(exec_ids))
        stored: list[Any] = await self._connections.read(lambda connection: connection.execute(sql, values).fetchall())
        return {execution.exec_id: execution for execution in (Execution(*columns) for columns in stored)}

    async def matched_strays(self, venue: VenueName, *, after: str = "", limit: int) -> list[Execution]:
        """One page of the strays whose order exists now."""
        values = (venue, after, min(limit, PAGE_MAX))
        stored: list[Any] = await self._connections.read(
            lambda connection: connection.execute(_MATCHED_STRAYS, values).fetchall()
        )
        return [Execution(*columns) for columns in stored]

    async def accepted_since(self, seq: int) -> int:
        """How many orders were accepted after this event."""
        row = await self._connections.read(lambda connection: connection.execute(_ACCEPTED_SINCE, (seq,)).fetchone())
        assert row is not None, "an aggregate always returns a row"
        return int(row[0])

    async def unsettled_since(self, status: Literal["sending", "uncertain"], times: Sequence[datetime]) -> list[int]:
        """For each time, how many rows have had this status since then or longer."""
        values = (rows.json_array([stamp(time) for time in times]), status)
        return await self._connections.read(
            lambda connection: [count for (count,) in connection.execute(_UNSETTLED_SINCE, values)]
        )

    async def outbox_counts(self) -> Sequence[OutboxCount]:
        """Unfinished outbox rows by status."""
        counts: list[Any] = await self._connections.read(lambda connection: connection.execute(_COUNTS).fetchall())
        return [OutboxCount(status, count, datetime.fromisoformat(oldest)) for status, count, oldest in counts]

    async def _events(self, sql: str, values: tuple[Any, ...]) -> list[JournalEvent]:
        return await self._connections.read(
            lambda connection: list(map(rows.journal_event, connection.execute(sql, values)))
        )

    async def _with_states(self, sql: str, values: tuple[Any, ...], known: KnownState = nothing_known) -> list[Due]:
        def select(connection: apsw.Connection) -> list[Due]:
            with connection:  # one snapshot for the rows and their orders
                selected: list[Any] = connection.execute(sql, values).fetchall()
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


def _owner(account_id: AccountId | None, order_id: OrderId | None) -> tuple[str, str]:
    if order_id is not None:
        assert account_id is None, "give an account or an order, not both"
        return "order_id", order_id
    assert account_id is not None, "give an account or an order, not both"
    return "account_id", account_id


_UNFINISHED = f"""
SELECT {ORDERS.column_list} FROM ({OPEN_ORDERS})
WHERE account_id = ?1 AND order_id > ?2 AND (?3 IS NULL OR symbol = ?3) AND (?4 IS NULL OR strategy = ?4)
AND (?5 IS NULL OR venue = ?5) AND status NOT IN ('FILLED', 'CANCELED', 'REJECTED', 'EXPIRED')
ORDER BY order_id LIMIT ?6
"""
_POSITIONS = f"""
SELECT {POSITIONS.column_list} FROM positions WHERE account_id = ? AND symbol > ? AND qty <> '0' ORDER BY symbol LIMIT ?
"""


class SqliteAccounts:
    """ports.queries.Accounts on SQLite."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def unfinished_orders(self, wanted: UnfinishedFilter) -> list[Order]:
        """One page of the orders that have not ended, sorted by id."""
        limit = min(wanted.limit, PAGE_MAX)
        values = (wanted.account_id, wanted.after or "", wanted.symbol, wanted.strategy, wanted.venue, limit)
        return await self._connections.read(
            lambda connection: list(map(rows.order, connection.execute(_UNFINISHED, values)))
        )

    async def open_positions(self, account_id: AccountId, *, after: str = "", limit: int) -> list[Position]:
        """One page of the positions that are not flat, sorted by the bytes of their symbols."""
        values = (account_id, max(after, ACCOUNT_TOTAL), min(limit, PAGE_MAX))
        return await self._connections.read(
            lambda connection: list(map(rows.position, connection.execute(_POSITIONS, values)))
        )


_ENTRY = f"""
SELECT {IDEMPOTENCY_KEYS.column_list} FROM idempotency_keys
WHERE account_id = ? AND operation = ? AND idempotency_key = ?
"""
_BETWEEN = f"""
SELECT {IDEMPOTENCY_KEYS.column_list} FROM idempotency_keys
WHERE account_id = ? AND operation = ? AND idempotency_key BETWEEN ? AND ? AND created_at > ? LIMIT ?
"""
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
                lambda connection: [connection.execute(_ENTRY, key).fetchone() for key in asked]
            )

    async def entries(
        self, account: AccountId, operation: str, first: str, last: str, since: datetime, limit: int
    ) -> list[KeyEntry]:
        """Entries created after `since` whose keys lie between `first` and `last`, inclusive."""
        values = (account, operation, first, last, stamp(since), limit)
        page = await self._connections.read(lambda connection: connection.execute(_BETWEEN, values).fetchall())
        return [rows.key_entry(row) for row in page]

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


_KILL_ORDERS = """
SELECT listed.order_id FROM kill_orders AS listed CROSS JOIN orders ON orders.order_id = listed.order_id
WHERE listed.kill_id = ?1 AND listed.order_id > ?2
AND (NOT ?3 OR orders.status NOT IN ('FILLED', 'CANCELED', 'REJECTED', 'EXPIRED'))
ORDER BY listed.order_id LIMIT ?4
"""


class SqliteKills:
    """ports.queries.Kills on SQLite."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def active(self) -> Sequence[Kill]:
        """All active kills, the oldest first."""
        return await self._kills(f"{ACTIVE_KILLS} ORDER BY seq", ())

    async def find(self, kill_id: KillId) -> Kill | None:
        """One kill."""
        found = await self._kills(f"SELECT {KILLS.column_list} FROM kills WHERE kill_id = ?", (kill_id,))
        return found[0] if found else None

    async def newest(self, *, before: int | None = None, limit: int) -> Sequence[Kill]:
        """One page of all kills, newest first."""
        sql = f"SELECT {KILLS.column_list} FROM kills WHERE seq < ? ORDER BY seq DESC LIMIT ?"
        return await self._kills(sql, (SEQ_LIMIT if before is None else before, min(limit, PAGE_MAX)))

    async def orders_of(
        self, kill_id: KillId, *, after: OrderId | None = None, only_open: bool = False, limit: int
    ) -> Sequence[OrderId]:
        """One page of the orders that were open when the kill was set, sorted by id."""
        values = (kill_id, after or "", only_open, min(limit, PAGE_MAX))
        found: list[Any] = await self._connections.read(
            lambda connection: connection.execute(_KILL_ORDERS, values).fetchall()
        )
        return [OrderId(order_id) for (order_id,) in found]

    async def _kills(self, sql: str, values: tuple[Any, ...]) -> list[Kill]:
        return await self._connections.read(lambda connection: list(map(rows.kill, connection.execute(sql, values))))


_STRATEGY_ORDERS = """
SELECT order_id, accepted_at, status, reason FROM orders INDEXED BY orders_of_strategy
WHERE strategy IS NOT NULL AND account_id = ?1 AND strategy = ?2 AND order_id > ?3 AND order_id < ?4
AND accepted_at >= ?5 AND accepted_at < ?6
ORDER BY order_id LIMIT ?7
"""
_EVENTS = """
SELECT order_id, type, data FROM events
WHERE order_id IS NOT NULL AND order_id IN (SELECT value FROM json_each(?1))
AND type IN (SELECT value FROM json_each(?2))
"""


class SqliteStrategyOrders:
    """ports.strategies.StrategyOrders on SQLite."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def page(
        self, account: AccountId, strategy: str, window: Window, after: OrderId | None, limit: int
    ) -> list[StrategyOrder]:
        """A page of the strategy's orders in the window."""
        first, last = id_range(window)
        values = (
            account,
            strategy,
            max(first, after or first),
            last,
            stamp(window.start),
            stamp(window.end),
            min(limit, ORDERS_MAX),
        )

        def read(connection: apsw.Connection) -> list[StrategyOrder]:
            found = [
                OrderRow(order_id, datetime.fromisoformat(accepted_at), status, reason)
                for order_id, accepted_at, status, reason in connection.execute(_STRATEGY_ORDERS, values)
            ]
            ids = json_array([row.order_id for row in found])
            events: list[Any] = connection.execute(_EVENTS, (ids, json_array(READ_EVENTS))).fetchall()
            return strategy_orders(found, events)

        return await self._connections.read(read)


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


_SELECT = f"SELECT {OUTBOX_ORDERS.column_list} FROM outbox_orders WHERE status = ? ORDER BY seq LIMIT ?"
_SELECT_OF = f"SELECT {OUTBOX_ORDERS.column_list} FROM outbox_orders WHERE order_id = ? ORDER BY kind, number"
_SELECT_ORDER = f"SELECT {ORDERS.column_list} FROM orders WHERE order_id = ?"
_SELECT_EVENTS = f"SELECT {EVENT_COLUMNS} FROM journal WHERE order_id = ? ORDER BY seq LIMIT ?"
_SELECT_DOUBTS = f"""
SELECT {EVENT_COLUMNS} FROM journal WHERE order_id = ? AND type = 'OrderUncertain'
ORDER BY seq DESC LIMIT {DOUBTS_MAX}
"""

_SELECT_CURSORS = "SELECT name, hash FROM reader_cursors WHERE name IN (SELECT value FROM json_each(?))"


class SqliteOutboxListing:
    """ports.outbox.OutboxListing, usable while another process holds the file lock."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def rows(self, status: str, limit: int) -> Sequence[OutboxRow]:
        """Rows of one status, oldest first."""
        selected = await asyncio.to_thread(self._read, _SELECT, (status, min(limit, PAGE_MAX)))
        return list(map(rows.outbox_row, selected))

    async def rows_of(self, order_id: OrderId) -> Sequence[OutboxRow]:
        """The rows of one order."""
        return list(map(rows.outbox_row, await asyncio.to_thread(self._read, _SELECT_OF, (order_id,))))

    async def history_of(self, order_id: OrderId, limit: int) -> tuple[Order, Sequence[JournalEvent]] | None:
        """One order with its first events."""
        found = await asyncio.to_thread(self._read, _SELECT_ORDER, (order_id,))
        if not found:
            return None
        events = await asyncio.to_thread(self._read, _SELECT_EVENTS, (order_id, min(limit, PAGE_MAX)))
        return rows.order(found[0]), list(map(rows.journal_event, events))

    async def doubts_of(self, order_id: OrderId) -> Sequence[JournalEvent]:
        """The last `OrderUncertain` events of one order, newest first."""
        return list(map(rows.journal_event, await asyncio.to_thread(self._read, _SELECT_DOUBTS, (order_id,))))

    async def cursors(self, names: Sequence[str]) -> tuple[Mapping[str, str], datetime]:
        """The texts of cursors, and the machine's time, which is the database's."""
        listed = json.dumps(list(names))
        rows = await asyncio.to_thread(self._read, _SELECT_CURSORS, (listed,))
        return dict(rows), SystemClock().now()

    def _read(self, sql: str, values: tuple[str | int, ...]) -> list[Any]:
        connection = connect(self._path, readonly=True)
        try:
            return connection.execute(sql, values).fetchall()
        finally:
            connection.close()
