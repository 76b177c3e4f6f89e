import asyncio
import errno
import os
import stat
import threading
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest

from switchyard.adapters.memory.clock import START, ManualClock
from switchyard.adapters.memory.journal import MemoryJournal
from switchyard.adapters.sqlite.database import SqliteDatabase
from switchyard.domain import decisions
from switchyard.domain.changes import Change, Cursor, Outcome
from switchyard.domain.errors import HistoryMismatch, JournalUnavailable
from switchyard.domain.ids import VenueClientId, VenueName
from switchyard.domain.reports import ExecutionReport
from switchyard.flow import audit
from switchyard.flow.audit import AuditWriter
from switchyard.flow.metrics import Metrics
from switchyard.flow.verify import head_path_of, verify_audit
from switchyard.flow.wake import Wake
from switchyard.ports.journal import Journal

KEY = b"a key that only the operators have"
DEADLINE_SECONDS = 30.0


class House:
    """A journal with an audit file beside it, and writers that come and go."""

    def __init__(self, journal: Journal, path: Path) -> None:
        self.journal = journal
        self.path = path
        self.clock = ManualClock()
        self.metrics = Metrics()
        self.is_away = False
        self._groups = count(1)
        self._writers: list[AuditWriter] = []

    async def commit(self, change: Change) -> Outcome:
        if self.is_away:
            raise JournalUnavailable("the database is away")
        [outcome] = await self.journal.append(0, str(next(self._groups)), [change], START)
        return outcome

    async def happen(self, number: int, prefix: str = "report") -> None:
        """That many events, the same ones in the same order for every house."""
        for _ in range(number):
            report = ExecutionReport(
                exec_id=f"{prefix}-{next(self._groups)}",
                venue=VenueName("sim"),
                venue_client_id=VenueClientId("nobody's"),
                venue_order_id="v-1",
                status="WORKING",
                at=START,
            )
            await self.commit(decisions.unmatched_report(report))

    def writer(self) -> AuditWriter:
        made = AuditWriter(
            self.path, key=KEY, journal=self.journal, commit=self.commit, clock=self.clock, metrics=self.metrics
        )
        self._writers.append(made)
        return made

    async def write(self, writer: AuditWriter) -> None:
        while await writer.run_once():
            pass

    async def write_and_close(self) -> None:
        writer = self.writer()
        await self.write(writer)
        await writer.close()

    async def expected(self) -> bytes:
        lines: list[str] = []
        while page := await self.journal.read(0, len(lines), 1_000):
            lines += [event.line + "\n" for event in page]
        return "".join(lines).encode()

    async def check(self) -> None:
        """No line twice, none missing, and the chain holds."""
        assert self.path.read_bytes() == await self.expected()
        assert verify_audit(self.path).holds

    def rest(self) -> None:
        self.clock.advance(timedelta(seconds=audit.REST_SECONDS))

    def kill(self, writer: AuditWriter) -> None:
        """What a SIGKILL leaves: the locks are gone, and nothing was said goodbye to."""
        writer._file.close()
        writer._last = None

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    async def aclose(self) -> None:
        for writer in self._writers:
            self.kill(writer)


@pytest.fixture(params=["memory", "sqlite"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    path = tmp_path / "gateway" / "audit.log"
    if request.param == "memory":
        house = House(MemoryJournal(), path)
        yield house
    else:
        await SqliteDatabase.upgrade(tmp_path / "switchyard.db")
        database = await SqliteDatabase.open(tmp_path / "switchyard.db")
        house = House(database.journal, path)
        yield house
        await database.close()
    await house.aclose()


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


async def test_a_file_of_another_history_is_refused(house: House) -> None:
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


async def test_a_head_under_another_key_is_refused_by_name(house: House) -> None:
    await house.happen(2)
    await house.write_and_close()
    head = head_path_of(house.path)
    head.write_bytes(head.read_bytes().replace(b'"seq":2', b'"seq":1'))
    with pytest.raises(HistoryMismatch, match=r"audit\.log\.head was not written under this key"):
        await house.writer().open()


async def test_a_cursor_that_the_journal_contradicts_is_refused(house: House) -> None:
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
    house.clock.advance(timedelta(seconds=audit.HEAD_SECONDS))
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
