"""The checks of `/health/ready`: what is ready, degraded and not ready."""

import asyncio
import contextlib
from collections.abc import Mapping
from datetime import timedelta

import pytest

from switchyard.domain.errors import JournalUnavailable
from switchyard.domain.market.health import Check, CheckStatus, readiness_of
from switchyard.flow.health.readiness import (
    MEBIBYTE,
    ReadinessChecks,
    check_clock,
    check_disks,
)
from switchyard.ports.files import DiskSpace
from tests.support.memory.clock import ManualClock


class FixedDisks:
    def __init__(self, **free: int) -> None:
        self._free = free

    async def measure(self) -> Mapping[str, DiskSpace]:
        return {name: DiskSpace(free * MEBIBYTE, 100_000 * MEBIBYTE) for name, free in self._free.items()}


def test_the_worst_check_decides() -> None:
    good, slow, bad = (Check("journal", status, "") for status in ("ok", "degraded", "failed"))
    assert readiness_of([good]).status == "ready"
    assert readiness_of([good, slow]).status == "degraded"
    assert readiness_of([slow, bad, good]).status == "not_ready"


@pytest.mark.parametrize(
    ("free", "status"),
    [
        ({"data": 255, "audit": 9000}, "failed"),
        ({"data": 9000, "audit": 2047}, "degraded"),
        ({"data": 2048}, "ok"),
        ({}, "degraded"),
    ],
)
async def test_the_fullest_disk_counts(free: dict[str, int], status: CheckStatus) -> None:
    found = await check_disks(FixedDisks(**free))
    assert found.status == status


async def test_a_wall_clock_away_from_the_time_in_use_is_degraded() -> None:
    clock, wall = ManualClock(), ManualClock()
    assert (await check_clock(clock, wall)).status == "ok"
    wall.advance(timedelta(seconds=1.5))
    assert (await check_clock(clock, wall)).status == "degraded"


@pytest.mark.parametrize(
    ("offsets", "status"),
    [
        ({"database": 0.9, "sim": -1.9}, "ok"),
        ({"database": -1.1, "sim": 0.0}, "degraded"),
        ({"database": 0.0, "sim": 2.1}, "degraded"),
    ],
)
async def test_the_offsets_against_the_database_and_the_venues_are_shown(
    offsets: dict[str, float], status: str
) -> None:
    found = await check_clock(
        ManualClock(), ManualClock(), lambda: {name: timedelta(seconds=value) for name, value in offsets.items()}
    )
    assert found.status == status
    for name, value in offsets.items():
        assert f"{value:+.3f} s from {name}" in found.detail


async def test_looks_are_shared_for_a_second_and_a_check_that_hangs_fails_by_itself() -> None:
    clock, looks = ManualClock(), 0

    async def count() -> Check:
        nonlocal looks
        looks += 1
        return Check("journal", "ok", "")

    checks = ReadinessChecks(clock, seconds_max=0.05)
    checks.add("journal", count)
    await asyncio.gather(*(checks.look() for _ in range(50)))
    assert looks == 1
    clock.advance(timedelta(seconds=1))
    checks.add("venues", asyncio.Event().wait)  # type: ignore[arg-type]
    found = await checks.look()
    assert looks == 2
    assert [(each.check, each.status) for each in found.checks] == [("journal", "ok"), ("venues", "failed")]


@pytest.mark.parametrize("fault", ["fails", "raises", "hangs"])
async def test_a_check_that_orders_do_not_wait_for_only_degrades_whatever_happens_to_it(fault: str) -> None:
    async def probe() -> Check:
        if fault == "raises":
            raise JournalUnavailable("the books' database does not answer")
        if fault == "hangs":
            await asyncio.Event().wait()
        return Check("books", "failed", "they have stopped")

    checks = ReadinessChecks(ManualClock(), seconds_max=0.05)
    checks.add("books", probe, worst="degraded")
    found = await checks.look()
    assert (found.status, found.checks[0].check) == ("degraded", "books")


async def test_a_probe_that_cannot_be_cancelled_delays_nobody_and_is_not_started_twice() -> None:
    clock, started, answers = ManualClock(), 0, asyncio.Event()

    async def stubborn() -> Check:  # as a driver does that waits for its server to take the cancel
        nonlocal started
        started += 1
        while not answers.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await answers.wait()
        return Check("books", "ok", "")

    checks = ReadinessChecks(clock, seconds_max=0.02)
    checks.add("books", stubborn, worst="degraded")
    for _ in range(3):
        async with asyncio.timeout(10):
            assert (await checks.look()).status == "degraded"
        clock.advance(timedelta(seconds=1))
    answers.set()
    async with asyncio.timeout(10):
        while (await checks.look()).status != "ready":
            clock.advance(timedelta(seconds=1))
    assert started <= 2


async def test_an_error_of_a_check_is_its_finding() -> None:
    async def fail() -> Check:
        raise JournalUnavailable("the database does not answer")

    checks = ReadinessChecks(ManualClock())
    checks.add("journal", fail)
    assert (await checks.look()).checks == (Check("journal", "failed", "the database does not answer"),)
