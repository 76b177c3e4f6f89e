"""Replays and verifies an audit file: folds its lines into rows, as a proof of the state or to rebuild a database.

Reads the audit file; writes only to an empty `RebuildTarget`, and only if one is given.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import cast

import msgspec

from switchyard.domain.errors import HistoryMismatch, SwitchyardError
from switchyard.domain.journal.events import EventType, JournalEvent
from switchyard.domain.journal.lines import (
    GENESIS,
    LINE_BYTES_MAX,
    AuditLine,
    SignedHead,
    StateDigest,
    hashed_text,
    line_hash,
    parse_head,
    parse_line,
    stamp,
    state_digest,
)
from switchyard.domain.journal.replay import Replay, ReplayMismatch
from switchyard.domain.orders.order import Order
from switchyard.flow.history.restore import rebuilding_marker
from switchyard.ports.books import PlacedEvent, RebuildTarget, RebuiltIdentity
from switchyard.ports.files import AuditFile
from switchyard.ports.journal import Epoch, Head, HeadFile

# Earlier than any event: the first line may have any time.
BEFORE_ALL = datetime.min.replace(tzinfo=UTC)


class ChainBroken(SwitchyardError):
    """A line does not follow from the line before it; `number` counts lines from 1."""

    def __init__(self, number: int, seq: int | None, why: str) -> None:
        super().__init__(f"line {number}: {why}")
        self.number = number
        self.seq = seq
        self.why = why


class ChainWalk:
    """One pass in bounded memory: yields verified lines and raises ChainBroken at the first invalid one."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._raw_lines = lines
        self.lines = 0
        self.partial_bytes = 0
        """Length of a last line without line end: its writer was killed while writing it."""
        self.last: AuditLine | None = None

    def __iter__(self) -> Iterator[tuple[AuditLine, bytes]]:
        """Each line with its bytes."""
        for raw in self._raw_lines:
            if not raw.endswith(b"\n") and len(raw) < LINE_BYTES_MAX:
                self.partial_bytes = len(raw)
                return
            line = self._verified(raw)
            self.last = line
            self.lines += 1
            yield line, raw

    def _verified(self, raw: bytes) -> AuditLine:
        number, last = self.lines + 1, self.last
        try:
            line = parse_line(raw)
        except ValueError as error:
            raise ChainBroken(number, None, str(error)) from None
        epoch, shard, seq, at, previous_hash = (
            (1, line.shard, 0, BEFORE_ALL, GENESIS)
            if last is None
            else (last.epoch, last.shard, last.seq, last.at, last.hash)
        )
        # A new epoch starts far above the numbers of the one before; within an epoch there are no gaps.
        if line.seq != seq + 1 and not (line.epoch > epoch and line.seq > seq):
            raise ChainBroken(number, line.seq, f"seq is {line.seq}, expected {seq + 1}")
        if line.shard != shard:
            raise ChainBroken(number, line.seq, f"shard is {line.shard}, expected {shard} as in the lines before")
        if line.epoch < epoch:
            raise ChainBroken(number, line.seq, f"epoch is {line.epoch}, lower than {epoch} in the line before")
        if line.at < at:
            raise ChainBroken(number, line.seq, f"time {stamp(line.at)} is before {stamp(at)} in the line before")
        if line_hash(previous_hash, raw) != line.hash:
            raise ChainBroken(number, line.seq, "its hash does not match its text and the hash of the line before")
        return line


