"""audit: the journal as a file of JSON Lines, continued exactly where its last whole line ended."""

import asyncio
import os
import threading
from pathlib import Path

import structlog

from switchyard.domain.chain import GENESIS, link, stamp
from switchyard.domain.changes import Change, Cursor
from switchyard.domain.errors import HistoryMismatch, OutcomeUnknown, Unavailable
from switchyard.domain.events import SYSTEM_ACCOUNT, CutFact, event
from switchyard.flow.decide import Commit
from switchyard.flow.history.verify import HASH_BYTES, head_path_of, parse_line
from switchyard.flow.readers.head import (
    FILE_MODE,
    HEAD_SECONDS,
    KeyedHead,
    check_history,
    lock_beside,
    read_head,
    sync_folder,
    write_head,
)
from switchyard.flow.wake import Wake
from switchyard.ports.clock import Clock
from switchyard.ports.journal import PAGE_MAX, Head, Journal, Lines
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

# An fsync and a cursor per second: what a power cut may cost is written again from the journal.
SYNC_SECONDS = 1.0
# Nobody waits for the audit file: a pause between small pages leaves the processor to those who are waited for.
LINGER_SECONDS = 0.05
# How long to leave a full disk, or another process that holds the file, alone before trying again.
REST_SECONDS = 1.0
# Most starts find what they need in the first window; the bound is a second of writing at 60,000 lines.
TAIL_BYTES = 1 << 18
TAIL_BYTES_MAX = 1 << 26
LINE_MARK = b'{"epoch":'


