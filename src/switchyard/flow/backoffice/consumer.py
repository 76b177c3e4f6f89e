"""Reads every source that the bus assigns to this process into the ledger, one loop per source.

Reads the bus; writes the ledger. Shows which sources and accounts have stopped.
"""

import asyncio
import contextlib
from datetime import datetime

import structlog

from switchyard.domain.books.entries import HaltedAccount
from switchyard.domain.errors import Unavailable
from switchyard.domain.journal.lines import Offset, Place, SourcePosition
from switchyard.flow.backoffice.source import POLL_SECONDS, SourceReader
from switchyard.flow.clock import Wake
from switchyard.ports.books import Ledger, OwnershipLost, SourceState
from switchyard.ports.bus import Bus, Source
from switchyard.ports.clock import Clock
from switchyard.ports.tracing import Tracer
from switchyard.telemetry.metrics import BackOfficeMetrics

log = structlog.get_logger()

# A response names the first of them; the metric counts up to here.
HALTED_MAX = 1_000
HALTED_SHOWN_MAX = 5
# Another process that has events to read and has booked none for so long is paused, or stuck.
SILENCE_SECONDS_MAX = 10.0
# How often the positions in the books are compared with those that the readers remember.
COMPARE_SECONDS = 5.0


class Consumer:
    """Follows the bus into the ledger; `problem` says what has stopped."""

    def __init__(
        self,
        bus: Bus,
        ledger: Ledger,
        *,
        clock: Clock,
        metrics: BackOfficeMetrics,
        tracer: Tracer | None = None,
    ) -> None:
        self._bus = bus
        self._ledger = ledger
        self._clock = clock
        self._metrics = metrics
        self._tracer = tracer
        self._readers: dict[str, SourceReader] = {}
        self._reached: dict[str, tuple[Source, SourcePosition]] = {}
        """The sources as of the last look at them, with the position that was reached."""
        self._former = SourceFigures()
        self._states: list[SourceState] = []
        self._halted: list[HaltedAccount] = []
        self._halts = 0
        self._assigning: str | None = None
        """Why the sources could not be opened at the last try."""
        self._others_seen: list[SourceState] = []
        self._others_lag = 0
        self._others_stuck: str | None = None
        self._moved_at = clock.monotonic()
        """When the other process that reads was last seen to book something, or to have read everything."""
        self._compare_at = 0.0
        self.started_at = clock.now()
        self.replayed = 0
        """Entries that the ledger had at the start."""

    async def open(self) -> None:
        """Read how far the books are, and claim the sources that are assigned to this process."""
        await self.refresh()
        self.replayed = await self._ledger.count()
        await self._read_halted()
        await self.assign()
        log.info("backoffice_opened", entries=self.replayed, sources=sorted(self._readers))

    async def refresh(self) -> None:
        """Read from the ledger how far the sources were read: by this process, or by another one."""
        self._states = await self._ledger.sources()

    @property
    def problem(self) -> str | None:
        """What has stopped and why; none where every source and account goes on."""
        problems = [reader.problem for reader in self._readers.values() if reader.problem is not None]
        if self._halted:
            shown = "; ".join(f"{each.account_id}: {each.reason}" for each in self._halted[:HALTED_SHOWN_MAX])
            count = f"{HALTED_MAX} or more" if len(self._halted) == HALTED_MAX else str(len(self._halted))
            problems.append(f"{count} account(s) have halted: {shown}")
        return "; ".join(problems) or None

    @property
    def trouble(self) -> str | None:
        """Why nothing can be booked at the moment; it is tried again by itself."""
        troubles = (self._assigning, self._others_stuck, *(reader.trouble for reader in self._readers.values()))
        return next((each for each in troubles if each is not None), None)

    @property
    def lag(self) -> int:
        """Events that are not read yet, by this process or by the one that it waits for, as of the last count."""
        return self._others_lag + sum(reader.lag for reader in self._readers.values())

    @property
    def source_problem(self) -> str | None:
        """Why a source of this process has stopped, if one has."""
        return next((reader.problem for reader in self._readers.values() if reader.problem is not None), None)

    @property
    def readers(self) -> tuple[SourceReader, ...]:
        """The readers of the assigned sources."""
        return tuple(self._readers.values())

    @property
    def processed(self) -> int:
        """Events read since the start."""
        return self._former.processed + sum(reader.processed for reader in self._readers.values())

    @property
    def skipped(self) -> int:
        """Those of them that made no entry."""
        return self._former.skipped + sum(reader.skipped for reader in self._readers.values())

    @property
    def last_event_at(self) -> datetime | None:
        """The time of the last event read, also before this start."""
        times = [reader.read_at for reader in self._readers.values()] + [state.read_at for state in self._states]
        return max((time for time in times if time is not None), default=None)

    @property
    def last_offset(self) -> int | None:
        """The journal's number of the last event read, or the highest offset read of the partitions."""
        positions = [reader.claim.position for reader in self._readers.values()]
        reached = max(map(_last, positions or [state.position for state in self._states]), default=-1)
        return None if reached < 0 else reached

    async def assign(self) -> None:
        """Open the sources that are newly assigned, and forget those that are not assigned any more."""
        try:
            await self._assign()
        except Exception as error:
            self._assigning = str(error) or repr(error)
            raise
        self._assigning = None

    async def _assign(self) -> None:
        assigned = {source.name: source for source in await self._bus.sources()}
        for name in self._readers.keys() - assigned.keys():
            self._forget(name)
        for name, source in assigned.items():
            if name not in self._readers:
                reader = SourceReader(
                    source,
                    self._ledger,
                    clock=self._clock,
                    metrics=self._metrics,
                    tracer=self._tracer,
                )
                await reader.open()
                self._readers[name] = reader
        await self.show()

    async def run_once(self) -> int:
        """Book one page of each assigned source and return the number of events."""
        await self.assign()
        count = 0
        for reader in self.readers:
            try:
                booked = await reader.run_once()
                await reader.count_left(booked)
                count += booked
            except OwnershipLost as error:
                await self._lose(reader, error)
        await self.show()
        return count

    async def run(self, wake: Wake) -> None:
        """Follow every assigned source until cancelled; raises Unavailable where the books cannot be written."""
        try:
            await self._run_loops(wake)
        except Unavailable:
            await self._show_behind()
            raise

    async def _run_loops(self, wake: Wake) -> None:
        loops: dict[asyncio.Task[None], SourceReader] = {}
        try:
            while True:
                await self.assign()
                running = {reader.source.name for reader in loops.values()}
                for reader in self.readers:
                    if reader.source.name not in running:
                        loops[asyncio.create_task(reader.run(wake), name=f"books of {reader.source.name}")] = reader
                for task in [task for task, reader in loops.items() if reader not in self.readers]:
                    del loops[task]
                    await _cancel(task)
                if not loops:
                    await asyncio.sleep(POLL_SECONDS)
                    continue
                ended, _ = await asyncio.wait(loops, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    reader = loops.pop(task)
                    try:
                        task.result()
                    except OwnershipLost as error:
                        await self._lose(reader, error)
        finally:
            for task in loops:
                await _cancel(task)

    async def show(self) -> None:
        """Show how far the readers are; reads the halted accounts where they have changed."""
        await self._watch_others()
        await self._compare_positions()
        for reader in self.readers:
            await reader.count_left()  # its own loop may wait for the books
        halts = self._former.halts + sum(reader.halts for reader in self._readers.values())
        if halts != self._halts or not self._readers:  # without a source, another process reads
            self._halts = halts
            await self._read_halted()
        self._reached = {reader.source.name: (reader.source, reader.claim.position) for reader in self.readers}
        self._metrics.seq.set(self.last_offset or 0)
        self._metrics.lag.set(self.lag)
        self._metrics.halted.set(self.source_problem is not None)

    async def _watch_others(self) -> None:
        """Where another process reads, see whether it goes on: while it is paused, these books are old as well."""
        now = self._clock.monotonic()
        self._others_lag, before = 0, self._others_seen
        if not self._readers:
            self._others_seen = await self._ledger.sources()
            self._others_lag = await self._bus.left_to_others(self._others_seen)
        if not self._others_lag or self._others_seen != before:
            self._moved_at = now
        self._others_stuck = None
        if now - self._moved_at > SILENCE_SECONDS_MAX:
            self._others_stuck = (
                f"another process is to read: it has {self._others_lag} events left, and has booked none for more than "
                f"{SILENCE_SECONDS_MAX:.0f} s. If it is paused or stuck, end it, and this one takes over"
            )

    async def _compare_positions(self) -> None:
        """Claim a source again whose position in the books is another one: they were replaced by an older copy.

        Without new events no posting would be rejected, and what the copy lacks would stay unread.
        """
        now = self._clock.monotonic()
        if now < self._compare_at:
            return
        self._compare_at = now + COMPARE_SECONDS
        claims = [(reader, reader.settled_claim) for reader in self.readers]
        found = {state.source: (state.generation, state.position) for state in await self._ledger.sources()}
        for reader, claim in claims:
            if claim is None or reader.settled_claim is not claim:
                continue  # it posts: the posting compares
            if found.get(claim.source) != (claim.generation, claim.position):
                await self._lose(reader, OwnershipLost(claim.source, "the books have another position or generation"))

    async def _show_behind(self) -> None:
        """Show how far the sources are ahead while the books wait: the last figure is from before."""
        with contextlib.suppress(Unavailable):
            lags = [await source.lag(position) for source, position in self._reached.values()]
            self._metrics.lag.set(sum(lags))

    async def _read_halted(self) -> None:
        known = {each.account_id for each in self._halted}
        self._halted = await self._ledger.halted(HALTED_MAX)
        self._metrics.halted_accounts.set(len(self._halted))
        for each in self._halted:
            if each.account_id not in known:
                log.critical("backoffice_account_halted", account_id=each.account_id, seq=each.seq, error=each.reason)

    async def _lose(self, reader: SourceReader, error: OwnershipLost) -> None:
        log.warning("backoffice_source_lost", source=reader.source.name, error=str(error))
        self._forget(reader.source.name)
        await self._bus.release(reader.source)

    def _forget(self, name: str) -> None:
        reader = self._readers.pop(name)
        self._former.add(reader)


class SourceFigures:
    """The figures of sources that are not assigned any more."""

    def __init__(self) -> None:
        self.processed = 0
        self.skipped = 0
        self.halts = 0
        self.read_at: datetime | None = None

    def add(self, reader: SourceReader) -> None:
        """Keep what the reader counted."""
        self.processed += reader.processed
        self.skipped += reader.skipped
        self.halts += reader.halts
        if reader.read_at is not None:
            self.read_at = reader.read_at if self.read_at is None else max(self.read_at, reader.read_at)


def _last(position: SourcePosition) -> int:
    match position:
        case Place(seq=seq):
            return seq or -1
        case Offset(next=following):
            return following - 1


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    # Its outcome does not matter any more: the source is claimed again before it is read again.
    await asyncio.gather(task, return_exceptions=True)
