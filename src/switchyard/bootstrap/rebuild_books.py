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
from switchyard.domain.bus import Place
from switchyard.domain.errors import CannotStart, HistoryMismatch
from switchyard.flow.backoffice.journal_bus import JOURNAL, JournalSource
from switchyard.flow.backoffice.rebuild import (
    Differences,
    Progress,
    check_ledger,
    compare_ledgers,
    ledger_digest,
    read_events_of,
    rebuild,
)
from switchyard.ports.ledger import Ledger
from switchyard.settings import Settings

# What belongs to one SQLite file.
_SUFFIXES = ("", "-wal", "-shm")


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
    replaced: str | None
    """Where the former file is now."""


async def verify_books(settings: Settings, progress: Progress) -> Verified:
    """Fold the ledger again and read the journal again from zero, and compare both with the books in use."""
    path = books_path(settings)
    if not path.exists():
        raise no_books(path)
    found = Differences()
    async with _journal(settings) as journal, _ledger(path) as live:
        dump = SqliteLedgerDump(live)
        digest = await check_ledger(dump, found)
        read = await read_events_of(dump)
        try:
            await journal.check(await _place(live))
        except HistoryMismatch as error:
            found.add(f"the books were read up to another history: {error}")
        else:
            async with _new_ledger(path) as again:
                await rebuild(journal, again, read, progress)
                await compare_ledgers(dump, SqliteLedgerDump(again), found)
    return Verified(
        entries=digest.entries,
        seq=max(read.values(), default=0),
        hash=digest.hash,
        differences=found.count,
        lines=tuple(found.lines),
    )


async def _place(ledger: Ledger) -> Place:
    """How far the books have read the journal itself; the start where they read another bus."""
    positions = {state.source: state.position for state in await ledger.sources()}
    place = positions.get(JOURNAL)
    return place if isinstance(place, Place) else Place()


async def rebuild_books(settings: Settings, progress: Progress) -> Rebuilt:
    """Read the journal from zero into a new file and put it in the place of the books in use, which are kept."""
    path = books_path(settings)
    new_path = _rebuilt_path(path)
    # Locked but not opened: the file may be unreadable, and SQLite must not have it open while it is renamed.
    with locked_books(path):
        async with _journal(settings) as journal, _new_ledger(path, keep=True) as new:
            await rebuild(journal, new, None, progress)
            digest, place = await ledger_digest(SqliteLedgerDump(new)), await _place(new)
        if _wal_bytes(new_path):
            raise CannotStart(f"{new_path} could not be completed; the books in use are unchanged: see the log")
        old = _moved_away(path)
        new_path.rename(path)
        sync_folder(path.parent)
    return Rebuilt(
        entries=digest.entries,
        seq=place.seq,
        hash=digest.hash,
        replaced=None if old is None else str(old),
    )


async def reset_books(settings: Settings, only: str | None) -> list[str]:
    """Have the sources, or one of them, read again from their start; returns their names."""
    path = books_path(settings)
    if not path.exists():
        raise no_books(path)
    async with _ledger(path) as ledger:
        states = await ledger.sources()
        chosen = [state for state in states if only in (None, state.source)]
        if not chosen:
            known = ", ".join(state.source for state in states) or "none"
            raise CannotStart(f"the books have no source {only or ''}: they have {known}")
        for state in chosen:
            await ledger.reset(state.source, type(state.position)())
        return [state.source for state in chosen]


def no_books(path: Path) -> CannotStart:
    """The error of a command that needs books."""
    return CannotStart(f"there are no books in {path.absolute()}: `switchyard up` creates them")


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
async def _journal(settings: Settings) -> AsyncIterator[JournalSource]:
    database = await open_database(settings)
    try:
        yield JournalSource(database.journal)
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
