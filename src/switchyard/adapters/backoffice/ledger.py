"""The books on either engine: they post pages of entries in one commit each, and read them."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from typing import Any, TypeVar

from switchyard.adapters.backoffice import statements
from switchyard.adapters.backoffice.booking import Booking
from switchyard.adapters.backoffice.rows import adoption_of, decode_holding, json_text, position_decoder
from switchyard.adapters.backoffice.session import Engine, Row, Session
from switchyard.adapters.backoffice.statements import Statements
from switchyard.adapters.tables import moment
from switchyard.domain.books.entries import Adoption, HaltedAccount, LedgerEntry
from switchyard.domain.books.holdings import Holding
from switchyard.domain.books.manual import ManualEntry
from switchyard.domain.ids import AccountId
from switchyard.domain.journal.lines import BusEvent, SourcePosition
from switchyard.ports.books import (
    ENTRIES_MAX,
    Balance,
    Entered,
    EntryFilter,
    EntryKey,
    Posted,
    SourceClaim,
    SourceState,
    StoredEntry,
)

T = TypeVar("T")

# Before every entry, and by its text too: an earlier year has fewer digits.
_BEGINNING = datetime(1000, 1, 1, tzinfo=UTC)


class SqlLedger:
    """ports.books.Ledger and ports.books.ManualLedger on one engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.statements = Statements(engine.dialect)

    async def close(self) -> None:
        """Finish what is in progress and disconnect."""
        await self.engine.close()

    async def claim(self, source: str, start: SourcePosition) -> SourceClaim:
        """Raise the source's generation and return how far it was read."""

        async def work(session: Session) -> Sequence[Row]:
            return await session.rows(statements.CLAIM, source, json_text(start))

        [(position, generation)] = await self.engine.write(work)
        return SourceClaim(source, generation, position_decoder.decode(position))

    async def post(self, claim: SourceClaim, events: Sequence[BusEvent], position: SourcePosition) -> Posted:
        """Book the events and move the position, in one transaction; durable on return."""
        return await self.engine.write(self._booking(lambda booking: booking.post(claim, events, position)))

    async def sources(self) -> list[SourceState]:
        """Every source that was ever claimed."""
        return await self.engine.read_unconfirmed(_source, statements.SOURCES)

    async def reset(self, source: str, start: SourcePosition) -> None:
        """Have the source read again from `start`."""

        async def work(session: Session) -> None:
            await session.rows(statements.RESET, source, json_text(start))

        await self.engine.write(work)

    async def count(self) -> int:
        """The number of entries of all accounts."""
        [(count,)] = await self.engine.read_unconfirmed(tuple, statements.COUNT)
        return int(count)

    async def halted(self, limit: int) -> list[HaltedAccount]:
        """The accounts that have halted."""
        return await self.engine.read_unconfirmed(lambda row: HaltedAccount(*row), statements.HALTED, limit)

    async def entries(self, wanted: EntryFilter) -> list[StoredEntry]:
        """Entries in order of their numbers."""
        sql, values = _entries_query(wanted, self.engine.dialect.hint)
        found = await self._entries(sql, *values)
        return found[::-1] if wanted.newest else found

    async def strategy_entries(
        self, account: AccountId, strategy: str, after: EntryKey | None, limit: int
    ) -> list[StoredEntry]:
        """Entries of an account's strategy by time and number."""
        key = (_BEGINNING, 0) if after is None else (after.at, after.number)
        page = min(limit, ENTRIES_MAX)
        return await self._entries(statements.ENTRIES_OF_STRATEGY, account, strategy, *key, page)

    async def holdings(
        self, account: AccountId, after_symbol: str, after_currency: str, limit: int, *, flat: bool = True
    ) -> list[Holding]:
        """Positions by symbol and currency."""
        page = (account, after_symbol, after_currency, flat, limit)
        return await self.engine.read(decode_holding, statements.POSITIONS_OF, *page)

    async def balances(self, account: AccountId, after_unit: str, limit: int) -> list[Balance]:
        """The money accounts of the next currencies."""
        return await self.engine.read(balance_of, statements.BALANCES_OF, account, after_unit, limit)

    async def enter(self, wanted: ManualEntry, at: datetime) -> Entered:
        """Book an entry by a person."""
        return await self.engine.write_of_people(self._booking(lambda booking: booking.enter(wanted, at)))

    async def carry(self, entry: LedgerEntry) -> None:
        """Book an entry of other books."""
        await self.engine.write(self._booking(lambda booking: booking.carry(entry)))

    async def adopt(self, adoption: Adoption, source: str, position: SourcePosition) -> int:
        """Follow the journal of a new epoch."""
        work = self._booking(lambda booking: booking.adopt(adoption, source, position))
        return await self.engine.write_of_people(work)

    async def adoptions(self) -> list[Adoption]:
        """The adoptions by epoch."""
        return await self.engine.read(adoption_of, statements.ADOPTIONS)

    async def orphans(self, after: tuple[AccountId, int], limit: int) -> list[StoredEntry]:
        """Entries that the adopted journal does not have."""
        return await self._entries(statements.ORPHANS, *after, min(limit, ENTRIES_MAX))

    async def carried(self, account: AccountId, after: int, limit: int) -> list[StoredEntry]:
        """Entries of an account that a rebuild carries over."""
        return await self._entries(self.engine.dialect.carried, account, after, min(limit, ENTRIES_MAX))

    async def _entries(self, sql: str, *values: Any) -> list[StoredEntry]:
        return await self.engine.read(lambda row: StoredEntry(*row), sql, *values)

    def _booking(self, work: Callable[[Booking], Awaitable[T]]) -> Callable[[Session], Awaitable[T]]:
        return lambda session: work(Booking(session, self.engine.dialect, self.statements))


