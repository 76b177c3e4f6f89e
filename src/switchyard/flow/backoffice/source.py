"""Reads one source of the bus into batches of events for the ledger; the journal itself is one such source.

Reads the bus or the journal; writes nothing but spans.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec
import structlog

from switchyard.domain.books.postings import Reported, Revised, read_events
from switchyard.domain.errors import CannotStart, HistoryMismatch, Unavailable
from switchyard.domain.journal.lines import BusEvent, Place, SourcePosition, bus_event, check_follows
from switchyard.flow.clock import Wake
from switchyard.flow.traced import EventTraces
from switchyard.ports.books import Ledger, LedgerBroken, OwnershipLost, Posted, SourceClaim, SourceState
from switchyard.ports.bus import Page, Source
from switchyard.ports.clock import Clock
from switchyard.ports.journal import PAGE_MAX, Epoch, Journal, ReaderLock
from switchyard.ports.tracing import Span, Tracer
from switchyard.telemetry.logs import account_hash
from switchyard.telemetry.metrics import BackOfficeMetrics
from switchyard.telemetry.traces import describe

JOURNAL = "journal"
"""The name of the source."""


class JournalSource:
    """ports.bus.Source on one shard of the journal."""

    name = JOURNAL
    start: SourcePosition = Place()

    def __init__(self, journal: Journal, shard: int = 0, traces: EventTraces | None = None) -> None:
        """`traces`: where traces are on."""
        self._journal = journal
        self._traces = traces
        self._shard = shard

    async def check(self, position: SourcePosition) -> None:
        """Raise HistoryMismatch unless the journal has the event at this place."""
        place = _place(position)
        if place.seq == 0:
            return
        found = await self._journal.last_event(self._shard, place.seq)
        if (found.seq, found.hash) != (place.seq, place.hash):
            raise HistoryMismatch(
                f"the journal does not have event {place.seq} of epoch {place.epoch} with hash {place.hash}; "
                f"the last one up to that number is {found.seq} of epoch {found.epoch} with hash {found.hash}"
            )

    async def page(self, after: SourcePosition, limit: int) -> Page:
        """The next events; HistoryMismatch at a gap or at another history."""
        place = _place(after)
        lines = await self._journal.read(self._shard, place.seq, min(limit, PAGE_MAX))
        events = tuple(bus_event(event) for event in lines)
        if not events and place.seq:
            await self.check(place)  # a journal that was replaced by an older one has no next event either
        for event in events:
            check_follows(place, event)
            place = event.place
        if self._traces is not None:
            events = tuple(await self._traces.attached(events))
        return Page(events, place)

    async def epochs(self) -> Sequence[Epoch]:
        """All epochs, the oldest first."""
        return await self._journal.epochs(self._shard)

    async def place_of(self, seq: int) -> Place:
        """The place of a reader that has taken the events up to this one."""
        if not seq:
            return Place()
        found = await self._journal.last_event(self._shard, seq)
        return Place(found.epoch, found.seq, found.hash)

    async def lag(self, position: SourcePosition) -> int:
        """How many events are after the place; without the numbers that a new epoch leaves out."""
        place = _place(position)
        head = await self._journal.head(self._shard)
        skipped = sum(
            epoch.first_seq - max(epoch.after_seq, place.seq) - 1
            for epoch in await self._journal.epochs(self._shard)
            if place.seq < epoch.first_seq <= head.seq
        )
        return max(head.seq - place.seq - skipped, 0)


class JournalBus:
    """ports.bus.Bus of the journal alone."""

    def __init__(self, journal: Journal, lock: ReaderLock | None = None, traces: EventTraces | None = None) -> None:
        """`lock`: decides between several processes; none where the books serve one. `traces`: where they are on."""
        self.source = JournalSource(journal, traces=traces)
        self._lock = lock

    async def sources(self) -> Sequence[Source]:
        """The one source, while it is this process's lock."""
        return [self.source] if self._lock is None or await self._lock.is_ours() else []

    async def left_to_others(self, states: Sequence[SourceState]) -> int:
        """Return how many events the process that holds the lock has still to read."""
        position = next((state.position for state in states if state.source == JOURNAL), self.source.start)
        return await self.source.lag(position)

    async def release(self, source: Source) -> None:
        """Let another process have the lock."""
        if self._lock is not None:
            await self._lock.give_up()


