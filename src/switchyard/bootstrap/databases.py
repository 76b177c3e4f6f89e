"""Opens the database of the settings, with its kept heads and data files, and closes it."""

import os
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from switchyard.adapters.files.audit_file import LocalAuditFile, path_before
from switchyard.adapters.files.durable import lock_beside, own_files, prepare_data_folder
from switchyard.adapters.files.head_file import LocalHeadFile, head_path_of
from switchyard.adapters.postgres.database import PostgresDatabase
from switchyard.adapters.postgres.migrations import PostgresRebuild
from switchyard.adapters.postgres.queries import PostgresOrderDump, PostgresOutboxListing
from switchyard.adapters.sqlite.database import SqliteDatabase
from switchyard.adapters.sqlite.migrations import SqliteRebuild
from switchyard.adapters.sqlite.queries import SqliteOrderDump, SqliteOutboxListing
from switchyard.adapters.system_clock import SystemClock, SystemRandomness, boot_id
from switchyard.bootstrap.capabilities import declared_capabilities, is_remote
from switchyard.domain.errors import AlreadyRunning, CannotStart, HistoryMismatch, SettingError
from switchyard.domain.ids import VenueName
from switchyard.domain.journal.changes import Change, Outcome
from switchyard.domain.journal.facts import DecisionFact
from switchyard.domain.journal.lines import SignedHead, parse_head
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.orders.order import Order
from switchyard.flow.clock import DatabaseClock
from switchyard.flow.commit.sequencer import Commit
from switchyard.flow.health.venues import health_name, is_reported
from switchyard.flow.history.restore import Append, Restored, check_not_restoring, declare_newest, declare_restored
from switchyard.flow.kill.switch import KillSwitch
from switchyard.flow.readers.head import head_content, place_of
from switchyard.flow.results import OrderResults
from switchyard.flow.sending.operator import Decider, declared, declared_name, end_doubt, settling_in
from switchyard.ports.bus import RelayLeases
from switchyard.ports.clock import Clock, boot_seconds, fresh_ulid
from switchyard.ports.journal import DatabaseTime, Epochs, Head, HeadFile, Journal, Liveness
from switchyard.ports.outbox import Lanes, OutboxListing, OutboxQueries, VenueSessions
from switchyard.ports.queries import Accounts, Exposures, KeyStore, Kills, OrderDump, Queries, Reservations
from switchyard.ports.strategies import StrategyOrders
from switchyard.settings import Settings, journal_key
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

# Files of the data folder that a reset keeps.
_SECRETS = ("jwt_secret", "journal_key", "bus_key")


def audit_files(path: Path) -> tuple[LocalAuditFile, LocalHeadFile]:
    """An audit file and its head file."""
    return LocalAuditFile(path), LocalHeadFile(head_path_of(path))


def head_files(settings: Settings, installation: str) -> list[HeadFile]:
    """The copies of the journal's head: in the data folder, in the state folder, and on Redis if one is set.

    The one in the state folder begins when orders may leave the process: what was only tried out on paper may be
    deleted with its data folder.
    """
    files: list[HeadFile] = [LocalHeadFile(_head_path(settings))]
    state_path = settings.state_dir / f"head-{installation}.json"
    if settings.sends_elsewhere or state_path.exists():
        files.append(LocalHeadFile(state_path, is_shared=True))
    redis_url = settings.idempotency.cache.redis_url
    if redis_url is not None:
        from switchyard.adapters.redis.installation import RedisHead  # loading the client takes long

        files.append(RedisHead(redis_url, installation))
    return files


def database_place(settings: Settings) -> str:
    """The place of the configured database, without credentials: the data folder, or the server and database name."""
    if settings.database_url is None:
        return str(settings.data_dir.absolute())
    address = settings.database_url.partition("://")[2].partition("?")[0]
    return "postgresql://" + address.rpartition("@")[2]


def check_none_is_missing(settings: Settings) -> None:
    """Raise CannotStart before a new database is created where the state folder knows one: that one is missing."""
    found = _kept_outside(settings)
    if found is not None:
        path, head = found
        raise CannotStart(
            f"there is no database in {database_place(settings)}, but there was one, up to seq {head.seq} ({path}). "
            "Mount its volume or put the database back; if a new database is meant, which knows none of the orders and "
            f"keys of the old one, remove {path}"
        )


def _kept_outside(settings: Settings) -> tuple[Path, SignedHead] | None:
    """The head of the configured database in the state folder, with its path; None if there is none."""
    place = database_place(settings)
    for path in sorted(settings.state_dir.glob("head-*.json")):
        head = _readable_head(LocalHeadFile(path))
        if head is not None and head.database == place:
            return path, head
    return None


