"""A worker's head file detects an older or different database, on each engine."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from switchyard.adapters.files.head_file import LocalHeadFile
from switchyard.domain.errors import HistoryMismatch
from switchyard.domain.journal.lines import SignedHead, parse_head
from switchyard.flow.readers.head import HeadKeeper
from switchyard.ports.journal import EPOCH_GAP
from tests.support.audit_fixture import KEY, AuditFixture
from tests.support.databases import Database, fresh_database
from tests.support.memory.clock import START, ManualClock
from tests.support.memory.journal import MemoryJournal


@pytest.fixture(params=["sqlite", "postgres"])
async def database(request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    async with fresh_database(request.param, request) as database:
        yield database


@pytest.fixture
def log(database: Database, tmp_path: Path) -> AuditFixture:
    return AuditFixture(database.journal, tmp_path / "nowhere")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "head.json"


def keeper(log: AuditFixture, path: Path) -> HeadKeeper:
    return HeadKeeper([LocalHeadFile(path)], key=KEY, journal=log.journal, clock=ManualClock(), metrics=log.metrics)


def kept_head(path: Path) -> SignedHead | None:
    return parse_head(str(path), LocalHeadFile(path).read(), KEY)


def kept_seq(path: Path) -> int:
    head = kept_head(path)
    return 0 if head is None else head.seq


def lower_seq(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"seq":2', b'"seq":1'))


async def run_and_stop(log: AuditFixture, path: Path) -> None:
    """Start and stop a worker, which leaves its head file."""
    worker = keeper(log, path)
    await worker.open()
    await worker.close()


async def test_the_head_is_kept_as_it_moves_and_found_again(log: AuditFixture, path: Path) -> None:
    worker = keeper(log, path)
    await worker.open()
    assert await worker.run_once() == 0
    assert kept_seq(path) == 0, "an empty journal has no head to write"
    await log.add_events(3)
    assert [await worker.run_once(), await worker.run_once(), kept_seq(path)] == [1, 0, 3]
    await log.add_events(2)
    await worker.close()
    assert kept_seq(path) == 5
    await run_and_stop(log, path)


async def test_an_older_database_is_rejected_until_an_epoch_is_opened_in_it(
    database: Database, log: AuditFixture, path: Path
) -> None:
    newer = AuditFixture(MemoryJournal(), path)
    await newer.add_events(9)
    await run_and_stop(newer, path)
    await log.add_events(4)
    with pytest.raises(HistoryMismatch, match=r"head\.json is at seq 9, the journal at 4.*switchyard db restored"):
        await keeper(log, path).open()
    assert kept_seq(path) == 9
    await database.journal.open_epoch(0, 0, START)
    await run_and_stop(log, path)
    kept = kept_head(path)
    assert kept is not None
    assert (kept.epoch, kept.seq) == (2, 4 + EPOCH_GAP)
    await run_and_stop(log, path)  # although the new epoch has no event yet


async def test_a_database_with_another_history_is_rejected(log: AuditFixture, path: Path) -> None:
    other = AuditFixture(MemoryJournal(), path)
    await other.add_events(3, "diverged")
    await run_and_stop(other, path)
    await log.add_events(5)
    with pytest.raises(HistoryMismatch, match="different histories"):
        await keeper(log, path).open()


async def test_a_head_under_another_key_is_rejected(log: AuditFixture, path: Path) -> None:
    await log.add_events(2)
    await run_and_stop(log, path)
    lower_seq(path)
    with pytest.raises(HistoryMismatch, match="was not signed with this key"):
        await keeper(log, path).open()


async def test_a_database_restored_under_a_running_worker_stops_it_and_keeps_the_head(tmp_path: Path) -> None:
    path = tmp_path / "head.json"
    log = AuditFixture(MemoryJournal(), path)
    await log.add_events(5)
    worker = keeper(log, path)
    await worker.open()
    await worker.run_once()
    journal = log.journal
    assert isinstance(journal, MemoryJournal)
    del journal.events[0][3:]
    with pytest.raises(HistoryMismatch, match="is at seq 5, the journal at 3"):
        await worker.run()
    await worker.close()
    assert kept_seq(path) == 5


async def test_of_two_workers_in_one_folder_each_writes_the_heads_that_it_sees_first(tmp_path: Path) -> None:
    path = tmp_path / "head.json"
    log = AuditFixture(MemoryJournal(), path)
    first, second = keeper(log, path), keeper(log, path)
    await first.open()
    await second.open()
    await log.add_events(1)
    assert [await second.run_once(), await first.run_once(), kept_seq(path)] == [1, 0, 1]
    await log.add_events(1)
    assert [await first.run_once(), await second.run_once(), kept_seq(path)] == [1, 0, 2]
    await first.close()
    await second.close()


async def test_a_head_never_replaces_a_later_one(tmp_path: Path) -> None:
    path = tmp_path / "head.json"
    behind, ahead = (AuditFixture(MemoryJournal(), path) for _ in range(2))
    await behind.add_events(2)
    await ahead.add_events(3)
    first, second = keeper(behind, path), keeper(ahead, path)
    await first.open()
    await second.open()
    assert [await second.run_once(), await first.run_once(), kept_seq(path)] == [1, 0, 3]


async def test_a_head_file_that_another_process_keeps_locked_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "head.json"
    log = AuditFixture(MemoryJournal(), path)
    await log.add_events(1)
    worker = keeper(log, path)
    await worker.open()
    with LocalHeadFile(path).locked():
        assert await worker.run_once() == 0
    assert log.count("stage_failures_total", stage="head") == 1
    assert [await worker.run_once(), kept_seq(path)] == [1, 1]


async def test_a_failed_write_is_counted_and_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "head.json"
    log = AuditFixture(MemoryJournal(), path)
    await log.add_events(1)
    worker = keeper(log, path)
    await worker.open()
    (path / "in the way").mkdir(parents=True)
    await worker.run_once()
    assert log.count("stage_failures_total", stage="head") == 1
    (path / "in the way").rmdir()
    path.rmdir()
    assert await worker.run_once() == 1
    await worker.close()
