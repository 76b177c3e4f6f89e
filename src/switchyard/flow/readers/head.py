"""Detects that an older database was restored, by a signed copy of the journal's head outside the database.

`HeadKeeper` reads the journal's head and writes `head.json` for a worker; `AuditWriter` does the same beside its file.
"""

import asyncio
import contextlib
from datetime import datetime

import structlog

from switchyard.domain.chain import stamp
from switchyard.domain.errors import HistoryMismatch, SwitchyardError
from switchyard.domain.signed_head import SignedHead, parse_head
from switchyard.ports.clock import Clock
from switchyard.ports.head_file import HeadFile
from switchyard.ports.journal import Head, Journal
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

# The loss of events newer than the last signed head goes undetected; this bounds their age.
HEAD_SECONDS = 5.0


def head_content(head: Head, shard: int, now: datetime, key: bytes) -> bytes:
    """The signed content of a head file."""
    signed = SignedHead(epoch=head.epoch, shard=shard, seq=head.seq, hash=head.hash, at=stamp(now)).signed(key)
    return signed.content()


async def check_history(journal: Journal, shard: int, name: str, place: Head, head: Head) -> None:
    """Raise HistoryMismatch unless the journal, whose head is given, still contains `place`."""
    if place.seq > head.seq:
        raise HistoryMismatch(
            f"{name} is at seq {place.seq}, the journal at {head.seq}: an older database seems to have been "
            "restored. Bring the newer database back, or, if the older one is meant, stop all processes and run "
            "`switchyard db restored`"
        )
    if place.seq == 0:
        return
    found = await journal.lines(shard, place.seq - 1, 1)
    # Compare hashes only: they cover the event's own epoch, and a head may carry a later epoch without events yet.
    if found is None or found.last.hash != place.hash:
        raise HistoryMismatch(
            f"{name} and the journal have different histories: at seq {place.seq} it has hash {place.hash} of "
            f"epoch {place.epoch}, the journal {found.last if found else 'no event'}"
        )


class HeadKeeper:
    """Keeps a head file for a process without an audit file; one process writes it, others with its path stand by."""

    def __init__(
        self, file: HeadFile, *, key: bytes, journal: Journal, clock: Clock, metrics: Metrics, shard: int = 0
    ) -> None:
        self._file = file
        self._key = key
        self._journal = journal
        self._clock = clock
        self._metrics = metrics
        self._shard = shard
        self._seen = Head(0, 0, "")
        self._written = self._seen

    async def open(self) -> None:
        """Raise HistoryMismatch if the journal lacks the head in the file, unless a later epoch was opened since."""
        kept = parse_head(self._file.name, await asyncio.to_thread(self._file.read), self._key)
        head = await self._journal.head(self._shard)
        if kept is not None:
            place = Head(kept.epoch, kept.seq, kept.hash)
            try:
                await check_history(self._journal, self._shard, self._file.name, place, head)
            except HistoryMismatch:
                if head.epoch <= place.epoch:
                    raise
                log.warning("head_replaced_after_restore", path=self._file.name, epoch=head.epoch, seq=head.seq)
        self._seen = head
        await asyncio.to_thread(self._file.lock)

    async def run_once(self) -> int:
        """Check the journal against the last head seen, and write its head if that moved; returns 1 if written."""
        head = await self._journal.head(self._shard)
        await check_history(self._journal, self._shard, "the last head seen by this process", self._seen, head)
        self._seen = head
        is_writer = await asyncio.to_thread(self._file.lock)
        if not is_writer or head == self._written or head.seq == 0:
            return 0
        content = head_content(head, self._shard, self._clock.now(), self._key)
        await asyncio.to_thread(self._file.write, content)
        self._written = head
        return 1

    async def run(self) -> None:
        """Repeat `run_once` until cancelled; then call `close`."""
        while True:
            await self._try_once()
            await asyncio.sleep(HEAD_SECONDS)

    async def close(self) -> None:
        """Write the last head and release the lock; errors are left to the next start, which checks again."""
        with contextlib.suppress(SwitchyardError):
            await self._try_once()
        await asyncio.to_thread(self._file.close)

    async def _try_once(self) -> None:
        try:
            await self.run_once()
        except OSError as error:
            # Sending continues: a restore of an older database is rare, and the next attempt follows in seconds.
            self._metrics.stage_failures.labels("head").inc()
            log.error("head_write_failed", path=self._file.name, error=str(error), retry_seconds=HEAD_SECONDS)
