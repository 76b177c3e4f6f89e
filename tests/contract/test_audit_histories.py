"""An audit file whose history differs from the journal, its cursor or the signed head is rejected."""

import asyncio
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from switchyard.domain.errors import HistoryMismatch
from switchyard.domain.journal.changes import Change, Cursor
from tests.support.audit_fixture import AuditFixture, audit_fixture
from tests.support.memory.clock import START
from tests.support.memory.journal import MemoryJournal


@pytest.fixture(params=["memory", "sqlite"])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AuditFixture]:
    async with audit_fixture(request.param, tmp_path) as fixture:
        yield fixture


async def other_database(log: AuditFixture, events: int, prefix: str = "report") -> AuditFixture:
    """The same file with another database: an older copy of it, or one with other events."""
    other = AuditFixture(MemoryJournal(), log.path)
    await other.add_events(events, prefix)
    return other


async def test_a_file_ahead_of_the_journal_means_an_older_database(log: AuditFixture) -> None:
    await log.add_events(5)
    await log.write_and_close()
    log.head_path.unlink()
    restored = await other_database(log, 4)
    before = log.path.read_bytes()
    with pytest.raises(HistoryMismatch, match="older database seems to have been restored"):
        await restored.writer().open()
    assert log.path.read_bytes() == before


async def test_a_file_of_another_history_is_rejected(log: AuditFixture) -> None:
    await log.add_events(5)
    await log.write_and_close()
    log.head_path.unlink()
    diverged = await other_database(log, 7, "diverged")
    with pytest.raises(HistoryMismatch, match="different histories"):
        await diverged.writer().open()


async def test_an_older_copy_of_the_same_history_is_continued(log: AuditFixture) -> None:
    await log.add_events(5)
    await log.write_and_close()
    same = await other_database(log, 8)
    await same.write_and_close()
    await same.check()


async def test_a_file_and_a_database_cut_together_are_detected_by_the_signed_head(log: AuditFixture) -> None:
    await log.add_events(5)
    await log.write_and_close()
    log.path.write_bytes(b"".join(log.path.read_bytes().splitlines(keepends=True)[:3]))
    restored = await other_database(log, 3)
    with pytest.raises(HistoryMismatch, match=r"audit\.log\.head is at seq 5, the journal at 3"):
        await restored.writer().open()


async def test_a_head_under_another_key_is_rejected_by_name(log: AuditFixture) -> None:
    await log.add_events(2)
    await log.write_and_close()
    head = log.head_path
    head.write_bytes(head.read_bytes().replace(b'"seq":2', b'"seq":1'))
    with pytest.raises(HistoryMismatch, match=r"audit\.log\.head was not signed with this key"):
        await log.writer().open()


async def test_a_cursor_that_the_journal_contradicts_is_rejected(log: AuditFixture) -> None:
    await log.add_events(2)
    await log.commit(Change(cursors=(Cursor(name="audit", epoch=1, seq=2, hash="f" * 64),)))
    with pytest.raises(HistoryMismatch, match="the audit cursor and the journal have different histories"):
        await log.writer().open()


@pytest.mark.parametrize("content", [b"root:x:0:0\nbin:x:1:1\n", b"\x7fELF", b"\n"])
async def test_a_file_that_is_not_an_audit_file_is_rejected_and_unchanged(log: AuditFixture, content: bytes) -> None:
    await log.add_events(2)
    log.path.parent.mkdir()
    log.path.write_bytes(content)
    with pytest.raises(HistoryMismatch, match=r"audit\.log"):
        await log.writer().open()
    assert log.path.read_bytes() == content


@pytest.mark.parametrize("has_head", [True, False])
async def test_a_file_of_before_a_restore_that_was_not_moved_aside_is_named_with_the_command(
    log: AuditFixture, has_head: bool
) -> None:
    """A gateway with an audit file of its own, which the settings of `db restored` do not name."""
    await log.add_events(5)
    await log.write_and_close()
    if not has_head:
        log.head_path.unlink()
    restored = await other_database(log, 3)
    await restored.journal.open_epoch(1, 5, START)  # type: ignore[attr-defined]
    await restored.add_events(2, "after")
    with pytest.raises(HistoryMismatch) as raised:
        await restored.writer().open()
    message = str(raised.value)
    assert "has events up to seq 5 of epoch 1 that the journal lost before epoch 2 was opened" in message
    [command] = re.findall("`(.*)`", message)
    assert command == (f"mv {log.path} {log.path}.before-epoch-2; mv {log.head_path} {log.head_path}.before-epoch-2")
    await asyncio.to_thread(subprocess.run, ["sh", "-c", command], stderr=subprocess.DEVNULL, check=has_head)
    await restored.write_and_close()
    await restored.check()
    assert restored.metrics.registry.get_sample_value("audit_file_cuts_total") == 0
