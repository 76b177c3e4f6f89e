"""What a worker remembers of the journal outside the database, held against each engine's journal."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from switchyard.adapters.memory.clock import ManualClock
from switchyard.adapters.memory.journal import MemoryJournal
from switchyard.domain.errors import HistoryMismatch
from switchyard.flow.readers.head import HeadKeeper, read_head
from tests.support.audit_house import KEY, House
from tests.support.databases import Database, fresh_database


@pytest.fixture(params=["sqlite", "postgres"])
async def database(request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    async with fresh_database(request.param, request) as database:
        yield database


@pytest.fixture
def house(database: Database, tmp_path: Path) -> House:
    return House(database.journal, tmp_path / "nowhere")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "head.json"


def keeper(house: House, path: Path) -> HeadKeeper:
    return HeadKeeper(path, key=KEY, journal=house.journal, clock=ManualClock(), metrics=house.metrics)


def kept_seq(path: Path) -> int:
    head = read_head(path, KEY)
    return 0 if head is None else head.seq


def wind_back(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"seq":2', b'"seq":1'))


async def remembered(house: House, path: Path) -> None:
    """A worker was here and has gone."""
    worker = keeper(house, path)
    await worker.open()
    await worker.close()


async def test_the_head_is_kept_as_it_moves_and_found_again(house: House, path: Path) -> None:
    worker = keeper(house, path)
    await worker.open()
    assert await worker.run_once() == 0
    assert kept_seq(path) == 0, "an empty journal has nothing to remember"
    await house.happen(3)
    assert [await worker.run_once(), await worker.run_once(), kept_seq(path)] == [1, 0, 3]
    await house.happen(2)
    await worker.close()
    assert kept_seq(path) == 5
    await remembered(house, path)


async def test_an_older_database_is_rejected_until_an_epoch_is_opened_in_it(
    database: Database, house: House, path: Path
) -> None:
    newer = House(MemoryJournal(), path)
    await newer.happen(9)
    await remembered(newer, path)
    await house.happen(4)
    with pytest.raises(HistoryMismatch, match=r"head\.json is at seq 9, the journal at 4.*switchyard db restored"):
        await keeper(house, path).open()
    assert kept_seq(path) == 9
    await database.journal.open_epoch()
    await remembered(house, path)
    kept = read_head(path, KEY)
    assert kept is not None
    assert (kept.epoch, kept.seq) == (2, 4)
    await remembered(house, path)  # although no event of the new epoch is there yet


async def test_a_database_that_went_another_way_is_rejected(house: House, path: Path) -> None:
    other = House(MemoryJournal(), path)
    await other.happen(3, "strange")
    await remembered(other, path)
    await house.happen(5)
    with pytest.raises(HistoryMismatch, match="different histories"):
        await keeper(house, path).open()


async def test_a_head_under_another_key_is_rejected(house: House, path: Path) -> None:
    await house.happen(2)
    await remembered(house, path)
    wind_back(path)
    with pytest.raises(HistoryMismatch, match="was not written under this key"):
        await keeper(house, path).open()


async def test_a_database_restored_under_a_running_worker_ends_it_and_leaves_the_head(tmp_path: Path) -> None:
    path = tmp_path / "head.json"
    house = House(MemoryJournal(), path)
    await house.happen(5)
    worker = keeper(house, path)
    await worker.open()
    await worker.run_once()
    journal = house.journal
    assert isinstance(journal, MemoryJournal)
    del journal.events[0][3:]
    with pytest.raises(HistoryMismatch, match="is at seq 5, the journal at 3"):
        await worker.run()
    await worker.close()
    assert kept_seq(path) == 5


async def test_of_two_workers_in_one_folder_one_writes_and_the_other_takes_over(tmp_path: Path) -> None:
    path = tmp_path / "head.json"
    house = House(MemoryJournal(), path)
    first, second = keeper(house, path), keeper(house, path)
    await first.open()
    await second.open()
    await house.happen(1)
    assert [await second.run_once(), await first.run_once()] == [0, 1]
    await first.close()
    await house.happen(1)
    assert await second.run_once() == 1
    assert kept_seq(path) == 2
    await second.close()


async def test_a_folder_that_cannot_be_written_is_counted_and_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "head.json"
    house = House(MemoryJournal(), path)
    await house.happen(1)
    worker = keeper(house, path)
    await worker.open()
    path.with_name("head.json.new").mkdir()
    await worker._try_once()
    assert house.count("stage_failures_total", stage="head") == 1
    path.with_name("head.json.new").rmdir()
    assert await worker.run_once() == 1
    await worker.close()
