"""Writes pages of events and people's entries to the books' SQLite file, each in one transaction.

Runs in the file's writer thread.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal

import apsw
from msgspec.structs import replace

from switchyard.adapters.backoffice import schema
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
    position_decoder,
)
from switchyard.domain.books.books import Books
from switchyard.domain.books.entries import Adoption, LedgerEntry, parse_entry
from switchyard.domain.books.fold import Refold
from switchyard.domain.books.holdings import Target, key_of, waits_for
from switchyard.domain.books.manual import ManualEntry, check_manual, entry_id_of_manual, manual_entry
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
from switchyard.domain.journal.lines import BusEvent, SourcePosition, stamp
from switchyard.ports.books import Claim, Entered, LedgerBroken, LedgerUnavailable, Posted, StoredEntry


def claim_source(connection: apsw.Connection, source: str, start: SourcePosition) -> Claim:
    """Raise the source's generation."""
    with classified_errors(), connection:
        connection.execute(schema.CLAIM, (source, json_text(start)))
        position, generation = connection.execute(schema.SOURCE, (source,)).get
    return Claim(source, generation, position_decoder.decode(position))


def post(connection: apsw.Connection, claim: Claim, events: Sequence[BusEvent], position: SourcePosition) -> Posted:
    """Book a page."""
    tally = Tally()
    with classified_errors(), connection:
        check_owned(claim, connection.execute(schema.SOURCE, (claim.source,)).get)
        adoptions = list_adoptions(connection)
        read = read_events(events)
        for part in parts_of(read, _waited_for(connection, executions(read))):
            books = _booked(connection, part.events, adoptions)
            _write(connection, books)
            tally.add(books)
            if part.settles:
                _settle(connection, books, tally)
        read_at = events[-1].event.at if events else None
        moved = json_text(position), None if read_at is None else stamp(read_at), claim.source
        connection.execute(schema.MOVE, moved)
    return tally.posted(replace(claim, position=position), read_at)


def enter(connection: apsw.Connection, wanted: ManualEntry, at: datetime) -> Entered:
    """Book an entry by a person."""
    check_manual(wanted)
    with classified_errors(), connection:
        of_key = connection.execute(schema.STORED_OF_KEY, (wanted.account_id, wanted.key)).fetchone()
        of_id = connection.execute(schema.STORED_OF, (entry_id_of_manual(wanted),)).fetchone()
        if (before := entered_before(wanted, of_key, of_id)) is not None:
            return before
        target = None if wanted.reverses is None else _target(connection, wanted.reverses)
        books = _books_of(connection, wanted.account_id)
        if wanted.type != "Reversal":
            _load(connection, books, touched_by(manual_entry(wanted, seq=0, at=at)))
        elif target is not None and target.entry is not None:
            _load(connection, books, touched_by(target.entry))
            _load_order(connection, books, target.entry.order_id)
        new = books.enter(wanted, at, target)
        _write(connection, books)
    return Entered(StoredEntry(new.entry.number, new.line.text, new.line.hash), False)


def carry(connection: apsw.Connection, entry: LedgerEntry) -> None:
    """Book an entry of other books."""
    with classified_errors(), connection:
        books = _books_of(connection, entry.account_id)
        _load_order(connection, books, entry.order_id)
        target = None if entry.reverses is None else _target(connection, entry.reverses)
        _load(connection, books, touched_by(entry))
        books.carry(entry, target)
        _write(connection, books)
        if entry.by is None:  # an orphan of the other books is one of these
            number = books.entries[-1].entry.number
            connection.execute(schema.ADD_ORPHAN, (entry.account_id, number, entry.entry_id))


def adopt(connection: apsw.Connection, adoption: Adoption, source: str, position: SourcePosition) -> int:
    """Follow the journal of a new epoch."""
    with classified_errors(), connection:
        row = adoption.epoch, adoption.after_seq, adoption.first_seq, adoption.by, adoption.reason, stamp(adoption.at)
        connection.execute(schema.ADD_ADOPTION, row)
        connection.execute(schema.ADD_ORPHANS, (adoption.after_seq, adoption.first_seq))
        orphans = connection.changes()
        connection.execute(schema.RESET, (source, json_text(position)))
    return orphans


def list_adoptions(connection: apsw.Connection) -> list[Adoption]:
    """The adoptions by epoch."""
    return [adoption_of(row, time_of) for row in connection.execute(schema.ADOPTIONS)]


def time_of(text: str | None) -> datetime | None:
    """The time of a column."""
    return None if text is None else datetime.fromisoformat(text)


