"""Read-only queries on SQLite and PostgreSQL: orders, events, accounts, keys, kills, strategies, and outbox lists.

The statements that are equal are here, with the parameters `$1`, `$2`, …. Each engine's `queries.py` has a `Session`
that runs them, and a `Dialect` with the statements, and the parts of statements, in which it differs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from switchyard.adapters.tables import (
    EVENT_COLUMNS,
    EXECUTIONS,
    IDEMPOTENCY_KEYS,
    KILLS,
    ORDERS,
    OUTBOX_ORDERS,
    POSITIONS,
    moment,
)
from switchyard.domain.accounts.positions import ACCOUNT_TOTAL, Position
from switchyard.domain.ids import AccountId, KillId, OrderId, VenueName
from switchyard.domain.journal.changes import Execution
from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.orders.keys import KeyEntry
from switchyard.domain.orders.lifecycle import FINAL
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OutboxKey, OutboxKind, OutboxRow
from switchyard.domain.risk.kills import Kill
from switchyard.domain.strategies.metrics import READ_EVENTS, OrderRow, StrategyOrder, Window, id_range, strategy_orders
from switchyard.ports.journal import PAGE_MAX, SEQ_LIMIT
from switchyard.ports.outbox import DOUBTS_MAX, Due, KnownState, OutboxCount, QueueHead, nothing_known
from switchyard.ports.queries import OrderFilter, UnfinishedFilter
from switchyard.ports.strategies import ORDERS_MAX

Row = Sequence[Any]
T = TypeVar("T")

Doubt = Literal["sending", "uncertain"]


class Decoders(Protocol):
    """An engine's module `rows`: structs from the columns of their tables."""

    def order(self, row: Row, /) -> Order:
        """Return an order."""
        ...

    def outbox_row(self, row: Row, /) -> OutboxRow:
        """Return an outbox row."""
        ...

    def position(self, row: Row, /) -> Position:
        """Return a position."""
        ...

    def kill(self, row: Row, /) -> Kill:
        """Return a kill."""
        ...

    def key_entry(self, row: Row, /) -> KeyEntry:
        """Return an entry of a key."""
        ...

    def journal_event(self, row: Row, /) -> JournalEvent:
        """Return an event."""
        ...


class Dialect(NamedTuple):
    """What the statements of an engine do not share."""

    rows: Decoders
    any_of: str
    """The condition that a column is in a list, which is the parameter `{}`."""
    hint: str
    """A hint to use the index `{}`, for an engine that has no statistics to plan by."""
    of_shard: str
    """A condition that leaves only the events of the first shard."""
    outbox_indexes: Sequence[str]
    """Lists of the statuses of each partial index of unfinished outbox rows; the planner does not combine them."""
    due: str
    never_sent: str
    oldest: str
    first_seq_at: str
    open_orders: str
    unfinished: str
    strays: str
    """A table expression of the executions without an order, as `strays`."""
    unsettled_since: Mapping[Doubt, str]


class Session(Protocol):
    """Runs statements on one engine."""

    dialect: Dialect

    async def read(self, decode: Callable[[Any], T], sql: str, *values: Any) -> list[T]:
        """Decode each row of a bounded query, once the synchronous standby has them; raises JournalUnavailable."""
        ...

    async def read_unconfirmed(self, decode: Callable[[Any], T], sql: str, *values: Any) -> list[T]:
        """The same without the standby, for what leads to an append alone or is no proof of anything."""
        ...

    async def due(self, known: KnownState, sql: str, *values: Any) -> list[Due]:
        """Return the outbox rows that a statement selects, with the states of their orders."""
        ...

    async def unsettled(self, *values: Any) -> list[Due]:
        """Return the outbox rows of UNSETTLED, with the states of their orders."""
        ...


FINAL_STATUSES = ", ".join(f"'{status}'" for status in sorted(FINAL))

_ORDER = f"SELECT {ORDERS.column_list} FROM orders WHERE order_id = $1"
# The planner uses a partial index only where a statement repeats the condition of the index: hence the status lists.
UNSETTLED = """
SELECT order_id, kind, number, version FROM outbox_orders {hint}
WHERE status IN ('sending', 'uncertain') AND status = $1 AND (CAST($3 AS text) IS NULL OR venue = $3)
AND (order_id, kind, number) > ($4, $5, $6)
ORDER BY order_id, kind, number LIMIT $2
"""
_MATCHED_STRAYS = f"""
SELECT {EXECUTIONS.qualified("strays")} FROM {{strays}}
WHERE stray_client_order_id IS NOT NULL AND strays.venue = $1 AND exec_id > $2
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
ORDER BY exec_id LIMIT $3
"""


