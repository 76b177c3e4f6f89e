"""The simulator's log: synced before anyone is answered, and loud when it cannot be."""

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

from switchyard.adapters.memory.clock import START
from switchyard.adapters.venues.simulator.log import Entry, EventLog, LogBroken
from tests.support.venue_orders import DEADLINE_SECONDS


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
    async with asyncio.timeout(DEADLINE_SECONDS):
        yield log
    writing.cancel()
    with contextlib.suppress(asyncio.CancelledError, LogBroken):
        await writing
    log.close()


async def test_nobody_is_told_before_the_disk_has_it(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, allowed = threading.Event(), threading.Event()

    def slow_sync(file: int) -> None:
        asked.set()
        assert allowed.wait(DEADLINE_SECONDS)

    monkeypatch.setattr(os, "fdatasync", slow_sync)
    log.append(a_line("first"))
    first = asyncio.create_task(log.synced())
    assert await asyncio.to_thread(asked.wait, DEADLINE_SECONDS)
    log.append(a_line("second"))
    second = asyncio.create_task(log.synced())
    await asyncio.sleep(0)
    assert (first.done(), second.done()) == (False, False)
    allowed.set()
    await asyncio.gather(first, second)
    assert [entry.client_order_id for entry in log.read()] == ["first", "second"]


async def test_lines_that_come_while_one_is_written_share_a_sync(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs: list[int] = []
    monkeypatch.setattr(os, "fdatasync", syncs.append)
    for number in range(100):
        log.append(a_line(f"order-{number}"))
    await log.synced()
    assert len(syncs) == 1
    assert len(list(log.read())) == 100


async def test_without_news_nobody_waits(log: EventLog) -> None:
    await log.synced()


async def test_amounts_are_read_as_they_were_written(log: EventLog) -> None:
    log.append(a_line())
    await log.synced()
    assert list(log.read()) == [a_line()]


async def test_a_failing_disk_ends_all_promises(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: int) -> NoReturn:
        raise OSError(errno.EIO, "the disk is gone")

    monkeypatch.setattr(os, "fdatasync", fail)
    log.append(a_line())
    with pytest.raises(LogBroken):
        await log.synced()
    monkeypatch.undo()
    log.append(a_line())
    with pytest.raises(LogBroken):
        await log.synced()
