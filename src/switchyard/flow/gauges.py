"""Gauges that are computed when `/metrics` is read: queue, outbox, reservations, cache, disks and clocks.

Reads the database, the cache and the disks; writes only the gauges.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Protocol

from switchyard.domain.errors import SwitchyardError
from switchyard.domain.strategies.requests import Tally
from switchyard.flow.commit.sequencer import Sequencer
from switchyard.ports.cache import Cache
from switchyard.ports.clock import Clock
from switchyard.ports.files import Disks
from switchyard.ports.journal import Journal
from switchyard.ports.outbox import OutboxQueries
from switchyard.ports.queries import Reservations
from switchyard.telemetry.metrics import Metrics

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
