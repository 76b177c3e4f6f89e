"""Writes pages of events and people's entries to the books in PostgreSQL, each in one transaction."""

from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import asyncpg
from msgspec.structs import replace

from switchyard.adapters.backoffice.postgres import schema
from switchyard.adapters.backoffice.rows import (
    Tally,
    Written,
    account_of,
    adoption_of,
    check_owned,
    entered_before,
    holding_decoder,
    json_text,
    order_decoder,
)
from switchyard.adapters.postgres.connection import CONNECTION_LOST, Connection
from switchyard.domain.books.books import Books
from switchyard.domain.books.entries import Adoption, BookedAccount, LedgerEntry, parse_entry
from switchyard.domain.books.fold import Refold
from switchyard.domain.books.holdings import Target, key_of, waits_for
from switchyard.domain.books.manual import AHEAD_MAX, ManualEntry, check_manual, entry_id_of_manual, manual_entry
from switchyard.domain.books.postings import (
    Executions,
    ReadEvent,
    Touched,
    account_ids,
    executions,
    order_ids,
    parts_of,
    read_events,
    revised_entry_id,
    touched,
    touched_by,
    touched_by_late,
)
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.journal.lines import GENESIS, BusEvent, SourcePosition
from switchyard.ports.books import Claim, Entered, LedgerBroken, LedgerUnavailable, Posted, StoredEntry


def same(value: Any) -> Any:
    """PostgreSQL has times and days of its own."""
    return value


async def post(connection: Connection, claim: Claim, events: Sequence[BusEvent], position: SourcePosition) -> Posted:
    """Book a page."""
    tally = Tally()
    async with connection.transaction():
        check_owned(claim, await connection.fetchrow(schema.SOURCE, claim.source))
        adoptions = [adoption_of(row, same) for row in await connection.fetch(schema.ADOPTIONS)]
        read = read_events(events)
        accounts = {account.account_id: account for account in await _accounts(connection, account_ids(read))}
        for part in parts_of(read, await _waited_for(connection, executions(read))):
            books = await _booked(connection, part.events, accounts.values(), adoptions)
            await _write(connection, books)
            accounts |= books.accounts
            tally.add(books)
            if part.settles:
                await _settle(connection, books, accounts, tally)
        read_at = events[-1].event.at if events else None
        await connection.execute(schema.MOVE, claim.source, json_text(position), read_at)
    return tally.posted(replace(claim, position=position), read_at)


async def enter(connection: Connection, wanted: ManualEntry, at: datetime) -> Entered:
    """Book an entry by a person."""
    check_manual(wanted)
    ahead = at - await connection.fetchval("SELECT clock_timestamp()")
    if ahead > AHEAD_MAX:
        # It would belong to a day to come, and with it every later entry of the account.
        raise LedgerUnavailable(
            f"nothing was booked: the clock of this machine is {ahead.total_seconds():.0f} s ahead of the database's"
        )
    async with connection.transaction():
        # The account's lock comes first: of two requests with one key, the second finds the entry of the first.
        books = Books(await _accounts(connection, {wanted.account_id}))
        of_key = await connection.fetchrow(schema.STORED_OF_KEY, wanted.account_id, wanted.key)
        of_id = await connection.fetchrow(schema.STORED_OF, entry_id_of_manual(wanted))
        if (before := entered_before(wanted, of_key, of_id)) is not None:
            return before
        target = None if wanted.reverses is None else await _target(connection, wanted.reverses)
        if wanted.type != "Reversal":
            await _load(connection, books, touched_by(manual_entry(wanted, seq=0, at=at)))
        elif target is not None and target.entry is not None:
            await _load(connection, books, touched_by(target.entry))
            await _load_order(connection, books, target.entry.order_id)
        new = books.enter(wanted, at, target)
        await _write(connection, books)
    return Entered(StoredEntry(new.entry.number, new.line.text, new.line.hash), False)


async def carry(connection: Connection, entry: LedgerEntry) -> None:
    """Book an entry of other books."""
    async with connection.transaction():
        books = Books(await _accounts(connection, {entry.account_id}))
        await _load_order(connection, books, entry.order_id)
        target = None if entry.reverses is None else await _target(connection, entry.reverses)
        await _load(connection, books, touched_by(entry))
        books.carry(entry, target)
        await _write(connection, books)
        if entry.by is None:  # an orphan of the other books is one of these
            number = books.entries[-1].entry.number
            await connection.execute(schema.ADD_ORPHAN, entry.account_id, number, entry.entry_id)


async def adopt(connection: Connection, adoption: Adoption, source: str, position: SourcePosition) -> int:
    """Follow the journal of a new epoch."""
    async with connection.transaction():
        row = adoption.epoch, adoption.after_seq, adoption.first_seq, adoption.by, adoption.reason, adoption.at
        await connection.execute(schema.ADD_ADOPTION, *row)
        orphans: int = await connection.fetchval(schema.ADD_ORPHANS, adoption.after_seq, adoption.first_seq)
        await connection.execute(schema.RESET, source, json_text(position))
    return orphans