def matched_strays(dialect: Dialect) -> str:
    """The statement of `Queries.matched_strays`."""
    return _MATCHED_STRAYS.format(strays=dialect.strays)


class SqlQueries:
    """ports.queries.Queries and ports.outbox.OutboxQueries."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._dialect = session.dialect
        self._rows = session.dialect.rows

    async def order(self, order_id: OrderId) -> Order | None:
        """One order."""
        found = await self._session.read(self._rows.order, _ORDER, order_id)
        return found[0] if found else None

    async def orders(self, wanted: OrderFilter) -> list[Order]:
        """One page of an account's orders, newest first."""
        terms: list[tuple[str, Any]] = [("account_id = {}", wanted.account_id)]
        if wanted.statuses:
            terms.append((f"status {self._dialect.any_of}", wanted.statuses))
        columns = ("symbol", "side", "strategy", "client_order_id")
        terms += [(f"{column} = {{}}", value) for column in columns if (value := getattr(wanted, column)) is not None]
        if wanted.before is not None:
            terms.append(("order_id < {}", wanted.before))
        where = " AND ".join(term.format(f"${number}") for number, (term, _) in enumerate(terms, 1))
        sql = f"SELECT {ORDERS.column_list} FROM orders WHERE {where} ORDER BY order_id DESC LIMIT ${len(terms) + 1}"
        values = (value for _, value in terms)
        return await self._session.read(self._rows.order, sql, *values, min(wanted.limit, PAGE_MAX))

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
        page = await self._session.read(self._rows.journal_event, sql, value, after, end, min(limit, PAGE_MAX))
        return page[::-1]

    async def events_after(
        self, seq: int, *, account_id: AccountId | None = None, order_id: OrderId | None = None, limit: int
    ) -> list[JournalEvent]:
        """The next events of an order or an account after a journal number."""
        column, value = _owner(account_id, order_id)
        sql = f"SELECT {EVENT_COLUMNS} FROM journal WHERE {column} = $1 AND seq > $2 ORDER BY seq LIMIT $3"
        return await self._session.read(self._rows.journal_event, sql, value, seq, min(limit, PAGE_MAX))

    async def first_seq_at(self, at: datetime) -> int:
        """A number above every event before that time and not above any event at or after it."""
        [(seq,)] = await self._session.read(tuple, self._dialect.first_seq_at, at)
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
        without: Sequence[AccountId] = (),
        known: KnownState = nothing_known,
    ) -> list[Due]:
        """Rows to send now, in journal order; a cancel only when its order has been sent."""
        values = now, min(limit, PAGE_MAX), venues, lanes, kind, after, without or None
        return await self._session.due(known, self._dialect.due, *values)

    async def never_sent(
        self, venues: Sequence[VenueName], lanes: Sequence[int] | None, limit: int, *, after: int = 0
    ) -> list[Due]:
        """The waiting orders of these venues of which no byte was sent, in journal order, due or not."""
        page = min(limit, PAGE_MAX)
        return await self._session.due(nothing_known, self._dialect.never_sent, venues, lanes, page, after)

    async def unsettled(
        self, status: Doubt, limit: int, *, venue: VenueName | None = None, after: OutboxKey | None = None
    ) -> list[Due]:
        """Rows whose attempt has no outcome yet or an uncertain one, sorted by their keys."""
        return await self._session.unsettled(status, min(limit, PAGE_MAX), venue, *(after or ("", "", 0)))

    async def oldest_unsent(
        self, venues: Sequence[VenueName], without: Sequence[AccountId] = ()
    ) -> Mapping[VenueName, QueueHead]:
        """For each venue, the first order in journal order that waits for its first attempt."""
        oldest = await self._session.read_unconfirmed(tuple, self._dialect.oldest, venues, without or None)
        return {VenueName(venue): QueueHead(seq, moment(at)) for venue, seq, at in oldest}

    async def positions(self, account_id: AccountId, *, after: str = ACCOUNT_TOTAL, limit: int) -> list[Position]:
        """One page of an account's positions, including flat ones, sorted by the bytes of their symbols."""
        where = "account_id = $1 AND symbol > $2"
        sql = f"SELECT {POSITIONS.column_list} FROM positions WHERE {where} ORDER BY symbol LIMIT $3"
        return await self._session.read(self._rows.position, sql, account_id, after, min(limit, PAGE_MAX))

    async def open_orders(self, venue: VenueName, *, after: OrderId | None = None, limit: int) -> list[Order]:
        """One page of the orders that are open at a venue according to the journal, sorted by id."""
        page = (venue, after or "", min(limit, PAGE_MAX))
        return await self._session.read_unconfirmed(self._rows.order, self._dialect.open_orders, *page)

    async def executions(self, venue: VenueName, exec_ids: Sequence[str]) -> Mapping[str, Execution]:
        """Those of the named execution ids that were recorded."""
        where = f"venue = $1 AND exec_id {self._dialect.any_of.format('$2')}"
        sql = f"SELECT {EXECUTIONS.column_list} FROM executions WHERE {where}"
        stored = await self._session.read_unconfirmed(_execution, sql, venue, exec_ids)
        return {execution.exec_id: execution for execution in stored}

    async def matched_strays(self, venue: VenueName, *, after: str = "", limit: int) -> list[Execution]:
        """One page of the strays whose order exists now."""
        page = (venue, after, min(limit, PAGE_MAX))
        return await self._session.read_unconfirmed(_execution, matched_strays(self._dialect), *page)

    async def accepted_since(self, seq: int) -> int:
        """How many orders were accepted after this event."""
        sql = f"SELECT count(*) FROM events WHERE {self._dialect.of_shard} seq > $1 AND type = 'OrderAccepted'"
        [count] = await self._session.read_unconfirmed(_first, sql, seq)
        return int(count)

    async def unsettled_since(self, status: Doubt, times: Sequence[datetime]) -> list[int]:
        """For each time, how many rows have had this status since then or longer."""
        return await self._session.read_unconfirmed(_first, self._dialect.unsettled_since[status], times)

    async def outbox_counts(self) -> Sequence[OutboxCount]:
        """Unfinished outbox rows by status."""
        counts = "SELECT status, count(*), min(created_at) FROM outbox_orders WHERE status IN ({}) GROUP BY status"
        sql = " UNION ALL ".join(counts.format(statuses) for statuses in self._dialect.outbox_indexes)
        found = await self._session.read_unconfirmed(tuple, sql)
        return [OutboxCount(status, count, moment(oldest)) for status, count, oldest in found]


