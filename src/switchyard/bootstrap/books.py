"""The books of the settings: opened, rebuilt, reset, and entered into by a person's command."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from switchyard.adapters.backoffice.ledger import SqlLedger
from switchyard.adapters.backoffice.postgres.ledger import (
    BOOKS,
    PostgresLedger,
    PostgresReaderLock,
    drop_books,
    has_books,
    replace_books,
    take_rebuilt,
)
from switchyard.adapters.backoffice.reads import SqlLedgerDump, SqlLedgerLookup, SqlLedgerReports
from switchyard.adapters.backoffice.sqlite.ledger import SqliteLedger, locked_books
from switchyard.adapters.files.durable import create_file, prepare_data_folder, sync_folder
from switchyard.adapters.postgres.connection import single_connection
from switchyard.adapters.system_clock import SystemClock
from switchyard.bootstrap.databases import open_database
from switchyard.domain.books.entries import Adoption, shown
from switchyard.domain.books.manual import ManualEntry, check_has_happened
from switchyard.domain.errors import AlreadyRunning, CannotStart, HistoryMismatch
from switchyard.domain.ids import AccountId
from switchyard.domain.journal.lines import Place
from switchyard.flow.backoffice.check import (
    Carried,
    Differences,
    Progress,
    check_ledger,
    compare_ledgers,
    ledger_digest,
    read_events_of,
    rebuild,
)
from switchyard.flow.backoffice.source import JOURNAL, JournalSource, fork_of
from switchyard.ports.books import ENTRIES_MAX, Ledger, LedgerDump, LedgerLookup, LedgerReports, ManualLedger
from switchyard.ports.journal import ReaderLock
from switchyard.settings import Settings

SQLITE = "sqlite"
"""The value of the setting that names the file."""


class WholeLedger(Ledger, ManualLedger, Protocol):
    """What events and people book."""


class OpenBooks:
    """One open ledger behind its ports."""

    def __init__(self, ledger: SqlLedger) -> None:
        self.ledger: WholeLedger = ledger
        self.dump: LedgerDump = SqlLedgerDump(ledger)
        self.reports: LedgerReports = SqlLedgerReports(ledger)
        self.lookup: LedgerLookup = SqlLedgerLookup(ledger)


def books_url(settings: Settings) -> str | None:
    """The database of the books; none where they are in the file."""
    if settings.backoffice_url == SQLITE:
        return None
    return settings.backoffice_url or settings.database_url


def books_path(settings: Settings) -> Path:
    """The file of the books."""
    return settings.data_dir / "backoffice.db"


def reader_lock(settings: Settings) -> ReaderLock | None:
    """What decides which process reads the journal; none where the books serve one process."""
    url = books_url(settings)
    return None if url is None else PostgresReaderLock(url)


@asynccontextmanager
async def open_books(settings: Settings) -> AsyncIterator[OpenBooks]:
    """Open the books, or create them."""
    url = books_url(settings)
    ledger: SqlLedger
    ledger = await SqliteLedger.open(books_path(settings)) if url is None else await PostgresLedger.open(url)
    try:
        yield OpenBooks(ledger)
    finally:
        await ledger.close()


@asynccontextmanager
async def existing_books(settings: Settings) -> AsyncIterator[OpenBooks]:
    """Open the books for a command that must not create them."""
    url = books_url(settings)
    if url is None:
        exists, where = books_path(settings).exists(), str(books_path(settings).absolute())
    else:
        where = "the schema backoffice of the database"
        async with single_connection(url) as connection:
            exists = await has_books(connection)
    if not exists:
        raise CannotStart(f"there are no books in {where}: `switchyard up` creates them")
    async with open_books(settings) as books:
        yield books


# What belongs to one SQLite file.
_SUFFIXES = ("", "-wal", "-shm")
_REBUILT_SCHEMA = f"{BOOKS}_rebuilt"


class NewFile:
    """Books in a file beside the one in use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._new = path.with_name("backoffice-rebuilt.db")
        self._copy = path.with_name("backoffice-former.db")

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Keep every other process from the books in use."""
        # Locked but not opened: the file may be unreadable, and SQLite must not have it open while it is renamed.
        with locked_books(self._path):
            yield

    async def is_replacing(self) -> bool:
        """Whether there are books in use."""
        return self._path.exists()

    @asynccontextmanager
    async def former(self) -> AsyncIterator[OpenBooks]:
        """The books in use, to read what is carried over; CannotStart where they cannot be read."""
        # Copied, because the lock of the file in use is held already.
        copies = [Path(f"{self._copy}{suffix}") for suffix in (*_SUFFIXES, ".lock")]
        _remove(copies)
        try:
            _copy(self._path, self._copy)
            try:
                ledger = await SqliteLedger.open(self._copy)
            except CannotStart as error:
                raise CannotStart(
                    f"the entries of people in {self._path} cannot be carried over: {error}. Put a copy of the file "
                    "back, or add --discard-manual to build the books without them"
                ) from error
            try:
                yield OpenBooks(ledger)
            finally:
                await ledger.close()
        finally:
            _remove(copies)

    @asynccontextmanager
    async def empty(self, *, keep: bool = False) -> AsyncIterator[OpenBooks]:
        """An empty ledger, removed afterwards unless it is complete and kept."""
        files = [Path(f"{self._new}{suffix}") for suffix in (*_SUFFIXES, ".lock")]
        _remove(files)
        is_complete = False
        try:
            ledger = await SqliteLedger.open(self._new)
            try:
                yield OpenBooks(ledger)
            finally:
                await ledger.close()
            is_complete = True
        finally:
            _remove([file for file in files if not (keep and is_complete) or file.suffix == ".lock"])

    async def put_in_place(self, *, discard: bool) -> str | None:
        """Put the new books in the place of those in use; returns where those are now."""
        if _wal_bytes(self._new):
            raise CannotStart(f"{self._new} could not be completed; the books in use are unchanged: see the log")
        old = _moved_away(self._path)
        self._new.rename(self._path)
        sync_folder(self._path.parent)
        return None if old is None else str(old)


class NewSchema:
    """Books in a schema beside the one in use, of the same database."""

    def __init__(self, url: str) -> None:
        self._url = url

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Keep every other process from reading the journal into the books in use."""
        lock = PostgresReaderLock(self._url)
        try:
            if not await lock.is_ours():
                raise AlreadyRunning("another process keeps the books in this database: stop it first")
            yield
        finally:
            await lock.give_up()

    async def is_replacing(self) -> bool:
        """Whether there are books in use."""
        async with single_connection(self._url) as connection:
            return await has_books(connection)

    @asynccontextmanager
    async def former(self) -> AsyncIterator[OpenBooks]:
        """The books in use, to read what is carried over."""
        ledger = await PostgresLedger.open(self._url)
        try:
            yield OpenBooks(ledger)
        finally:
            await ledger.close()

    @asynccontextmanager
    async def empty(self, *, keep: bool = False) -> AsyncIterator[OpenBooks]:
        """An empty ledger, removed afterwards unless it is complete and kept; AlreadyRunning where another has it."""
        async with single_connection(self._url) as holder:
            if not await take_rebuilt(holder):
                raise AlreadyRunning(
                    "another `switchyard backoffice rebuild`, or a check by --verify, is at work on this database: "
                    "run it again when that has ended"
                )
            await self._drop()
            is_complete = False
            try:
                ledger = await PostgresLedger.open(self._url, _REBUILT_SCHEMA)
                try:
                    yield OpenBooks(ledger)
                finally:
                    await ledger.close()
                is_complete = True
            finally:
                if not (keep and is_complete):
                    await self._drop()

    async def put_in_place(self, *, discard: bool) -> str | None:
        """Put the new books in the place of those in use; returns the schema in which those are now.

        CannotStart where people have booked entries meanwhile, unless theirs are discarded.
        """
        async with single_connection(self._url) as connection:
            return await replace_books(connection, _REBUILT_SCHEMA, discard=discard)

    async def _drop(self) -> None:
        async with single_connection(self._url) as connection:
            await drop_books(connection, _REBUILT_SCHEMA)


