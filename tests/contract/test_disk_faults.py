"""Disk failures on SQLite: a failed fsync ends all writing, a full disk rejects until there is space again."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from switchyard.adapters.sqlite.database import SqliteDatabase
from switchyard.domain.errors import JournalBroken, JournalUnavailable
from switchyard.domain.journal.changes import Committed
from tests.support.build import an_accept
from tests.support.disk import FailingDisk
from tests.support.memory.clock import START


@pytest.fixture
def disk() -> Iterator[FailingDisk]:
    failing = FailingDisk()
    yield failing
    failing.unregister()


@pytest.fixture
async def database(disk: FailingDisk, tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    await SqliteDatabase.upgrade(tmp_path / "journal.db")
    opened = await SqliteDatabase.open(tmp_path / "journal.db")
    yield opened
    disk.sync_fails = disk.is_full = False
    await opened.close()


async def test_after_a_failed_fsync_the_outcome_is_unknown_and_later_writes_are_rejected(
    disk: FailingDisk, database: SqliteDatabase
) -> None:
    assert await database.journal.append(0, "one", [an_accept()], START) == [Committed(1)]
    disk.sync_fails = True
    with pytest.raises(JournalBroken):
        await database.journal.append(0, "two", [an_accept()], START)
    disk.sync_fails = False
    with pytest.raises(JournalUnavailable):
        await database.journal.append(0, "three", [an_accept()], START)


async def test_a_full_disk_rejects_a_write_and_recovers_when_there_is_space(
    disk: FailingDisk, database: SqliteDatabase
) -> None:
    await database.journal.append(0, "one", [an_accept()], START)
    disk.is_full = True
    with pytest.raises(JournalUnavailable):
        await database.journal.append(0, "two", [an_accept()], START)
    disk.is_full = False
    assert (await database.journal.head(0)).seq == 1
    assert await database.journal.append(0, "three", [an_accept()], START) == [Committed(2)]
