"""The journal on PostgreSQL: one call of `append_group` per group, repeated when its answer was lost.

Appends use one connection of their own, one group at a time; reads use the pool of `Reader`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime

import asyncpg
import structlog

from switchyard.adapters.postgres import identity, rows
from switchyard.adapters.postgres.append import (
    ANOTHER_HISTORY,
    APPEND,
    AppendArguments,
    arguments_of,
    outcomes_of,
    with_seen,
)
from switchyard.adapters.postgres.connection import (
    CONNECTION_LOST,
    DATABASE_ERRORS,
    Connection,
    Record,
    connect,
    disconnect,
)
from switchyard.adapters.postgres.reader import (
    ACCOUNT_POSITIONS,
    ACCOUNT_TOTALS,
    RESERVED,
    WINDOW_ORDERS,
    Reader,
    SymbolReads,
    account_exposure,
    is_local_only,
)
from switchyard.adapters.tables import EVENT_COLUMNS, POSITIONS
from switchyard.domain.accounts.positions import Position, PositionKey
from switchyard.domain.errors import GroupRejected, HistoryMismatch, JournalUnavailable, OutcomeUnknown
from switchyard.domain.ids import AccountId, Installation, OrderId, VenueClientOrderId
from switchyard.domain.journal.changes import Change, Cursor, Outcome
from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.journal.lines import GENESIS
from switchyard.domain.orders.amends import by_amend_id
from switchyard.domain.orders.outbox import OrderState
from switchyard.domain.risk.exposure import AccountExposure, CurrencyReserve, SymbolExposure
from switchyard.ports.journal import PAGE_MAX, Epoch, Head, Lines

log = structlog.get_logger()

# A restart or failover within this time costs the callers only the wait; most clients do not wait longer.
SETTLE_SECONDS_MAX = 10.0
# A restarting server rejects connections immediately: the pause keeps the retries from loading it.
SETTLE_PAUSE_SECONDS = 0.1

# The server or the driver rejected a value: the same group would fail again, another group may succeed.
_BAD_DATA = (
    asyncpg.DataError,  # from the server, or from the driver's own encoders
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.CardinalityViolationError,
    asyncpg.ProgramLimitExceededError,
)

_POSITIONS = f"""
SELECT stored.* FROM unnest($1::text[], $2::text[]) AS requested (account_id, symbol) CROSS JOIN LATERAL (
    SELECT {POSITIONS.column_list} FROM positions AS held
    WHERE (held.account_id, held.symbol) = (requested.account_id, requested.symbol) LIMIT 1
) AS stored
"""

_LINES = """
WITH page AS (
    SELECT epoch, seq, hash, text || ',"hash":"' || hash || '"}' || chr(10) AS line
    FROM journal WHERE shard = $1 AND seq > $2 ORDER BY seq LIMIT $3
)
SELECT whole.text, whole.count, last.epoch, last.seq, last.hash
FROM (SELECT string_agg(line, '' ORDER BY seq) AS text, count(*) AS count FROM page) AS whole,
    (SELECT epoch, seq, hash FROM page ORDER BY seq DESC LIMIT 1) AS last
