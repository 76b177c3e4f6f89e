"""Detects an older database and a second installation: signed copies of the journal's head, and a lease.

`HeadKeeper` writes the head to the data folder, the state folder and Redis, and compares them at the start; the
lease is taken beside each of them.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import structlog

from switchyard.domain.errors import AlreadyRunning, HistoryMismatch, SwitchyardError
from switchyard.domain.journal.lines import SignedHead, parse_head, stamp
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Head, HeadFile, Journal, Lease
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

# The loss of events newer than the last signed head goes undetected after a kill; this bounds their age. Each copy
# costs an fsync.
HEAD_SECONDS = 1.0


def head_content(
    head: Head, shard: int, now: datetime, key: bytes, installation: str = "", database: str = ""
) -> bytes:
    """The signed content of a head file."""
    unsigned = SignedHead(
        epoch=head.epoch,
        shard=shard,
        seq=head.seq,
        hash=head.hash,
        at=stamp(now),
        installation=installation,
        database=database,
    )
    return unsigned.signed(key).content()


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
    # The first head of an epoch has a number without an event; its hash is that of the last event before it. Hashes
    # cover the event's own epoch, so there is no need to compare epochs.
    found = await journal.last_event(shard, place.seq)
    if found.hash != place.hash:
        raise HistoryMismatch(
            f"{name} and the journal have different histories: at seq {place.seq} it has hash {place.hash} of "
            f"epoch {place.epoch}, the journal {found}. Bring the other database back, or, if this one is meant, stop "
            "all processes and run `switchyard db restored`"
        )


def read_head(file: HeadFile, key: bytes) -> SignedHead | None:
    """The head in a file, or none; HistoryMismatch if a file that only this installation's key signs has another one.

    In a shared file a head with another signature is returned too: it can only lead to a rejection, and processes with
    data folders of their own have keys of their own.
    """
    try:
        content = file.read()
    except OSError as error:
        if not file.is_shared:
            raise
        log.warning("head_not_compared", path=file.name, error=str(error))
        return None
    try:
        return parse_head(file.name, content, key)
    except HistoryMismatch:
        if not file.is_shared:
            raise
        return parse_head(file.name, content, None)


def place_of(head: SignedHead) -> Head:
    """The place in the journal that a signed head names."""
    return Head(head.epoch, head.seq, head.hash)


class HeadKeeper:
    """Keeps the copies of the head for a process; several processes may keep the same copy, and it never goes back."""

    def __init__(
        self,
        files: Sequence[HeadFile],
        *,
        key: bytes,
        journal: Journal,
        clock: Clock,
        metrics: Metrics,
        installation: str = "",
        database: str = "",
        shard: int = 0,
    ) -> None:
        self._files = files
        self._key = key
        self._journal = journal
        self._clock = clock
        self._metrics = metrics
        self._installation = installation
        self._database = database
        self._shard = shard
        self._seen = Head(0, 0, "")
        self._written: dict[str, Head] = {}
        self._failing: set[str] = set()

    async def open(self) -> None:
        """Raise HistoryMismatch if the journal lacks the head in a file, unless a later epoch was opened since."""
        head = await self._journal.head(self._shard)
        for file in self._files:
            kept = await asyncio.to_thread(read_head, file, self._key)
            if kept is None:
                continue
            try:
                await check_history(self._journal, self._shard, file.name, place_of(kept), head)
            except HistoryMismatch:
                if head.epoch <= kept.epoch:
                    raise
                log.warning("head_replaced_after_restore", path=file.name, epoch=head.epoch, seq=head.seq)
        self._seen = head

    async def run_once(self) -> int:
        """Check the journal against the last head seen, and write its head where that moved; returns the number."""
        seen = self._journal.seen(self._shard) or self._seen
        if (seen.epoch, seen.seq) > (self._seen.epoch, self._seen.seq):
            self._seen = seen
        head = await self._journal.head(self._shard)
        try:
            if head.epoch != self._seen.epoch:
                raise HistoryMismatch(
                    f"the journal is in epoch {head.epoch}, this process was in epoch {self._seen.epoch}: the database "
                    "was replaced or declared restored. Start the process again"
                )
            await check_history(self._journal, self._shard, "the last head seen by this process", self._seen, head)
        except HistoryMismatch:
            # The next start must notice it too: it would find only the head of a second ago.
            await self._write_all(self._seen)
            raise
        self._seen = head
        return await self._write_all(head)

    async def run(self) -> None:
        """Repeat `run_once` until cancelled; then call `close`."""
        while True:
            await self.run_once()
            await asyncio.sleep(HEAD_SECONDS)

    async def close(self) -> None:
        """Write the last head and release the files; errors are left to the next start, which checks again."""
        with contextlib.suppress(SwitchyardError):
            await self.run_once()
        for file in self._files:
            await asyncio.to_thread(file.close)

    async def _write_all(self, head: Head) -> int:
        if head.seq == 0:
            return 0
        return sum([await self._attempt(file, head) for file in self._files])

    async def _attempt(self, file: HeadFile, head: Head) -> int:
        """Write the head, unless the file has it or a later one."""
        try:
            written = await asyncio.to_thread(self._write, file, head)
        except OSError as error:
            # Sending continues: a restore of an older database is rare, and the next attempt follows in a second.
            if file.name not in self._failing:
                self._failing.add(file.name)
                self._metrics.stage_failures.labels("head").inc()
                log.warning("head_write_failed", path=file.name, error=str(error), retry_seconds=HEAD_SECONDS)
            return 0
        self._failing.discard(file.name)
        return written

    def _write(self, file: HeadFile, head: Head) -> int:
        if self._written.get(file.name) == head:
            return 0
        # Locked for this write only: a process that is paused later must not keep the heads of the others back.
        with file.locked():
            is_kept = self._is_kept(file, head)
            if not is_kept:
                now = self._clock.now()
                file.write(head_content(head, self._shard, now, self._key, self._installation, self._database))
        self._written[file.name] = head
        return 0 if is_kept else 1

    def _is_kept(self, file: HeadFile, head: Head) -> bool:
        """Whether the file has this head or a later one, of another process."""
        try:
            kept = parse_head(file.name, file.read(), None)
        except HistoryMismatch:
            return False  # what cannot be read is replaced
        if kept is None:
            return False
        if place_of(kept) == head:
            return kept.database == self._database  # a database that was moved is known by its new place
        return (kept.epoch, kept.seq) > (head.epoch, head.seq)


# A database that moved to another machine starts after this time.
TTL: Final = timedelta(seconds=10)
# Four tries within the time.
RENEW_SECONDS: Final = 2.0


class InstallationLease:
    """Keeps the lease for a process; `lost_to` is another holder while there is one."""

    def __init__(self, lease: Lease, holder: str, *, clock: Clock, metrics: Metrics) -> None:
        self._lease = lease
        self._holder = holder
        self._clock = clock
        self._metrics = metrics
        self.lost_to: str | None = None

    async def open(self) -> None:
        """Take the lease; raises AlreadyRunning if another database still renews it. Without an answer, go on."""
        gives_up_at = self._clock.monotonic() + TTL.total_seconds() + RENEW_SECONDS
        while True:
            try:
                held_by = await self._take()
            except OSError as error:
                log.warning("lease_not_taken", lease=self._lease.name, error=str(error))
                return
            if held_by == self._holder:
                return
            if self._clock.monotonic() >= gives_up_at:
                raise AlreadyRunning(
                    f"a copy of this database is running, and two copies execute orders twice: {held_by} holds "
                    f"{self._lease.name}, this one is {self._holder}. Stop the other one. If this one goes on, run "
                    "`switchyard db restored` before the start"
                )
            await asyncio.sleep(RENEW_SECONDS)

    async def run(self) -> None:
        """Renew the lease for as long as the process lives."""
        while True:
            await self.run_once()
            await asyncio.sleep(RENEW_SECONDS)

    async def run_once(self) -> None:
        """Renew the lease, and note whether another database has it."""
        try:
            held_by = await self._take()
        except OSError:
            return  # the cache tells that Redis is away
        lost_to = None if held_by == self._holder else held_by
        if lost_to is not None and self.lost_to is None:
            log.critical("lease_lost", lease=self._lease.name, holder=lost_to)
        elif lost_to is None and self.lost_to is not None:
            log.warning("lease_held_again", lease=self._lease.name)
        self.lost_to = lost_to
        self._metrics.lease_lost.set(lost_to is not None)

    async def _take(self) -> str:
        return await asyncio.to_thread(self._lease.take, self._holder, TTL)