def _copy(path: Path, to: Path) -> None:
    for suffix in _SUFFIXES[:2]:  # SQLite makes the third from the second
        current, copy = Path(f"{path}{suffix}"), Path(f"{to}{suffix}")
        if current.exists():
            create_file(copy)
            shutil.copyfile(current, copy)


def _wal_bytes(path: Path) -> int:
    wal = Path(f"{path}-wal")
    return wal.stat().st_size if wal.exists() else 0


def _moved_away(path: Path) -> Path | None:
    """Give the file in use, if any, another name; its WAL first, because a WAL must never meet another file."""
    if not path.exists():
        return None
    number = 1
    while (old := path.with_name(f"{path.name}.replaced-{number}")).exists():
        number += 1
    for suffix in reversed(_SUFFIXES):
        current = Path(f"{path}{suffix}")
        if current.exists():
            current.rename(f"{old}{suffix}")
    return old


def _remove(files: list[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check of the books."""

    entries: int
    seq: int
    """The event up to which the books were read."""
    hash: str
    """Over the last entries of all accounts."""
    differences: int
    lines: tuple[str, ...]
    """The first of the differences."""


class Rebuilt(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a rebuild."""

    entries: int
    seq: int
    hash: str
    carried: int
    """Entries that the journal does not give: people's, and orphans of an adopted epoch."""
    replaced: str | None
    """Where the former books are now: a file or a schema."""


async def verify_books(settings: Settings, progress: Progress) -> Verified:
    """Fold the ledger again and read the journal again from zero, and compare both with the books in use."""
    found = Differences()
    async with open_journal(settings) as journal, existing_books(settings) as live:
        digest = await check_ledger(live.dump, found)
        read = await read_events_of(live.dump)
        try:
            await journal.check(await read_place(live.ledger))
        except HistoryMismatch as error:
            found.add(f"the books were read up to another history: {error}")
        else:
            async with _new(settings).empty() as again:
                carried = await Carried.from_books(live.ledger, live.dump, again.ledger, journal)
                await rebuild(journal, again.ledger, read, progress, carried)
                await compare_ledgers(live.dump, again.dump, found, await live.ledger.adoptions())
    return Verified(
        entries=digest.entries,
        seq=max(read.values(), default=0),
        hash=digest.hash,
        differences=found.count,
        lines=tuple(found.lines),
    )


async def rebuild_books(settings: Settings, progress: Progress, *, discard: bool = False) -> Rebuilt:
    """Build the books again and put them in the place of those in use, which are kept.

    `discard`: without the entries of people, where the books in use cannot be read.
    """
    new = _new(settings)
    async with open_journal(settings) as journal, new.locked():
        async with new.empty(keep=True) as books:
            carried, count = None, 0
            if not discard and await new.is_replacing():
                async with new.former() as former:
                    carried = await Carried.from_books(former.ledger, former.dump, books.ledger, journal)
                    count = carried.count
            await rebuild(journal, books.ledger, None, progress, carried)
            digest, place = await ledger_digest(books.dump), await read_place(books.ledger)
        replaced = await new.put_in_place(discard=discard)
    return Rebuilt(entries=digest.entries, seq=place.seq, hash=digest.hash, carried=count, replaced=replaced)


async def read_place(ledger: Ledger) -> Place:
    """How far the books have read the journal itself; the start where they read another bus."""
    positions = {state.source: state.position for state in await ledger.sources()}
    place = positions.get(JOURNAL)
    return place if isinstance(place, Place) else Place()


@asynccontextmanager
async def open_journal(settings: Settings) -> AsyncIterator[JournalSource]:
    """The journal, for a command."""
    database = await open_database(settings)
    try:
        yield JournalSource(database.journal)
    finally:
        await database.close()


def _new(settings: Settings) -> NewFile | NewSchema:
    url = books_url(settings)
    return NewFile(books_path(settings)) if url is None else NewSchema(url)


class EnteredLine(msgspec.Struct, frozen=True):
    """An entry by a person as the API shows it, and whether it was there before."""

    line: str
    repeated: bool


async def enter_in_books(settings: Settings, wanted: ManualEntry) -> EnteredLine:
    """Book an entry by a person; where the books are a file, no other process may keep them meanwhile."""
    prepare_data_folder(settings.data_dir)
    async with open_books(settings) as books:
        now = SystemClock().now()
        check_has_happened(wanted, now)
        entered = await books.ledger.enter(wanted, now)
    return EnteredLine(shown(entered.entry.text, entered.entry.hash), entered.repeated)


async def reset_books(settings: Settings, only: str | None) -> list[str]:
    """Have the sources, or one of them, read again from their start; returns their names."""
    async with existing_books(settings) as books:
        states = await books.ledger.sources()
        chosen = [state for state in states if only in (None, state.source)]
        if not chosen:
            known = ", ".join(state.source for state in states) or "none"
            raise CannotStart(f"the books have no source {only or 'yet'}: they have {known}")
        for state in chosen:
            await books.ledger.reset(state.source, type(state.position)())
        return [state.source for state in chosen]


async def adopt_epoch(settings: Settings, by: str, reason: str) -> tuple[Adoption, int]:
    """Have the books follow the restored journal; returns the adoption and the number of orphans."""
    async with open_journal(settings) as journal, existing_books(settings) as books:
        place = await read_place(books.ledger)
        read = max((await read_events_of(books.dump)).values(), default=0)
        try:
            await journal.check(place)
            is_whole = place.seq >= read
        except HistoryMismatch:
            is_whole = False
        if is_whole:
            raise CannotStart("the journal has every event that the books have read: there is nothing to adopt")
        fork = await fork_of(journal, place, read)
        adoption = Adoption(
            epoch=fork.epoch,
            after_seq=fork.after.seq,
            first_seq=fork.first_seq,
            by=by,
            reason=reason,
            at=SystemClock().now(),
        )
        orphans = await books.ledger.adopt(adoption, JOURNAL, fork.after)
        for state in await books.ledger.sources():
            if not isinstance(state.position, Place):
                # Events of the new epoch may have passed while their accounts were halted.
                await books.ledger.reset(state.source, type(state.position)())
        return adoption, orphans


async def orphans_of_books(settings: Settings) -> list[str]:
    """The first entries that an adopted journal does not have, as the API shows entries."""
    async with existing_books(settings) as books:
        found = await books.ledger.orphans((AccountId(""), 0), ENTRIES_MAX)
    return [shown(entry.text, entry.hash) for entry in found]
