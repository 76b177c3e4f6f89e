"""Lookups on SQLite: each one bounded statement in a reader's thread."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import apsw

from switchyard.adapters.sqlite import rows
from switchyard.adapters.sqlite.connections import Connections, connect
from switchyard.adapters.sqlite.statements import SELECT_OUTBOX_OF, SELECT_STATES
from switchyard.domain.chain import stamp
from switchyard.domain.events import JournalEvent
from switchyard.domain.ids import AccountId, OrderId, VenueName, WorkerId
from switchyard.domain.orders import Order
from switchyard.domain.outbox import LANES, OutboxRow
from switchyard.domain.positions import Position
from switchyard.ports.journal import PAGE_MAX
from switchyard.ports.lanes import LaneShare
from switchyard.ports.outbox import Due, OutboxCount
from switchyard.ports.queries import OrderFilter

_DUE = """
SELECT order_id, kind, number FROM outbox_orders AS due
WHERE status IN ('queued', 'failed') AND next_attempt_at <= ?1
AND (?2 IS NULL OR venue IN (SELECT value FROM json_each(?2)))
AND (?4 IS NULL OR lane IN (SELECT value FROM json_each(?4)))
AND (kind = 'new' OR EXISTS (
    SELECT 1 FROM outbox_orders AS first
    WHERE first.order_id = due.order_id AND first.kind = 'new' AND first.status = 'sent'))
ORDER BY created_at, order_id LIMIT ?3
"""
_OLDEST = """
SELECT wanted.value, (
    SELECT created_at FROM outbox_orders
    WHERE status IN ('queued', 'failed') AND status = 'queued' AND kind = 'new' AND venue = wanted.value
    ORDER BY created_at, order_id LIMIT 1
) FROM json_each(?) AS wanted
"""
# Here and below, an index holds some statuses only, and the planner knows it by their names.
_OPEN_ORDERS = f"""
SELECT {rows.ORDER_COLUMNS} FROM orders
WHERE status IN ('WORKING', 'PARTIALLY_FILLED', 'CANCEL_REQUESTED') AND venue = ? AND order_id > ?
ORDER BY order_id LIMIT ?
"""
_UNSETTLED = """
SELECT order_id, kind, number FROM outbox_orders
WHERE status IN ('sending', 'uncertain') AND status = ? ORDER BY created_at, order_id LIMIT ?
"""
_STRAYS = "SELECT stray_client_order_id FROM executions WHERE stray_client_order_id IN (SELECT value FROM json_each(?))"
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
        sql = f"SELECT {rows.ORDER_COLUMNS} FROM orders WHERE order_id = ?"
        row = await self._connections.read(lambda connection: connection.execute(sql, (order_id,)).fetchone())
        return None if row is None else rows.order(row)

    async def orders(self, wanted: OrderFilter) -> list[Order]:
        """One page of an account's orders, newest first."""
        terms: list[tuple[str, Any]] = [("account_id = ?", wanted.account_id)]
        if wanted.statuses:
            terms.append(("status IN (SELECT value FROM json_each(?))", rows.text_array(wanted.statuses)))
        columns = ("symbol", "side", "strategy", "client_order_id")
        terms += [(f"{column} = ?", value) for column in columns if (value := getattr(wanted, column)) is not None]
        if wanted.before is not None:
            terms.append(("order_id < ?", wanted.before))
        where = " AND ".join(term for term, _ in terms)
        sql = f"SELECT {rows.ORDER_COLUMNS} FROM orders WHERE {where} ORDER BY order_id DESC LIMIT ?"
        values = (*(value for _, value in terms), min(wanted.limit, PAGE_MAX))
        return await self._connections.read(lambda connection: list(map(rows.order, connection.execute(sql, values))))

    async def last_events(
        self, *, account_id: AccountId | None = None, order_id: OrderId | None = None, limit: int
    ) -> list[JournalEvent]:
        """The newest events of an order or of an account, oldest of them first."""
        column, value = _owner(account_id, order_id)
        sql = f"SELECT {rows.EVENT_COLUMNS} FROM events WHERE {column} = ? ORDER BY seq DESC LIMIT ?"
        page = await self._events(sql, (value, min(limit, PAGE_MAX)))
        return page[::-1]

    async def events_after(
        self, seq: int, *, account_id: AccountId | None = None, order_id: OrderId | None = None, limit: int
    ) -> list[JournalEvent]:
        """The next events of an order or of an account after a journal number."""
        column, value = _owner(account_id, order_id)
        sql = f"SELECT {rows.EVENT_COLUMNS} FROM events WHERE {column} = ? AND seq > ? ORDER BY seq LIMIT ?"
        return await self._events(sql, (value, seq, min(limit, PAGE_MAX)))

    async def due(
        self,
        now: datetime,
        limit: int,
        venues: Sequence[VenueName] | None = None,
        lanes: Sequence[int] | None = None,
    ) -> list[Due]:
        """Rows to send now, in the order of acceptance; a cancel only once its order is settled as sent."""
        to_venues, in_lanes = (None if wanted is None else rows.text_array(wanted) for wanted in (venues, lanes))
        return await self._with_states(_DUE, (stamp(now), to_venues, min(limit, PAGE_MAX), in_lanes))

    async def unsettled(self, status: Literal["sending", "uncertain"], limit: int) -> list[Due]:
        """Rows whose attempt has no outcome yet, or one in doubt, in the order of acceptance."""
        return await self._with_states(_UNSETTLED, (status, min(limit, PAGE_MAX)))

    async def oldest_unsent(self, venues: Sequence[VenueName]) -> Mapping[VenueName, datetime]:
        """When the order at the head of each venue's queue was accepted, where one waits for its first attempt."""
        wanted = (rows.text_array(venues),)
        found: list[Any] = await self._connections.read(
            lambda connection: connection.execute(_OLDEST, wanted).fetchall()
        )
        return {venue: datetime.fromisoformat(at) for venue, at in found if at is not None}

    async def positions(self, account_id: AccountId, *, after: str = "", limit: int) -> list[Position]:
        """One page of an account's positions, flat ones too, sorted by the bytes of their symbols."""
        where = "account_id = ? AND symbol > ?"
        sql = f"SELECT {rows.POSITION_COLUMNS} FROM positions WHERE {where} ORDER BY symbol LIMIT ?"
        values = (account_id, after, min(limit, PAGE_MAX))
        return await self._connections.read(
            lambda connection: list(map(rows.position, connection.execute(sql, values)))
        )

    async def open_orders(self, venue: VenueName, *, after: OrderId | None = None, limit: int) -> list[Order]:
        """One page of the orders that a venue is believed to have and that have not ended, by their ids."""
        values = (venue, after or "", min(limit, PAGE_MAX))
        return await self._connections.read(
            lambda connection: list(map(rows.order, connection.execute(_OPEN_ORDERS, values)))
        )

    async def executions(self, venue: VenueName, exec_ids: Sequence[str]) -> frozenset[str]:
        """Of the named reports those that were applied to an order."""
        sql = """
        SELECT exec_id FROM executions
        WHERE venue = ? AND exec_id IN (SELECT value FROM json_each(?)) AND order_id <> ''
        """
        values = (venue, rows.text_array(exec_ids))
        found: list[Any] = await self._connections.read(lambda connection: connection.execute(sql, values).fetchall())
        return frozenset(exec_id for (exec_id,) in found)

    async def outbox_counts(self) -> Sequence[OutboxCount]:
        """Unfinished outbox rows by status."""
        found: list[Any] = await self._connections.read(lambda connection: connection.execute(_COUNTS).fetchall())
        return [OutboxCount(status, count, datetime.fromisoformat(oldest)) for status, count, oldest in found]

    async def _events(self, sql: str, values: tuple[Any, ...]) -> list[JournalEvent]:
        return await self._connections.read(
            lambda connection: list(map(rows.journal_event, connection.execute(sql, values)))
        )

    async def _with_states(self, sql: str, values: tuple[Any, ...]) -> list[Due]:
        def look(connection: apsw.Connection) -> list[Due]:
            with connection:  # one snapshot for the rows and their orders
                keys: list[Any] = connection.execute(sql, values).fetchall()
                if not keys:
                    return []
                ids = rows.text_array(list({key[0] for key in keys}))
                states = rows.states(
                    connection.execute(SELECT_STATES, (ids,)), connection.execute(SELECT_OUTBOX_OF, (ids,))
                )
                client_ids = rows.text_array([state.order.venue_client_order_id for state in states.values()])
                strays = {client_id for (client_id,) in connection.execute(_STRAYS, (client_ids,))}
            return [
                Due(state.row(kind, number), state, state.order.venue_client_order_id in strays)
                for order_id, kind, number in keys
                for state in (states[order_id],)
            ]

        return await self._connections.read(look)