_first = itemgetter(0)


def _execution(row: Row) -> Execution:
    return Execution(*row)


def _owner(account_id: AccountId | None, order_id: OrderId | None) -> tuple[str, str]:
    if order_id is not None:
        assert account_id is None, "give an account or an order, not both"
        return "order_id", order_id
    assert account_id is not None, "give an account or an order, not both"
    return "account_id", account_id


_POSITIONS = f"""
SELECT {POSITIONS.column_list} FROM positions
WHERE account_id = $1 AND symbol > $2 AND qty <> '0' ORDER BY symbol LIMIT $3
"""


class SqlAccounts:
    """ports.queries.Accounts."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def unfinished_orders(self, wanted: UnfinishedFilter) -> list[Order]:
        """One page of the orders that have not ended, sorted by id."""
        dialect, limit = self._session.dialect, min(wanted.limit, PAGE_MAX)
        values = (wanted.account_id, wanted.after or "", wanted.symbol, wanted.strategy, wanted.venue, limit)
        return await self._session.read(dialect.rows.order, dialect.unfinished, *values)

    async def open_positions(self, account_id: AccountId, *, after: str = "", limit: int) -> list[Position]:
        """One page of the positions that are not flat, sorted by the bytes of their symbols."""
        values = (account_id, max(after, ACCOUNT_TOTAL), min(limit, PAGE_MAX))
        return await self._session.read(self._session.dialect.rows.position, _POSITIONS, *values)


ENTRY = f"""
SELECT {IDEMPOTENCY_KEYS.column_list} FROM idempotency_keys
WHERE account_id = $1 AND operation = $2 AND idempotency_key = $3
"""
ENTRIES_BETWEEN = f"""
SELECT {IDEMPOTENCY_KEYS.column_list} FROM idempotency_keys
WHERE account_id = $1 AND operation = $2 AND idempotency_key BETWEEN $3 AND $4 AND created_at > $5 LIMIT $6
"""
_KILLS = f"SELECT {KILLS.column_list} FROM kills"
_KILL_ORDERS = f"""
SELECT listed.order_id FROM kill_orders AS listed CROSS JOIN orders
WHERE orders.order_id = listed.order_id AND listed.kill_id = $1 AND listed.order_id > $2
AND (NOT CAST($3 AS boolean) OR orders.status NOT IN ({FINAL_STATUSES}))
ORDER BY listed.order_id LIMIT $4
"""


class SqlKills:
    """ports.queries.Kills."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def active(self) -> Sequence[Kill]:
        """All active kills, the oldest first."""
        hint = self._session.dialect.hint.format("kills_active")
        return await self._kills(f"{_KILLS} {hint} WHERE cleared_at IS NULL ORDER BY seq")

    async def find(self, kill_id: KillId) -> Kill | None:
        """One kill."""
        found = await self._kills(f"{_KILLS} WHERE kill_id = $1", kill_id)
        return found[0] if found else None

    async def newest(self, *, before: int | None = None, limit: int) -> Sequence[Kill]:
        """One page of all kills, newest first."""
        end = SEQ_LIMIT if before is None else before
        return await self._kills(f"{_KILLS} WHERE seq < $1 ORDER BY seq DESC LIMIT $2", end, min(limit, PAGE_MAX))

    async def orders_of(
        self, kill_id: KillId, *, after: OrderId | None = None, only_open: bool = False, limit: int
    ) -> Sequence[OrderId]:
        """One page of the orders that were open when the kill was set, sorted by id."""
        return await self._session.read(_first, _KILL_ORDERS, kill_id, after or "", only_open, min(limit, PAGE_MAX))

    async def _kills(self, sql: str, *values: Any) -> list[Kill]:
        return await self._session.read(self._session.dialect.rows.kill, sql, *values)


