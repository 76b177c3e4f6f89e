"""Reads on PostgreSQL: a pool, the barrier that waits for the standby, and the totals of exposures."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any

import asyncpg
import msgspec
import structlog

from switchyard.adapters.postgres import rows
from switchyard.adapters.postgres.connection import (
    CONNECTION_LOST,
    DATABASE_ERRORS,
    READ_SECONDS_MAX,
    SERVER_SETTINGS,
    Connection,
    Record,
    connect,
    connect_to_any,
    decode_canonically,
    disconnect,
)
from switchyard.adapters.tables import POSITIONS
from switchyard.domain.accounts.positions import ACCOUNT_TOTAL
from switchyard.domain.errors import (
    JournalUnavailable,
    NotReplicated,
    OutcomeUnknown,
    SwitchyardError,
    Unavailable,
)
from switchyard.domain.ids import AccountId
from switchyard.domain.risk.claims import WINDOW_ORDERS_MAX
from switchyard.domain.risk.exposure import FLAT, AccountExposure, SymbolExposure, Totals

log = structlog.get_logger()

# Of each pool. Queries are short: with more connections they would queue for the server's processors and disk instead
# of here.
CONNECTIONS_MAX = 8

# Longer than a standby's restart of its connection, shorter than most clients wait. A caller waits for one check that
# has begun before its read and for one of its own: twice this time at most.
CONFIRM_SECONDS_MAX = 5.0
RETRY_SECONDS = 0.1

# Sessions see a change of `synchronous_standby_names` before the server applies it: commits wait by the new setting
# only once the checkpointer has read it, and the sender to a former standby releases them until it has read it too.
# Both take seconds on a busy server.
SETTLED_SECONDS = 60.0

# The server's function that waits for the synchronous standby. If the wait is cancelled, it warns, and the commit is
# reported as successful although only this server has it. The warning has no SQLSTATE of its own, and its text is
# translated; the place in the source is neither.
SYNC_WAIT = "SyncRepWaitForLSN"

JOURNAL_HEADS = (
    "SELECT string_agg(format('%s:%s:%s:%s', shard, epoch, seq, hash), ' ' ORDER BY shard) FROM journal_heads"
)
"""A text that changes with every event of the journal."""
NO_HEADS = "SELECT NULL::text"
"""For tables that no journal numbers: every wait writes a record."""

# A transaction that has an id but has written no WAL does not wait for the standby: hence the message, which is written
# to the WAL alone. Without a synchronous standby, visible means flushed on this server, and a crash keeps it.
_TIMELINE = "left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)"
_CHECK = f"""
WITH visible AS MATERIALIZED (
    SELECT current_setting('synchronous_standby_names') AS names, ({{heads}}) AS heads,
        pg_conf_load_time()::text AS loaded,
        clock_timestamp() - pg_conf_load_time() >= make_interval(secs => $2) AS is_settled
)
SELECT names, heads, loaded, is_settled, {_TIMELINE} AS timeline,
    CASE WHEN $1::boolean THEN pg_logical_emit_message(true, 'switchyard', '') END AS written