class AuditFile:
    """The file itself: blocking, and safe against a caller that was cancelled while its write goes on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._guard = threading.Lock()
        self._lock: int | None = None
        self._descriptor: int | None = None
        self._size = 0
        self._size_synced = 0
        self._size_trusted: int | None = None

    def hold(self) -> bool:
        """Lock the path for this process; false while another one has it."""
        with self._guard:
            if self._lock is None:
                self._lock = lock_beside(self._path)
            return self._lock is not None

    def recover(self, durable_seq: int) -> Head:
        """Open the file, drop what is torn after its last good line, and tell where that is.

        Lines up to `durable_seq` were synced once, so among them nothing can be torn.
        """
        with self._guard:
            self._close_file()
            is_new = not self._path.exists()
            descriptor = self._descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, FILE_MODE)
            if is_new:
                os.fchmod(descriptor, FILE_MODE)
                sync_folder(self._path.parent)
            size_found = os.fstat(descriptor).st_size
            # After a failed fsync the cache may show what never reached the disk.
            size = size_found if self._size_trusted is None else min(size_found, self._size_trusted)
            end, last = _tail(self._path, descriptor, size, durable_seq)
            if end < size_found:
                log.warning(
                    "dropping what is torn at the audit file's end", path=str(self._path), size=size_found - end
                )
                os.ftruncate(descriptor, end)
            os.fsync(descriptor)
            self._size = self._size_synced = end
            self._size_trusted = None
            return last

    def append(self, page: bytes) -> None:
        """Write whole lines; after an error only `recover` tells how far it got."""
        with self._guard:
            descriptor = self._in_place()
            rest = memoryview(page)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            self._size += len(page)

    def sync(self) -> None:
        """Put everything appended on the disk."""
        with self._guard:
            try:
                os.fsync(self._in_place())
            except OSError:
                self._size_trusted = self._size_synced
                raise
            self._size_synced = self._size

    def close(self) -> None:
        """Let go of the file and its lock."""
        with self._guard:
            self._close_file()
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def _in_place(self) -> int:
        assert self._descriptor is not None, "the file was not recovered"
        found, ours = self._path.stat(), os.fstat(self._descriptor)
        if not os.path.samestat(found, ours) or found.st_size != self._size:
            raise OSError(f"somebody else has moved or changed {self._path}")
        return self._descriptor

    def _close_file(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _tail(path: Path, descriptor: int, size: int, durable_seq: int) -> tuple[int, Head]:
    """Where the last good line ends, and its place; reads no further back than `durable_seq`, within the bound."""
    window = TAIL_BYTES
    while True:
        start = max(size - window, 0)
        data = os.pread(descriptor, size - start, start)
        position = data.find(b"\n") + 1 if start else 0
        end, last = position, None
        while stop := data.find(b"\n", position) + 1:
            try:
                line = parse_line(data[position:stop])
            except ValueError as error:
                if last is None and start and window < TAIL_BYTES_MAX:
                    break  # a good line may come before this window
                if last is None or last.seq < durable_seq:
                    raise HistoryMismatch(
                        f"{path}, at byte {start + position}: {error}; move the file aside to have it written anew"
                    ) from None
                break  # a power cut may leave holes in what was not synced yet
            if last is None and start and line.seq > durable_seq and window < TAIL_BYTES_MAX:
                break  # what was not synced begins before this window
            end, last = stop, Head(line.epoch, line.seq, line.hash)
            position = stop
        if last is not None:
            return start + end, last
        if not start:
            _check_first_line(path, data)
            return 0, Head(0, 0, GENESIS)
        if window >= TAIL_BYTES_MAX:
            raise HistoryMismatch(f"{path} has no line end in its last {TAIL_BYTES_MAX} bytes: not an audit file")
        window *= 4


def _check_first_line(path: Path, data: bytes) -> None:
    # A mistyped path must not cost somebody else's file.
    begun = data.rstrip(b"\0")[: len(LINE_MARK)]
    if not LINE_MARK.startswith(begun):
        raise HistoryMismatch(f"{path} is not an audit file")


class AuditWriter:
    """A reader of the journal; one process writes the file, others with the same path stand by."""

    def __init__(
        self,
        path: Path,
        *,
        key: bytes,
        journal: Journal,
        commit: Commit,
        clock: Clock,
        metrics: Metrics,
        head_path: Path | None = None,
        shard: int = 0,
        reader: str = "audit",
    ) -> None:
        self._path = path
        self._head_path = head_path or head_path_of(path)
        self._key = key
        self._journal = journal
        self._commit = commit
        self._clock = clock
        self._metrics = metrics
        self._shard = shard
        self._reader = reader
        self._file = AuditFile(path)
        self._last: Head | None = None  # none: not open, or not known after an error
        self._synced_seq = self._cursor_seq = self._head_seq = 0
        self._sync_at = self._head_at = self._rest_until = 0.0

    @property
    def seq(self) -> int | None:
        """The last event in the file; none while another process writes it."""
        return None if self._last is None else self._last.seq

    async def open(self) -> bool:
        """Take the file up where it ends, or answer false while another process holds it.

        Raises HistoryMismatch when file, keyed head, cursor and journal do not tell the same history.
        """
        try:
            holding = await asyncio.to_thread(self._file.hold)
            keyed = await asyncio.to_thread(read_head, self._head_path, self._key)
            head = await self._journal.head(self._shard)
            if keyed is not None:
                await self._check(str(self._head_path), Head(keyed.epoch, keyed.seq, keyed.hash), head)
            if holding:
                await self._take_up(0 if keyed is None else keyed.seq, head)
            return holding
        except BaseException:
            await asyncio.to_thread(self._file.close)
            raise

    async def run_once(self) -> int:
        """Write the next page; returns the number of events, 0 also while standing by or resting after an error."""
        if self._clock.monotonic() < self._rest_until:
            return 0
        try:
            if self._last is None and not await self.open():
                self._rest()
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
        """Put what was written on the disk, then move the cursor and, every few seconds, the keyed head."""
        self._sync_at = self._clock.monotonic() + SYNC_SECONDS
        last = self._last
        if last is None:
            return
        try:
            if last.seq != self._synced_seq:
                await asyncio.to_thread(self._file.sync)
                self._synced_seq = last.seq
            # A cut file that is being completed is still behind its cursor and its head: neither goes back.
            if last.seq > self._cursor_seq:
                cursor = Cursor(name=self._reader, epoch=last.epoch, seq=last.seq, hash=last.hash)
                await self._commit(Change(cursors=(cursor,)))
                self._cursor_seq = last.seq
            if last.seq > self._head_seq and self._clock.monotonic() >= self._head_at:
                await self._sign(last)
        except OSError as error:
            self._fail(error)
        except (Unavailable, OutcomeUnknown) as error:
            log.warning("the audit cursor was not moved; trying again", error=str(error))

    async def run(self, wake: Wake) -> None:
        """Write what comes until cancelled; then `close`."""
        while True:
            try:
                count = await self.run_once()
                if self._clock.monotonic() >= self._sync_at:
                    await self.sync()
            except (Unavailable, OutcomeUnknown) as error:
                log.warning("the audit file waits for the journal", error=str(error))
                self._rest()
                count = 0
            if count < PAGE_MAX:
                await asyncio.sleep(LINGER_SECONDS)
                await wake.wait(SYNC_SECONDS)

    async def close(self) -> None:
        """Sync what is written and let another process take over; the sequencer must still be running."""
        self._head_at = 0.0
        await self.sync()
        self._last = None
        await asyncio.to_thread(self._file.close)

    async def _take_up(self, head_seq: int, head: Head) -> None:
        cursor = await self._journal.cursor(self._reader)
        if cursor is not None:
            await self._check("the audit cursor", Head(cursor.epoch, cursor.seq, cursor.hash), head)
        cursor_seq = 0 if cursor is None else cursor.seq
        durable_seq = max(cursor_seq, head_seq)
        last = await asyncio.to_thread(self._file.recover, durable_seq)
        await self._check(str(self._path), last, head)
        if last.seq < durable_seq:
            await self._report_cut(durable_seq, last.seq)
        self._last, self._synced_seq, self._cursor_seq, self._head_seq = last, last.seq, cursor_seq, head_seq
        log.info("the audit file is open", path=str(self._path), seq=last.seq)

    async def _check(self, name: str, place: Head, head: Head) -> None:
        await check_history(self._journal, self._shard, name, place, head)

    async def _report_cut(self, expected_seq: int, found_seq: int) -> None:
        log.error("the audit file was cut", path=str(self._path), expected_seq=expected_seq, found_seq=found_seq)
        self._metrics.audit_cuts.inc()
        fact = CutFact(path=str(self._path), expected_seq=expected_seq, found_seq=found_seq)
        await self._commit(Change(events=(event("AuditFileCut", SYSTEM_ACCOUNT, None, fact),)))

    async def _append(self, last: Head, page: Lines) -> None:
        raw = page.text[: page.text.index(b"\n") + 1]
        first = parse_line(raw)
        if first.seq != last.seq + 1 or link(last.hash, raw[:-HASH_BYTES].decode()) != first.hash:
            raise HistoryMismatch(f"the journal's event {first.seq} does not follow the audit file's {last.seq}")
        self._last = None  # unless the write comes back, only the file knows how far it got
        await asyncio.to_thread(self._file.append, page.text)
        self._last = page.last
        self._metrics.audit_seq.set(page.last.seq)

    async def _sign(self, last: Head) -> None:
        self._head_at = self._clock.monotonic() + HEAD_SECONDS
        at = stamp(self._clock.now())
        head = KeyedHead(epoch=last.epoch, shard=self._shard, seq=last.seq, hash=last.hash, at=at)
        await asyncio.to_thread(write_head, self._head_path, head.signed(self._key))
        self._head_seq = last.seq

    def _fail(self, error: OSError) -> None:
        log.error("the audit file cannot be written; trying again", path=str(self._path), error=str(error))
        self._metrics.stage_failures.labels("audit").inc()
        self._last = None
        self._rest()

    def _rest(self) -> None:
        self._rest_until = self._clock.monotonic() + REST_SECONDS
