"""The audit file is written once and in order, whatever the disk, the journal and the callers do meanwhile."""

import asyncio
import errno
import os
import stat
import threading
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from switchyard.flow.history.verify import head_path_of, verify_audit
from switchyard.flow.readers import audit
from switchyard.flow.readers.head import HEAD_SECONDS
from switchyard.flow.wake import Wake
from tests.support.audit_house import KEY, House, audit_house

DEADLINE_SECONDS = 30.0


@pytest.fixture(params=["memory", "sqlite"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    async with audit_house(request.param, tmp_path) as house:
        yield house


async def test_every_event_is_written_once_and_in_order(house: House) -> None:
    writer = house.writer()
    assert await writer.open()
    await house.happen(3)
    assert await writer.run_once() == 3
    assert await writer.run_once() == 0
    await house.happen(2)
    assert await writer.run_once() == 2
    assert writer.seq == 5
    assert house.count("audit_written_seq") == 5
    await house.check()


async def test_a_page_is_bounded_and_the_next_one_goes_on(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "PAGE_MAX", 4)
    await house.happen(10)
    writer = house.writer()
    assert [await writer.run_once() for _ in range(4)] == [4, 4, 2, 0]
    await house.check()


async def test_a_new_process_continues_where_the_last_one_ended(house: House) -> None:
    for _ in range(3):
        await house.happen(4)
        await house.write_and_close()
    await house.check()


async def test_a_second_process_stands_by_and_takes_over(house: House) -> None:
    first, second = house.writer(), house.writer()
    await house.happen(2)
    assert await first.open()
    assert not await second.open()
    assert second.seq is None
    assert await first.run_once() == 2
    assert await second.run_once() == 0
    house.kill(first)
    await house.happen(3)
    assert await second.run_once() == 0  # it looks again only after a rest
    house.rest()
    assert await second.run_once() == 3
    await house.check()


async def test_a_full_disk_is_waited_for_and_nothing_is_skipped(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = house.writer()
    await house.happen(2)
    await house.write(writer)
    await house.happen(5)
    write = os.write

    def full_after_a_part(descriptor: int, data: memoryview) -> int:
        write(descriptor, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "write", full_after_a_part)
    for failures in range(1, 4):
        assert await writer.run_once() == 0
        assert await writer.run_once() == 0  # resting
        assert house.count("stage_failures_total", stage="audit") == failures
        house.rest()
    monkeypatch.undo()
    await house.write(writer)
    await house.check()


async def test_a_caller_that_gives_up_in_mid_write_costs_no_line_and_repeats_none(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = house.writer()
    await house.happen(3)
    write, is_writing, may_write = os.write, threading.Event(), threading.Event()

    def held_up(descriptor: int, data: memoryview) -> int:
        is_writing.set()
        assert may_write.wait(DEADLINE_SECONDS)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", held_up)
    running = asyncio.create_task(writer.run_once())
    assert await asyncio.to_thread(is_writing.wait, DEADLINE_SECONDS)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    monkeypatch.undo()
    may_write.set()
    await house.write(writer)
    await house.check()


async def test_after_a_failed_fsync_the_cursor_stays_and_the_lines_are_written_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = house.writer()
    await house.happen(2)
    await house.write(writer)
    await writer.sync()
    await house.happen(3)
    await house.write(writer)

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    await writer.sync()
    monkeypatch.undo()
    cursor = await house.journal.cursor("audit")
    assert cursor is not None
    assert cursor.seq == 2
    house.rest()
    assert await writer.run_once() == 3
    await writer.sync()
    cursor = await house.journal.cursor("audit")
    assert cursor is not None
    assert cursor.seq == 5
    await house.check()


async def test_the_cursor_is_moved_once_the_journal_is_back(house: House) -> None:
    writer = house.writer()
    await house.happen(2)
    await house.write(writer)
    house.is_away = True
    await writer.sync()
    assert await house.journal.cursor("audit") is None
    house.is_away = False
    await writer.sync()
    cursor = await house.journal.cursor("audit")
    assert cursor is not None
    assert cursor.seq == 2


async def test_the_keyed_head_follows_every_few_seconds(house: House) -> None:
    writer = house.writer()
    await house.happen(1)
    await house.write(writer)
    await writer.sync()
    first = head_path_of(house.path).read_bytes()
    await house.happen(1)
    await house.write(writer)
    await writer.sync()
    assert head_path_of(house.path).read_bytes() == first
    house.clock.advance(timedelta(seconds=HEAD_SECONDS))
    await writer.sync()
    report = verify_audit(house.path, key=KEY)
    assert report.holds
    assert b'"seq":2' in head_path_of(house.path).read_bytes()


async def test_the_folder_is_made_and_the_file_is_not_for_everyone(house: House) -> None:
    await house.happen(1)
    await house.write_and_close()
    for path in (house.path, head_path_of(house.path)):
        assert stat.S_IMODE(path.stat().st_mode) & 0o027 == 0
    assert stat.S_IMODE(house.path.stat().st_mode) == 0o640


async def test_the_loop_writes_what_it_is_woken_for(house: House) -> None:
    wake, writer = Wake(), house.writer()
    running = asyncio.create_task(writer.run(wake))
    await house.happen(3)
    wake.notify()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not house.path.exists() or house.path.read_bytes() != await house.expected():
        assert time.monotonic() < deadline, "the loop did not write"
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await writer.close()
    cursor = await house.journal.cursor("audit")
    assert cursor is not None
    assert cursor.seq == 3
    assert verify_audit(house.path, key=KEY).holds