FROM visible
"""


def is_local_only(message: asyncpg.PostgresLogMessage) -> bool:
    """Whether the server warns that a commit did not wait for its synchronous standby."""
    return bool(message.server_source_function == SYNC_WAIT)


class _Read(msgspec.Struct):
    """What the result of a read tells the barrier."""

    needs_standby: bool = True
    """False if the result is no proof of anything."""
    must_write: bool = False
    """True for rows that are written without an event."""


class ReadBarrier:
    """Coalesces the waits of concurrent reads: one check runs, and those that arrive meanwhile share the next one."""

    def __init__(
        self,
        url: str,
        on_promotion: Callable[[], Awaitable[None]],
        heads: str = NO_HEADS,
        *,
        seconds_max: float = CONFIRM_SECONDS_MAX,
    ) -> None:
        """Connect at the first check.

        `on_promotion` closes the connections of reads, which may still lead to the primary of before.
        """
        self._url = url
        self._on_promotion = on_promotion
        self._sql = _CHECK.format(heads=heads)
        self._seconds_max = seconds_max
        self._settled_seconds = SETTLED_SECONDS
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None
        """The check that has not begun."""
        self._must_write = False
        """Whether the next check has to write, whatever the heads are."""
        self._is_local_only = False
        self._era: tuple[str, str] | None = None
        """The setting `synchronous_standby_names` of the last check, and when its session loaded the configuration."""
        self._is_settled = False
        """Whether the server applies this setting for certain: before that, no heads are remembered."""
        self._heads: str | None = None
        """The newest heads that were confirmed in this era, once it was settled."""
        self._timeline: str | None = None
        """Of the server of the last check; a promotion begins a new one. Known before the first read."""

    @property
    def timeline(self) -> str:
        """Of the server of the last check; empty before the first."""
        return self._timeline or ""

    def note_committed(self, heads: str, names: str) -> None:
        """Take the heads after an append as known, if its commit waited for the standbys of the last check."""
        if self._era is not None and self._era[0] == names:
            if self._is_settled:
                self._heads = heads
        else:
            self._era = self._heads = None

    async def confirm_earlier(self) -> None:
        """Wait until the synchronous standby has everything that this process has read; raises JournalUnavailable.

        Asks no server if the last check found that no standby is named.
        """
        if self._era is None or self._era[0]:
            async with self.confirmed():
                pass

    @asynccontextmanager
    async def confirmed(self, error: Callable[[str], Exception] = NotReplicated) -> AsyncIterator[_Read]:
        """Run the block, which reads; at its end the synchronous standby has everything that was visible in it.

        So it has if the block raises an error that may tell what was read, such as that a key is in use. Raises `error`
        if the standby does not confirm in time, or was promoted since the block began.
        """
        if self._timeline is None:
            try:
                await self._learn_timeline()
            except DATABASE_ERRORS as unknown:
                raise error(f"the database does not answer: {unknown!r}") from unknown
        since, read, told = self._timeline, _Read(), None
        try:
            yield read
        except (Unavailable, OutcomeUnknown):
            raise  # it tells of the database alone
        except SwitchyardError as raised:
            told = raised
        if read.needs_standby:
            try:
                await self._wait(since, read.must_write)
            except JournalUnavailable as unavailable:
                raise error(str(unavailable)) from unavailable
        if told is not None:
            raise told

    async def prepare(self, connection: Connection) -> None:
        """Make a new connection of reads ready; rejects one to another server than that of the checks."""
        await decode_canonically(connection)
        try:
            timeline = await connection.fetchval(f"SELECT {_TIMELINE}")
        except asyncpg.ObjectNotInPrerequisiteStateError:
            timeline = ""  # a standby
        if self._timeline not in (None, timeline):
            self._timeline = self._era = None  # the next read asks anew
            raise ConnectionResetError("a new connection leads to another server than the last check")

    async def close(self) -> None:
        """Disconnect after the check in progress."""
        async with self._turn:
            await self._disconnect()

    async def _learn_timeline(self) -> None:
        async with self._turn:
            if self._timeline is not None:
                return
            try:
                await self._disconnect()  # it may lead to the primary of before
                connection = await self._connected()
                timeline = await connection.fetchval(f"SELECT {_TIMELINE}", timeout=self._seconds_max)
            except DATABASE_ERRORS:
                await self._disconnect()
                raise
            await self._on_promotion()  # there may be connections from before, to another server
            self._timeline = timeline

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await connect(self._url)
            self._connection.add_log_listener(self._notice)
            self._era = None  # it may be another server
        return self._connection

    async def _wait(self, since: str | None, must_write: bool) -> None:
        self._must_write = self._must_write or must_write
        if self._next is None:
            self._next = asyncio.create_task(self._check())
            self._next.add_done_callback(_note_error)
        await asyncio.shield(self._next)
        if since != self._timeline:
            # The read was on the primary of before: that its successor confirms says nothing about it.
            raise JournalUnavailable("another server was promoted after the read")

    async def _check(self) -> None:
        async with self._turn:
            # A read that ends from now on may show a newer commit than this check.
            self._next, must_write, self._must_write = None, self._must_write, False
            clock = asyncio.get_running_loop()
            deadline = clock.time() + self._seconds_max
            while True:
                try:
                    if await self._is_confirmed(must_write, deadline):
                        return
                    cause = "the wait for it was cancelled"
                except DATABASE_ERRORS as error:
                    await self._disconnect()
                    cause = repr(error)
                if clock.time() + RETRY_SECONDS >= deadline:
                    log.warning("read_not_replicated", error=cause)
                    raise JournalUnavailable(
                        f"the synchronous standby did not confirm what was read within {self._seconds_max:g} s: {cause}"
                    )
                await asyncio.sleep(RETRY_SECONDS)

    async def _is_confirmed(self, must_write: bool, deadline: float) -> bool:
        connection = await self._connected()
        self._is_local_only = False
        found = await self._ask(connection, deadline, write=False)
        era = found["names"], found["loaded"]
        if era != self._era:
            # An empty setting ends the waits without a warning, and may be set again before anyone reads it.
            self._era, self._heads = era, None
        self._is_settled = found["is_settled"]
        known = self._heads
        if found["names"] and (must_write or known is None or known != found["heads"]):
            # In a statement of its own: `confirm_earlier` has to know the setting also while no standby answers.
            found = await self._ask(connection, deadline, write=True)
            if self._is_local_only:
                return False
        if self._timeline != found["timeline"]:
            await self._on_promotion()
        self._timeline = found["timeline"]
        # Otherwise an append of this process has ended meanwhile, with newer heads.
        if self._is_settled and self._heads == known:
            self._heads = found["heads"]
        return True

    async def _ask(self, connection: Connection, deadline: float, *, write: bool) -> Record:
        seconds_left = deadline - asyncio.get_running_loop().time()
        return await connection.fetchrow(self._sql, write, self._settled_seconds, timeout=seconds_left)

    def _notice(self, _: Connection, message: asyncpg.PostgresLogMessage) -> None:
        """Called for each warning of the server, and before the call that it belongs to returns."""
        self._is_local_only = self._is_local_only or is_local_only(message)

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await disconnect(connection)


async def open_pool(url: str, heads: str = NO_HEADS, **settings: str) -> tuple[asyncpg.Pool, ReadBarrier]:
    """Return a pool whose sessions have these settings too, and the barrier of its reads; both connect at first use."""
    barrier = ReadBarrier(url, lambda: pool.expire_connections(), heads)
    pool = await asyncpg.create_pool(
        url,
        # Connections are opened on demand and kept: the pool's own upkeep would fill the log during an outage.
        min_size=0,
        max_size=CONNECTIONS_MAX,
        max_inactive_connection_lifetime=0,
        init=barrier.prepare,
        reset=_keep_session,
        connect=connect_to_any,
        command_timeout=READ_SECONDS_MAX,
        server_settings={**SERVER_SETTINGS, **settings},
    )
    return pool, barrier


class Reader:
    """A small pool for reads, and the barrier that they pass."""

    def __init__(self, pool: asyncpg.Pool, barrier: ReadBarrier) -> None:
        self._pool = pool
        self.barrier = barrier

    @classmethod
    async def open(cls, url: str, heads: str = JOURNAL_HEADS) -> "Reader":
        """Open a pool of its own."""
        return cls(*await open_pool(url, heads))

    async def rows(self, sql: str, *values: Any) -> list[Record]:
        """All rows of a bounded query, once the synchronous standby has them; raises JournalUnavailable."""
        async with self.barrier.confirmed():
            return await self.unconfirmed_rows(sql, *values)

    async def unconfirmed_rows(self, sql: str, *values: Any) -> list[Record]:
        """The same without the barrier, for what leads to an append alone or is no proof of anything."""
        try:
            records: list[Record] = await self._pool.fetch(sql, *values)
        except asyncpg.DataError:
            return []  # no row has a value that the database cannot store, such as a NUL character
        except (*CONNECTION_LOST, asyncpg.InsufficientResourcesError) as error:
            raise JournalUnavailable(f"the database does not answer: {error!r}") from error
        return records

    async def close(self) -> None:
        """Wait for the reads in progress, then disconnect."""
        await self._pool.close()
        await self.barrier.close()


async def _keep_session(_: Connection) -> None:
    """Replace the pool's default reset, which costs a round trip: no caller leaves session state."""