@asynccontextmanager
async def classified_errors() -> AsyncIterator[None]:
    """Raise LedgerUnavailable where a repeat may help, LedgerBroken otherwise.

    After a lost connection the outcome is unknown; the source's position, or the person's key, tells.
    """
    try:
        yield
    except (*CONNECTION_LOST, asyncpg.InsufficientResourcesError, asyncpg.DeadlockDetectedError) as error:
        raise LedgerUnavailable(f"the books' database does not answer: {error!r}") from error
    except asyncpg.PostgresError as error:
        raise LedgerBroken(f"the books cannot be written: {error!r}") from error


async def _accounts(connection: Connection, wanted: set[AccountId]) -> list[BookedAccount]:
    """The accounts, locked to the end of the transaction; new ones where they do not exist."""
    await connection.execute(schema.NEW_ACCOUNTS, sorted(wanted), GENESIS)
    rows = await connection.fetch(schema.FIND_ACCOUNTS, sorted(wanted))
    return [account_of(row, same) for row in rows]


async def _booked(
    connection: Connection,
    events: Sequence[ReadEvent],
    accounts: Iterable[BookedAccount],
    adoptions: Sequence[Adoption],
) -> Books:
    """The books of this part of a page, with the rows that it touches, after its events."""
    orders = await connection.fetch(schema.FIND_ORDERS, sorted(order_ids(events)))
    books = Books(accounts, [order_decoder.decode(row[0]) for row in orders], adoptions)
    await _load(connection, books, touched(events, books.orders))
    for event in events:
        target = None
        revised = revised_entry_id(event, books.orders)
        if revised is not None:
            target = await _target(connection, revised)
            if target.entry is not None:
                await _load(connection, books, touched_by(target.entry))
        books.read(event, target)
    return books


async def _waited_for(connection: Connection, reported: Executions) -> Executions:
    """Those of the executions that a memo of a revision waits for."""
    if not reported:
        return reported
    return frozenset(map(tuple, await connection.fetch(schema.FIND_WAITED_FOR, *_columns(reported))))


async def _settle(connection: Connection, books: Books, accounts: dict[AccountId, BookedAccount], tally: Tally) -> None:
    """Carry out the revisions that waited for the new fills, and those that waited for the fills that these book."""
    fills = deque(books.fills)
    while fills:
        fill = fills.popleft()
        rows = await connection.fetch(schema.WAITING, fill.account_id, fill.exec_id)
        for memo in [parse_entry(row[0]) for row in rows]:
            if not waits_for(memo, fill):
                continue
            target, late = await _target(connection, fill.entry_id), Books([accounts[fill.account_id]])
            await _load_order(connection, late, fill.order_id)
            if target.entry is not None:
                await _load(connection, late, touched_by_late(target.entry, memo))
            late.settle(memo, fill, target)
            await _write(connection, late)
            accounts |= late.accounts
            tally.add(late)
            fills.extend(late.fills)


async def _load(connection: Connection, books: Books, wanted: Touched) -> None:
    """Read the rows that the next entries touch."""
    if wanted.entry_ids:
        rows = await connection.fetch(schema.FIND_ENTRIES, sorted(wanted.entry_ids))
        books.booked |= {row[0] for row in rows}
    if wanted.holdings:
        for row in await connection.fetch(schema.FIND_POSITIONS, *_columns(wanted.holdings)):
            holding = holding_decoder.decode(row[0])
            books.holdings[key_of(holding)] = holding
    if wanted.balances:
        for account, name, unit, amount in await connection.fetch(schema.FIND_BALANCES, *_columns(wanted.balances)):
            books.balances[account, name, unit] = amount


async def _load_order(connection: Connection, books: Books, order_id: OrderId) -> None:
    for row in await connection.fetch(schema.FIND_ORDERS, [order_id]):
        books.orders[order_id] = order_decoder.decode(row[0])


def _columns(keys: frozenset[Any]) -> list[list[str]]:
    return [list(column) for column in zip(*sorted(keys), strict=True)]


async def _target(connection: Connection, entry_id: str) -> Target:
    """The entry that a reversal takes back: the newest of an execution that was corrected before."""
    while (row := await connection.fetchrow(schema.REVERSAL_OF, entry_id)) is not None:
        if row[0] is None:
            break
        entry_id = row[0]
    found = await connection.fetchrow(schema.STORED_OF, entry_id)
    if found is None:
        return Target()
    entry = parse_entry(found["text"])
    if row is not None:
        return Target(entry, True)
    refold = Refold(entry)
    if refold.is_needed:
        async for other in connection.cursor(schema.UNREVERSED, entry.account_id, entry.symbol):
            refold.add(parse_entry(other[0]))
    return refold.target()


async def _write(connection: Connection, books: Books) -> None:
    written = Written(books, same, same)
    for sql, rows in (
        (schema.ADD_ENTRIES, written.entries),
        (schema.ADD_LEGS, written.legs),
        (schema.SET_ACCOUNTS, written.accounts),
        (schema.SET_ORDERS, written.orders),
        (schema.SET_POSITIONS, written.positions),
        (schema.SET_BALANCES, written.balances),
        (schema.SET_DAY_POSITIONS, written.day_positions),
        (schema.SET_DAY_BALANCES, written.day_balances),
        (schema.ADD_RESULTS, written.results),
        (schema.ADD_REVERSALS, written.reversals),
    ):
        if rows:
            await connection.executemany(sql, rows)
    if written.confirmed:
        await connection.execute(schema.CONFIRM, written.confirmed)