_STRATEGY_ORDERS = """
SELECT order_id, accepted_at, status, reason FROM orders {hint}
WHERE strategy IS NOT NULL AND account_id = $1 AND strategy = $2 AND order_id > $3 AND order_id < $4
AND accepted_at >= $5 AND accepted_at < $6
ORDER BY order_id LIMIT $7
"""
_EVENTS_OF_ORDERS = """
SELECT order_id, type, data FROM events WHERE order_id IS NOT NULL AND order_id {ids} AND type {types}
"""


class SqlStrategyOrders:
    """ports.strategies.StrategyOrders."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def page(
        self, account: AccountId, strategy: str, window: Window, after: OrderId | None, limit: int
    ) -> list[StrategyOrder]:
        """A page of the strategy's orders in the window."""
        dialect = self._session.dialect
        first, last = id_range(window)
        sql = _STRATEGY_ORDERS.format(hint=dialect.hint.format("orders_of_strategy"))
        values = (account, strategy, max(first, after or first), last, window.start, window.end)
        orders = await self._session.read(_order_row, sql, *values, min(limit, ORDERS_MAX))
        sql = _EVENTS_OF_ORDERS.format(ids=dialect.any_of.format("$1"), types=dialect.any_of.format("$2"))
        events = await self._session.read(tuple, sql, [row.order_id for row in orders], list(READ_EVENTS))
        return strategy_orders(orders, events)


def _order_row(row: Row) -> OrderRow:
    order_id, accepted_at, status, reason = row
    return OrderRow(order_id, moment(accepted_at), status, reason)


_OUTBOX = f"SELECT {OUTBOX_ORDERS.column_list} FROM outbox_orders"
_EVENTS = f"SELECT {EVENT_COLUMNS} FROM journal WHERE order_id = $1"


class SqlOutboxListing(ABC):
    """ports.outbox.OutboxListing: each call has a connection of its own, beside the processes that write."""

    decode: Decoders

    async def rows(self, status: str, limit: int) -> Sequence[OutboxRow]:
        """Rows of one status, oldest first."""
        found = await self._read(f"{_OUTBOX} WHERE status = $1 ORDER BY seq LIMIT $2", status, min(limit, PAGE_MAX))
        return list(map(self.decode.outbox_row, found))

    async def rows_of(self, order_id: OrderId) -> Sequence[OutboxRow]:
        """The rows of one order."""
        found = await self._read(f"{_OUTBOX} WHERE order_id = $1 ORDER BY kind, number", order_id)
        return list(map(self.decode.outbox_row, found))

    async def history_of(self, order_id: OrderId, limit: int) -> tuple[Order, Sequence[JournalEvent]] | None:
        """One order with its first events."""
        found = await self._read(_ORDER, order_id)
        if not found:
            return None
        events = await self._read(f"{_EVENTS} ORDER BY seq LIMIT $2", order_id, min(limit, PAGE_MAX))
        return self.decode.order(found[0]), list(map(self.decode.journal_event, events))

    async def doubts_of(self, order_id: OrderId) -> Sequence[JournalEvent]:
        """The last `OrderUncertain` events of one order, newest first."""
        sql = f"{_EVENTS} AND type = 'OrderUncertain' ORDER BY seq DESC LIMIT {DOUBTS_MAX}"
        return list(map(self.decode.journal_event, await self._read(sql, order_id)))

    @abstractmethod
    async def cursors(self, names: Sequence[str]) -> tuple[Mapping[str, str], datetime]:
        """The texts of cursors, and the database's time."""

    @abstractmethod
    async def _read(self, sql: str, *values: Any) -> Sequence[Row]:
        """Run a query in a connection of its own."""
