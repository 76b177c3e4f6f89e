"""Verifies an audit file: each line must follow from the line before it, and the signed head must be in the file.

Reads the audit file and its head file; writes nothing and needs no database.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import msgspec

from switchyard.domain.errors import HistoryMismatch, SwitchyardError
from switchyard.domain.journal.lines import (
    GENESIS,
    LINE_BYTES_MAX,
    AuditLine,
    SignedHead,
    line_hash,
    parse_head,
    parse_line,
    stamp,
)
from switchyard.ports.files import AuditFile
from switchyard.ports.journal import HeadFile

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
