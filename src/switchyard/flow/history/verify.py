"""Walk an audit file: does every line follow from the one before, and is the end still there?"""

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import msgspec

from switchyard.domain.chain import GENESIS, stamp
from switchyard.domain.errors import HistoryMismatch, SwitchyardError
from switchyard.domain.replay import AuditLine
from switchyard.flow.readers.head import KeyedHead, read_head

# A line holds one order and its outbox rows: some kilobytes. The bound keeps a file without line ends out of memory.
LINE_BYTES_MAX = 1 << 20
# What follows the hashed text of a line: `,"hash":"`, 64 digits, `"}` and the line end.
HASH_BYTES = 76
HASH_MARK = b',"hash":"'
READ_BUFFER_BYTES = 1 << 20
LONG_AGO = datetime.min.replace(tzinfo=UTC)

_line = msgspec.json.Decoder(AuditLine)


class ChainBroken(SwitchyardError):
    """A line does not follow from the one before it; `number` counts lines from 1."""

    def __init__(self, number: int, seq: int | None, why: str) -> None:
        super().__init__(f"line {number}: {why}")
        self.number = number
        self.seq = seq
        self.why = why


def parse_line(raw: bytes) -> AuditLine:
    """The parts of a whole line, its line end included; ValueError where it is not in the journal's own form."""
    try:
        line = _line.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"not an audit line ({error})") from None
    head = b'{"epoch":%d,"shard":%d,"seq":%d,"at":"' % (line.epoch, line.shard, line.seq)
    time_end = len(head) + 26  # the last character of a time with six decimals, which is always Z
    if (
        not raw.startswith(head)
        or raw[time_end : time_end + 3] != b'Z",'
        or raw[-HASH_BYTES : -HASH_BYTES + len(HASH_MARK)] != HASH_MARK
        or not raw.endswith(b'"}\n')
    ):
        raise ValueError("not in the form in which audit lines are written")
    return line


class ChainWalk:
    """One bounded-memory pass: yields the lines that hold, raises ChainBroken at the first that does not."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.lines = 0
        self.partial_bytes = 0
        """Length of a last line without its end: whoever wrote it was killed in the middle."""
        self.last: AuditLine | None = None

    def __iter__(self) -> Iterator[tuple[AuditLine, bytes]]:
        """Each line with the bytes it was read from."""
        while raw := self._file.readline(LINE_BYTES_MAX):
            if not raw.endswith(b"\n") and len(raw) < LINE_BYTES_MAX:
                self.partial_bytes = len(raw)
                return
            line = self._checked(raw)
            self.last = line
            self.lines += 1
            yield line, raw

    def _checked(self, raw: bytes) -> AuditLine:
        number, last = self.lines + 1, self.last
        try:
            line = parse_line(raw)
        except ValueError as error:
            raise ChainBroken(number, None, str(error)) from None
        epoch, shard, seq, at, previous_hash = (
            (line.epoch, line.shard, 0, LONG_AGO, GENESIS)
            if last is None
            else (last.epoch, last.shard, last.seq, last.at, last.hash)
        )
        if line.seq != seq + 1:
            raise ChainBroken(number, line.seq, f"seq {line.seq} where {seq + 1} belongs")
        if line.shard != shard:
            raise ChainBroken(number, line.seq, f"shard {line.shard} in a file of shard {shard}")
        if line.epoch < epoch:
            raise ChainBroken(number, line.seq, f"epoch {line.epoch} after epoch {epoch}")
        if line.at < at:
            raise ChainBroken(number, line.seq, f"time goes back from {stamp(at)} to {stamp(line.at)}")
        if hashlib.sha256(previous_hash.encode() + raw[:-HASH_BYTES]).hexdigest() != line.hash:
            raise ChainBroken(number, line.seq, "its hash does not match its text and the line before")
        return line


def head_path_of(path: Path) -> Path:
    """Where the keyed head lies unless it is put elsewhere."""
    return path.with_name(path.name + ".head")


class BadLine(msgspec.Struct, frozen=True):
    """The first line that does not hold, counted from 1, and why; its seq where that can be read."""

    number: int
    seq: int | None
    why: str


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a walk over an audit file found."""

    path: str
    lines: int
    """Lines that hold; with a bad line, those before it."""
    last_seq: int
    last_hash: str
    bad_line: BadLine | None
    head_problem: str | None
    """What the keyed head says against the file; none also where no key was given."""
    partial_bytes: int
    """Length of a last line that was never finished; the writer completes it, so it is no fault."""

    @property
    def holds(self) -> bool:
        """Whether nothing speaks against the file."""
        return self.bad_line is None and self.head_problem is None


def verify_audit(path: Path, *, head_path: Path | None = None, key: bytes | None = None) -> AuditReport:
    """Check the whole file, and its end against the keyed head where a key is given."""
    head, head_problem = None, None
    if key is not None:
        # Read before the file, which may be growing: a head is never ahead of the file it was written for.
        head, head_problem = _head(head_path or head_path_of(path), key)
    bad_line = None
    head_seq, hash_at_head = 0 if head is None else head.seq, None
    with path.open("rb", buffering=READ_BUFFER_BYTES) as file:
        walk = ChainWalk(file)
        try:
            for line, _ in walk:
                if line.seq == head_seq:
                    hash_at_head = line.hash
        except ChainBroken as broken:
            bad_line = BadLine(broken.number, broken.seq, broken.why)
    last_seq, last_hash = (0, GENESIS) if walk.last is None else (walk.last.seq, walk.last.hash)
    if head is not None and hash_at_head is None and bad_line is None:
        head_problem = f"the tail was cut: the file ends at seq {last_seq}, its head was at {head_seq}"
    elif head is not None and hash_at_head not in (None, head.hash):
        head_problem = f"line {head_seq} is another one than the head was written for: the file was made anew"
    return AuditReport(
        path=str(path),
        lines=walk.lines,
        last_seq=last_seq,
        last_hash=last_hash,
        bad_line=bad_line,
        head_problem=head_problem,
        partial_bytes=walk.partial_bytes,
    )


def _head(path: Path, key: bytes) -> tuple[KeyedHead | None, str | None]:
    try:
        head = read_head(path, key)
    except HistoryMismatch as mismatch:
        return None, str(mismatch)
    return head, None if head is not None else f"{path} is missing"
