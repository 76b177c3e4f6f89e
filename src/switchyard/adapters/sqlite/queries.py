"""Read-only queries on SQLite: bounded statements in the reader threads."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import apsw

from switchyard.adapters.sqlite import rows
from switchyard.adapters.sqlite.connections import Connections
from switchyard.adapters.sqlite.statements import SELECT_OUTBOX_OF, SELECT_STATES
from switchyard.adapters.sqlite.strays import reported_before
from switchyard.adapters.tables import EVENT_COLUMNS, EXECUTIONS, ORDERS, POSITIONS
from switchyard.domain.accounts.positions import ACCOUNT_TOTAL, Position
from switchyard.domain.ids import AccountId, OrderId, VenueName
from switchyard.domain.journal.changes import Execution
from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.journal.lines import stamp
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OutboxKey, OutboxKind
from switchyard.ports.journal import PAGE_MAX, SEQ_LIMIT
from switchyard.ports.outbox import Due, KnownState, OutboxCount, QueueHead, nothing_known
from switchyard.ports.queries import OrderFilter

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
