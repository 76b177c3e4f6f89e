"""The journal's head, signed and kept outside the database: who has it notices that an older database was restored."""

import asyncio
import contextlib
import fcntl
import hashlib
import hmac
import os
import threading
from pathlib import Path

import msgspec
import structlog

from switchyard.domain.chain import stamp
from switchyard.domain.errors import HistoryMismatch, SwitchyardError
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Head, Journal
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

# How much of a cut tail a signed head may miss.
HEAD_SECONDS = 5.0
FILE_MODE = 0o640
# A writer that was cancelled goes on in its thread while the last head is written.
_writing = threading.Lock()


class KeyedHead(msgspec.Struct, frozen=True, kw_only=True):
    """How far the journal has come, signed: without the key nobody can wind it back together with the rest."""

    epoch: int
    shard: int
    seq: int
    hash: str
    at: str
    mac: str = ""

    def signed(self, key: bytes) -> "KeyedHead":
        """The same head with its mac."""
        text = f"{self.epoch}\n{self.shard}\n{self.seq}\n{self.hash}\n{self.at}"
        return msgspec.structs.replace(self, mac=hmac.new(key, text.encode(), hashlib.sha256).hexdigest())


def read_head(path: Path, key: bytes) -> KeyedHead | None:
    """The keyed head, or none where there is no such file; HistoryMismatch where the key did not write it."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        head = msgspec.json.decode(text, type=KeyedHead)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HistoryMismatch(f"{path} is not a head file ({error})") from None
    if not hmac.compare_digest(head.signed(key).mac.encode(), head.mac.encode()):
        raise HistoryMismatch(f"{path} was not written under this key: it was edited, or the key has changed")
    return head


def write_head(path: Path, head: KeyedHead) -> None:
    """Put the head in place of the one before, whole or not at all."""
    draft = path.with_name(path.name + ".new")
    with _writing:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
        try:
            os.write(descriptor, msgspec.json.encode(head) + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        draft.replace(path)
        sync_folder(path.parent)


def lock_beside(path: Path) -> int | None:
    """The lock of a file that one process writes, held until the descriptor is closed; none while another has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, FILE_MODE)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def sync_folder(folder: Path) -> None:
    """Make a file's name as durable as its content."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


async def check_history(journal: Journal, shard: int, name: str, place: Head, head: Head) -> None:
    """Raise HistoryMismatch unless what somebody has seen of the journal, its head included, is still in it."""
    if place.seq > head.seq:
        raise HistoryMismatch(
            f"{name} is at seq {place.seq}, the journal at {head.seq}: an older database seems to have been "
            "restored. Bring the newer database back, or, if the older one is meant, stop everything and run "
            "`switchyard db restored`"
        )
    if place.seq == 0:
        return
    found = await journal.lines(shard, place.seq - 1, 1)
    # The hash covers the event's own epoch; a head may carry a later one, opened before anything happened in it.
    if found is None or found.last.hash != place.hash:
        raise HistoryMismatch(
            f"{name} and the journal tell different histories: at seq {place.seq} it has hash {place.hash} of "
            f"epoch {place.epoch}, the journal {found.last if found else 'nothing'}"
        )


class HeadKeeper:
    """Keeps the head for a process without an audit file; of several with the same path one writes it."""

    def __init__(
        self, path: Path, *, key: bytes, journal: Journal, clock: Clock, metrics: Metrics, shard: int = 0
    ) -> None:
        self._path = path
        self._key = key
        self._journal = journal
        self._clock = clock
        self._metrics = metrics
        self._shard = shard
        self._seen = Head(0, 0, "")
        self._written = self._seen
        self._lock: int | None = None

    async def open(self) -> None:
        """Raise HistoryMismatch where the journal lacks what was seen of it, unless a later epoch was opened."""
        keyed = await asyncio.to_thread(read_head, self._path, self._key)
        head = await self._journal.head(self._shard)
        if keyed is not None:
            place = Head(keyed.epoch, keyed.seq, keyed.hash)
            try:
                await check_history(self._journal, self._shard, str(self._path), place, head)
            except HistoryMismatch:
                if head.epoch <= place.epoch:
                    raise
                log.warning("an older database was declared the true one", epoch=head.epoch, seq=head.seq)
        self._seen = head
        self._lock = await asyncio.to_thread(lock_beside, self._path)

    async def run_once(self) -> int:
        """Look at the head and sign it where it has moved; returns how often it was written."""
        head = await self._journal.head(self._shard)
        await check_history(self._journal, self._shard, "what this process has seen", self._seen, head)
        self._seen = head
        if self._lock is None:
            self._lock = await asyncio.to_thread(lock_beside, self._path)
        if self._lock is None or head == self._written or head.seq == 0:
            return 0
        at = stamp(self._clock.now())
        keyed = KeyedHead(epoch=head.epoch, shard=self._shard, seq=head.seq, hash=head.hash, at=at)
        await asyncio.to_thread(write_head, self._path, keyed.signed(self._key))
        self._written = head
        return 1

    async def run(self) -> None:
        """Keep it until cancelled; then `close`."""
        while True:
            await self._try_once()
            await asyncio.sleep(HEAD_SECONDS)

    async def close(self) -> None:
        """Sign the last head and let another process take over; what speaks against it is for the next start."""
        with contextlib.suppress(SwitchyardError):
            await self._try_once()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def _try_once(self) -> None:
        try:
            await self.run_once()
        except OSError as error:
            # Sending goes on: what a head protects from is rare, and the next attempt is seconds away.
            self._metrics.stage_failures.labels("head").inc()
            log.error("the journal's head cannot be kept; trying again", path=str(self._path), error=str(error))
