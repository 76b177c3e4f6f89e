"""Checkpoints of a SQLite file: commits never fail because of one, and the WAL restarts under continuous load."""

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import apsw
import pytest
from structlog.testing import capture_logs

from switchyard.adapters.backoffice.reads import SqlLedgerDump
from switchyard.adapters.backoffice.sqlite.ledger import SqliteLedger
from switchyard.adapters.sqlite import connections as module
from switchyard.adapters.sqlite.connections import Connections, connect
from switchyard.domain.errors import JournalUnavailable
from tests.support.polling import DEADLINE_SECONDS, until
from tests.support.posting import Posting, digest
from tests.support.tape import Tape

# A few commits of these tests, so that they cross both limits often.
PAGES, PAGES_MAX = 8, 32
# Far above a commit, far below the minute for which SQLite waits for a lock.
COMMIT_SECONDS_MAX = 40.0


class AtSync(apsw.VFS):
    """The default VFS while it is in use; the checkpointer thread calls `then` where it flushes the database.

    It calls `before` where it flushes the WAL, once it knows how much of it may be copied. While `failing` is set, no
    thread can write to the database, or flush it.
    """

    def __init__(self) -> None:
        self.then: Callable[[], object] = lambda: None
        self.before: Callable[[], object] = lambda: None
        self.failing: Literal["write", "flush"] | None = None
        self.failed_in: set[str] = set()
        """The threads that could not write or flush."""
        super().__init__("at-sync", "unix", makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> "_File":  # noqa: N802
        return _File(self, name, flags)


class _File(apsw.VFSFile):
    def __init__(self, vfs: AtSync, name: Any, flags: list[int]) -> None:
        self._is_database = bool(flags[0] & apsw.SQLITE_OPEN_MAIN_DB)
        self._is_wal = bool(flags[0] & apsw.SQLITE_OPEN_WAL)
        super().__init__("unix", name, flags)
        self._vfs = vfs

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._fail_at("write", apsw.FullError("no space left"))
        super().xWrite(data, offset)

    def _fail_at(self, step: Literal["write", "flush"], error: apsw.Error) -> None:
        if self._is_database and self._vfs.failing == step:
            self._vfs.failed_in.add(threading.current_thread().name.partition("_")[0])
            raise error

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._fail_at("flush", apsw.IOError("fsync failed"))
        super().xSync(flags)
        if threading.current_thread().name == "sqlite-checkpointer":
            if self._is_database:
                self._vfs.then()
            elif self._is_wal:
                self._vfs.before()


@pytest.fixture
def vfs() -> Iterator[AtSync]:
    registered = AtSync()
    yield registered
    registered.unregister()


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECKPOINT_PAGES", PAGES)
    monkeypatch.setattr(module, "CHECKPOINT_PAGES_MAX", PAGES_MAX)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.001)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with connect(tmp_path / "some.db") as connection:
        connection.execute("CREATE TABLE numbers (number INTEGER PRIMARY KEY)")
    connection.close()
    return tmp_path / "some.db"


@pytest.fixture
async def opened(vfs: AtSync, path: Path) -> AsyncIterator[Connections]:
    connections = Connections(path)
    yield connections
    vfs.then = vfs.before = lambda: None
    vfs.failing = None
    await asyncio.to_thread(connections.close)


def add_number(connection: apsw.Connection) -> None:
    """A transaction that reads before it writes."""
    with connection:
        last = connection.execute("SELECT max(number) FROM numbers").get or 0
        connection.execute("INSERT INTO numbers VALUES (?)", (last + 1,))


async def commit(connections: Connections) -> None:
    await asyncio.wait_for(connections.write(add_number), COMMIT_SECONDS_MAX)


def wal_pages(connection: apsw.Connection) -> int:
    pages, _ = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    return pages


async def commit_until_the_wal_restarts(connections: Connections) -> None:
    pages = 0

    async def has_restarted() -> bool:
        nonlocal pages
        before = pages
        await commit(connections)
        pages = await connections.write(wal_pages)
        return pages < before

    await until(has_restarted, lambda: f"{pages} pages")


async def test_a_transaction_that_reads_first_waits_for_another_writer(opened: Connections, path: Path) -> None:
    other = connect(path)
    other.execute("BEGIN IMMEDIATE")

    def end_the_other(_tries: int) -> bool:
        other.execute("ROLLBACK")
        return True

    opened.writer.set_busy_handler(end_the_other)
    await commit(opened)
    assert not other.in_transaction
    other.close()


