"""Every event is written to the audit file once and in order, despite failures of the disk, journal and callers."""

import asyncio
import errno
import os
import stat
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from switchyard.flow.clock import Wake
from switchyard.flow.readers import audit
from switchyard.flow.readers.head import HEAD_SECONDS
from tests.support.audit_fixture import AuditFixture, audit_fixture
from tests.support.polling import DEADLINE_SECONDS, until


@pytest.fixture(params=["memory", "sqlite"])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AuditFixture]:
    async with audit_fixture(request.param, tmp_path) as fixture:
        yield fixture


async def test_every_event_is_written_once_and_in_order(log: AuditFixture) -> None:
    writer = log.writer()
    assert await writer.open()
    await log.add_events(3)
    assert await writer.run_once() == 3
    assert await writer.run_once() == 0
    await log.add_events(2)
    assert await writer.run_once() == 2
    assert writer.seq == 5
    assert log.count("audit_written_seq") == 5
    await log.check()


async def test_a_page_is_bounded_and_the_next_one_goes_on(log: AuditFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "PAGE_MAX", 4)
    await log.add_events(10)
    writer = log.writer()
    assert [await writer.run_once() for _ in range(4)] == [4, 4, 2, 0]
    await log.check()


async def test_a_new_process_continues_where_the_last_one_ended(log: AuditFixture) -> None:
    for _ in range(3):
        await log.add_events(4)
        await log.write_and_close()
    await log.check()


async def test_a_second_process_stands_by_and_takes_over(log: AuditFixture) -> None:
    first, second = log.writer(), log.writer()
    await log.add_events(2)
    assert await first.open()
    assert not await second.open()
    assert second.seq is None
    assert await first.run_once() == 2
    assert await second.run_once() == 0
    log.kill(first)
    await log.add_events(3)
    assert await second.run_once() == 0  # it tries again only after a pause
    log.pass_retry_pause()
    assert await second.run_once() == 3
    await log.check()


async def test_writing_continues_after_a_full_disk_without_skipping_a_line(
    log: AuditFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = log.writer()
    await log.add_events(2)
    await log.write_all(writer)
    await log.add_events(5)
    write = os.write

    def full_after_a_part(descriptor: int, data: memoryview) -> int:
        write(descriptor, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "write", full_after_a_part)
    for failures in range(1, 4):
        assert await writer.run_once() == 0
        assert await writer.run_once() == 0  # pausing
        assert log.count("stage_failures_total", stage="audit") == failures
        log.pass_retry_pause()
    monkeypatch.undo()
    await log.write_all(writer)
    await log.check()


async def cancelled_while_writing(writer: audit.AuditWriter, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Cancel the writer while its thread is held in a write; the thread goes on once the event is set."""
    write, is_writing, may_write = os.write, threading.Event(), threading.Event()

    def blocked(descriptor: int, data: memoryview) -> int:
        is_writing.set()
        assert may_write.wait(DEADLINE_SECONDS)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", blocked)
    running = asyncio.create_task(writer.run_once())
    assert await asyncio.to_thread(is_writing.wait, DEADLINE_SECONDS)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    monkeypatch.undo()
    return may_write


async def test_a_cancelled_write_loses_no_line_and_repeats_none(
    log: AuditFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = log.writer()
    await log.add_events(3)
    may_write = await cancelled_while_writing(writer, monkeypatch)
    may_write.set()
    await log.write_all(writer)
    await log.check()


async def test_a_writer_that_is_closed_has_written_what_was_committed_before(
    log: AuditFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "PAGE_MAX", 4)
    writer = log.writer()
    await log.add_events(1)
    await log.write_all(writer)
    await log.add_events(10)  # while the writer waits for the next event, the process is stopped
    await writer.close()
    await log.check()
    assert await log.cursor_seq() == 11


async def test_a_writer_that_was_cancelled_while_it_wrote_is_complete_when_it_is_closed(
    log: AuditFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = log.writer()
    await log.add_events(3)
    may_write = await cancelled_while_writing(writer, monkeypatch)
    await log.add_events(2)
    closing = asyncio.create_task(writer.close())
    may_write.set()
    await closing
    await log.check()


async def test_after_a_failed_fsync_the_cursor_stays_and_the_lines_are_written_again(
    log: AuditFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = log.writer()
    await log.add_events(2)
    await log.write_all(writer)
    await writer.sync()
    await log.add_events(3)
    await log.write_all(writer)

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    await writer.sync()
    monkeypatch.undo()
    assert await log.cursor_seq() == 2
    log.pass_retry_pause()
    assert await writer.run_once() == 3
    await writer.sync()
    assert await log.cursor_seq() == 5
    await log.check()


async def test_the_cursor_is_moved_once_the_journal_is_available_again(log: AuditFixture) -> None:
    writer = log.writer()
    await log.add_events(2)
    await log.write_all(writer)
    log.is_unavailable = True
    await writer.sync()
    assert await log.cursor_seq() is None
    log.is_unavailable = False
    await writer.sync()
    assert await log.cursor_seq() == 2


async def test_the_signed_head_is_written_every_few_seconds(log: AuditFixture) -> None:
    writer = log.writer()
    await log.add_events(1)
    await log.write_all(writer)
    await writer.sync()
    first = log.head_path.read_bytes()
    await log.add_events(1)
    await log.write_all(writer)
    await writer.sync()
    assert log.head_path.read_bytes() == first
    log.clock.advance(timedelta(seconds=HEAD_SECONDS))
    await writer.sync()
    assert log.head_holds()
    assert b'"seq":2' in log.head_path.read_bytes()


async def test_the_folder_is_created_and_others_cannot_read_the_files(log: AuditFixture) -> None:
    await log.add_events(1)
    await log.write_and_close()
    for path in (log.path, log.head_path):
        assert stat.S_IMODE(path.stat().st_mode) & 0o027 == 0
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600


async def test_the_loop_writes_new_events_after_a_notification(log: AuditFixture) -> None:
    wake, writer = Wake(), log.writer()
    running = asyncio.create_task(writer.run(wake))
    await log.add_events(3)
    wake.notify()

    async def is_written() -> bool:
        return log.path.exists() and log.path.read_bytes() == await log.expected()

    await until(is_written, lambda: "the loop did not write")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await writer.close()
    assert await log.cursor_seq() == 3
    assert log.head_holds()
