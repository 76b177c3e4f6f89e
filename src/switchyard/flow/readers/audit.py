"""Writes the audit file: every journal event as a line, in order, with a signed head beside it.

Reads the journal by a cursor of its own; writes the file, the head file, the cursor, and `AuditFileCut` events.
"""

import asyncio
import shlex

import structlog

from switchyard.domain.errors import HistoryMismatch, OutcomeUnknown, Unavailable
from switchyard.domain.journal.changes import Change, Cursor
from switchyard.domain.journal.events import SYSTEM_ACCOUNT, event
from switchyard.domain.journal.facts import CutFact
from switchyard.domain.journal.lines import line_hash, parse_head, parse_line
from switchyard.flow.clock import Wake
from switchyard.flow.commit.sequencer import Commit
from switchyard.flow.readers.head import HEAD_SECONDS, check_history, head_content
from switchyard.ports.clock import Clock
from switchyard.ports.files import AuditFile
from switchyard.ports.journal import PAGE_MAX, Head, HeadFile, Journal, Lines
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

# One fsync and one cursor update per second; after a power cut the lines since then are written again.
SYNC_SECONDS = 1.0
# Far more than is committed between the last page and the end; the rest is written after the next start.
CLOSING_PAGES_MAX = 100
# No caller waits for the audit file: a pause between small pages leaves the processor to stages with waiting callers.
LINGER_SECONDS = 0.05
# The pause before the next attempt when the disk fails or another process holds the file.
RETRY_SECONDS = 1.0