def _place(position: SourcePosition) -> Place:
    assert isinstance(position, Place), f"{position} is no place in the journal"
    return position


class PostSpans:
    """The spans of one page, from before its commit."""

    def __init__(self, tracer: Tracer, source: str, events: Iterable[BusEvent]) -> None:
        self._spans: list[Span] = []
        for read in read_events(event for event in events if event.traceparent is not None):
            taken, fact = read.taken, read.fact
            if taken.traceparent is None or not isinstance(fact, Reported | Revised):
                continue
            span = tracer.child("books.post", taken.traceparent, "consumer")
            describe(
                span,
                order_id=fact.order_id,
                account_hash=account_hash(taken.event.account_id),
                event=taken.event.type,
                seq=taken.event.seq,
                source=source,
            )
            self._spans.append(span)

    def end(self, error: BaseException | None = None) -> None:
        """End them: the page is committed, or failed."""
        for span in self._spans:
            if error is not None:
                span.fail(type(error).__name__)
            span.end()


log = structlog.get_logger()

# A page is one commit, and a commit costs as much as the entries of many events.
EVENTS_MAX = 1_000
# No caller waits for the books: a pause lets a commit cover the events of many orders.
LINGER_SECONDS = 0.05
# A wake-up may be missed where another process commits; the source is read, and what is left counted, this often.
POLL_SECONDS = 1.0
# Events that are there and are not booked for so long do not arrive, or the books do not take them.
SILENCE_SECONDS_MAX = 10.0


