"""The simulator's event log: JSON Lines in one file, synced to disk before a response is sent.

Tests of exactly-once count its lines; a restart of the simulator restores its state from them.
"""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Literal

import msgspec

from switchyard.adapters.files.private import create_file
from switchyard.adapters.threads import WorkerThreads
from switchyard.adapters.venues.paper.matching import PaperOrder
from switchyard.adapters.venues.wire import encode
from switchyard.domain.errors import AlreadyRunning, CannotStart, SwitchyardError
from switchyard.domain.orders.order import OrderType
from switchyard.domain.orders.reports import ExecType, ReportStatus


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the log.

    Each accepted order has exactly one `order` line. Each amend that was carried out has one `amend` line,
    and each copy of it that came later a `repeat` line.
    """

    event: Literal[
        "order", "amend", "repeat", "trigger", "fill", "cancel", "expire", "revise", "report", "drop", "renumber"
    ]
    client_order_id: str
    venue_order_id: str
    exec_id: str | None
    qty: Decimal
    price: Decimal | None
    at: datetime
    status: ReportStatus | None = None
    filled_qty: Decimal | None = None
    reason: str | None = None
    fee: Decimal | None = None
    fee_currency: str | None = None
    exec_type: ExecType | None = None
    """For a `revise`: whether it corrects or voids the fill `ref_exec_id`."""
    ref_exec_id: str | None = None
    number: int | None = None
    """For a `report`: its number in the sequence of reports."""
    type: OrderType | None = None
    trace_id: str | None = None
    account: str | None = None
    amend_id: str | None = None
    """For an `amend` and a `repeat`: the client order id of the amend."""
    replaces: str | None = None
    """For an `amend` that made a new order: the venue order id of the one that it replaced."""
    order: PaperOrder | None = None
    """For an `order`, an `amend` and a `trigger`: the order after the event, from which a restart continues."""


class LogBroken(SwitchyardError):
    """A write to the log failed; the simulator must stop, since its responses would no longer be durable."""


class _Group:
    """Lines that are written and synced together."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.written = asyncio.Event()


class EventLog:
    """Appends lines and syncs them in groups; lines added during a write form the next group."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        create_file(path)
        self._file = os.open(path, os.O_RDWR | os.O_APPEND)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise AlreadyRunning(f"another process writes {path}: stop it or choose another --log") from None
        _sync_folder(path.parent)
        self._thread = WorkerThreads("venue-log")
        self._next_group = _Group()
        self._current_group: _Group | None = None
        self._arrived = asyncio.Event()
        self._failure: Exception | None = None

    def read(self) -> Iterator[Entry]:
        """Yield every complete line; truncates an incomplete last line, for which no response was sent."""
        decoder = msgspec.json.Decoder(Entry)
        end = 0
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                try:
                    entry = decoder.decode(line)
                except msgspec.MsgspecError as error:
                    raise CannotStart(
                        f"{self._path} line {number} is not a line of a simulator log: {error}"
                    ) from error
                end += len(line)
                yield entry
        os.ftruncate(self._file, end)

    def append(self, entry: Entry) -> None:
        """Add a line to the next group."""
        self._next_group.lines.append(encode(entry) + b"\n")
        self._arrived.set()

    async def synced(self) -> None:
        """Return when every line added so far is on disk; raises LogBroken if a write failed."""
        group = self._next_group if self._next_group.lines else self._current_group
        if group is not None:
            await group.written.wait()
        if self._failure is not None:
            raise LogBroken(f"{self._path} could not be written: the simulator stops") from self._failure

    async def run(self) -> None:
        """Write groups until cancelled; raises LogBroken if a write fails."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            group = self._current_group = self._next_group
            self._next_group = _Group()
            try:
                await self._thread.call(self._write, b"".join(group.lines))
            except OSError as error:
                self._failure = error
                self._next_group.written.set()
            self._current_group = None
            group.written.set()
            if self._failure is not None:
                raise LogBroken(f"{self._path} could not be written: the simulator stops") from self._failure

    def close(self) -> None:
        """Close the file; no response was sent for lines that are not synced."""
        self._thread.shutdown()
        with contextlib.suppress(OSError):
            os.close(self._file)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
        os.fdatasync(self._file)


def _sync_folder(folder: Path) -> None:
    """Sync the folder: a new file is durable only once its directory entry is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