@contextmanager
def classified_errors() -> Iterator[None]:
    """Raise LedgerUnavailable where nothing was written and a repeat may help, LedgerBroken otherwise."""
    try:
        yield
    except (apsw.FullError, apsw.BusyError, apsw.LockedError) as error:
        raise LedgerUnavailable(f"the books cannot be written, nothing was: {error}") from error
    except apsw.Error as error:
        raise LedgerBroken(f"the books cannot be written: {error}") from error


def _booked(connection: apsw.Connection, events: Sequence[ReadEvent], adoptions: Sequence[Adoption]) -> Books:
    """The books of this part of a page, with the rows that it touches, after its events."""
    accounts = connection.execute(schema.FIND_ACCOUNTS, (json_text(sorted(account_ids(events))),))
    found = [account_of(row, time_of) for row in accounts]
    orders = connection.execute(schema.FIND_ORDERS, (json_text(sorted(order_ids(events))),))
    books = Books(found, [order_decoder.decode(body) for (body,) in orders], adoptions)
    _load(connection, books, touched(events, books.orders))
    for event in events:
        target = None
        revised = revised_entry_id(event, books.orders)
        if revised is not None:
            target = _target(connection, revised)
            if target.entry is not None:
                _load(connection, books, touched_by(target.entry))
        books.read(event, target)
    return books


def _waited_for(connection: apsw.Connection, reported: Executions) -> Executions:
    """Those of the executions that a memo of a revision waits for."""
    if not reported:
        return reported
    found = connection.execute(schema.FIND_WAITED_FOR, (json_text(sorted(reported)),))
    return frozenset((account, exec_id) for account, exec_id in found)


def _settle(connection: apsw.Connection, books: Books, tally: Tally) -> None:
    """Carry out the revisions that waited for the new fills, and those that waited for the fills that these book."""
    fills = deque(books.fills)
    while fills:
        fill = fills.popleft()
        rows = connection.execute(schema.WAITING, (fill.account_id, fill.exec_id)).fetchall()
        for memo in [parse_entry(str(text)) for (text,) in rows]:
            if not waits_for(memo, fill):
                continue
            target, late = _target(connection, fill.entry_id), _books_of(connection, fill.account_id)
            _load_order(connection, late, fill.order_id)
            if target.entry is not None:
                _load(connection, late, touched_by_late(target.entry, memo))
            late.settle(memo, fill, target)
            _write(connection, late)
            tally.add(late)
            fills.extend(late.fills)


def _books_of(connection: apsw.Connection, account: AccountId) -> Books:
    rows = connection.execute(schema.FIND_ACCOUNTS, (json_text([account]),))
    return Books([account_of(row, time_of) for row in rows])


def _load(connection: apsw.Connection, books: Books, wanted: Touched) -> None:
    """Read the rows that the next entries touch."""
    if wanted.entry_ids:
        ids = json_text(sorted(wanted.entry_ids))
        books.booked |= {entry_id for (entry_id,) in connection.execute(schema.FIND_ENTRIES, (ids,))}
    if wanted.holdings:
        for (body,) in connection.execute(schema.FIND_POSITIONS, (json_text(sorted(wanted.holdings)),)):
            holding = holding_decoder.decode(body)
            books.holdings[key_of(holding)] = holding
    if wanted.balances:
        rows = connection.execute(schema.FIND_BALANCES, (json_text(sorted(wanted.balances)),))
        for account, name, unit, amount in rows:
            books.balances[account, name, unit] = Decimal(amount)


def _load_order(connection: apsw.Connection, books: Books, order_id: OrderId) -> None:
    for (body,) in connection.execute(schema.FIND_ORDERS, (json_text([order_id]),)):
        books.orders[order_id] = order_decoder.decode(body)


def _target(connection: apsw.Connection, entry_id: str) -> Target:
    """The entry that a reversal takes back: the newest of an execution that was corrected before."""
    while (row := connection.execute(schema.REVERSAL_OF, (entry_id,)).fetchone()) is not None:
        (replacement_id,) = row
        if replacement_id is None:
            break
        entry_id = replacement_id
    text = connection.execute(schema.ENTRY_OF, (entry_id,)).get
    if text is None:
        return Target()
    entry = parse_entry(text)
    if row is not None:
        return Target(entry, True)
    refold = Refold(entry)
    if refold.is_needed:
        for (other,) in connection.execute(schema.UNREVERSED, (entry.account_id, entry.symbol)):
            refold.add(parse_entry(other))
    return refold.target()


def _write(connection: apsw.Connection, books: Books) -> None:
    written = Written(books, stamp, date.isoformat)
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
        (schema.CONFIRM, written.confirmed),
    ):
        if rows:
            connection.execute(sql, (json_text(rows),))