class Reset(msgspec.Struct, frozen=True, kw_only=True):
    """What a reset deletes."""

    folder: Path
    files: list[Path]
    bytes: int


@contextmanager
def resetting(settings: Settings) -> Iterator[Reset]:
    """Yield what is in the data folder, and delete it at the end; CannotStart unless all its orders were on paper.

    The secrets stay, and so do the tokens that were made with them.
    """
    folder, path = settings.data_dir, sqlite_path(settings)
    if settings.database_url is not None:
        raise CannotStart(
            "a reset deletes a data folder with SQLite: on PostgreSQL, drop the database and create it anew"
        )
    kept = _kept_outside(settings)
    if kept is not None or settings.sends_elsewhere:
        why = "a venue outside this process is set" if kept is None else f"a venue may have its orders ({kept[0]})"
        raise CannotStart(
            f"{folder.absolute()} is not deleted, because {why}: without the database a repeated key would be executed "
            "again. Move the folder aside instead"
        )
    if not folder.exists():
        yield Reset(folder=folder.absolute(), files=[], bytes=0)
        return
    lock = lock_beside(path)
    if lock is None:
        raise AlreadyRunning(f"a process uses {folder.absolute()}: stop it first")
    try:
        audit = settings.audit_path
        found = {*own_files(folder), *filter(Path.exists, (audit, head_path_of(audit)))}
        files = sorted(file for file in found if file.name not in _SECRETS and file.suffix != ".lock")
        yield Reset(folder=folder.absolute(), files=files, bytes=sum(file.stat().st_size for file in files))
        for file in files:
            file.unlink(missing_ok=True)
    finally:
        os.close(lock)


def audit_head(path: Path) -> SignedHead | None:
    """The head beside an audit file, with an unchecked signature; none if there is no readable one."""
    return _readable_head(LocalHeadFile(head_path_of(path)))


def highest_place(settings: Settings, installation: str) -> Head:
    """The highest epoch and the highest number in the audit file and in all copies of the head."""
    audit, audit_head_file = audit_files(settings.audit_path)
    places = [Head(0, 0, "")]
    try:
        places.append(audit.last())
    except (OSError, HistoryMismatch) as error:
        log.warning("audit_file_not_read", path=audit.name, error=str(error))
    for file in (audit_head_file, *head_files(settings, installation)):
        head = _readable_head(file)
        if head is not None:
            places.append(place_of(head))
    return Head(max(place.epoch for place in places), max(place.seq for place in places), "")


def move_files_aside(settings: Settings, epoch: int) -> None:
    """Rename the audit and head files that describe the journal before the epoch, so that new ones are started."""
    for path in (settings.audit_path, head_path_of(settings.audit_path), _head_path(settings)):
        if path.exists():
            path.rename(path_before(path, epoch))


def write_heads(settings: Settings, installation: str, head: Head, clock: Clock) -> None:
    """Write the head to all copies that can be written; the others are written by the next process that runs."""
    content = head_content(head, 0, clock.now(), journal_key(settings), installation, database_place(settings))
    for file in head_files(settings, installation):
        try:
            with file.locked():
                file.write(content)
        except OSError as error:
            log.warning("head_write_failed", path=file.name, error=str(error))
        finally:
            file.close()


def _readable_head(file: HeadFile) -> SignedHead | None:
    try:
        return parse_head(file.name, file.read(), None)
    except (OSError, HistoryMismatch) as error:
        log.warning("head_not_read", path=file.name, error=str(error))
        return None


def _head_path(settings: Settings) -> Path:
    return settings.data_dir / "head.json"


class EpochJournal(Journal, Epochs, Exposures, Reservations, Protocol):
    """A journal in which a new epoch can be opened, with the totals that its append checks."""


class DatabaseQueries(Queries, OutboxQueries, Protocol):
    """The queries of people and of the stages."""


