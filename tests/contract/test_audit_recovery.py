"""What kills, power cuts and meddlers leave of the audit file, and how the next writer deals with it."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from switchyard.domain.errors import HistoryMismatch
from switchyard.flow.history.verify import head_path_of
from switchyard.flow.readers import audit
from tests.support.audit_house import House, audit_house


@pytest.fixture(params=["memory", "sqlite"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    async with audit_house(request.param, tmp_path) as house:
        yield house


async def test_after_a_kill_in_mid_line_the_line_is_written_again(house: House) -> None:
    await house.happen(3)
    await house.write_and_close()
    durable = house.path.read_bytes()
    await house.happen(2)
    whole = await house.expected()
    for size in range(len(durable), len(whole) + 1, 7):
        house.path.write_bytes(whole[:size])
        writer = house.writer()
        await house.write(writer)
        assert house.path.read_bytes() == whole, f"killed after {size} bytes"
        house.kill(writer)
    assert house.count("audit_file_cuts_total") == 0
    await house.check()


async def test_a_hole_that_a_power_cut_left_in_lines_not_synced_is_filled(house: House) -> None:
    await house.happen(3)
    await house.write_and_close()
    durable = len(house.path.read_bytes())
    await house.happen(6)
    whole = await house.expected()
    house.path.write_bytes(whole[: durable + 100] + bytes(600) + whole[durable + 700 :])
    await house.write(house.writer())
    assert house.count("audit_file_cuts_total") == 0
    await house.check()


async def test_a_hole_in_lines_that_were_synced_is_not_papered_over(house: House) -> None:
    await house.happen(9)
    await house.write_and_close()
    whole = house.path.read_bytes()
    house.path.write_bytes(whole[:-300] + bytes(200) + whole[-100:])
    with pytest.raises(HistoryMismatch, match="move the file aside"):
        await house.writer().open()
    assert house.path.read_bytes()[:-300] == whole[:-300]


async def test_only_the_tail_is_read_at_start(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "TAIL_BYTES", 2_000)
    await house.happen(200)
    await house.write_and_close()
    bytes_read: list[int] = []
    pread = os.pread

    def counted(descriptor: int, size: int, at: int) -> bytes:
        bytes_read.append(size)
        return pread(descriptor, size, at)

    monkeypatch.setattr(os, "pread", counted)
    await house.happen(5)
    await house.write_and_close()
    assert bytes_read == [2_000]
    await house.check()


async def test_the_tail_is_read_back_to_what_was_synced(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "TAIL_BYTES", 300)
    await house.happen(20)
    await house.write_and_close()
    await house.happen(30)
    whole = await house.expected()
    durable = len(house.path.read_bytes())
    house.path.write_bytes(whole[: durable + 10] + bytes(50) + whole[durable + 60 :])
    await house.write_and_close()
    await house.check()


@pytest.mark.parametrize("lines_left", [0, 2])
async def test_a_file_that_was_cut_is_an_event_and_is_completed(house: House, lines_left: int) -> None:
    await house.happen(6)
    await house.write_and_close()
    lines = house.path.read_bytes().splitlines(keepends=True)
    house.path.write_bytes(b"".join(lines[:lines_left]) + lines[lines_left][:50])
    await house.write_and_close()
    assert house.count("audit_file_cuts_total") == 1
    await house.check()
    [cut] = [event for event in await house.journal.read(0, 0, 100) if event.type == "AuditFileCut"]
    assert f'"expectedSeq":6,"foundSeq":{lines_left}' in cut.line
    cursor = await house.journal.cursor("audit")
    assert cursor is not None
    assert cursor.seq == 7


async def test_a_file_that_is_gone_was_cut_as_well(house: House) -> None:
    await house.happen(3)
    await house.write_and_close()
    house.path.unlink()
    await house.write_and_close()
    assert house.count("audit_file_cuts_total") == 1
    await house.check()


@pytest.mark.parametrize("how", ["truncated", "renamed"])
async def test_a_file_that_is_cut_under_our_hands_is_noticed_with_the_next_write(house: House, how: str) -> None:
    writer = house.writer()
    await house.happen(4)
    await house.write(writer)
    await writer.sync()
    if how == "truncated":
        os.truncate(house.path, 10)
    else:
        house.path.rename(house.path.with_name("rotated"))
    await house.happen(1)
    assert await writer.run_once() == 0
    house.rest()
    await house.write(writer)
    assert house.count("audit_file_cuts_total") == 1
    await house.check()


async def test_a_cut_file_keeps_its_cursor_and_head_until_it_has_caught_up(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "PAGE_MAX", 2)
    await house.happen(6)
    await house.write_and_close()
    head = head_path_of(house.path).read_bytes()
    house.path.write_bytes(b"")
    writer = house.writer()
    await writer.run_once()
    await writer.sync()
    cursor = await house.journal.cursor("audit")
    assert cursor is not None
    assert cursor.seq == 6
    assert head_path_of(house.path).read_bytes() == head
    await house.write(writer)
    await house.check()