class BadLine(msgspec.Struct, frozen=True):
    """The first invalid line, counted from 1, and the reason; its seq if that is readable."""

    number: int
    seq: int | None
    why: str


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of verifying an audit file."""

    path: str
    lines: int
    """Valid lines; if there is a bad line, those before it."""
    last_seq: int
    last_hash: str
    bad_line: BadLine | None
    head_problem: str | None
    """The contradiction between the signed head and the file; none if they agree, or if no head was checked."""
    partial_bytes: int
    """Length of an unfinished last line. The writer writes it again, so it is not an error."""

    @property
    def holds(self) -> bool:
        """Whether the file and its head are valid."""
        return self.bad_line is None and self.head_problem is None


def verify_audit(file: AuditFile, head_file: HeadFile | None = None, key: bytes = b"") -> AuditReport:
    """Verify every line, and with a head file that its signed head is in the file."""
    head, head_problem = None, None
    if head_file is not None:
        # Read before the file, which may be growing: a head is never ahead of the file it was written for.
        head, head_problem = _read_head(head_file, key)
    bad_line = None
    head_seq, hash_at_head = 0 if head is None else head.seq, None
    walk = ChainWalk(file.lines())
    try:
        for line, _ in walk:
            if line.seq == head_seq:
                hash_at_head = line.hash
    except ChainBroken as broken:
        bad_line = BadLine(broken.number, broken.seq, broken.why)
    last_seq, last_hash = (0, GENESIS) if walk.last is None else (walk.last.seq, walk.last.hash)
    if head is not None and hash_at_head is None and bad_line is None:
        head_problem = f"lines are missing at the end: the last seq is {last_seq}, the signed head is at seq {head_seq}"
    elif head is not None and hash_at_head not in (None, head.hash):
        head_problem = f"the hash at seq {head_seq} differs from the signed head: the file was rewritten"
    return AuditReport(
        path=file.name,
        lines=walk.lines,
        last_seq=last_seq,
        last_hash=last_hash,
        bad_line=bad_line,
        head_problem=head_problem,
        partial_bytes=walk.partial_bytes,
    )


def _read_head(file: HeadFile, key: bytes) -> tuple[SignedHead | None, str | None]:
    try:
        head = parse_head(file.name, file.read(), key)
    except HistoryMismatch as mismatch:
        return None, str(mismatch)
    return head, None if head is not None else f"{file.name} is missing"


# A few megabytes of lines: large enough that a batch's fixed costs do not matter.
BATCH = 5_000


class NotEmpty(SwitchyardError):
    """The database to rebuild already has events or rows."""


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """The counts and the state digest of a replayed file."""

    events: int
    orders: int
    seq: int
    digest: str
    partial_bytes: int
    """Length of an unfinished last line, which was left out."""


async def replay(
    source: AuditFile, target: RebuildTarget | None = None, head: SignedHead | None = None
) -> ReplayResult:
    """Verify and fold the file; with a target, write events and rows into that empty database.

    The database is left with the marker `restoring`, since orders may have been sent after the file's last line: no
    process starts on it before `declare_restored` has run. `head` is the file's signed head, which names the
    installation; without one the id comes from the file if it has a second epoch, else the database keeps its own.

    Events are loaded in batches. Rows are held in memory until the last event: about a gigabyte per million orders.
    An attempt without an outcome stays `sending` under its old worker, so that recovery at start treats it as orphaned.
    """
    if target is not None and not await target.is_empty():
        raise NotEmpty("the database is not empty: a rebuild needs an empty one")
    fold = Replay()
    epochs = [Epoch(1, 1, 0)]
    last_seq = 0
    walk = ChainWalk(source.lines())
    lines = iter(walk)
    while batch := await asyncio.to_thread(_fold, fold, lines):
        for line, _ in batch:
            if line.epoch > epochs[-1].epoch:
                epochs.append(Epoch(line.epoch, line.seq, last_seq))
            last_seq = line.seq
        if target is not None:
            await target.load_events([_placed(line, raw) for line, raw in batch])
    last = walk.last
    if fold.within_change:
        assert last is not None
        raise ReplayMismatch(
            last.seq,
            "the file ends between a report and its order's update: remove the last line and replay again",
        )
    if target is not None and last is not None:
        await target.load_state(
            fold.orders.values(),
            fold.outbox.values(),
            fold.keys.values(),
            fold.positions.values(),
            fold.executions.values(),
            fold.kills.rows.values(),
            fold.kills.orders,
        )
        await target.finish(
            RebuiltIdentity(
                shard=last.shard,
                head=Head(last.epoch, last.seq, last.hash),
                at=last.at,
                epochs=epochs,
                installation_id=fold.installation_id or (head.installation if head is not None else None) or None,
                tag=fold.tag,
                marker=rebuilding_marker(),
            )
        )
    return ReplayResult(
        events=walk.lines,
        orders=len(fold.orders),
        seq=0 if last is None else last.seq,
        digest=state_digest(fold.sorted_orders()),
        partial_bytes=walk.partial_bytes,
    )


async def live_digest(orders: AsyncIterator[Order]) -> str:
    """The digest of a database's orders, to compare with a replay's."""
    digest = StateDigest()
    async for order in orders:
        digest.add(order)
    return digest.hexdigest()


def _fold(fold: Replay, lines: Iterator[tuple[AuditLine, bytes]]) -> list[tuple[AuditLine, bytes]]:
    batch = list(islice(lines, BATCH))
    for line, _ in batch:
        fold.apply(line)
    return batch


def _placed(line: AuditLine, raw: bytes) -> PlacedEvent:
    kind = cast(EventType, line.type)  # the fold rejects unknown types
    text = hashed_text(raw).decode()
    event = JournalEvent(line.seq, line.at, kind, line.account_id, line.order_id, text, line.hash)
    return PlacedEvent(line.epoch, line.shard, event)
