"""The journal: append changes, load rows, read events; its epochs, its installation, the time of its database,
liveness.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Final, Protocol

import msgspec

from switchyard.domain.accounts.positions import Position, PositionKey
from switchyard.domain.ids import Installation, OrderId, VenueClientOrderId, WorkerId
from switchyard.domain.journal.changes import Change, Cursor, Outcome
from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.orders.outbox import OrderState

# Bounds the memory of one read; readers loop over pages.
PAGE_MAX = 1_000
# Above every event's number; the largest 64-bit integer of both databases.
SEQ_LIMIT = 2**63 - 1


class Head(msgspec.Struct, frozen=True):
    """The journal's last event; an empty journal has seq 0 and the genesis hash."""

    epoch: int
    seq: int
    hash: str


class Epoch(msgspec.Struct, frozen=True):
    """An epoch of the journal; the numbers between `after_seq` and `first_seq` belong to no event."""

    epoch: int
    first_seq: int
    """The number of its first event, which may not exist yet."""
    after_seq: int
    """The journal's last number before it; 0 for the first epoch."""


class Lines(msgspec.Struct, frozen=True):
    """A page of events as audit file lines; `last` is the last of them."""

    text: bytes
    count: int
    last: Head


class Journal(Protocol):
    """The append-only, gap-free, hash-chained event log and the rows derived from it."""

    async def load(self, order_ids: Sequence[OrderId]) -> Mapping[OrderId, OrderState]:
        """Return the orders that exist, each with all of its outbox rows."""

    async def load_by_client_order_id(
        self, ids: Sequence[VenueClientOrderId]
    ) -> Mapping[VenueClientOrderId, OrderState]:
        """Return the orders with these venue client order ids, or with amends of these ids, with all outbox rows."""

    async def load_positions(self, keys: Sequence[PositionKey]) -> Mapping[PositionKey, Position]:
        """Return the positions that exist; a position exists from its first fill on."""

    async def append(self, shard: int, group_id: str, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        """Commit a group of changes in one transaction and return an outcome for each; durable on return.

        No two changes of a group may write the same row (the sequencer ensures this). A conflict rejects one change
        and leaves the others alone. A repeated `group_id` writes nothing and returns the first outcomes, so a caller
        that lost the answer appends again; a group in which every change conflicted is not stored and is checked again.
        Raises GroupRejected if a value cannot be stored, JournalUnavailable if certainly nothing was written, and
        OutcomeUnknown if that is not certain. The other methods raise JournalUnavailable, also for what a failover to
        the synchronous standby would lose.

        Raises HistoryMismatch, and writes nothing, if the database no longer has the last event that this object has
        `seen` or has another epoch: an older database is in its place.
        """

    async def read(self, shard: int, after_seq: int, limit: int) -> list[JournalEvent]:
        """Return the next events in order, at most PAGE_MAX."""

    async def lines(self, shard: int, after_seq: int, limit: int) -> Lines | None:
        """Return the next events as lines, concatenated by the database; None if there are none."""

    async def head(self, shard: int) -> Head:
        """Return the last event's place."""

    @property
    def history(self) -> str:
        """Return the name of what this process reads: another one after a failover, constant without one."""

    async def confirm(self) -> None:
        """Wait until a failover to the synchronous standby would lose nothing that was read under `history` before.

        For what is kept from earlier reads, which wait themselves. Free where no standby is named.
        """

    def seen(self, shard: int) -> Head | None:
        """Return the head after the last append or, before that, at the first call of `head`; none before both."""

    async def last_event(self, shard: int, up_to_seq: int) -> Head:
        """Return the place of the last event with a number up to this one; seq 0 and the genesis hash if none."""

    async def epochs(self, shard: int) -> list[Epoch]:
        """Return all epochs, the oldest first."""

    async def cursor(self, name: str) -> Cursor | None:
        """Return the stored position of a reader."""


# A new epoch starts this far above the highest number found anywhere: numbers that were published and are lost in the
# restored database, in other processes' files too, do not come again.
EPOCH_GAP = 1_000_000_000
# The cursor that `switchyard db restored` writes; its hash identifies the restore.
RESTORED = "restored"


class Epochs(Protocol):
    """The journal's identity, which outlives a restore, and its epoch, which does not."""

    async def installation(self) -> Installation:
        """Return the identity that was made with the schema."""

    async def open_epoch(self, above_epoch: int, above_seq: int, now: datetime, marker: Cursor | None = None) -> Head:
        """Start an epoch above both numbers and above all of the journal and its readers' cursors; return its head.

        The head is EPOCH_GAP above the highest number; the chain continues from the last event's hash. `marker` is
        stored in the same transaction, with the new epoch and the number of its head. Every other process that has
        appended or read the head before gets HistoryMismatch at its next append.
        """


class HeadFile(Protocol):
    """A copy of the journal's head: a small file, replaced as a whole."""

    @property
    def name(self) -> str:
        """The file's path, for messages."""

    @property
    def is_shared(self) -> bool:
        """Whether processes with other data folders and keys write it too; it may then be out of reach."""

    def locked(self) -> AbstractContextManager[None]:
        """Keep other processes from writing between a read and a write; OSError if another one keeps it locked."""

    def read(self) -> bytes | None:
        """The content, or none if the file does not exist."""

    def write(self, content: bytes) -> None:
        """Replace the content durably; a crash leaves either the old content or the new."""

    def close(self) -> None:
        """Release what the calls need."""


class Lease(Protocol):
    """A name with one holder: which of the copies of a database may run."""

    @property
    def name(self) -> str:
        """For messages."""

    def take(self, holder: str, ttl: timedelta) -> str:
        """Take the lease if it is free, or renew it; returns who holds it then."""

    def close(self) -> None:
        """Disconnect; the lease expires by itself."""


class StoredTime(msgspec.Struct, frozen=True, kw_only=True):
    """The time that the processes had at one moment, for a process that starts later."""

    ahead: timedelta
    """The processes' time minus the database's wall clock, both at `written_at`."""
    written_at: datetime
    """By the database's wall clock, in the same reading as `ahead`."""
    boot_id: str | None
    """Of the machine of the process that wrote it, since its last boot; None where the system has no such id."""
    boot_seconds: float
    """On that machine's clock since its boot, at `written_at`."""
    jumped_at: datetime | None
    """The processes' time right after it last went forward by more than was measured; see `Clock.jumped_at`."""
    stepped_ahead: timedelta = timedelta()
    """How much of that has certainly not passed; see `Clock.stepped_ahead`."""


class TimeReading(msgspec.Struct, frozen=True):
    """The times that a database knows at one moment."""

    wall: datetime
    """The database's wall clock, which can be stepped."""
    newest_event_at: datetime | None
    stored: StoredTime | None
    """None before the first `store`."""


class DatabaseTime(Protocol):
    """The database's wall clock, and the time of its processes."""

    is_shared: bool
    """Whether several processes can use the database at once."""

    async def read(self) -> TimeReading:
        """Return the database's times."""

    async def store(self, time: StoredTime, *, read: StoredTime | None) -> bool:
        """Replace the time that was read; returns False, and changes nothing, if another process has replaced it."""


# How long the kernel may still deliver what a process wrote before it ended: closing a socket, also by a kill, leaves
# unacknowledged bytes with the kernel, which retransmits them until the network heals. An adapter that sets
# TCP_USER_TIMEOUT bounds this to 5 s; the HTTP adapter also sets a zero linger, which discards the bytes at once, but
# other adapters may not, and the option does not reach a connection whose process was killed before it was set.
KERNEL_HOLD: Final = timedelta(seconds=5)


class Liveness(Protocol):
    """Worker liveness, proven by a lock that ends with its holder; timestamps are not used."""

    @property
    def send_lingers(self) -> timedelta:
        """How long bytes of a send may still reach the venue after its worker's lock became free: `KERNEL_HOLD`, and
        where a free lock does not prove the process's exit, also the longest time that an attempt can take."""

    async def hold(self, worker: WorkerId) -> None:
        """Take the worker's lock until the process ends."""

    async def dead(self, workers: Sequence[WorkerId]) -> frozenset[WorkerId]:
        """Return the workers whose lock is free.

        A free lock proves that the session has ended. A worker that lost only its connection looks the same until it
        has taken its lock again, so before `send_lingers` has passed, resend only to a venue that deduplicates forever.
        """


class ReaderLock(Protocol):
    """Held by one process at a time; lost when its session ends, so the ledger's fence has the last word."""

    async def is_ours(self) -> bool:
        """Return whether this process has the lock now; takes it if it is free."""

    async def give_up(self) -> None:
        """Release it, so that another process may take it."""
