"""The next writer recovers an audit file after kills, power cuts and changes by other programs."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from switchyard.adapters.files import audit_file
from switchyard.domain.errors import HistoryMismatch
from switchyard.flow.readers import audit
from tests.support.audit_fixture import AuditFixture, audit_fixture
from tests.support.memory.clock import START


@pytest.fixture(params=["memory", "sqlite"])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AuditFixture]:
    async with audit_fixture(request.param, tmp_path) as fixture:
        yield fixture


async def test_after_a_kill_in_mid_line_the_line_is_written_again(log: AuditFixture) -> None:
    await log.add_events(3)
    await log.write_and_close()
    durable = log.path.read_bytes()
    await log.add_events(2)
    whole = await log.expected()
    for size in range(len(durable), len(whole) + 1, 7):
        log.path.write_bytes(whole[:size])
        writer = log.writer()
        await log.write_all(writer)
        assert log.path.read_bytes() == whole, f"killed after {size} bytes"
        log.kill(writer)
    assert log.count("audit_file_cuts_total") == 0
    await log.check()


async def test_a_hole_that_a_power_cut_left_in_lines_not_synced_is_filled(log: AuditFixture) -> None:
    await log.add_events(3)
    await log.write_and_close()
    durable = len(log.path.read_bytes())
    await log.add_events(6)
    whole = await log.expected()
    log.path.write_bytes(whole[: durable + 100] + bytes(600) + whole[durable + 700 :])
    await log.write_all(log.writer())
    assert log.count("audit_file_cuts_total") == 0
    await log.check()


async def test_a_hole_in_lines_that_were_synced_is_rejected(log: AuditFixture) -> None:
    await log.add_events(9)
    await log.write_and_close()
    whole = log.path.read_bytes()
    log.path.write_bytes(whole[:-300] + bytes(200) + whole[-100:])
    with pytest.raises(HistoryMismatch, match="move the file aside"):
        await log.writer().open()
    assert log.path.read_bytes()[:-300] == whole[:-300]


async def test_only_the_tail_is_read_at_start(log: AuditFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_file, "TAIL_BYTES", 2_000)
    await log.add_events(200)
    await log.write_and_close()
    bytes_read: list[int] = []
    pread = os.pread

    def counted(descriptor: int, size: int, at: int) -> bytes:
        bytes_read.append(size)
        return pread(descriptor, size, at)

    monkeypatch.setattr(os, "pread", counted)
    await log.add_events(5)
    await log.write_and_close()
    assert bytes_read == [2_000]
    await log.check()


async def test_the_tail_is_read_back_to_what_was_synced(log: AuditFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_file, "TAIL_BYTES", 300)
    await log.add_events(20)
    await log.write_and_close()
    await log.add_events(30)
    whole = await log.expected()
    durable = len(log.path.read_bytes())
    log.path.write_bytes(whole[: durable + 10] + bytes(50) + whole[durable + 60 :])
    await log.write_and_close()
    await log.check()


@pytest.mark.parametrize("lines_left", [0, 2])
async def test_a_file_that_was_cut_is_an_event_and_is_completed(log: AuditFixture, lines_left: int) -> None:
    await log.add_events(6)
    await log.write_and_close()
    lines = log.path.read_bytes().splitlines(keepends=True)
    log.path.write_bytes(b"".join(lines[:lines_left]) + lines[lines_left][:50])
    await log.write_and_close()
    assert log.count("audit_file_cuts_total") == 1
    await log.check()
    [cut] = [event for event in await log.journal.read(0, 0, 100) if event.type == "AuditFileCut"]
    assert f'"expectedSeq":6,"foundSeq":{lines_left}' in cut.line
    assert await log.cursor_seq() == 7


async def test_a_deleted_file_counts_as_cut_and_is_written_again(log: AuditFixture) -> None:
    await log.add_events(3)
    await log.write_and_close()
    log.path.unlink()
    await log.write_and_close()
    assert log.count("audit_file_cuts_total") == 1
    await log.check()


@pytest.mark.parametrize("how", ["truncated", "renamed"])
async def test_a_file_that_is_cut_while_it_is_open_is_detected_by_the_next_write(log: AuditFixture, how: str) -> None:
    writer = log.writer()
    await log.add_events(4)
    await log.write_all(writer)
    await writer.sync()
    if how == "truncated":
        os.truncate(log.path, 10)
    else:
        log.path.rename(log.path.with_name("rotated"))
    await log.add_events(1)
    assert await writer.run_once() == 0
    log.pass_retry_pause()
    await log.write_all(writer)
    assert log.count("audit_file_cuts_total") == 1
    await log.check()


async def test_a_cut_file_keeps_its_cursor_and_head_until_it_has_caught_up(
    log: AuditFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "PAGE_MAX", 2)
    await log.add_events(6)
    await log.write_and_close()
    head = log.head_path.read_bytes()
    log.path.write_bytes(b"")
    writer = log.writer()
    await writer.run_once()
    await writer.sync()
    assert await log.cursor_seq() == 6
    assert log.head_path.read_bytes() == head
    await log.write_all(writer)
    await log.check()


async def test_a_file_that_was_renamed_when_an_epoch_began_is_not_a_cut_and_is_written_again(log: AuditFixture) -> None:
    await log.add_events(5)
    await log.write_and_close()
    await log.journal.open_epoch(1, 5, START)  # type: ignore[attr-defined]
    renamed = log.path.rename(audit_file.path_before(log.path, 2))
    log.head_path.rename(audit_file.path_before(log.head_path, 2))
    await log.add_events(2)
    await log.write_and_close()
    assert log.count("audit_file_cuts_total") == 0
    await log.check()

    # One that is shorter than the cursor has lost lines, and so has one that disappears in the epoch itself.
    await log.journal.open_epoch(2, 0, START)  # type: ignore[attr-defined]
    log.path.rename(audit_file.path_before(log.path, 3)).write_bytes(renamed.read_bytes())
    log.head_path.unlink()
    await log.write_and_close()
    assert log.count("audit_file_cuts_total") == 1
    await log.check()
