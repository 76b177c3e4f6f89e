"""Checks what a process depends on, for `/health/ready`: each check within a time limit, all of them once a second.

Reads the journal, the disks, the clocks and the state of the stages; writes nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta

from switchyard.domain.errors import SwitchyardError
from switchyard.domain.market.health import Check, CheckName, CheckStatus, Readiness, VenueState, readiness_of
from switchyard.ports.clock import Clock
from switchyard.ports.files import Disks
from switchyard.ports.journal import Journal

# A balancer's probe mostly waits for a few seconds; a check that takes longer is a finding by itself.
CHECK_SECONDS_MAX = 2.0
# The route needs no token: more requests than this are answered from the last look.
KEPT_SECONDS = 1.0
MEBIBYTE = 1024 * 1024
# Room for the outcomes and reports of orders that are already accepted; new ones should go elsewhere.
DISK_FREE_MIN = 256 * MEBIBYTE
# About a million orders: time for a person to act.
DISK_FREE_LOW = 2048 * MEBIBYTE
# As `flow.clock.STEP_MIN`: drift stays far below.
CLOCK_DIFFERENCE_MAX = timedelta(seconds=1)
# A venue's clock is read from its answers: to a whole second (`Date`), and as late as the answer was on its way.
VENUE_DIFFERENCE_MAX = timedelta(seconds=2)
# The name of the database's clock among the others.
DATABASE = "database"

Probe = Callable[[], Awaitable[Check]]


class ReadinessChecks:
    """The checks of one process, in the order in which they were added."""

    def __init__(self, clock: Clock, seconds_max: float = CHECK_SECONDS_MAX) -> None:
        self._clock = clock
        self._seconds_max = seconds_max
        self._probes: list[tuple[CheckName, Probe, CheckStatus]] = []
        self._running: dict[CheckName, asyncio.Future[Check]] = {}
        self._turn = asyncio.Lock()
        self._last: tuple[float, Readiness] | None = None

    def add(self, name: CheckName, probe: Probe, worst: CheckStatus = "failed") -> None:
        """Check this too; `worst` bounds what a failure of it means for the process, also one that takes too long."""
        self._probes.append((name, probe, worst))

    async def look(self, kept_seconds: float = KEPT_SECONDS) -> Readiness:
        """The present state, at most so many seconds old."""
        async with self._turn:
            if self._last is None or self._clock.monotonic() - self._last[0] >= kept_seconds:
                checks = await asyncio.gather(*(self._limited(*each) for each in self._probes))
                self._last = self._clock.monotonic(), readiness_of(checks)
            return self._last[1]

    async def _limited(self, name: CheckName, probe: Probe, worst: CheckStatus) -> Check:
        task = self._running.get(name)
        if task is None or task.done():
            task = self._running[name] = asyncio.ensure_future(probe())
            task.add_done_callback(_note_error)
        # Not cancelled: a driver may wait for its server to take the cancel. The next look waits for the same probe.
        await asyncio.wait({task}, timeout=self._seconds_max)
        if not task.done():
            return Check(name, worst, f"no answer within {self._seconds_max:g} s")
        try:
            found = task.result()
        except SwitchyardError as error:
            return Check(name, worst, str(error))
        return Check(name, worst, found.detail) if found.status == "failed" else found


def _note_error(task: asyncio.Future[Check]) -> None:
    """Look at the error of a probe: after its time limit nobody else does."""
    if not task.cancelled():
        task.exception()


async def check_journal(journal: Journal, problem: Callable[[], str | None]) -> Check:
    """Whether the database can be read, and whether commits succeed: `problem` says why they do not."""
    head = await journal.head(0)
    if (trouble := problem()) is not None:
        return Check("journal", "failed", trouble)
    return Check("journal", "ok", f"epoch {head.epoch}, event {head.seq}")


async def check_disks(disks: Disks) -> Check:
    """Whether there is room to write."""
    spaces = await disks.measure()
    if not spaces:
        return Check("disk", "degraded", "the free space cannot be measured")
    folder, space = min(spaces.items(), key=lambda item: item[1].free)
    detail = f"{space.free // MEBIBYTE} MiB free of {space.size // MEBIBYTE} MiB for the {folder} folder"
    if space.free < DISK_FREE_MIN:
        return Check("disk", "failed", detail)
    return Check("disk", "degraded" if space.free < DISK_FREE_LOW else "ok", detail)


async def check_clock(clock: Clock, wall_clock: Clock, offsets: Callable[[], Mapping[str, timedelta]] = dict) -> Check:
    """Whether this machine's wall clock agrees with the time in use, which all processes share, and with other clocks.

    `offsets` are those against the database and the venues. Nothing is decided by them: the difference to a venue is
    taken off where times are compared.
    """
    difference = wall_clock.now() - clock.now()
    others = offsets()
    texts = [f"{offset.total_seconds():+.3f} s from {name}" for name, offset in others.items()]
    own = f"{difference.total_seconds():+.3f} s from the time in use"
    detail = f"this machine's wall clock is {', '.join((own, *texts))}"
    is_far = abs(difference) > CLOCK_DIFFERENCE_MAX or any(
        abs(offset) > (CLOCK_DIFFERENCE_MAX if name == DATABASE else VENUE_DIFFERENCE_MAX)
        for name, offset in others.items()
    )
    return Check("clock", "degraded" if is_far else "ok", detail)


async def check_venues(states: Callable[[], Sequence[VenueState]]) -> Check:
    """Whether orders are sent to every venue."""
    found = states()
    problems = [f"{each.venue}: {each.reason or each.state}" for each in found if each.state != "open" or each.reason]
    if problems:
        return Check("venues", "degraded", "; ".join(problems))
    return Check("venues", "ok", f"{len(found)} open")
