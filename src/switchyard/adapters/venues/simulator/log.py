"""What the simulator did, in one file of JSON Lines: the evidence that a test of exactly-once counts on."""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Literal

import msgspec

from switchyard.adapters.venues.paper.matching import PaperOrder
from switchyard.adapters.venues.wire import encode
from switchyard.domain.errors import AlreadyRunning, CannotStart, SwitchyardError
from switchyard.domain.orders import OrderType
from switchyard.domain.reports import ReportStatus


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line. Exactly one `order` line stands for each order that was taken on."""

    event: Literal["order", "amend", "fill", "cancel", "expire", "report", "drop"]
    client_order_id: str
    venue_order_id: str
    exec_id: str | None
    qty: Decimal
    price: Decimal | None
    at: datetime
    status: ReportStatus | None = None
    filled_qty: Decimal | None = None
    reason: str | None = None
    number: int | None = None
    """Of a `report`: its number for those who read reports."""
    type: OrderType | None = None
    trace_id: str | None = None
    order: PaperOrder | None = None
    """Of an `order` and an `amend`: as it left it, for a restart to continue from."""


class LogBroken(SwitchyardError):
    """The log could not be written: nothing that this process says can be trusted any more."""


class _Group:
    """Lines that reach the disk together."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.written = asyncio.Event()


class EventLog:
    """Appends lines and syncs them in groups: while one is being written, the next gathers."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise AlreadyRunning(f"another process writes {path}: stop it first") from None
        _sync_folder(path.parent)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="venue-log")
        self._gathering = _Group()
        self._writing: _Group | None = None
        self._arrived = asyncio.Event()
        self._failure: Exception | None = None

    def read(self) -> Iterator[Entry]:
        """Every line so far; one that a crash left unfinished is cut off, since nobody was told of it."""
        decoder = msgspec.json.Decoder(Entry)
        end = 0
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                try:
                    entry = decoder.decode(line)
                except msgspec.MsgspecError as error:
                    raise CannotStart(f"{self._path} line {number} is not the simulator's: {error}") from error
                end += len(line)
                yield entry
        os.ftruncate(self._file, end)

    def append(self, entry: Entry) -> None:
        """Add a line to the group that gathers."""
        self._gathering.lines.append(encode(entry) + b"\n")
        self._arrived.set()

    async def synced(self) -> None:
        """Return when every line added so far is on the disk."""
        group = self._gathering if self._gathering.lines else self._writing
        if group is not None:
            await group.written.wait()
        if self._failure is not None:
            raise LogBroken(f"{self._path} could not be written") from self._failure

    async def run(self) -> None:
        """Write for as long as the process lives; raises LogBroken when the disk fails."""
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            group = self._writing = self._gathering
            self._gathering = _Group()
            try:
                await loop.run_in_executor(self._thread, self._write, b"".join(group.lines))
            except OSError as error:
                self._failure = error
                self._gathering.written.set()
            self._writing = None
            group.written.set()
            if self._failure is not None:
                raise LogBroken(f"{self._path} could not be written") from self._failure

    def close(self) -> None:
        """Give the file back; what is not synced was promised to nobody."""
        self._thread.shutdown()
        with contextlib.suppress(OSError):
            os.close(self._file)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
        os.fdatasync(self._file)


def _sync_folder(folder: Path) -> None:
    """A new file is durable only once its name is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