def _note_error(task: asyncio.Task[None]) -> None:
    """Look at the error of a check: its callers may have been cancelled."""
    if not task.cancelled():
        task.exception()


_SYMBOLS = """
SELECT held.account_id, held.symbol, held.qty, coalesce(open.buys, 0), coalesce(open.sells, 0)
FROM unnest($1::text[], $2::text[]) AS requested (account_id, symbol)
CROSS JOIN LATERAL (
    SELECT stored.account_id, stored.symbol, stored.qty FROM positions AS stored
    WHERE (stored.account_id, stored.symbol) = (requested.account_id, requested.symbol) AND stored.qty <> 0 LIMIT 1
) AS held
LEFT JOIN LATERAL (
    SELECT sum(buy_qty) AS buys, sum(sell_qty) AS sells FROM exposures AS stored
    WHERE (stored.account_id, stored.symbol) = (requested.account_id, requested.symbol)
) AS open ON true
"""
ACCOUNT_TOTALS = f"""
SELECT symbol, currency, {", ".join(Totals.__struct_fields__)} FROM account_exposures($1)
"""
ACCOUNT_POSITIONS = f"""
SELECT {POSITIONS.column_list} FROM positions WHERE account_id = $1 AND symbol <> '{ACCOUNT_TOTAL}'
"""
RESERVED = """
SELECT currency, sum(open_orders)::bigint, sum(notional) FROM exposures
WHERE open_orders <> 0 AND (SELECT bool_or(keeps_exposures) FROM journal_heads) GROUP BY currency
"""
WINDOW_ORDERS = f"""
SELECT count(*) FROM (
    SELECT FROM orders WHERE account_id = $1 AND order_id >= $2 AND NOT (version = 1 AND status = 'REJECTED')
    LIMIT {WINDOW_ORDERS_MAX}
) AS page
"""