class Database(Protocol):
    """The ports that both engines implement."""

    async def identity(self) -> str:
        """Which database this is among copies of it: the same for all processes that use it, another one for a copy."""

    @property
    def journal(self) -> EpochJournal:
        """Load, append and read."""

    @property
    def queries(self) -> DatabaseQueries:
        """Read-only queries."""

    @property
    def liveness(self) -> Liveness:
        """Which workers are alive."""

    @property
    def lanes(self) -> Lanes:
        """Which worker owns which lanes."""

    @property
    def sessions(self) -> VenueSessions:
        """Which worker holds the session of a venue that admits one."""

    @property
    def relay_leases(self) -> RelayLeases:
        """Which relay publishes to a topic, and how far it is."""

    @property
    def time(self) -> DatabaseTime:
        """The wall clock and the offset that processes share."""

    @property
    def keys(self) -> KeyStore:
        """The idempotency keys."""

    @property
    def accounts(self) -> Accounts:
        """What accounts have open."""

    @property
    def kills(self) -> Kills:
        """The kills, and the orders that each has to end."""

    @property
    def strategy_orders(self) -> StrategyOrders:
        """The orders of strategies, for rechecks."""

    def listen(self, callback: Callable[[], None]) -> None:
        """Call back after a commit of another process."""

    def on_held_wal(self, callback: Callable[[], None]) -> None:
        """Call back while a reader keeps a SQLite file's WAL from being restarted; never on PostgreSQL."""

    def longest_read_seconds(self) -> float:
        """How long the oldest read of a SQLite file that another process writes has lasted; 0 on PostgreSQL."""

    async def close(self) -> None:
        """Close the connections."""


def sqlite_path(settings: Settings) -> Path:
    """The file of the embedded database."""
    return settings.data_dir / "switchyard.db"


async def open_database(settings: Settings, *, readonly: bool = False) -> Database:
    """Open the configured database; raises SchemaMismatch unless it has the schema of this version.

    `readonly`: beside the process that writes to a SQLite file. PostgreSQL serves many processes.
    """
    if settings.database_url is not None:
        return await PostgresDatabase.open(settings.database_url)
    if readonly:
        return await SqliteDatabase.open_readonly(sqlite_path(settings))
    return await SqliteDatabase.open(sqlite_path(settings))


async def upgrade_database(settings: Settings, *, rebuilding: bool = False) -> int:
    """Upgrade the schema to this version, and return its number; a new database must not replace a missing one.

    With `rebuilding` it may, because the missing one is about to be rebuilt.
    """
    if not rebuilding and await _is_new(settings):
        check_none_is_missing(settings)
    if settings.database_url is None:
        prepare_data_folder(settings.data_dir)
    return await _upgrade(settings)


async def upgrade_if_new(settings: Settings) -> bool:
    """Create the schema in an empty database, and return whether it was empty.

    An older schema is upgraded only by `switchyard db upgrade`.
    """
    prepare_data_folder(settings.data_dir)
    is_new = await _is_new(settings)
    if is_new:
        check_none_is_missing(settings)
        await _upgrade(settings)
    return is_new


async def _upgrade(settings: Settings) -> int:
    if settings.database_url is not None:
        return await PostgresDatabase.upgrade(settings.database_url)
    return await SqliteDatabase.upgrade(sqlite_path(settings))


async def _is_new(settings: Settings) -> bool:
    """Whether the configured database is missing or empty."""
    if settings.database_url is not None:
        return await PostgresDatabase.is_new(settings.database_url)
    return await SqliteDatabase.is_new(sqlite_path(settings))


def rebuild_target(settings: Settings) -> SqliteRebuild | PostgresRebuild:
    """The configured database as a replay's target."""
    if settings.database_url is not None:
        return PostgresRebuild(settings.database_url)
    return SqliteRebuild(sqlite_path(settings))


def order_dump(settings: Settings) -> OrderDump:
    """All orders in the configured database."""
    if settings.database_url is not None:
        return PostgresOrderDump(settings.database_url)
    return SqliteOrderDump(sqlite_path(settings))


def outbox_listing(settings: Settings) -> OutboxListing:
    """The outbox of the configured database, read-only."""
    if settings.database_url is not None:
        return PostgresOutboxListing(settings.database_url)
    return SqliteOutboxListing(sqlite_path(settings))


async def deciders(
    listing: OutboxListing, venues: Iterable[VenueName], running: Collection[VenueName] | None = None
) -> dict[VenueName, Decider]:
    """The workers that settle the doubts at the venues, by what they wrote into the database.

    `running`: the venues for which one is known to run; by default those on which one has reported lately.
    """
    named = list(venues)
    found, now = await listing.cursors([name(venue) for venue in named for name in (declared_name, health_name)])

    def is_running(venue: VenueName) -> bool:
        return is_reported(found.get(health_name(venue)), now) if running is None else venue in running

    return {
        venue: Decider(settling=settling_in(found.get(declared_name(venue))), is_running=is_running(venue))
        for venue in named
    }