class AuditWriter:
    """A reader of the journal; one process writes the file, others with the same path stand by."""

    def __init__(
        self,
        file: AuditFile,
        head_file: HeadFile,
        *,
        key: bytes,
        journal: Journal,
        commit: Commit,
        clock: Clock,
        metrics: Metrics,
        installation: str = "",
        shard: int = 0,
        reader: str = "audit",
    ) -> None:
        self._file = file
        self._head_file = head_file
        self._key = key
        self._journal = journal
        self._commit = commit
        self._clock = clock
        self._metrics = metrics
        self._installation = installation
        self._shard = shard
        self._reader = reader
        self._last: Head | None = None
        """The last line's place; none while the file is not open, or after an error, when only the file can tell."""
        self._synced_seq = self._cursor_seq = self._head_seq = 0
        self._sync_at = self._head_at = self._retry_at = 0.0

    @property
    def seq(self) -> int | None:
        """The last event in the file; none while another process writes it."""
        return None if self._last is None else self._last.seq

    async def open(self) -> bool:
        """Lock the file and continue at its end; false while another process holds it.

        Raises HistoryMismatch unless the file, its signed head and the cursor agree with the journal.
        """
        try:
            is_writer = await asyncio.to_thread(self._file.lock)
            content = await asyncio.to_thread(self._head_file.read)
            kept = parse_head(self._head_file.name, content, self._key)
            head = await self._journal.head(self._shard)
            if kept is not None:
                await self._check(self._head_file.name, Head(kept.epoch, kept.seq, kept.hash), head)
            if is_writer:
                await self._continue(0 if kept is None else kept.seq, head)
            return is_writer
        except BaseException:
            await asyncio.to_thread(self._file.close)
            raise

    async def run_once(self) -> int:
        """Write the next page and return its number of events; 0 also while standing by or pausing after an error."""
        if self._clock.monotonic() < self._retry_at:
            return 0
        try:
            if self._last is None and not await self.open():
                self._pause()
                return 0
            assert self._last is not None
            page = await self._journal.lines(self._shard, self._last.seq, PAGE_MAX)
            if page is None:
                return 0
            await self._append(self._last, page)
            return page.count
        except OSError as error:
            self._fail(error)
            return 0

    async def sync(self) -> None:
        """Sync the file, then move the cursor and, every HEAD_SECONDS, the signed head."""
        self._sync_at = self._clock.monotonic() + SYNC_SECONDS
        last = self._last
        if last is None:
            return
        try:
            if last.seq != self._synced_seq:
                await asyncio.to_thread(self._file.sync)
                self._synced_seq = last.seq
            # While a cut file is being completed it is behind its cursor and its head; neither may move back.
            if last.seq > self._cursor_seq:
                cursor = Cursor(name=self._reader, epoch=last.epoch, seq=last.seq, hash=last.hash)
                await self._commit(Change(cursors=(cursor,)))
                self._cursor_seq = last.seq
            if last.seq > self._head_seq and self._clock.monotonic() >= self._head_at:
                await self._write_head(last)
        except OSError as error:
            self._fail(error)
        except (Unavailable, OutcomeUnknown) as error:
            log.warning("audit_cursor_not_moved", seq=last.seq, error=str(error), retry_seconds=SYNC_SECONDS)

    async def run(self, wake: Wake) -> None:
        """Write new events until cancelled; then call `close`."""
        while True:
            try:
                count = await self.run_once()
                if self._clock.monotonic() >= self._sync_at:
                    await self.sync()
            except (Unavailable, OutcomeUnknown) as error:
                log.warning("audit_waits_for_journal", error=str(error), retry_seconds=RETRY_SECONDS)
                self._pause()
                count = 0
            if count < PAGE_MAX:
                await asyncio.sleep(LINGER_SECONDS)
                await wake.wait(SYNC_SECONDS)

    async def close(self) -> None:
        """Write what was committed last, sync, write the head and release the file.

        The sequencer must still be running, for the cursor, and the stages that commit much must not.
        """
        try:
            for _ in range(CLOSING_PAGES_MAX):
                if not await self.run_once():
                    break
        except (Unavailable, OutcomeUnknown, HistoryMismatch) as error:
            log.warning("audit_closed_behind", error=str(error))
        self._head_at = 0.0
        await self.sync()
        self._last = None
        await asyncio.to_thread(self._file.close)

    async def _continue(self, head_seq: int, head: Head) -> None:
        cursor = await self._journal.cursor(self._reader)
        if cursor is not None:
            await self._check("the audit cursor", Head(cursor.epoch, cursor.seq, cursor.hash), head)
        cursor_seq = 0 if cursor is None else cursor.seq
        durable_seq = max(cursor_seq, head_seq)
        last = await asyncio.to_thread(self._file.recover, durable_seq)
        await self._check(self._file.name, last, head)
        if last.seq < durable_seq and not await self._was_moved_aside(cursor, durable_seq, head):
            await self._report_cut(durable_seq, last.seq)
        self._last, self._synced_seq, self._cursor_seq, self._head_seq = last, last.seq, cursor_seq, head_seq
        log.info("audit_file_opened", path=self._file.name, seq=last.seq)

    async def _was_moved_aside(self, cursor: Cursor | None, durable_seq: int, head: Head) -> bool:
        """Whether the lines up to this number are in a file that was renamed when a later epoch than theirs began."""
        for epoch in range(head.epoch, head.epoch if cursor is None else cursor.epoch, -1):
            try:
                moved = await asyncio.to_thread(self._file.moved_aside, epoch)
            except (OSError, HistoryMismatch) as error:
                log.warning("audit_file_not_read", path=self._file.name, error=str(error))
                return False
            if moved.seq >= durable_seq:
                return True
        return False

    async def _check(self, name: str, place: Head, head: Head) -> None:
        try:
            await check_history(self._journal, self._shard, name, place, head)
        except HistoryMismatch as mismatch:
            if place.epoch >= head.epoch:
                raise
            # `switchyard db restored` has moved only the files aside that its own settings name.
            aside = f".before-epoch-{head.epoch}"
            moves = [shlex.join(["mv", path, path + aside]) for path in (self._file.name, self._head_file.name)]
            raise HistoryMismatch(
                f"{name} has events up to seq {place.seq} of epoch {place.epoch} that the journal lost before epoch "
                f"{head.epoch} was opened. Keep them under another name, then start again: `{'; '.join(moves)}`"
            ) from mismatch

    async def _report_cut(self, expected_seq: int, found_seq: int) -> None:
        log.error("audit_file_cut", path=self._file.name, expected_seq=expected_seq, found_seq=found_seq)
        self._metrics.audit_cuts.inc()
        fact = CutFact(path=self._file.name, expected_seq=expected_seq, found_seq=found_seq)
        await self._commit(Change(events=(event("AuditFileCut", SYSTEM_ACCOUNT, None, fact),)))

    async def _append(self, last: Head, page: Lines) -> None:
        raw = page.text[: page.text.index(b"\n") + 1]
        first = parse_line(raw)
        is_next = first.seq == last.seq + 1 or (first.epoch > last.epoch and first.seq > last.seq)
        if not is_next or line_hash(last.hash, raw) != first.hash:
            raise HistoryMismatch(f"the journal's event {first.seq} does not follow the audit file's {last.seq}")
        self._last = None  # until the write returns, only the file can tell how many lines were written
        await asyncio.to_thread(self._file.append, page.text)
        self._last = page.last
        self._metrics.audit_seq.set(page.last.seq)

    async def _write_head(self, last: Head) -> None:
        self._head_at = self._clock.monotonic() + HEAD_SECONDS
        content = head_content(last, self._shard, self._clock.now(), self._key, self._installation)
        await asyncio.to_thread(self._head_file.write, content)
        self._head_seq = last.seq

    def _fail(self, error: OSError) -> None:
        log.error("audit_write_failed", path=self._file.name, error=str(error), retry_seconds=RETRY_SECONDS)
        self._metrics.stage_failures.labels("audit").inc()
        self._last = None
        self._pause()

    def _pause(self) -> None:
        self._retry_at = self._clock.monotonic() + RETRY_SECONDS
