"""The journal's identity on every engine: installation, epochs, and the append that rejects another history."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import apsw
import msgspec
import pytest

from switchyard.adapters.backoffice.sqlite.breaks import SqliteBreaks
from switchyard.adapters.backoffice.sqlite.ledger import SqliteLedger
from switchyard.adapters.postgres.database import PostgresDatabase
from switchyard.adapters.sqlite import connections
from switchyard.adapters.sqlite.connections import OpenFiles, connect
from switchyard.adapters.sqlite.database import SqliteDatabase
from switchyard.domain.errors import HistoryMismatch, JournalBroken
from switchyard.domain.journal.changes import Cursor
from switchyard.domain.journal.lines import Place
from switchyard.flow.history.replay import ChainBroken, ChainWalk
from switchyard.ports.journal import EPOCH_GAP, Head, Journal
from tests.support.audit_fixture import AuditFixture
from tests.support.build import an_accept
from tests.support.databases import Database, run_sql
from tests.support.memory.clock import START
from tests.support.memory.database import MemoryDatabase
from tests.support.memory.journal import MemoryJournal
from tests.support.postgres import PostgresServer
from tests.support.stream_journal import StreamJournal, dispatch, hub_over, take

MARKER = Cursor(name="marker", epoch=0, seq=0, hash="why")


async def commit(journal: Journal, group: str) -> None:
    await journal.append(0, group, [an_accept()], START)


async def lose_the_last_event(database: Database) -> None:
    """Put the journal back by one event, as a restored backup would."""
    if isinstance(database, MemoryDatabase):
        database.journal.events[0].pop()
        return
    [(seq,)] = await run_sql(database, "SELECT max(seq) FROM events")
    await run_sql(database, f"DELETE FROM events WHERE seq = {seq}")
    before = f"SELECT hash FROM journal WHERE seq = {seq - 1}"
    await run_sql(database, f"UPDATE journal_heads SET seq = {seq - 1}, hash = ({before}) WHERE shard = 0")


async def event_count(journal: Journal) -> int:
    return len(await journal.read(0, 0, 1_000))


async def test_a_database_has_an_installation_that_stays(database: Database) -> None:
    installation = await database.journal.installation()
    assert re.fullmatch("[0-9A-Z]{26}", installation.id)
    assert re.fullmatch("[a-z2-7]{4}", installation.tag)
    await database.journal.open_epoch(0, 0, START)
    assert await database.journal.installation() == installation


async def test_a_copy_of_a_database_has_the_same_installation_and_another_identity(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    path = tmp_path / "switchyard.db"
    await SqliteDatabase.upgrade(path)
    shutil.copy(path, tmp_path / "copy.db")
    url = postgres_server.create_database()
    await PostgresDatabase.upgrade(url)
    copy = postgres_server.create_database()
    postgres_server.restore(copy, postgres_server.dump(url))
    files = [await SqliteDatabase.open(file) for file in (path, tmp_path / "copy.db")]
    databases: list[SqliteDatabase | PostgresDatabase] = [
        *files,
        *[await PostgresDatabase.open(each) for each in (url, url, copy)],
    ]
    try:
        sqlite, sqlite_copy, one, same, other = [await database.identity() for database in databases]
        installations = [(await database.journal.installation()).id for database in databases]
    finally:
        for database in databases:
            await database.close()
    assert sqlite != sqlite_copy
    assert one == same != other
    assert len(set(installations)) == 2


async def test_an_append_after_the_last_event_was_lost_is_rejected(database: Database) -> None:
    journal = database.journal
    for group in ("one", "two"):
        await commit(journal, group)
    await lose_the_last_event(database)
    with pytest.raises(HistoryMismatch):
        await commit(journal, "three")
    assert await event_count(journal) == 1


async def test_a_lost_event_that_another_one_replaced_is_noticed(postgres_url: str) -> None:
    first, second = await PostgresDatabase.open(postgres_url), await PostgresDatabase.open(postgres_url)
    try:
        await commit(first.journal, "one")
        await commit(first.journal, "two")
        await lose_the_last_event(first)
        await commit(second.journal, "another two")
        await commit(second.journal, "three")  # a head that moved on is no proof of the same history
        with pytest.raises(HistoryMismatch):
            await commit(first.journal, "four")
    finally:
        await first.close()
        await second.close()


async def test_commits_of_other_processes_are_no_mismatch_and_a_new_epoch_is(postgres_url: str) -> None:
    first, second = await PostgresDatabase.open(postgres_url), await PostgresDatabase.open(postgres_url)
    try:
        for number in range(3):
            await commit(first.journal, f"first {number}")
            await commit(second.journal, f"second {number}")
        await second.journal.open_epoch(0, 0, START)
        with pytest.raises(HistoryMismatch, match="db restored"):
            await commit(first.journal, "late")
        await commit(second.journal, "next")
        assert await event_count(second.journal) == 7
    finally:
        await first.close()
        await second.close()


def removed(path: Path) -> None:
    path.unlink()


def copied_over(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    copy.rename(path)


def renamed(path: Path) -> None:
    path.rename(path.with_name("renamed"))


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
@pytest.mark.parametrize("change", [removed, copied_over, renamed])
async def test_another_file_under_the_path_is_noticed(
    tmp_path: Path, change: Callable[[Path], None], suffix: str
) -> None:
    path = tmp_path / "switchyard.db"
    await SqliteDatabase.upgrade(path)
    database = await SqliteDatabase.open(path)
    try:
        await commit(database.journal, "one")
        change(tmp_path / f"switchyard.db{suffix}")
        for _ in range(2):
            with pytest.raises(JournalBroken, match=f"switchyard.db{suffix} was .* while this process had it open"):
                await commit(database.journal, "two")
        with pytest.raises(JournalBroken):
            await event_count(database.journal)  # a repeated key is answered from a read
    finally:
        await database.close()


@pytest.mark.parametrize("change", [lambda folder: shutil.rmtree(folder), renamed])
async def test_a_data_folder_that_is_moved_or_removed_is_noticed(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    folder = tmp_path / "var"
    folder.mkdir()
    await SqliteDatabase.upgrade(folder / "switchyard.db")
    database = await SqliteDatabase.open(folder / "switchyard.db")
    try:
        await commit(database.journal, "one")
        change(folder)
        with pytest.raises(JournalBroken, match="while this process had it open"):
            await commit(database.journal, "two")
    finally:
        await database.close()


async def test_a_restarted_wal_and_other_connections_are_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "switchyard.db"
    await SqliteDatabase.upgrade(path)
    for start in range(2):
        database = await SqliteDatabase.open(path)
        await commit(database.journal, f"{start}-one")
        with closing(connect(path)) as other:
            other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        await commit(database.journal, f"{start}-two")
        assert await event_count(database.journal) == 2 * start + 2
        await database.close()
        assert not path.with_name("switchyard.db-wal").exists()  # the last connection removes it


@pytest.mark.parametrize("store", [SqliteLedger, SqliteBreaks])
async def test_the_books_and_the_breaks_notice_a_removed_wal(
    tmp_path: Path, store: type[SqliteLedger] | type[SqliteBreaks]
) -> None:
    path = tmp_path / "store.db"
    opened = await store.open(path)
    try:
        path.with_name("store.db-wal").unlink()
        with pytest.raises(JournalBroken, match=r"store\.db-wal was"):
            if isinstance(opened, SqliteLedger):
                await opened.claim("journal", Place())
            else:
                await opened.save([])
    finally:
        await opened.close()


async def test_an_epoch_starts_above_everything_and_sets_its_marker(database: Database) -> None:
    journal = database.journal
    await commit(journal, "one")
    before = await journal.head(0)
    cursor = Cursor(name="audit", epoch=5, seq=70, hash="")
    report_cursor = Cursor(name="venue", epoch=0, seq=10**17, hash="")  # numbers of a venue, not of the journal
    await journal.append(0, "cursors", [msgspec.structs.replace(an_accept(), cursors=(cursor, report_cursor))], START)
    last = await journal.head(0)
    opened = await journal.open_epoch(3, 900, START, MARKER)
    assert opened == Head(6, 900 + EPOCH_GAP, last.hash)
    assert await journal.cursor("marker") == Cursor(name="marker", epoch=6, seq=opened.seq, hash="why")
    assert await journal.last_event(0, opened.seq) == Head(1, 2, last.hash)
    assert (await journal.last_event(0, 1)).hash == before.hash
    assert await journal.last_event(0, 0) == Head(1, 0, "0" * 64)


@pytest.mark.parametrize("above", [699_999_999, 10**12 + 600_000, 10**15 - 1])
async def test_an_epoch_can_start_anywhere_in_a_segment(database: Database, above: int) -> None:
    journal = database.journal
    await commit(journal, "one")
    opened = await journal.open_epoch(0, above, START)
    for group in ("two", "three"):
        await commit(journal, group)
    assert [event.seq for event in await journal.read(0, 0, 10)] == [1, opened.seq + 1, opened.seq + 2]


def lines_of(journal: MemoryJournal) -> Iterator[bytes]:
    return (f"{event.line}\n".encode() for event in journal.events[0])


async def test_a_jump_of_numbers_is_valid_only_with_a_higher_epoch(tmp_path: Path) -> None:
    journal = MemoryJournal()
    fixture = AuditFixture(journal, tmp_path / "audit.log")
    await fixture.add_events(2)
    await journal.open_epoch(0, 0, START)
    await fixture.add_events(2)
    await fixture.write_and_close()
    await fixture.check()
    assert fixture.head_holds()
    del journal.events[0][2]
    with pytest.raises(ChainBroken, match="hash does not match"):
        list(ChainWalk(lines_of(journal)))
    journal = MemoryJournal()
    await AuditFixture(journal, tmp_path).add_events(4)
    del journal.events[0][2]
    with pytest.raises(ChainBroken, match="seq is 4, expected 3"):
        list(ChainWalk(lines_of(journal)))


async def test_a_stream_id_of_a_replaced_history_asks_for_a_resync() -> None:
    book = StreamJournal()
    for _ in range(3):
        await book.update()
    orders, outbox = dict(book.orders), dict(book.outbox)
    for _ in range(2):
        await book.update()
    # A backup of three events was restored; a reader had got as far as event 5 of the lost ones.
    del book.events[0][3:]
    book.orders, book.outbox = orders, outbox
    book._seen.clear()
    book._groups.clear()
    await book.open_epoch(0, 5, START)
    for _ in range(4):  # as many new events as were lost, and more
        await book.update()
    hub = hub_over(book)
    async with hub.subscribe("account", "ann", 5) as lost, hub.subscribe("account", "ann", 3) as kept:
        await dispatch(hub)
        [message] = await take(lost, 1)
        assert message.event == "resync_required"
        messages = await take(kept, 4)
        assert [message.event for message in messages] == ["order_update"] * 4
        assert messages[0].id == 5 + EPOCH_GAP + 1


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_a_file_that_got_shorter_is_noticed(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "database.db"
    for name in ("", "-wal", "-shm"):
        Path(f"{path}{name}").write_bytes(b"x" * 100)
    files = OpenFiles(path)
    with Path(f"{path}{suffix}").open("ab") as grown:
        grown.write(b"x" * 100)
    assert files.problem is None
    os.truncate(f"{path}{suffix}", 150)
    assert files.problem is not None and "got shorter" in files.problem


def test_a_file_that_grows_under_the_looks_of_two_threads_did_not_get_shorter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "database.db"
    for name in ("", "-wal", "-shm"):
        Path(f"{path}{name}").write_bytes(b"x" * 100)
    files = OpenFiles(path)
    look = connections._look

    def interrupted(name: bytes) -> connections.Look | None:
        """Look, and before the result is used, let another thread commit and look."""
        found = look(name)
        monkeypatch.setattr(connections, "_look", look)
        Path(f"{path}").write_bytes(b"x" * 200)
        assert files.problem is None
        return found

    monkeypatch.setattr(connections, "_look", interrupted)
    assert files.problem is None