async def test_the_wal_restarts_although_commits_are_added_during_every_checkpoint(
    vfs: AtSync, opened: Connections
) -> None:
    loop, added = asyncio.get_running_loop(), 0

    def add_one() -> None:
        nonlocal added
        asyncio.run_coroutine_threadsafe(commit(opened), loop).result(DEADLINE_SECONDS)
        added += 1

    vfs.then = add_one
    for _ in range(5):
        await commit_until_the_wal_restarts(opened)
    assert added >= 5


async def test_a_reader_that_does_not_end_stops_no_commit(opened: Connections, path: Path) -> None:
    await commit(opened)
    reader = connect(path, readonly=True)
    rows = reader.execute("SELECT number FROM numbers UNION ALL SELECT 0")
    next(rows)
    while await opened.write(wal_pages) < 4 * PAGES_MAX:
        await commit(opened)
    rows.close()
    await commit_until_the_wal_restarts(opened)
    reader.close()


async def test_a_reader_that_keeps_the_wal_from_being_restarted_is_reported_until_it_ends(
    opened: Connections, path: Path
) -> None:
    reports = 0

    def note() -> None:
        nonlocal reports
        reports += 1

    opened.on_held_wal = note
    for _ in range(3):
        await commit_until_the_wal_restarts(opened)
    await commit(opened)
    before, reader = reports, connect(path, readonly=True)
    rows = reader.execute("SELECT number FROM numbers UNION ALL SELECT 0")
    next(rows)

    async def is_reported() -> bool:
        await commit(opened)
        return reports > before

    await until(is_reported)
    assert await opened.write(wal_pages) < 8 * PAGES_MAX
    rows.close()
    await commit_until_the_wal_restarts(opened)
    reader.close()


async def test_another_process_reads_beside_the_writer_and_leaves_no_transaction_open(
    opened: Connections, path: Path
) -> None:
    other = Connections(path, readonly=True)
    await commit(opened)
    assert await other.read(lambda connection: connection.execute("SELECT count(*) FROM numbers").get) == 1
    await commit(opened)
    assert await other.read(lambda connection: connection.execute("SELECT count(*) FROM numbers").get) == 2
    with pytest.raises(apsw.ReadOnlyError):
        await other.write(add_number)
    cursors: list[apsw.Cursor] = []

    def begin(connection: apsw.Connection) -> None:
        connection.execute("BEGIN; SELECT * FROM numbers").fetchall()

    def keep_a_cursor(connection: apsw.Connection) -> None:
        cursors.append(connection.execute("SELECT * FROM numbers"))

    for defect in (begin, keep_a_cursor):
        with pytest.raises(JournalUnavailable, match="left its transaction open"):
            await other.read(defect)
        await commit_until_the_wal_restarts(opened)
    begun, go_on = threading.Event(), threading.Event()

    def long_read(_: apsw.Connection) -> None:
        begun.set()
        go_on.wait(DEADLINE_SECONDS)

    assert other.longest_read_seconds() == 0
    reading = other.read(long_read)
    await asyncio.to_thread(begun.wait)
    await until(lambda: other.longest_read_seconds() > 0)
    go_on.set()
    await reading
    assert other.longest_read_seconds() == 0
    await asyncio.to_thread(other.close)


@pytest.mark.parametrize("step", ["write", "flush"])
async def test_a_database_that_cannot_be_written_stops_no_commit_and_loses_none(
    vfs: AtSync, opened: Connections, path: Path, tmp_path: Path, step: Literal["write", "flush"]
) -> None:
    """The WAL takes the commits until checkpoints work again: those of the thread, and the restart by the writer."""
    vfs.failing, count = step, 0

    async def both_have_failed() -> bool:
        nonlocal count
        await commit(opened)
        count += 1
        # The thread has nothing to copy once the writer's part begins, so its failures end there.
        if vfs.failed_in == {"sqlite-checkpointer"} and await opened.write(wal_pages) >= PAGES_MAX:
            # Or the thread holds the lock of the checkpoint.
            with pytest.raises((apsw.FullError, apsw.IOError, apsw.BusyError)):
                await opened.write(lambda _: opened._restart_wal())
        return vfs.failed_in == {"sqlite-checkpointer", "sqlite-writer"}

    with capture_logs() as logs:
        await until(both_have_failed, lambda: str(vfs.failed_in))
    assert {entry["event"] for entry in logs} == {"wal_checkpoint_failed"}
    left = tmp_path / "copy"
    left.mkdir()
    for name in (path.name, f"{path.name}-wal"):
        shutil.copy(path.with_name(name), left / name)
    vfs.failing = None
    with connect(left / path.name) as copy:
        assert copy.execute("SELECT count(*), max(number) FROM numbers").fetchall() == [(count, count)]
        assert copy.pragma("integrity_check") == "ok"
    copy.close()
    await commit_until_the_wal_restarts(opened)


