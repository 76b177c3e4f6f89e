"""The configured database, as a process, a tool or a person needs it."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from switchyard.adapters.postgres.database import PostgresDatabase
from switchyard.adapters.postgres.order_dump import PostgresOrderDump
from switchyard.adapters.postgres.outbox_listing import PostgresOutboxListing
from switchyard.adapters.postgres.rebuild import PostgresRebuild
from switchyard.adapters.sqlite.database import SqliteDatabase
from switchyard.adapters.sqlite.order_dump import SqliteOrderDump
from switchyard.adapters.sqlite.outbox_listing import SqliteOutboxListing
from switchyard.adapters.sqlite.rebuild import SqliteRebuild
from switchyard.adapters.system_clock import SystemClock, SystemRandomness
from switchyard.domain.changes import Change, Outcome
from switchyard.domain.events import Verdict
from switchyard.domain.orders import Order
from switchyard.flow.decide import Commit
from switchyard.flow.history.restore import declare_restored
from switchyard.flow.history.verify import head_path_of
from switchyard.flow.sending.operator import end_doubt
from switchyard.ports.journal import Journal
from switchyard.ports.keys import KeyStore
from switchyard.ports.lanes import Lanes
from switchyard.ports.liveness import Liveness
from switchyard.ports.outbox_listing import OutboxListing
from switchyard.ports.queries import Queries
from switchyard.ports.randomness import fresh_ulid
from switchyard.ports.rebuild import Epochs, OrderDump
from switchyard.settings import Settings


class EpochJournal(Journal, Epochs, Protocol):
    """A journal whose past can be replaced."""


class Database(Protocol):
    """What an engine offers, whichever it is."""

    @property
    def journal(self) -> EpochJournal:
        """The write port."""
        ...

    @property
    def queries(self) -> Queries:
        """The lookups."""
        ...

    @property
    def liveness(self) -> Liveness:
        """Who is alive."""
        ...

    @property
    def lanes(self) -> Lanes:
        """Who sends what."""
        ...

    @property
    def keys(self) -> KeyStore:
        """What keys stand for."""
        ...

    def listen(self, callback: Callable[[], None]) -> None:
        """Call back when another process has written."""
        ...

    async def close(self) -> None:
        """Let go."""
        ...


def sqlite_path(settings: Settings) -> Path:
    """Where the embedded database lives."""
    return settings.data_dir / "switchyard.db"


def head_path(settings: Settings) -> Path:
    """What a worker remembers of the journal."""
    return settings.data_dir / "head.json"


async def open_database(settings: Settings) -> Database:
    """The configured engine, on the schema that this version needs."""
    if settings.database_url is not None:
        return await PostgresDatabase.open(settings.database_url)
    return await SqliteDatabase.open(sqlite_path(settings))


async def upgrade_database(settings: Settings) -> int:
    """Bring the schema to this version."""
    if settings.database_url is not None:
        return await PostgresDatabase.upgrade(settings.database_url)
    return await SqliteDatabase.upgrade(sqlite_path(settings))


async def upgrade_if_new(settings: Settings) -> None:
    """Give an empty database its schema; an older one is upgraded only when somebody says so."""
    if settings.database_url is not None:
        if await PostgresDatabase.is_new(settings.database_url):
            await PostgresDatabase.upgrade(settings.database_url)
    elif await SqliteDatabase.is_new(sqlite_path(settings)):
        await SqliteDatabase.upgrade(sqlite_path(settings))


def rebuild_target(settings: Settings) -> SqliteRebuild | PostgresRebuild:
    """The configured database as the target of a replay."""
    if settings.database_url is not None:
        return PostgresRebuild(settings.database_url)
    return SqliteRebuild(sqlite_path(settings))


def order_dump(settings: Settings) -> OrderDump:
    """All orders of the configured database."""
    if settings.database_url is not None:
        return PostgresOrderDump(settings.database_url)
    return SqliteOrderDump(sqlite_path(settings))


def outbox_listing(settings: Settings) -> OutboxListing:
    """The configured database's outbox, to look at."""
    if settings.database_url is not None:
        return PostgresOutboxListing(settings.database_url)
    return SqliteOutboxListing(sqlite_path(settings))


async def decide_doubt(settings: Settings, row_id: str, verdict: Verdict, by: str, reason: str) -> Order:
    """Record a person's decision, straight into the journal."""
    database = await open_database(settings)
    try:
        commit = committing(database)
        clock = SystemClock()
        return await end_doubt(database.journal, commit, clock, row_id=row_id, verdict=verdict, by=by, reason=reason)
    finally:
        await database.close()


async def accept_restored(settings: Settings) -> tuple[int, int]:
    """Take an older database for the true one: a new epoch, doubt about the unfinished, files of the past aside."""
    database = await open_database(settings)
    try:
        epoch, rows = await declare_restored(
            database.journal, database.queries, committing(database), SystemClock(), SystemRandomness()
        )
    finally:
        await database.close()
    for path in (settings.audit_path, head_path_of(settings.audit_path), head_path(settings)):
        if path.exists():
            path.rename(path.with_name(f"{path.name}.before-epoch-{epoch}"))
    return epoch, rows


def committing(database: Database) -> Commit:
    """Commits of a tool that is the only one of its process to write: each change in a group of its own."""
    clock, randomness = SystemClock(), SystemRandomness()

    async def commit(change: Change) -> Outcome:
        group_id = fresh_ulid(clock, randomness)
        return (await database.journal.append(0, group_id, [change], clock.now()))[0]

    return commit