"""


class _NotReplicated(Exception):
    """A group was committed on the server, but its synchronous standby may not have it."""


class PostgresJournal:
    """ports.journal.Journal on a server that several processes share."""

    def __init__(self, url: str, reader: Reader, *, settle_seconds_max: float = SETTLE_SECONDS_MAX) -> None:
        self._url = url
        self._reader = reader
        self._settle_seconds_max = settle_seconds_max
        self._connection: Connection | None = None
        self._symbols = SymbolReads(reader)
        self._turn = asyncio.Lock()
        self._is_local_only = False
        """Whether the server reported that the last commit did not wait for its synchronous standby."""
        self._seen: dict[int, Head] = {}
        """By shard: the head after the last append or, before that, at the first call of `head`."""

    async def load(self, order_ids: Sequence[OrderId]) -> Mapping[OrderId, OrderState]:
        """The orders that exist, each with all of its outbox rows."""
        states = rows.states(await self._reader.rows(rows.STATES_BY_ORDER_ID, order_ids))
        return {state.order.order_id: state for state in states}

    async def load_by_client_order_id(
        self, ids: Sequence[VenueClientOrderId]
    ) -> Mapping[VenueClientOrderId, OrderState]:
        """The same, by venue client order id or the id of an amend."""
        states = rows.states(await self._reader.rows(rows.STATES_BY_CLIENT_ID, ids))
        found = {state.order.venue_client_order_id: state for state in states}
        others = [client_id for client_id in ids if client_id not in found]
        if others:
            found |= by_amend_id(rows.states(await self._reader.rows(rows.STATES_BY_AMEND_ID, others)), others)
        return found

    async def load_positions(self, keys: Sequence[PositionKey]) -> Mapping[PositionKey, Position]:
        """Those of the named positions that ever had a fill."""
        accounts, symbols = [account for account, _ in keys], [symbol for _, symbol in keys]
        positions = map(rows.position, await self._reader.rows(_POSITIONS, accounts, symbols))
        return {position.key: position for position in positions}

    async def symbol_exposure(self, account: AccountId, symbol: str, *, fresh: bool = False) -> SymbolExposure:
        """An account in one symbol; right once a limit has been claimed in this database."""
        if not fresh:  # a guess: the append checks it
            return await self._symbols.read(account, symbol, fresh=False)
        # An answer may quote it, such as that open orders close the position already.
        async with self._reader.barrier.confirmed():
            return await self._symbols.read(account, symbol, fresh=True)

    async def account_exposure(self, account: AccountId, since: OrderId | None = None) -> AccountExposure:
        """What the limits of an account look at."""
        totals = await self._reader.rows(ACCOUNT_TOTALS, account)
        exposure = account_exposure(totals, await self._reader.rows(ACCOUNT_POSITIONS, account))
        if since is not None:
            [(exposure.window_orders,)] = await self._reader.rows(WINDOW_ORDERS, account, since)
        return exposure

    async def reserved(self) -> Mapping[str, CurrencyReserve]:
        """What the open orders of all accounts reserve; empty before the first claim of a limit."""
        return {currency: CurrencyReserve(*sums) for currency, *sums in await self._reader.rows(RESERVED)}

    async def append(self, shard: int, group_id: str, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        """Commit a group and return the outcome of each change; durable when this returns."""
        arguments = arguments_of(shard, group_id, changes, now)
        async with self._turn:
            try:
                result = await self._settle(with_seen(arguments, self._seen.get(shard)))
            except asyncio.CancelledError:
                # The command is still running on this connection, and the next group must not wait for it.
                if self._connection is not None:
                    self._connection.terminate()
                    self._connection = None
                raise
            head = Head(result["head_epoch"], result["head_seq"], result["head_hash"])
            self._note_head(shard, head, result["standby_names"])
        return outcomes_of(changes, result)

    async def read(self, shard: int, after_seq: int, limit: int) -> list[JournalEvent]:
        """The next events in order, at most a page."""
        sql = f"SELECT {EVENT_COLUMNS} FROM journal WHERE shard = $1 AND seq > $2 ORDER BY seq LIMIT $3"
        records = await self._page(sql, shard, after_seq, limit)
        return [rows.journal_event(record) for record in records]

    async def lines(self, shard: int, after_seq: int, limit: int) -> Lines | None:
        """The same events as audit lines, concatenated by the database; None when there are none."""
        records = await self._page(_LINES, shard, after_seq, limit)
        if not records:
            return None
        row = records[0]
        return Lines(row["text"].encode(), row["count"], Head(row["epoch"], row["seq"], row["hash"]))

    async def head(self, shard: int) -> Head:
        """The place of the newest event."""
        records = await self._reader.rows("SELECT epoch, seq, hash FROM journal_heads WHERE shard = $1", shard)
        head = Head(*records[0]) if records else Head(1, 0, GENESIS)
        # Only the first time: a later read may come from an older database, and would hide that from the next append.
        self._seen.setdefault(shard, head)
        return head

    @property
    def history(self) -> str:
        """The server's timeline: a promotion begins a new one."""
        return self._reader.barrier.timeline

    async def confirm(self) -> None:
        """Wait until the synchronous standby has everything that was read before."""
        await self._reader.barrier.confirm_earlier()

    def seen(self, shard: int) -> Head | None:
        """The head after the last append or, before that, at the first call of `head`."""
        return self._seen.get(shard)

    async def last_event(self, shard: int, up_to_seq: int) -> Head:
        """The place of the last event up to this number."""
        records = await self._reader.rows(identity.LAST_EVENT, shard, up_to_seq)
        return Head(*records[0]) if records else Head(1, 0, GENESIS)

    async def epochs(self, shard: int) -> list[Epoch]:
        """All epochs, the oldest first."""
        return [Epoch(*record) for record in await self._reader.rows(identity.EPOCHS, shard)]

    async def installation(self) -> Installation:
        """The identity that was made with the schema."""
        [record] = await self._reader.rows(identity.INSTALLATION)
        return Installation(*record)

    async def cursor(self, name: str) -> Cursor | None:
        """The position of the named reader."""
        records = await self._reader.rows("SELECT name, epoch, seq, hash FROM reader_cursors WHERE name = $1", name)
        return Cursor(**records[0]) if records else None

    async def open_epoch(self, above_epoch: int, above_seq: int, now: datetime, marker: Cursor | None = None) -> Head:
        """Start an epoch above both numbers and above all of the database; later events carry it."""
        async with self._reader.barrier.confirmed(), self._turn:
            connection = await self._connected()
            head = self._seen[0] = await identity.open_epoch(connection, above_epoch, above_seq, now, marker)
        return head

    async def close(self) -> None:
        """Wait for the append in progress, then disconnect."""
        async with self._turn:
            if self._connection is not None:
                await self._connection.close(timeout=1)
                self._connection = None

    async def _page(self, sql: str, shard: int, after_seq: int, limit: int) -> list[Record]:
        """A page of events, once the synchronous standby has it; an empty page proves nothing."""
        async with self._reader.barrier.confirmed() as read:
            records = await self._reader.unconfirmed_rows(sql, shard, after_seq, min(limit, PAGE_MAX))
            read.needs_standby = bool(records)
        return records

    def _note_head(self, shard: int, head: Head, standby_names: str) -> None:
        """Note the head after an append, which locked it: the standby has everything up to it."""
        self._seen[shard] = head
        self._reader.barrier.note_committed(f"{shard}:{head.epoch}:{head.seq}:{head.hash}", standby_names)

    async def _settle(self, arguments: AppendArguments) -> Record:
        """Call until the outcome is known: a repeated group id gets the stored outcome of the first call."""
        clock = asyncio.get_running_loop()
        deadline = clock.time() + self._settle_seconds_max
        lost: BaseException | None = None
        while True:
            try:
                connection = await self._connected()
                async with asyncio.timeout_at(deadline):
                    return await self._call(connection, arguments)
            except JournalUnavailable:
                # This call wrote nothing; an earlier call whose answer was lost may have.
                if lost is None:
                    raise
            except _NotReplicated as error:
                log.warning("commit_not_replicated", group_id=arguments.new_group_id, error=str(error))
                lost = error
            except CONNECTION_LOST as error:
                log.warning("commit_answer_lost", group_id=arguments.new_group_id, error=repr(error))
                lost = error
            if self._connection is not None:
                await disconnect(self._connection)
                self._connection = None
            if clock.time() >= deadline:
                raise OutcomeUnknown(f"the outcome of a commit is not known: {lost!r}") from lost
            await asyncio.sleep(SETTLE_PAUSE_SECONDS)

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            try:
                self._connection = await connect(self._url)
                self._connection.add_log_listener(self._notice)
            except DATABASE_ERRORS as error:
                raise JournalUnavailable(f"the database cannot be reached: {error!r}") from error
        return self._connection

    async def _call(self, connection: Connection, arguments: AppendArguments) -> Record:
        self._is_local_only = False
        try:
            result = await connection.fetchrow(APPEND, *arguments)
        except _BAD_DATA as error:
            raise GroupRejected(f"commit failed: group rejected by the database: {error}") from error
        except CONNECTION_LOST:
            raise
        except asyncpg.PostgresError as error:
            if error.sqlstate == ANOTHER_HISTORY:
                raise HistoryMismatch(
                    f"{error}, which this process saw last: an older database is in its place, or `switchyard db "
                    "restored` opened a new epoch; nothing was written"
                ) from error
            raise JournalUnavailable(f"commit failed, nothing was written: {error}") from error
        if self._is_local_only:
            # The repeat locks the shard's head, so it has a commit record of its own, later than the group's: it
            # returns only when the standby has both.
            raise _NotReplicated("the wait for the synchronous standby was cancelled")
        return result

    def _notice(self, _: Connection, message: asyncpg.PostgresLogMessage) -> None:
        """Called for each warning of the server, and before the call that it belongs to returns."""
        self._is_local_only = self._is_local_only or is_local_only(message)