def balance_of(row: Row) -> Balance:
    """The balance of a row with account, unit and amount."""
    account, unit, amount, *_ = row
    return Balance(account, unit, Decimal(amount))


def _source(row: Row) -> SourceState:
    source, position, generation, read_at = row
    return SourceState(source, position_decoder.decode(position), generation, moment(read_at))


def _entries_query(wanted: EntryFilter, hint: str) -> tuple[str, list[Any]]:
    values: list[Any] = []

    def value(each: Any) -> str:
        values.append(each)
        return f"${len(values)}"

    account, by_time = value(wanted.account_id), hint.format("entries_by_time")
    conditions = [f"account_id = {account}", f"number > {value(wanted.after)}"]
    if wanted.before is not None:
        conditions.append(f"number < {value(wanted.before)}")
    if wanted.order_id is not None:
        conditions.append(f"order_id = {value(wanted.order_id)}")
    if wanted.type is not None:
        conditions.append(f"type = {value(wanted.type)}")
    if wanted.since is not None:
        since = value(wanted.since)
        # `reached_at` never decreases with the number: one search of the index, not a filter over all entries.
        conditions.append(
            f"at >= {since} AND number >= (SELECT number FROM entries {by_time} WHERE account_id = {account} "
            f"AND reached_at >= {since} ORDER BY reached_at, number LIMIT 1)"
        )
    if wanted.day is not None:
        begin = datetime.combine(wanted.day, time(), UTC)
        conditions.append(f"reached_at >= {value(begin)} AND reached_at < {value(begin + timedelta(days=1))}")
    # An order has few entries, a type or an account may have millions.
    index = ""
    if wanted.order_id is not None:
        index = hint.format("entries_of_order")
    elif wanted.day is not None:
        index = by_time
    elif wanted.type is not None:
        index = hint.format("entries_of_type")
    order = "DESC" if wanted.newest else "ASC"
    limit = value(min(wanted.limit, ENTRIES_MAX))
    where = " AND ".join(conditions)
    return f"SELECT number, text, hash FROM entries {index} WHERE {where} ORDER BY number {order} LIMIT {limit}", values
