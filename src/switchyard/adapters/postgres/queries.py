"""Lookups on PostgreSQL: each one bounded statement, so that what it shows is of one moment."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, Literal

from switchyard.adapters.postgres import rows
from switchyard.adapters.postgres.connection import Reader, connect
from switchyard.domain.events import JournalEvent
from switchyard.domain.ids import AccountId, OrderId, VenueName
from switchyard.domain.orders import Order
from switchyard.domain.outbox import OutboxRow
from switchyard.domain.positions import Position
from switchyard.ports.journal import PAGE_MAX
from switchyard.ports.outbox import Due, OutboxCount
from switchyard.ports.queries import OrderFilter

# A cancel is held back until the venue has its order. That is a lookup: an EXISTS may be planned as a hash of every
# order ever sent.
_DUE_IN = """
SELECT order_id, kind, number, created_at FROM outbox_orders AS due
WHERE status = '{status}' AND next_attempt_at <= $1 AND ($3::text[] IS NULL OR venue = ANY ($3))
AND ($4::integer[] IS NULL OR lane = ANY ($4))
AND (kind = 'new' OR 'sent' = (
    SELECT first.status FROM outbox_orders AS first
    WHERE (first.order_id, first.kind, first.number) = (due.order_id, 'new', 1)))
ORDER BY created_at, order_id LIMIT $2
"""
_DUE = f"""
({_DUE_IN.format(status="queued")}) UNION ALL ({_DUE_IN.format(status="failed")})
ORDER BY created_at, order_id LIMIT $2
"""
_OLDEST = """
SELECT wanted.venue, head.created_at FROM unnest($1::text[]) AS wanted (venue) CROSS JOIN LATERAL (
    SELECT created_at FROM outbox_orders AS waiting
    WHERE status = 'queued' AND kind = 'new' AND waiting.venue = wanted.venue ORDER BY created_at, order_id LIMIT 1
) AS head
"""
# Here and below, an index holds some statuses only, and the planner knows it by their names.
_OPEN_ORDERS = f"""
SELECT {rows.ORDER_COLUMNS} FROM orders
WHERE NOT is_final AND status IN ('WORKING', 'PARTIALLY_FILLED', 'CANCEL_REQUESTED')
AND venue = $1 AND order_id > $2
ORDER BY order_id LIMIT $3
"""
_UNSETTLED = """
SELECT order_id, kind, number, created_at FROM outbox_orders
WHERE status IN ('sending', 'uncertain') AND status = $1 ORDER BY created_at, order_id LIMIT $2
"""
_WITH_STATES = f"""
WITH found AS ({{found}})
SELECT
    found.kind, found.number,
    EXISTS (SELECT FROM executions WHERE stray_client_order_id = orders.venue_client_order_id) AS reported_before,
    {rows.STATE_COLUMNS}
