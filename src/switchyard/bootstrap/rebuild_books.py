"""Builds the books again from the journal, to compare them with those in use or to replace them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from switchyard.bootstrap.books import books_path, books_url, existing_books
from switchyard.bootstrap.databases import open_database
from switchyard.bootstrap.new_books import NewFile, NewSchema
from switchyard.domain.errors import HistoryMismatch
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
from switchyard.flow.backoffice.source import JOURNAL, JournalSource
from switchyard.ports.books import Ledger
from switchyard.settings import Settings


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