class SqliteOutboxListing:
    """ports.queries.OutboxListing on a connection of its own, which needs no lock."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def rows(self, status: str, limit: int) -> Sequence[OutboxRow]:
        """Rows of one status, oldest first."""
        return await asyncio.to_thread(self._rows, status, min(limit, PAGE_MAX))

    def _rows(self, status: str, limit: int) -> list[OutboxRow]:
        connection = connect(self._path, readonly=True)
        try:
            sql = f"SELECT {rows.OUTBOX_COLUMNS} FROM outbox_orders WHERE status = ? ORDER BY created_at LIMIT ?"
            return list(map(rows.outbox_row, connection.execute(sql, (status, limit))))
        finally:
            connection.close()


class SqliteLiveness:
    """ports.queries.Liveness: the file lock proves that whoever wrote before is gone."""

    def __init__(self) -> None:
        self._living: set[WorkerId] = set()

    @property
    def send_lingers(self) -> timedelta:
        """Not at all: the file's lock is free only when its holder's process is gone, and its sockets with it."""
        return timedelta()

    async def hold(self, worker: WorkerId) -> None:
        """Be alive under this name until the process ends."""
        self._living.add(worker)

    async def dead(self, workers: Sequence[WorkerId]) -> frozenset[WorkerId]:
        """Every worker that is not of this process."""
        return frozenset(workers) - self._living


class SqliteLanes:
    """ports.queries.Lanes: there is no other worker."""

    async def hold(self, worker: WorkerId, given_up: Sequence[int]) -> LaneShare:
        """All of them, always."""
        return LaneShare(frozenset(range(LANES)), LANES)


def _owner(account_id: AccountId | None, order_id: OrderId | None) -> tuple[str, str]:
    if order_id is not None:
        assert account_id is None, "one or the other"
        return "order_id", order_id
    assert account_id is not None, "one or the other"
    return "account_id", account_id
