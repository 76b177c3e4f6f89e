"""Reads one source of the bus into the ledger: its position commits together with the entries.

Reads the source; writes the ledger. Stops, and says so, where the source has another history than the books.
"""

import asyncio
import contextlib
from datetime import datetime

import structlog

from switchyard.domain.errors import HistoryMismatch, Unavailable
from switchyard.flow.backoffice.post_spans import PostSpans
from switchyard.flow.wake import Wake
from switchyard.ports.books import Claim, Ledger, LedgerBroken, OwnershipLost, Posted
from switchyard.ports.bus import Page, Source
from switchyard.ports.clock import Clock
from switchyard.ports.tracing import Tracer
from switchyard.telemetry.backoffice_metrics import BackOfficeMetrics

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
        self._claim: Claim | None = None
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
    def claim(self) -> Claim:
        """The claim of the source, with the position that was reached."""
        assert self._claim is not None, "it was not opened"
        return self._claim

    @property
    def settled_claim(self) -> Claim | None:
        """The claim as the books have it unless another process changed them; none while a page is being posted."""
        return self._claim if self._is_current and self.problem is None else None

    @property
    def trouble(self) -> str | None:
        """Why the books are behind at the moment; it is tried again by itself."""
        return self._failure or self._silence

    async def open(self) -> None:
        """Claim the source and continue at its position; one that the source does not have is a problem."""
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

    async def _claim_again(self) -> Claim:
        self._claim = await self._ledger.claim(self.source.name, self.source.start)
        self._is_current = True
        return self._claim

    async def _post(self, claim: Claim, page: Page) -> None:
        self._is_current = False  # until the write returns, only the ledger can tell its position
        if self._tracer is None:
            posted = await self._ledger.post(claim, page.events, page.position)
        else:
            posted = await self._traced_post(self._tracer, claim, page)
        self._claim = posted.claim
        self._is_current = True
        self._note(posted, len(page.events))

    async def _traced_post(self, tracer: Tracer, claim: Claim, page: Page) -> Posted:
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
