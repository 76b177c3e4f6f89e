"""Reads the bus and books its events: the place that it has read to commits together with the entries.

Reads the bus; writes the ledger. Stops, and says so, at an event that is missing, of another history or unbookable.
"""

import asyncio

import structlog

from switchyard.domain.bus import BusEvent, Place
from switchyard.domain.errors import HistoryMismatch
from switchyard.domain.ledger.bookable import Unbookable
from switchyard.flow.wake import Wake
from switchyard.ports.bus import Bus
from switchyard.ports.clock import Clock
from switchyard.ports.ledger import Ledger, LedgerBroken, LedgerState, Posted
from switchyard.telemetry.backoffice_metrics import BackOfficeMetrics

log = structlog.get_logger()

# A page is one commit. Small enough that its thread does not keep the processor from orders for long.
EVENTS_MAX = 200
# No caller waits for the books: a pause lets a commit cover the events of many orders.
LINGER_SECONDS = 0.05
# A wake-up may be missed where another process commits; the bus is read at least this often.
POLL_SECONDS = 1.0


class Consumer:
    """Follows the bus into the ledger; `problem` says why it has stopped."""

    def __init__(self, bus: Bus, ledger: Ledger, *, clock: Clock, metrics: BackOfficeMetrics, shares: bool) -> None:
        """`shares`: whether the process also accepts or sends orders, which go first."""
        self._bus = bus
        self._ledger = ledger
        self._clock = clock
        self._metrics = metrics
        self._shares = shares
        self._state: LedgerState | None = None
        self._is_current = False
        self.started_at = clock.now()
        self.processed = 0
        """Events read since the start."""
        self.skipped = 0
        """Those of them that made no entry: they do not concern the books, or are booked already."""
        self.replayed = 0
        """Entries that the ledger had at the start."""
        self.problem: str | None = None

    async def open(self) -> None:
        """Continue at the ledger's own place; a place that the bus does not have is a problem."""
        state = self._state = await self._ledger.state()
        self.replayed = state.head.number
        self._metrics.halted.set(0)
        self._show(state)
        try:
            await self._bus.check(state.place)
        except HistoryMismatch as error:
            self._halt(
                f"the books were read up to another history: {error}. Bring the right journal or the right books back; "
                "if this journal is meant, stop the process and run `switchyard backoffice rebuild`"
            )
            return
        log.info("backoffice_opened", seq=state.place.seq, entries=state.head.number)

    @property
    def state(self) -> LedgerState:
        """How far the ledger is."""
        assert self._state is not None, "it was not opened"
        return self._state

    async def run_once(self) -> int:
        """Book one page and return its number of events; 0 when there are none, or after a problem."""
        if self.problem is not None:
            return 0
        if not self._is_current:
            self._show(await self._ledger.state())
        place = self.state.place
        try:
            events = await self._bus.page(place, EVENTS_MAX)
            if events:
                await self._post(place, events)
            return len(events)
        except (HistoryMismatch, Unbookable, LedgerBroken) as error:
            self._halt(str(error))
        return 0

    async def run(self, wake: Wake) -> None:
        """Book events until cancelled."""
        while True:
            began = self._clock.monotonic()
            count = await self.run_once()
            # A page that is not full was the last one.
            is_behind = count == EVENTS_MAX or self.problem is not None
            self._metrics.lag.set(await self._bus.lag(self.state.place) if is_behind else 0)
            if count == EVENTS_MAX:
                # Behind: in a process that also handles orders, at most half of the time is spent here.
                await asyncio.sleep(self._clock.monotonic() - began if self._shares else 0)
            else:
                await asyncio.sleep(LINGER_SECONDS)
                await wake.wait(POLL_SECONDS)

    async def _post(self, place: Place, events: list[BusEvent]) -> None:
        self._is_current = False  # until the write returns, only the ledger can tell its place
        try:
            posted = await self._ledger.post(place, events)
        except Unbookable as error:
            before = [event for event in events if event.event.seq < error.seq]
            if before:
                self._note(await self._ledger.post(place, before), len(before))
            raise
        self._note(posted, len(events))

    def _note(self, posted: Posted, events: int) -> None:
        self.processed += events
        self.skipped += events - posted.entries
        self._metrics.entries.inc(posted.entries)
        self._metrics.repeats.inc(posted.repeats)
        if posted.notes:
            self._metrics.notes.inc(posted.notes)
            log.warning("backoffice_entries_noted", notes=posted.notes, seq=posted.state.place.seq)
        self._show(posted.state)

    def _show(self, state: LedgerState) -> None:
        self._state = state
        self._is_current = True
        self._metrics.seq.set(state.place.seq)

    def _halt(self, problem: str) -> None:
        self.problem = problem
        self._metrics.halted.set(1)
        log.critical("backoffice_halted", seq=self.state.place.seq, error=problem)
