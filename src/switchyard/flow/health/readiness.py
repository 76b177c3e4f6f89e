"""Checks what a process depends on, for `/health/ready`, and sets the gauges that show how the stages do.

Reads the journal, the disks, the clocks and the state of the stages; writes nothing.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from switchyard.domain.errors import SwitchyardError
from switchyard.domain.market.health import Check, CheckName, CheckStatus, Readiness, VenueState, readiness_of
from switchyard.domain.strategies.requests import Tally
from switchyard.flow.commit.sequencer import Sequencer
from switchyard.ports.cache import Cache
from switchyard.ports.clock import Clock
from switchyard.ports.files import Disks
from switchyard.ports.journal import Journal
from switchyard.ports.outbox import OutboxQueries
from switchyard.ports.queries import Reservations
from switchyard.telemetry.metrics import Metrics

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


STATUSES = ("queued", "failed", "sending", "uncertain")
# A send takes at most 5 s and a doubt that a lookup can settle some seconds more: beyond a minute a person should look.
DOUBT_AGES_SECONDS = (60, 600, 3600)
SENDING_AGES_SECONDS = (10, 60, 600)
# Well within a scrape's time-out of 10 s: the other metrics are served while the database does not answer.
READ_SECONDS_MAX = 3.0


class LimitedJournal(Journal, Reservations, Protocol):
    """A journal with the totals of its limits."""


class Gauges:
    """Sets the gauges of a process."""

    def __init__(
        self,
        *,
        journal: LimitedJournal,
        queries: OutboxQueries,
        sequencer: Sequencer,
        clock: Clock,
        wall_clock: Clock,
        disks: Disks,
        metrics: Metrics,
    ) -> None:
        self._journal = journal
        self._queries = queries
        self._sequencer = sequencer
        self._clock = clock
        self._wall_clock = wall_clock
        self._disks = disks
        self._metrics = metrics
        self._currencies: set[str] = set()
        self.cache: Cache | None = None
        """Set where the process has an idempotency cache."""
        self.audit_seq: Callable[[], int | None] = lambda: None
        """The last event in the audit file; none where this process does not write it."""
        self.clock_offsets: Callable[[], Mapping[str, timedelta]] = dict
        """This machine's wall clock minus each other clock, by name."""
        self.rechecks: Callable[[], Awaitable[Tally]] | None = None
        """How many rechecks have ended; set in a process that serves their API."""

    async def refresh(self) -> None:
        """Read everything and set the gauges; those of a database that does not answer keep their values."""
        self._metrics.queue_depth.set(self._sequencer.depth)
        self._metrics.process.clock_skew.set((self._wall_clock.now() - self._clock.now()).total_seconds())
        for name, offset in self.clock_offsets().items():
            self._metrics.process.clock_offset.labels(name).set(offset.total_seconds())
        if self.cache is not None:
            self._metrics.cache.show(await self.cache.stats())
        await show_disks(self._disks, self._metrics)
        await asyncio.gather(self._show_database(), self._show_rechecks())

    async def _show_database(self) -> None:
        try:
            async with asyncio.timeout(READ_SECONDS_MAX):
                await self._read_database()
        except (SwitchyardError, TimeoutError):
            self._metrics.process.journal_up.set(0)
        else:
            self._metrics.process.journal_up.set(1)

    async def _show_rechecks(self) -> None:
        if self.rechecks is None:
            return
        with contextlib.suppress(SwitchyardError, TimeoutError):  # the last counts stay; a readiness check tells
            async with asyncio.timeout(READ_SECONDS_MAX):
                tally = await self.rechecks()
            self._metrics.rechecks.ended.show(succeeded=tally.succeeded, failed=tally.failed)

    async def _read_database(self) -> None:
        head = await self._journal.head(0)
        written = self.audit_seq()
        self._metrics.process.journal_seq.set(head.seq)
        self._metrics.process.audit_lag.set(0 if written is None else max(head.seq - written, 0))
        await self._show_outbox()
        reserved = await self._journal.reserved()
        self._currencies |= reserved.keys()
        for currency in self._currencies:  # those without an open order too: they were shown with an amount before
            sums = reserved.get(currency)
            self._metrics.reserved_orders.labels(currency).set(sums.orders if sums else 0)
            self._metrics.reserved_notional.labels(currency).set(float(sums.notional) if sums else 0)

    async def _show_outbox(self) -> None:
        metrics, now = self._metrics, self._clock.now()
        counts = {count.status: count for count in await self._queries.outbox_counts()}
        for status in STATUSES:
            count = counts.get(status)
            metrics.outbox_rows.labels(status).set(count.rows if count else 0)
        in_doubt = counts.get("uncertain")
        metrics.outbox_uncertain.set(in_doubt.rows if in_doubt else 0)
        waiting = [
            count.oldest_created_at
            for count in counts.values()
            if count.status in ("queued", "failed") and count.oldest_created_at is not None
        ]
        lag = now - min(waiting) if waiting else None
        metrics.outbox_oldest.set(max(lag.total_seconds(), 0) if lag else 0)
        doubts = await self._queries.unsettled_since(
            "uncertain", [now - timedelta(seconds=age) for age in DOUBT_AGES_SECONDS]
        )
        for age, rows in zip(DOUBT_AGES_SECONDS, doubts, strict=True):
            metrics.outbox_uncertain_by_age.labels(str(age)).set(rows)
        sends = await self._queries.unsettled_since(
            "sending", [now - timedelta(seconds=age) for age in SENDING_AGES_SECONDS]
        )
        for age, rows in zip(SENDING_AGES_SECONDS, sends, strict=True):
            metrics.outbox_sending_by_age.labels(str(age)).set(rows)


async def show_disks(disks: Disks, metrics: Metrics) -> None:
    """Measure the disks and set their gauges."""
    for folder, space in (await disks.measure()).items():
        metrics.process.disk_free.labels(folder).set(space.free)
        metrics.process.disk_size.labels(folder).set(space.size)


async def show_journal(journal: Journal, metrics: Metrics) -> None:
    """Show whether the journal's database can be read, in a process that reads little else of it."""
    try:
        async with asyncio.timeout(READ_SECONDS_MAX):
            head = await journal.head(0)
    except (SwitchyardError, TimeoutError):
        metrics.process.journal_up.set(0)
    else:
        metrics.process.journal_up.set(1)
        metrics.process.journal_seq.set(head.seq)