async def test_the_wal_restarts_although_short_reads_follow_each_other(
    vfs: AtSync, opened: Connections, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every checkpoint some read does not see the newest commit yet, which is therefore not copied."""
    monkeypatch.setattr(module, "CHECKPOINT_PAGES", 4 * PAGES)  # more than the commits of a pause between the reads
    readers, using = [connect(path, readonly=True) for _ in range(2)], threading.Lock()
    pages = pause = 0

    def end(*ended: apsw.Connection) -> None:
        with using:
            for reader in ended:
                if reader.in_transaction:
                    reader.execute("ROLLBACK")

    def end_all() -> None:
        nonlocal pause
        pause = 3
        end(*readers)

    async def has_restarted() -> bool:
        nonlocal pages, pause
        before, (earlier, later) = pages, readers
        with using:
            if pause:
                pause -= 1
            else:
                later.execute("BEGIN")
                later.execute("SELECT max(number) FROM numbers").fetchall()
        await commit(opened)
        end(earlier)
        readers.reverse()
        pages = await opened.write(wal_pages)
        return pages < before

    vfs.before = end_all
    await until(has_restarted, lambda: f"{pages} pages")
    end_all()
    for reader in readers:
        reader.close()


async def test_a_reader_that_begins_during_a_checkpoint_delays_commits_only_briefly(
    vfs: AtSync, opened: Connections, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECKPOINT_PAGES_MAX", PAGES)  # the writer thread copies the rest of every checkpoint
    loop, reader = asyncio.get_running_loop(), connect(path, readonly=True)

    def begin_to_read() -> None:
        # Before a commit that only the rest of this checkpoint would copy.
        if not reader.in_transaction:
            reader.execute("BEGIN")
            reader.execute("SELECT max(number) FROM numbers").fetchall()
        asyncio.run_coroutine_threadsafe(commit(opened), loop).result(DEADLINE_SECONDS)

    async def has_given_up() -> bool:
        await commit(opened)
        return any(line["event"] == "wal_checkpoint_failed" for line in lines)

    vfs.then = begin_to_read
    with capture_logs() as lines:
        await until(has_given_up)
    vfs.then = lambda: None
    assert opened.writer.pragma("busy_timeout") == module.BUSY_MILLISECONDS
    reader.execute("ROLLBACK")
    await commit_until_the_wal_restarts(opened)
    reader.close()


async def test_books_take_every_page_while_their_file_is_checkpointed(tmp_path: Path) -> None:
    tape = Tape()
    for number in range(200):
        tape.accept(f"ord_{number}", account=f"account-{number % 20}")
        tape.fill(f"ord_{number}", f"e{number}", Decimal(10), account=f"account-{number % 20}")
    ledger = await SqliteLedger.open(tmp_path / "books.db")
    posting = await Posting.of(ledger)
    for start in range(0, len(tape.events), 6):
        await posting.post(tape.events[start : start + 6])
    assert await ledger.count() == 400
    at_once = await SqliteLedger.open(tmp_path / "at-once.db")
    await (await Posting.of(at_once)).post(tape.events)
    assert await digest(SqlLedgerDump(ledger)) == await digest(SqlLedgerDump(at_once))
    await ledger.close()
    await at_once.close()


async def test_closing_copies_the_whole_wal_into_the_file(path: Path, tmp_path: Path) -> None:
    for count in range(1, 11):
        connections = Connections(path)
        await asyncio.gather(*(commit(connections) for _ in range(PAGES_MAX)))
        await asyncio.to_thread(connections.close)
        shutil.copyfile(path, tmp_path / "copy.db")
        copy = apsw.Connection(str(tmp_path / "copy.db"))
        assert copy.execute("SELECT count(*) FROM numbers").get == count * PAGES_MAX
        copy.close()