class SourceReader:
    """Follows one source; `problem` says why it has stopped."""

    def __init__(
        self,
        source: Source,
        ledger: Ledger,
        *,
        clock: Clock,
        metrics: BackOfficeMetrics,
        tracer: Tracer | None = None,
    ) -> None:
        self.source = source
        self._ledger = ledger
        self._clock = clock
        self._metrics = metrics
        self._tracer = tracer
        self._claim: SourceClaim | None = None
        self._is_current = False
        self._counted_at = float("-inf")
        self._moved_at = clock.monotonic()
        """When events were last booked, or none were left."""
        self.processed = 0
        """Events read since the start."""
        self.skipped = 0
        """Those of them that made no entry: they do not concern the books, or were read before."""
        self.read_at: datetime | None = None
        """The time of the last event read since the start."""
        self.lag = 0
        """Events after the last page, as of the last count."""
        self.halts = 0
        """Accounts that have halted, or go on, since the start."""
        self.problem: str | None = None
        self._failure: str | None = None
        """Why the last page could not be booked, if it is repeated by itself: the books are as they were."""
        self._silence: str | None = None
        """What is not booked, though it is there."""

    @property
    def claim(self) -> SourceClaim:
        """The claim of the source, with the position that was reached."""
        assert self._claim is not None, "it was not opened"
        return self._claim

    @property
    def settled_claim(self) -> SourceClaim | None:
        """The claim as the books have it unless another process changed them; none while a page is being posted."""
        return self._claim if self._is_current and self.problem is None else None

    @property
    def trouble(self) -> str | None:
        """Why the books are behind at the moment; it is tried again by itself."""
        return self._failure or self._silence

    async def open(self) -> None:
        """SourceClaim the source and continue at its position; one that the source does not have is a problem."""
        claim = await self._claim_again()
        try:
            await self.source.check(claim.position)
        except HistoryMismatch as error:
            self._halt(
                f"the books were read up to another history: {error}. Bring the right journal or the right books back; "
                "if the journal was restored and this one is meant, stop the process and run "
                "`switchyard backoffice adopt-epoch`, or `switchyard backoffice rebuild`"
            )
            return
        log.info("backoffice_source_opened", source=self.source.name, generation=claim.generation)

    async def run_once(self) -> int:
        """Book one page and return its number of events; 0 when there are none, or after a problem.

        Raises OwnershipLost where another process has claimed the source.
        """
        if self.problem is not None:
            return 0
        try:
            claim = self.claim if self._is_current else await self._claim_again()
            page = await self.source.page(claim.position, EVENTS_MAX)
            if page.position != claim.position:
                await self._post(claim, page)
        except (HistoryMismatch, LedgerBroken) as error:
            self._halt(str(error))
            return 0
        except OwnershipLost:
            raise
        except Exception as error:  # the supervisor starts the stage again; until it succeeds the books are behind
            self._failure = str(error) or repr(error)
            raise
        self._failure = None
        return len(page.events)

    async def run(self, wake: Wake) -> None:
        """Book events until cancelled, or until another process has claimed the source (OwnershipLost)."""
        while True:
            try:
                count = await self.run_once()
            except Unavailable:
                with contextlib.suppress(Unavailable):  # the source goes on without the books
                    self.lag = await self.source.lag(self.claim.position)
                raise
            await self.count_left(count)
            if count == EVENTS_MAX:
                continue  # behind
            await asyncio.sleep(LINGER_SECONDS)
            await wake.wait(POLL_SECONDS)

    async def count_left(self, booked: int | None = None) -> None:
        """Count the events that are left, now and then: after a page of `booked` events, or while one waits.

        An empty page may be one that a broker has not sent.
        """
        now = self._clock.monotonic()
        is_last = booked is not None and booked < EVENTS_MAX and self.lag > 0
        if is_last or now - self._counted_at >= POLL_SECONDS:
            self._counted_at = now
            with contextlib.suppress(Unavailable):  # what was counted before stands; the source says what it lacks
                self.lag = await self.source.lag(self.claim.position)
        if booked or not self.lag or self.problem is not None:
            self._moved_at, self._silence = now, None
        elif now - self._moved_at > SILENCE_SECONDS_MAX:
            self._silence = (
                f"{self.source.name} has {self.lag} events left, and none was booked for more than "
                f"{SILENCE_SECONDS_MAX:.0f} s"
            )

    async def _claim_again(self) -> SourceClaim:
        self._claim = await self._ledger.claim(self.source.name, self.source.start)
        self._is_current = True
        return self._claim

    async def _post(self, claim: SourceClaim, page: Page) -> None:
        self._is_current = False  # until the write returns, only the ledger can tell its position
        if self._tracer is None:
            posted = await self._ledger.post(claim, page.events, page.position)
        else:
            posted = await self._traced_post(self._tracer, claim, page)
        self._claim = posted.claim
        self._is_current = True
        self._note(posted, len(page.events))

    async def _traced_post(self, tracer: Tracer, claim: SourceClaim, page: Page) -> Posted:
        spans = PostSpans(tracer, self.source.name, page.events)
        try:
            posted = await self._ledger.post(claim, page.events, page.position)
        except BaseException as error:
            spans.end(error)
            raise
        spans.end()
        return posted

    def _note(self, posted: Posted, events: int) -> None:
        self.processed += events
        self.skipped += posted.skipped
        self.halts += posted.halted
        self.read_at = posted.read_at or self.read_at
        self._metrics.entries.inc(posted.entries)
        self._metrics.repeats.inc(posted.repeats)
        if posted.notes:
            self._metrics.notes.inc(posted.notes)
            log.warning("backoffice_entries_noted", notes=posted.notes, source=self.source.name)

    def _halt(self, problem: str) -> None:
        self.problem = problem
        log.critical("backoffice_halted", source=self.source.name, error=problem)


class Fork(msgspec.Struct, frozen=True):
    """The first epoch of a journal that leaves out events which the books have read."""

    epoch: int
    after: Place
    """The last event that both have."""
    first_seq: int
    """The first event of the epoch."""


async def fork_of(journal: JournalSource, place: Place, read: int) -> Fork:
    """Find the epoch that leaves out a part of what was read; raises CannotStart where none explains it."""
    reached = max(place.seq, read)
    for epoch in await journal.epochs():
        if epoch.after_seq < reached < epoch.first_seq:
            return Fork(epoch.epoch, await journal.place_of(epoch.after_seq), epoch.first_seq)
    raise CannotStart(
        f"the books were read up to event {reached}, and no epoch of this journal leaves that event out: it is not the "
        "journal of these books. Bring the right journal or the right books back"
    )