async def decide_doubt(settings: Settings, row_id: str, decision: DecisionFact) -> Order:
    """Record an operator's decision about an uncertain row, without a running server."""
    database = await open_database(settings)
    try:
        await database.journal.head(0)
        await check_not_restoring(database.journal)
        clock = await started_clock(database)
        direct_commit = _direct_commit(database, clock)
        catalogue = Catalogue(settings.instruments)
        results = OrderResults(queries=database.queries, catalogue=catalogue, metrics=Metrics())

        async def commit(change: Change) -> Outcome:
            return await direct_commit(await results.complete(change))

        return await end_doubt(
            database.journal,
            database.queries,
            commit,
            clock,
            row_id=row_id,
            decision=decision,
            lookup_decides=partial(_lookup_decides_anywhere, settings, database.journal),
        )
    finally:
        await database.close()


@asynccontextmanager
async def direct_kill_switch(settings: Settings) -> AsyncIterator[KillSwitch]:
    """The kill switch of a database, without a running server."""
    database = await open_database(settings)
    try:
        yield await kill_switch_of(database, settings)
    finally:
        await database.close()


async def kill_switch_of(database: Database, settings: Settings) -> KillSwitch:
    """The kill switch of an open database, for a process without a sequencer."""
    await database.journal.head(0)
    await check_not_restoring(database.journal)
    clock = await started_clock(database)
    return KillSwitch(
        journal=database.journal,
        kills=database.kills,
        commit=_direct_commit(database, clock),
        clock=clock,
        randomness=SystemRandomness(),
        venues=settings.venue_names,
    )


def lookup_decides(settings: Settings, venue: VenueName) -> bool:
    """Whether lookups at the venue settle every doubt in the end, so that no person may decide `not-sent`.

    A venue that is not configured cannot be asked. A venue that deduplicates nothing can show that it has an order, but
    its `absent` is never followed by anything.
    """
    return any(
        configured.name == venue and is_remote(configured) and declared_capabilities(configured).proves_absence
        for configured in settings.venues
    )


async def _lookup_decides_anywhere(settings: Settings, journal: Journal, venue: VenueName) -> bool:
    """The same for a command, whose shell may lack the venue's settings: a worker's declaration holds too."""
    by_workers = await declared(journal, venue)
    is_known_here = any(configured.name == venue and is_remote(configured) for configured in settings.venues)
    if by_workers is None and not is_known_here:
        raise SettingError(
            f"VENUE_URL_{venue.upper()}",
            f"no worker has opened {venue} on this database, and it is no broker in this shell: set it and the other "
            f"VENUE_ settings of {venue} as the workers have them, because they tell whether a person may decide",
        )
    return bool(by_workers) or lookup_decides(settings, venue)


async def accept_restored(settings: Settings) -> Restored:
    """Declare the database restored, and move the audit and head files of the replaced one aside."""
    database = await open_database(settings)
    journal = database.journal
    try:
        clock = await started_clock(database)
        installation = (await journal.installation()).id
        restored = await declare_restored(
            journal,
            journal,
            database.queries,
            _direct_append(database, clock),
            clock,
            SystemRandomness(),
            above=highest_place(settings, installation),
            finishing=lambda epoch: move_files_aside(settings, epoch),
        )
        write_heads(settings, installation, await journal.head(0), clock)
        return msgspec.structs.replace(restored, kills=len(await database.kills.active()))
    finally:
        await database.close()


async def accept_newest(settings: Settings, by: str, reason: str) -> int:
    """Record that the database is the newest, and replace the copies of the head that say otherwise."""
    database = await open_database(settings)
    journal = database.journal
    try:
        clock = await started_clock(database)
        installation = (await journal.installation()).id
        above = highest_place(settings, installation)
        epoch = await declare_newest(journal, journal, _direct_append(database, clock), clock, above, by, reason)
        move_files_aside(settings, epoch)
        write_heads(settings, installation, await journal.head(0), clock)
    finally:
        await database.close()
    return epoch


def _direct_append(database: Database, clock: Clock) -> Append:
    """Commit groups for a command that runs no sequencer."""
    randomness = SystemRandomness()

    async def append(changes: Sequence[Change]) -> list[Outcome]:
        return await database.journal.append(0, fresh_ulid(clock, randomness), changes, clock.now())

    return append


async def started_clock(database: Database, metrics: Metrics | None = None) -> DatabaseClock:
    """The time of the database's processes: an event that is dated ahead would move their next start ahead."""
    clock = DatabaseClock(database.time, SystemClock(), metrics or Metrics(), ticks=boot_seconds, boot_id=boot_id())
    await clock.start()
    return clock


def _direct_commit(database: Database, clock: Clock) -> Commit:
    """Commit for a command that runs no sequencer: each change is a group of its own."""
    append = _direct_append(database, clock)

    async def commit(change: Change) -> Outcome:
        return (await append([change]))[0]

    return commit
