"""An audit file that tells another history than the journal, its cursor or the keyed head is rejected."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from switchyard.adapters.memory.journal import MemoryJournal
from switchyard.domain.changes import Change, Cursor
from switchyard.domain.errors import HistoryMismatch
from switchyard.flow.history.verify import head_path_of
from tests.support.audit_house import House, audit_house


@pytest.fixture(params=["memory", "sqlite"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    async with audit_house(request.param, tmp_path) as house:
        yield house


async def other_house(house: House, events: int, prefix: str = "report") -> House:
    """The same file beside another database: an older copy of it, or one that went another way."""
    other = House(MemoryJournal(), house.path)
    await other.happen(events, prefix)
    return other


async def test_a_file_ahead_of_the_journal_means_an_older_database(house: House) -> None:
    await house.happen(5)
    await house.write_and_close()
    head_path_of(house.path).unlink()
    restored = await other_house(house, 4)
    before = house.path.read_bytes()
    with pytest.raises(HistoryMismatch, match="older database seems to have been restored"):
        await restored.writer().open()
    assert house.path.read_bytes() == before


async def test_a_file_of_another_history_is_rejected(house: House) -> None:
    await house.happen(5)
    await house.write_and_close()
    head_path_of(house.path).unlink()
    strange = await other_house(house, 7, "strange")
    with pytest.raises(HistoryMismatch, match="different histories"):
        await strange.writer().open()


async def test_an_older_copy_of_the_same_history_is_continued(house: House) -> None:
    await house.happen(5)
    await house.write_and_close()
    same = await other_house(house, 8)
    await same.write_and_close()
    await same.check()


async def test_file_and_database_cut_together_show_against_the_keyed_head(house: House) -> None:
    await house.happen(5)
    await house.write_and_close()
    house.path.write_bytes(b"".join(house.path.read_bytes().splitlines(keepends=True)[:3]))
    restored = await other_house(house, 3)
    with pytest.raises(HistoryMismatch, match=r"audit\.log\.head is at seq 5, the journal at 3"):
        await restored.writer().open()


async def test_a_head_under_another_key_is_rejected_by_name(house: House) -> None:
    await house.happen(2)
    await house.write_and_close()
    head = head_path_of(house.path)
    head.write_bytes(head.read_bytes().replace(b'"seq":2', b'"seq":1'))
    with pytest.raises(HistoryMismatch, match=r"audit\.log\.head was not written under this key"):
        await house.writer().open()


async def test_a_cursor_that_the_journal_contradicts_is_rejected(house: House) -> None:
    await house.happen(2)
    await house.commit(Change(cursors=(Cursor(name="audit", epoch=1, seq=2, hash="f" * 64),)))
    with pytest.raises(HistoryMismatch, match="the audit cursor and the journal tell different histories"):
        await house.writer().open()


@pytest.mark.parametrize("content", [b"root:x:0:0\nbin:x:1:1\n", b"\x7fELF", b"\n"])
async def test_somebody_elses_file_is_left_alone(house: House, content: bytes) -> None:
    await house.happen(2)
    house.path.parent.mkdir()
    house.path.write_bytes(content)
    with pytest.raises(HistoryMismatch, match=r"audit\.log"):
        await house.writer().open()
    assert house.path.read_bytes() == content
