"""Builds the books again from the journal, to compare them with those in use or to replace them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from switchyard.adapters.backoffice.dump import SqliteLedgerDump
from switchyard.adapters.backoffice.ledger import SqliteLedger, locked_books
from switchyard.adapters.files.durable import sync_folder
from switchyard.bootstrap.backoffice import books_path
from switchyard.bootstrap.databases import open_database
from switchyard.domain.errors import CannotStart, HistoryMismatch
from switchyard.flow.backoffice.journal_bus import JournalBus
from switchyard.flow.backoffice.rebuild import Differences, Progress, check_ledger, compare_ledgers, rebuild
from switchyard.ports.bus import Bus
from switchyard.settings import Settings

# What belongs to one SQLite file.
_SUFFIXES = ("", "-wal", "-shm")


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check of the books."""

    entries: int
    seq: int
    """The event up to which the books were read."""
    hash: str
    """Of the last entry."""
    differences: int
    lines: tuple[str, ...]
    """The first of the differences."""


class Rebuilt(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a rebuild."""

    entries: int
    seq: int
    hash: str
    replaced: str | None
    """Where the former file is now."""


async def verify_books(settings: Settings, progress: Progress) -> Verified:
    """Fold the ledger again and read the journal again from zero, and compare both with the books in use."""
    path = books_path(settings)
    if not path.exists():
        raise CannotStart(f"there are no books in {path.absolute()}: `switchyard up` creates them")
    found = Differences()
    async with _journal(settings) as bus, _ledger(path) as live:
        dump = SqliteLedgerDump(live)
        head = await check_ledger(live, dump, found)
        place = (await live.state()).place
        try:
            await bus.check(place)
        except HistoryMismatch as error:
            found.add(f"the books were read up to another history: {error}")
        else:
            async with _new_ledger(path) as again:
                await rebuild(bus, again, place, progress)
                await compare_ledgers((live, dump), (again, SqliteLedgerDump(again)), found)
    return Verified(
        entries=head.number, seq=place.seq, hash=head.hash, differences=found.count, lines=tuple(found.lines)
    )


async def rebuild_books(settings: Settings, progress: Progress) -> Rebuilt:
    """Read the journal from zero into a new file and put it in the place of the books in use, which are kept."""
    path = books_path(settings)
    new_path = _rebuilt_path(path)
    # Locked but not opened: the file may be unreadable, and SQLite must not have it open while it is renamed.
    with locked_books(path):
        async with _journal(settings) as bus, _new_ledger(path, keep=True) as new:
            await rebuild(bus, new, None, progress)
            state = await new.state()
        if _wal_bytes(new_path):
            raise CannotStart(f"{new_path} could not be completed; the books in use are unchanged: see the log")
        old = _moved_away(path)
        new_path.rename(path)
        sync_folder(path.parent)
    return Rebuilt(
        entries=state.head.number,
        seq=state.place.seq,
        hash=state.head.hash,
        replaced=None if old is None else str(old),
    )


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


def _wal_bytes(path: Path) -> int:
    wal = Path(f"{path}-wal")
    return wal.stat().st_size if wal.exists() else 0


def _rebuilt_path(path: Path) -> Path:
    return path.with_name("backoffice-rebuilt.db")


@asynccontextmanager
async def _journal(settings: Settings) -> AsyncIterator[Bus]:
    database = await open_database(settings)
    try:
        yield JournalBus(database.journal)
    finally:
        await database.close()


@asynccontextmanager
async def _ledger(path: Path) -> AsyncIterator[SqliteLedger]:
    ledger = await SqliteLedger.open(path)
    try:
        yield ledger
    finally:
        await ledger.close()


@asynccontextmanager
async def _new_ledger(beside: Path, *, keep: bool = False) -> AsyncIterator[SqliteLedger]:
    """An empty ledger beside the one in use, removed afterwards unless it is complete and kept."""
    path = _rebuilt_path(beside)
    files = [Path(f"{path}{suffix}") for suffix in (*_SUFFIXES, ".lock")]
    _remove(files)
    is_complete = False
    try:
        async with _ledger(path) as ledger:
            yield ledger
        is_complete = True
    finally:
        _remove([file for file in files if not (keep and is_complete) or file.suffix == ".lock"])


def _remove(files: list[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)
