"""The simulator's log: `synced` returns only after the sync to disk, and raises if a write fails."""

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import NoReturn

import pytest

from switchyard.adapters.venues.simulator.log import Entry, EventLog, LogBroken
from tests.support.memory.clock import START
from tests.support.polling import DEADLINE_SECONDS


def a_line(client_id: str = "one") -> Entry:
    return Entry(
        event="fill",
        client_order_id=client_id,
        venue_order_id="brk-1",
        exec_id="brk-1-1",
        qty=Decimal("0.10000000"),
        price=Decimal("145.001"),
        at=START,
    )


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[EventLog]:
    log = EventLog(tmp_path / "venue.jsonl")
    writing = asyncio.create_task(log.run())
    yield log
    writing.cancel()
    with contextlib.suppress(asyncio.CancelledError, LogBroken):
        await writing
    log.close()


async def synced(log: EventLog) -> None:
    """Await `log.synced()`, or fail at the deadline: a fixture's time-out would not interrupt the test's own task."""
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await log.synced()
    except TimeoutError:
        pytest.fail(f"EventLog.synced() did not return within {DEADLINE_SECONDS} s")


async def test_synced_returns_only_after_the_sync_to_disk(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    sync_started, sync_allowed = threading.Event(), threading.Event()

    def slow_sync(file: int) -> None:
        sync_started.set()
        assert sync_allowed.wait(DEADLINE_SECONDS)

    monkeypatch.setattr(os, "fdatasync", slow_sync)
    log.append(a_line("first"))
    first = asyncio.create_task(synced(log))
    assert await asyncio.to_thread(sync_started.wait, DEADLINE_SECONDS)
    log.append(a_line("second"))
    second = asyncio.create_task(synced(log))
    await asyncio.sleep(0)
    assert (first.done(), second.done()) == (False, False)
    sync_allowed.set()
    await asyncio.gather(first, second)
    assert [entry.client_order_id for entry in log.read()] == ["first", "second"]


async def test_lines_added_together_share_one_sync(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs: list[int] = []
    monkeypatch.setattr(os, "fdatasync", syncs.append)
    for number in range(100):
        log.append(a_line(f"order-{number}"))
    await synced(log)
    assert len(syncs) == 1
    assert len(list(log.read())) == 100


async def test_synced_returns_at_once_when_no_line_was_added(log: EventLog) -> None:
    await synced(log)


async def test_amounts_are_read_exactly_as_they_were_written(log: EventLog) -> None:
    log.append(a_line())
    await synced(log)
    assert list(log.read()) == [a_line()]


async def test_after_a_failed_write_synced_always_raises(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: int) -> NoReturn:
        raise OSError(errno.EIO, "disk failure")

    monkeypatch.setattr(os, "fdatasync", fail)
    log.append(a_line())
    with pytest.raises(LogBroken):
        await synced(log)
    monkeypatch.undo()
    log.append(a_line())
    with pytest.raises(LogBroken):
        await synced(log)
