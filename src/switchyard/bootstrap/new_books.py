"""The place of books that are built again, beside those in use: another file, or another schema."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from switchyard.adapters.backoffice.ledger import SqliteLedger, locked_books
from switchyard.adapters.backoffice.postgres.ledger import (
    BOOKS,
    PostgresLedger,
    drop_books,
    has_books,
    replace_books,
)
from switchyard.adapters.backoffice.postgres.turn import PostgresTurn, take_rebuilt
from switchyard.adapters.files.durable import sync_folder
from switchyard.adapters.files.private import create_file
from switchyard.adapters.postgres.connection import single_connection
from switchyard.bootstrap.books import OpenBooks
from switchyard.domain.errors import AlreadyRunning, CannotStart

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
        turn = PostgresTurn(self._url)
        try:
            if not await turn.is_ours():
                raise AlreadyRunning("another process keeps the books in this database: stop it first")
            yield
        finally:
            await turn.give_up()

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