FROM found JOIN orders USING (order_id) JOIN outbox_orders AS outbox USING (order_id)
ORDER BY found.created_at, found.order_id, found.kind DESC, found.number, outbox.kind DESC, outbox.number
"""
# One arm for each partial index: no plan would put them together by itself.
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
        found = await self._reader.rows(f"SELECT {rows.ORDER_COLUMNS} FROM orders WHERE order_id = $1", order_id)
        return rows.order(found[0]) if found else None

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
        sql = f"SELECT {rows.ORDER_COLUMNS} FROM orders WHERE {where} ORDER BY order_id DESC LIMIT ${len(terms) + 1}"
        found = await self._reader.rows(sql, *(value for _, value in terms), min(wanted.limit, PAGE_MAX))
        return [rows.order(record) for record in found]

    async def last_events(
        self, *, account_id: AccountId | None = None, order_id: OrderId | None = None, limit: int
    ) -> list[JournalEvent]:
        """The newest events of an order or of an account, oldest of them first."""
        column, value = _owner(account_id, order_id)
        sql = f"SELECT {rows.EVENT_COLUMNS} FROM events WHERE {column} = $1 ORDER BY seq DESC LIMIT $2"
        found = await self._reader.rows(sql, value, min(limit, PAGE_MAX))
        return [rows.journal_event(record) for record in reversed(found)]

    async def events_after(
        self, seq: int, *, account_id: AccountId | None = None, order_id: OrderId | None = None, limit: int
    ) -> list[JournalEvent]:
        """The next events of an order or of an account after a journal number."""
        column, value = _owner(account_id, order_id)
        sql = f"SELECT {rows.EVENT_COLUMNS} FROM events WHERE {column} = $1 AND seq > $2 ORDER BY seq LIMIT $3"
        return [rows.journal_event(record) for record in await self._reader.rows(sql, value, seq, min(limit, PAGE_MAX))]

    async def due(
        self,
        now: datetime,
        limit: int,
        venues: Sequence[VenueName] | None = None,
        lanes: Sequence[int] | None = None,
    ) -> list[Due]:
        """Rows to send now, in the order of acceptance; a cancel only once its order is settled as sent."""
        return await self._with_states(_DUE, now, min(limit, PAGE_MAX), venues, lanes)

    async def unsettled(self, status: Literal["sending", "uncertain"], limit: int) -> list[Due]:
        """Rows whose attempt has no outcome yet, or one in doubt, in the order of acceptance."""
        return await self._with_states(_UNSETTLED, status, min(limit, PAGE_MAX))

    async def oldest_unsent(self, venues: Sequence[VenueName]) -> Mapping[VenueName, datetime]:
        """When the order at the head of each venue's queue was accepted, where one waits for its first attempt."""
        return {VenueName(venue): at for venue, at in await self._reader.rows(_OLDEST, venues)}

    async def positions(self, account_id: AccountId, *, after: str = "", limit: int) -> list[Position]:
        """One page of an account's positions, flat ones too, sorted by the bytes of their symbols."""
        where = "account_id = $1 AND symbol > $2"
        sql = f"SELECT {rows.POSITION_COLUMNS} FROM positions WHERE {where} ORDER BY symbol LIMIT $3"
        return [
            rows.position(record) for record in await self._reader.rows(sql, account_id, after, min(limit, PAGE_MAX))
        ]

    async def open_orders(self, venue: VenueName, *, after: OrderId | None = None, limit: int) -> list[Order]:
        """One page of the orders that a venue is believed to have and that have not ended, by their ids."""
        found = await self._reader.rows(_OPEN_ORDERS, venue, after or "", min(limit, PAGE_MAX))
        return [rows.order(record) for record in found]

    async def executions(self, venue: VenueName, exec_ids: Sequence[str]) -> frozenset[str]:
        """Of the named reports those that were applied to an order."""
        sql = "SELECT exec_id FROM executions WHERE venue = $1 AND exec_id = ANY($2) AND order_id <> ''"
        return frozenset(record[0] for record in await self._reader.rows(sql, venue, exec_ids))

    async def outbox_counts(self) -> Sequence[OutboxCount]:
        """Unfinished outbox rows by status."""
        return [OutboxCount(*record) for record in await self._reader.rows(_COUNTS)]

    async def _with_states(self, sql: str, *values: Any) -> list[Due]:
        records = await self._reader.rows(_WITH_STATES.format(found=sql), *values)
        found = []
        for (kind, number, reported_before, _), group in groupby(records, key=lambda record: tuple(record[:4])):
            [state] = rows.states(record[3:] for record in group)
            found.append(Due(state.row(kind, number), state, reported_before))
        return found


def _owner(account_id: AccountId | None, order_id: OrderId | None) -> tuple[str, str]:
    if order_id is not None:
        assert account_id is None, "one or the other"
        return "order_id", order_id
    assert account_id is not None, "one or the other"
    return "account_id", account_id


class PostgresOutboxListing:
    """ports.queries.OutboxListing on a connection of its own."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def rows(self, status: str, limit: int) -> Sequence[OutboxRow]:
        """Rows of one status, oldest first."""
        connection = await connect(self._url)
        try:
            sql = f"SELECT {rows.OUTBOX_COLUMNS} FROM outbox_orders WHERE status = $1 ORDER BY created_at LIMIT $2"
            found = await connection.fetch(sql, status, min(limit, PAGE_MAX))
            return [rows.outbox_row(record) for record in found]
        finally:
            await connection.close()
