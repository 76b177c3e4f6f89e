"""One transaction of the books, which books a page of events, an entry of a person, or an entry of other books."""

from collections import deque
from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal

from msgspec.structs import replace

from switchyard.adapters.backoffice import statements
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
from switchyard.adapters.backoffice.session import Dialect, Row, Session
from switchyard.adapters.backoffice.statements import Statements
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
from switchyard.ports.books import Entered, LedgerUnavailable, Posted, SourceClaim, StoredEntry


class Booking:
    """One transaction."""

    def __init__(self, session: Session, dialect: Dialect, sql: Statements) -> None:
        self._session = session
        self._dialect = dialect
        self._sql = sql

    async def post(self, claim: SourceClaim, events: Sequence[BusEvent], position: SourcePosition) -> Posted:
        """Book a page."""
        tally = Tally()
        check_owned(claim, await self._row(self._sql.source, claim.source))
        adoptions = [adoption_of(row) for row in await self._session.rows(statements.ADOPTIONS)]
        read = read_events(events)
        accounts = {account.account_id: account for account in await self._accounts(account_ids(read))}
        for part in parts_of(read, await self._waited_for(executions(read))):
            books = await self._booked(part.events, accounts.values(), adoptions)
            await self._write(books)
            accounts |= books.accounts
            tally.add(books)
            if part.settles:
                await self._settle(books, accounts, tally)
        read_at = events[-1].event.at if events else None
        await self._session.rows(statements.MOVE, claim.source, json_text(position), read_at)
        return tally.posted(replace(claim, position=position), read_at)

    async def enter(self, wanted: ManualEntry, at: datetime) -> Entered:
        """Book an entry by a person."""
        check_manual(wanted)
        await self._check_clock(at)
        # The account's lock comes first: of two requests with one key, the second finds the entry of the first.
        books = Books(await self._accounts({wanted.account_id}))
        of_key = await self._row(self._sql.stored_of_key, wanted.account_id, wanted.key)
        of_id = await self._row(statements.STORED_OF, entry_id_of_manual(wanted))
        if (before := entered_before(wanted, of_key, of_id)) is not None:
            return before
        target = None if wanted.reverses is None else await self._target(wanted.reverses)
        if wanted.type != "Reversal":
            await self._load(books, touched_by(manual_entry(wanted, seq=0, at=at)))
        elif target is not None and target.entry is not None:
            await self._load(books, touched_by(target.entry))
            await self._load_order(books, target.entry.order_id)
        new = books.enter(wanted, at, target)
        await self._write(books)
        return Entered(StoredEntry(new.entry.number, new.line.text, new.line.hash), False)

    async def carry(self, entry: LedgerEntry) -> None:
        """Book an entry of other books."""
        books = Books(await self._accounts({entry.account_id}))
        await self._load_order(books, entry.order_id)
        target = None if entry.reverses is None else await self._target(entry.reverses)
        await self._load(books, touched_by(entry))
        books.carry(entry, target)
        await self._write(books)
        if entry.by is None:  # an orphan of the other books is one of these
            number = books.entries[-1].entry.number
            await self._session.rows(statements.ADD_ORPHAN, entry.account_id, number, entry.entry_id)

    async def adopt(self, adoption: Adoption, source: str, position: SourcePosition) -> int:
        """Follow the journal of a new epoch."""
        row = adoption.epoch, adoption.after_seq, adoption.first_seq, adoption.by, adoption.reason, adoption.at
        await self._session.rows(statements.ADD_ADOPTION, *row)
        orphans = await self._session.rows(statements.ADD_ORPHANS, adoption.after_seq, adoption.first_seq)
        await self._session.rows(statements.RESET, source, json_text(position))
        return len(orphans)

    async def _row(self, sql: str, *values: object) -> Row | None:
        found = await self._session.rows(sql, *values)
        return found[0] if found else None

    async def _check_clock(self, at: datetime) -> None:
        if self._dialect.now is None:
            return
        [(now,)] = await self._session.rows(self._dialect.now)
        if at - now > AHEAD_MAX:
            # It would belong to a day to come, and with it every later entry of the account.
            ahead = (at - now).total_seconds()
            raise LedgerUnavailable(
                f"nothing was booked: the clock of this machine is {ahead:.0f} s ahead of the database's"
            )

    async def _accounts(self, wanted: set[AccountId]) -> list[BookedAccount]:
        """The accounts, locked to the end of the transaction; new ones where that needs a row."""
        if self._dialect.new_accounts is not None:
            await self._session.rows(self._dialect.new_accounts, sorted(wanted), GENESIS)
        return [account_of(row) for row in await self._session.rows(self._sql.find_accounts, sorted(wanted))]

    async def _booked(
        self, events: Sequence[ReadEvent], accounts: Iterable[BookedAccount], adoptions: Sequence[Adoption]
    ) -> Books:
        """The books of this part of a page, with the rows that it touches, after its events."""
        orders = await self._session.rows(self._sql.find_orders, sorted(order_ids(events)))
        books = Books(accounts, [order_decoder.decode(body) for (body,) in orders], adoptions)
        await self._load(books, touched(events, books.orders))
        for event in events:
            target = None
            revised = revised_entry_id(event, books.orders)
            if revised is not None:
                target = await self._target(revised)
                if target.entry is not None:
                    await self._load(books, touched_by(target.entry))
            books.read(event, target)
        return books

    async def _waited_for(self, reported: Executions) -> Executions:
        """Those of the executions that a memo of a revision waits for."""
        if not reported:
            return reported
        found = await self._session.rows(self._sql.find_waited_for, json_text(sorted(reported)))
        return frozenset((account, exec_id) for account, exec_id in found)

    async def _settle(self, books: Books, accounts: dict[AccountId, BookedAccount], tally: Tally) -> None:
        """Carry out the revisions that waited for the new fills, or for the fills that these book."""
        fills = deque(books.fills)
        while fills:
            fill = fills.popleft()
            rows = await self._session.rows(self._sql.waiting, fill.account_id, fill.exec_id)
            for memo in [parse_entry(text) for (text,) in rows]:
                if not waits_for(memo, fill):
                    continue
                target, late = await self._target(fill.entry_id), Books([accounts[fill.account_id]])
                await self._load_order(late, fill.order_id)
                if target.entry is not None:
                    await self._load(late, touched_by_late(target.entry, memo))
                late.settle(memo, fill, target)
                await self._write(late)
                accounts |= late.accounts
                tally.add(late)
                fills.extend(late.fills)

    async def _load(self, books: Books, wanted: Touched) -> None:
        """Read the rows that the next entries touch."""
        if wanted.entry_ids:
            rows = await self._session.rows(self._sql.find_entry_ids, sorted(wanted.entry_ids))
            books.booked |= {entry_id for (entry_id,) in rows}
        if wanted.holdings:
            for (body,) in await self._session.rows(self._sql.find_positions, json_text(sorted(wanted.holdings))):
                holding = holding_decoder.decode(body)
                books.holdings[key_of(holding)] = holding
        if wanted.balances:
            rows = await self._session.rows(self._sql.find_balances, json_text(sorted(wanted.balances)))
            for account, name, unit, amount in rows:
                books.balances[account, name, unit] = Decimal(amount)

    async def _load_order(self, books: Books, order_id: OrderId) -> None:
        for (body,) in await self._session.rows(self._sql.find_orders, [order_id]):
            books.orders[order_id] = order_decoder.decode(body)

    async def _target(self, entry_id: str) -> Target:
        """The entry that a reversal takes back: the newest of an execution that was corrected before."""
        while (row := await self._row(statements.REVERSAL_OF, entry_id)) is not None:
            (replacement_id,) = row
            if replacement_id is None:
                break
            entry_id = replacement_id
        found = await self._row(statements.STORED_OF, entry_id)
        if found is None:
            return Target()
        entry = parse_entry(found[1])
        if row is not None:
            return Target(entry, True)
        refold = Refold(entry)
        if refold.is_needed:
            async for (text,) in self._session.each(statements.UNREVERSED, entry.account_id, entry.symbol):
                refold.add(parse_entry(text))
        return refold.target()

    async def _write(self, books: Books) -> None:
        sql, written = self._sql, Written(books, self._dialect.time, self._dialect.day)
        for statement, rows in (
            (sql.add_entries, written.entries),
            (sql.add_legs, written.legs),
            (sql.set_accounts, written.accounts),
            (sql.set_orders, written.orders),
            (sql.set_positions, written.positions),
            (sql.set_balances, written.balances),
            (sql.set_day_positions, written.day_positions),
            (sql.set_day_balances, written.day_balances),
            (sql.add_results, written.results),
            (sql.add_reversals, written.reversals),
        ):
            if rows:
                await self._session.write(statement, rows)
        if written.confirmed:
            await self._session.rows(sql.confirm, written.confirmed)
