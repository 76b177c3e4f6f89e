"""The health of venues across processes: workers keep it in the database, gateways read it there, as cursors.

A gateway that runs alone does not probe venues, and routes new orders by what the workers know.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec
import structlog

from switchyard.domain.errors import OutcomeUnknown, Unavailable
from switchyard.domain.ids import VenueName
from switchyard.domain.journal.changes import Change, Cursor
from switchyard.domain.market.health import HealthRecord
from switchyard.flow.commit.sequencer import Commit
from switchyard.flow.health.board import HealthBoard
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal

log = structlog.get_logger()

PAUSE_SECONDS = 1.0
# Written again after this time, so that a gateway can tell a quiet venue from a worker that is gone.
REPEAT_SECONDS = 5.0
# Older than this, a record says nothing: its worker is gone or cannot write.
STALE = timedelta(seconds=20)


class _Dated(msgspec.Struct, frozen=True):
    """A record as it is stored, in the text of a cursor: its number and epoch would count as places in the journal."""

    at: datetime
    record: HealthRecord


_decode = msgspec.json.Decoder(_Dated).decode


class HealthWriter:
    """Writes what this worker knows; of several workers the last one counts."""

    def __init__(self, board: HealthBoard, venues: Sequence[VenueName], commit: Commit, clock: Clock) -> None:
        self._board = board
        self._venues = venues
        self._commit = commit
        self._clock = clock
        self._written: dict[VenueName, tuple[object, float]] = {}

    async def run(self) -> None:
        """Write for as long as the process lives."""
        while True:
            try:
                await self.run_once()
            except (Unavailable, OutcomeUnknown) as error:
                log.warning("venue_health_not_written", error=str(error))
            await asyncio.sleep(PAUSE_SECONDS)

    async def run_once(self) -> int:
        """Write the records whose breaker has changed, or that are about to become stale; returns how many."""
        now, cursors = self._clock.monotonic(), []
        for venue in self._venues:
            record = self._board.record(venue)
            if record is None:
                continue
            shown = (record.breaker, record.reason)
            before, written_at = self._written.get(venue, (None, float("-inf")))
            if shown != before or now - written_at >= REPEAT_SECONDS:
                text = msgspec.json.encode(_Dated(self._clock.now(), record)).decode()
                cursors.append(Cursor(name=health_name(venue), epoch=0, seq=0, hash=text))
                self._written[venue] = (shown, now)
        if cursors:
            await self._commit(Change(cursors=tuple(cursors)))
        return len(cursors)


class HealthReader:
    """Gives the board of a gateway what the workers have written."""

    def __init__(self, board: HealthBoard, venues: Sequence[VenueName], journal: Journal, clock: Clock) -> None:
        self._board = board
        self._venues = venues
        self._journal = journal
        self._clock = clock

    async def run(self) -> None:
        """Read for as long as the process lives."""
        while True:
            try:
                await self.run_once()
            except Unavailable as error:
                log.warning("venue_health_not_read", error=str(error))
            await asyncio.sleep(PAUSE_SECONDS)

    async def run_once(self) -> int:
        """Read all records; returns how many are not stale."""
        found: dict[VenueName, HealthRecord] = {}
        for venue in self._venues:
            mark = await self._journal.cursor(health_name(venue))
            stored = None if mark is None else _decode(mark.hash)
            if stored is not None and self._clock.now() - stored.at <= STALE:
                found[venue] = stored.record
        self._board.note_reported(found)
        return len(found)


def is_reported(text: str | None, now: datetime) -> bool:
    """Whether a worker has written the text of a record lately, by the database's time."""
    return text is not None and now - _decode(text).at <= STALE


def health_name(venue: VenueName) -> str:
    """The name of the cursor."""
    return f"health:{venue}"