# Under load several orders of an account and symbol share a read; a single order makes its own.
SHARED_SECONDS = 0.1
# Answers that are kept to be shared; beyond it all are forgotten.
SHARED_MAX = 10_000
READ_AHEAD_MAX = 256


class SymbolReads:
    """Coalesces reads into one query at a time: with a limit, every new order makes one.

    They only help to guess whether an order is reducing. The append checks the guess.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._waiting: dict[tuple[AccountId, str], asyncio.Future[SymbolExposure]] = {}
        self._shared: dict[tuple[AccountId, str], tuple[float, SymbolExposure]] = {}
        self._used: set[tuple[AccountId, str]] = set()
        """Those that were shared since they were read: the next query reads them too."""
        self._task: asyncio.Task[None] | None = None

    async def read(self, account: AccountId, symbol: str, *, fresh: bool) -> SymbolExposure:
        """One account in one symbol; if fresh, as of a moment after this call."""
        key = (account, symbol)
        if not fresh and (known := self._shared.get(key)) is not None:
            read_at, exposure = known
            if asyncio.get_running_loop().time() - read_at < SHARED_SECONDS:
                self._used.add(key)
                return exposure
        future = self._waiting.get(key)
        if future is None:
            future = self._waiting[key] = asyncio.get_running_loop().create_future()
            if self._task is None:
                self._task = asyncio.create_task(self._run())
        return await asyncio.shield(future)

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, {}
                await self._answer(batch)
        finally:
            self._task = None

    async def _answer(self, batch: dict[tuple[AccountId, str], "asyncio.Future[SymbolExposure]"]) -> None:
        asked_at = asyncio.get_running_loop().time()
        keys = [*batch, *islice(self._used - batch.keys(), READ_AHEAD_MAX)]
        self._used.clear()
        accounts, symbols = [account for account, _ in keys], [symbol for _, symbol in keys]
        try:
            records = await self._reader.unconfirmed_rows(_SYMBOLS, accounts, symbols)
        except BaseException as error:
            for future in batch.values():
                if isinstance(error, Exception):
                    future.set_exception(error)
                    future.exception()  # its callers may have been cancelled
                else:
                    future.cancel()
            if not isinstance(error, Exception):
                raise
            return
        if len(self._shared) > SHARED_MAX:
            self._shared.clear()
        held = {(account, symbol): SymbolExposure(*amounts) for account, symbol, *amounts in records}
        for key in keys:
            self._shared[key] = asked_at, held.get(key, FLAT)
        for key, future in batch.items():
            future.set_result(held.get(key, FLAT))


def account_exposure(totals: Iterable[Record], positions: Iterable[Record]) -> AccountExposure:
    """An account from its rows."""
    exposure = AccountExposure()
    for symbol, currency, *amounts in totals:
        exposure.add(symbol, currency, Totals(*amounts))
    for record in positions:
        exposure.put(rows.position(record))
    return exposure
