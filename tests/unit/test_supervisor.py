"""The supervisor restarts failed stages, stops the process on fatal errors, and cancels every stage it started."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from switchyard.bootstrap import core
from switchyard.bootstrap.core import Supervisor
from switchyard.domain.errors import HistoryMismatch, JournalBroken, JournalUnavailable
from switchyard.telemetry.metrics import Metrics

DEADLINE_SECONDS = 60.0


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "RESTART_SECONDS", 0)


def failing_twice(error: Exception, done: asyncio.Event) -> Callable[[], Awaitable[None]]:
    runs = 0

    async def run() -> None:
        nonlocal runs
        runs += 1
        if runs < 3:
            raise error
        done.set()

    return run


@pytest.mark.parametrize(("error", "failures"), [(ValueError("a bug"), 2), (JournalUnavailable("unavailable"), 0)])
async def test_a_failed_stage_starts_again_and_unexpected_errors_are_counted(error: Exception, failures: int) -> None:
    metrics, done = Metrics(), asyncio.Event()
    stages = Supervisor(metrics)
    async with asyncio.timeout(DEADLINE_SECONDS), AsyncExitStack() as stack:
        stages.start(stack, "stage", failing_twice(error, done))
        await done.wait()
    assert metrics.registry.get_sample_value("stage_failures_total", {"stage": "stage"}) == failures
    assert not stages.stop.is_set()


@pytest.mark.parametrize("error", [HistoryMismatch("an older database"), JournalBroken("fsync failed")])
async def test_a_fatal_error_stops_the_process_and_the_first_one_is_kept(error: Exception) -> None:
    stages = Supervisor(Metrics())
    async with asyncio.timeout(DEADLINE_SECONDS), AsyncExitStack() as stack:
        stages.start(stack, "stage", failing_twice(error, asyncio.Event()))
        await stages.stop.wait()
    stages.report_broken_journal("another error")
    assert str(error) in str(stages.failure)


async def test_stages_are_cancelled_in_reverse_order_when_the_stack_unwinds() -> None:
    ended: list[str] = []

    def stage(name: str) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(name)

        return run

    stages = Supervisor(Metrics())
    with pytest.raises(ValueError, match="start failed"):
        async with AsyncExitStack() as stack:
            stages.start(stack, "first", stage("first"))
            stages.start(stack, "second", stage("second"))
            await asyncio.sleep(0)
            raise ValueError("start failed")
    assert ended == ["second", "first"]


async def test_a_stage_that_is_cancelled_while_it_waits_for_a_stage_of_its_own_does_not_start_again() -> None:
    stages, waits, may_end = Supervisor(Metrics()), asyncio.Event(), asyncio.Event()

    async def inner() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            waits.set()
            await may_end.wait()

    async def outer() -> None:
        async with AsyncExitStack() as stack:
            stages.start(stack, "inner", inner)
            await asyncio.sleep(0)
            raise JournalUnavailable("an older database")

    async with asyncio.timeout(DEADLINE_SECONDS):
        async with AsyncExitStack() as stack:
            stages.start(stack, "outer", outer)
            await waits.wait()
            asyncio.get_running_loop().call_soon(may_end.set)
        assert {task.get_name() for task in asyncio.all_tasks()}.isdisjoint({"inner", "outer"})
