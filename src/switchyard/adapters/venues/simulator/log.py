"""The fsynced log of the venue simulator, its reports, and the faults that a person sets."""

import asyncio
import contextlib
import fcntl
import os
import random
from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from switchyard.adapters.files.durable import create_file
from switchyard.adapters.threads import WorkerThreads
from switchyard.adapters.venues.paper.matching import PaperOrder
from switchyard.adapters.venues.wire import REPORT_STATUS, Report, Reports, encode
from switchyard.domain.errors import AlreadyRunning, CannotStart, SwitchyardError
from switchyard.domain.orders.order import OrderType
from switchyard.domain.orders.reports import ExecType, ReportStatus
from switchyard.domain.values import ZERO
from switchyard.ports.clock import Clock


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


Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]
# One hour: longer than any test waits.
Seconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]


class Faults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The probability or duration of each fault; zero switches it off.

    Faults apply to orders, cancels and amends. Lookups are affected only by the faults that say so, so that orders in
    doubt can be resolved while sends fail.
    """

    drop_answer: Probability = 0.0
    """Carry out the request, then close the connection without a response."""
    accepted_5xx: Probability = 0.0
    """Carry out the request, then respond 500."""
    refused_5xx: Probability = 0.0
    """Respond 503 without carrying out the request."""
    accept_late: Seconds = 0.0
    """Respond 503 or close the connection, and accept the order this many seconds later."""
    accept_late_400: Probability = 0.0
    """With `accept_late`: respond 400, although the outcome is unknown."""
    rate_limit: Probability = 0.0
    """Respond 429 with `Retry-After` without carrying out the request."""
    reject: Probability = 0.0
    """Respond 400, the documented rejection, without accepting the order."""
    reject_after_part_fill: Probability = 0.0
    """Fill half of a marketable order, then respond 403; the remainder stays open for an hour."""
    cancel_lost: Probability = 0.0
    """Acknowledge a cancel without carrying it out."""
    conflict: Probability = 0.0
    """Respond 409 instead of the order to a repeated client order id."""
    garbage: Probability = 0.0
    """Carry out the request, then respond 200 with a body that is not JSON."""
    close_mid_body: Probability = 0.0
    """Carry out the request, then close the connection in the middle of the response."""
    slow_bytes: Seconds = 0.0
    """Carry out the request, then send the response byte by byte with a pause of this many seconds after each."""
    lookup_5xx: Probability = 0.0
    """Respond 503 to a lookup of an order or of the open orders."""
    open_orders_5xx: Probability = 0.0
    """Respond 503 to a request for the open orders."""
    open_orders_page: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    """The number of orders in a page of open orders; zero means 500."""
    lagging_lookup: Seconds = 0.0
    """Respond 404 to lookups of an order for this many seconds after it was accepted."""
    not_found_after_fill: Probability = 0.0
    """Respond 404 to a lookup of a filled order."""
    quotes_5xx: Probability = 0.0
    """Respond 503 to a request for quotes."""
    quotes_garbage: Probability = 0.0
    """Respond 200 to a request for quotes with a body that is not JSON."""
    slow_quotes: Seconds = 0.0
    """Hold a request for quotes for this many seconds."""
    lagging_quotes: Seconds = 0.0
    """Date quotes this many seconds back, like a feed that has stopped."""
    crossed_quotes: Probability = 0.0
    """Swap bid and ask of a quote."""
    duplicate_reports: Probability = 0.0
    """Report an execution twice, the second time immediately or 0.2 s later."""
    reordered_reports: Probability = 0.0
    """Report an execution after the one that follows it."""
    late_reports: Seconds = 0.0
    """Report an execution this many seconds after it happened."""
    reports_5xx: Probability = 0.0
    """Respond 503 to a request for reports."""
    nul_in_report: Probability = 0.0
    """Report an execution under an id that contains a NUL."""
    unreadable_report: Probability = 0.0
    """Report an execution with an unknown status and without most of its fields."""
    reuse_exec_ids: Probability = 0.0
    """Give a fill the execution id of another order's fill, in the report and in lookups."""
    restart_report_numbers: Probability = 0.0
    """Drop the published reports, and number the next ones from 1 again; takes effect once, when it is set."""
    drop_reports: Probability = 0.0
    """Do not report an execution."""
    correct_fills: Probability = 0.0
    """Report a correction of a fill's price by one tick right after the fill; lookups keep showing the first price."""
    bust_fills: Probability = 0.0
    """Report right after a fill that it is void; lookups keep showing it, the statement has both."""
    fee_basis_points: Annotated[int, msgspec.Meta(ge=-1000, le=1000)] = 0
    """Charge this share of a fill's notional, in the quote currency; a negative share is a rebate."""
    partial_fills: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    """Fill an order in this many parts."""
    displayed_qty: Annotated[int, msgspec.Meta(ge=0, le=10**14)] = 0
    """Display this quantity on each side of a symbol and market step, shared by all orders; zero: enough for all."""
    refuse_connections: Seconds = 0.0
    """Close every connection and stop listening for this many seconds; takes effect once, when it is set."""
    timed_share: Probability = 1.0
    """The probability with which faults with a duration apply when they are set."""


def changed(faults: Faults, values: dict[str, Any], *, strict: bool = True) -> Faults:
    """The faults with these values replaced; raises a ValidationError that names an invalid fault."""
    return msgspec.convert({**msgspec.structs.asdict(faults), **values}, Faults, strict=strict)


class FaultPlan:
    """Decides per request whether a fault applies, from a seed, so that a run can be repeated."""

    def __init__(self, faults: Faults, seed: int) -> None:
        self.faults = faults
        self._seed = seed
        # One generator per fault, so that enabling one fault does not change when the others apply.
        self._generators: dict[str, random.Random] = {}

    def hits(self, name: str) -> bool:
        """Whether this fault applies now."""
        return self._draw(name, getattr(self.faults, name))

    def seconds(self, name: str) -> float:
        """The duration of this fault if it applies now, else zero."""
        seconds: float = getattr(self.faults, name)
        return seconds if seconds and self._draw(name, self.faults.timed_share) else 0.0

    def coin(self, name: str) -> bool:
        """Choose one of the two variants of a fault."""
        return self._draw(f"{name} coin", 0.5)

    def _draw(self, name: str, probability: float) -> bool:
        if not probability:
            return False
        generator = self._generators.get(name)
        if generator is None:
            generator = self._generators[name] = random.Random(f"{self._seed} {name}")
        return generator.random() < probability


# Long enough to keep polling of an idle venue rare, short enough that a reader can stop promptly.
WAIT_SECONDS = 0.5
# A reordered or duplicated report is published after this time even if no other report follows.
HELD_SECONDS = 0.2


class Reporting:
    """Publishes reports and logs each publication; a report published twice gets two numbers."""

    def __init__(self, log: EventLog, plan: FaultPlan, clock: Clock) -> None:
        self._log = log
        self._plan = plan
        self._clock = clock
        self._reports: list[msgspec.Raw] = []
        self._held_back: Report | None = None
        """A report that waits until the next one is published."""
        self._arrived = asyncio.Event()

    def restore(self, published: Sequence[Report], unpublished: Sequence[Report]) -> None:
        """Continue the logged sequence, and publish the reports that a crash prevented."""
        self._reports.extend(msgspec.Raw(encode(report)) for report in published)
        for report in unpublished:
            self._publish(report)

    def report(self, report: Report) -> None:
        """Publish a report now, later, after the next one, twice, or never, as the faults require."""
        if self._plan.hits("drop_reports"):
            self._log_publication("drop", report)  # without this line a restart would publish it
            return
        loop = asyncio.get_running_loop()
        if seconds := self._plan.seconds("late_reports"):
            loop.call_later(seconds, self._publish, report)
        elif self._held_back is None and self._plan.hits("reordered_reports"):
            self._held_back = report
            loop.call_later(HELD_SECONDS, self._publish_held_back)
        else:
            self._publish(report)
            self._publish_held_back()
        if self._plan.hits("duplicate_reports"):
            if self._plan.coin("duplicate_reports"):
                self._publish(report)
            else:
                loop.call_later(HELD_SECONDS, self._publish, report)

    async def wait(self, after: int) -> None:
        """Return when there is a report after this number, or after WAIT_SECONDS."""
        if after == len(self._reports):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WAIT_SECONDS):
                    await self._arrived.wait()

    def page(self, after: int, limit: int) -> Reports:
        """Return the reports after this number; a cursor beyond the end belongs to another log and restarts at 1."""
        cursor = after if after <= len(self._reports) else 0
        reports = tuple(self._reports[cursor : cursor + limit])
        return Reports(reports=reports, last_number=cursor + len(reports))

    def restart_numbers(self) -> None:
        """Drop the published reports; the next one gets number 1."""
        self._reports.clear()
        self._log.append(
            Entry(
                event="renumber",
                client_order_id="",
                venue_order_id="",
                exec_id=None,
                qty=ZERO,
                price=None,
                at=self._clock.now(),
            )
        )
        self._wake_readers()

    def _publish_held_back(self) -> None:
        held_back, self._held_back = self._held_back, None
        if held_back is not None:
            self._publish(held_back)

    def _publish(self, report: Report) -> None:
        self._reports.append(self._encoded(report))
        self._log_publication("report", report, len(self._reports))
        self._wake_readers()

    def _encoded(self, report: Report) -> msgspec.Raw:
        """The report as readers get it; after a restart of the simulator it is no longer damaged."""
        if self._plan.hits("unreadable_report"):
            return msgspec.Raw(encode({"exec_id": report.exec_id, "status": "excellent"}))
        if self._plan.hits("nul_in_report"):
            report = msgspec.structs.replace(report, exec_id=f"{report.exec_id}\0")
        return msgspec.Raw(encode(report))

    def _wake_readers(self) -> None:
        self._arrived.set()
        self._arrived = asyncio.Event()

    def _log_publication(self, event: Literal["report", "drop"], report: Report, number: int | None = None) -> None:
        self._log.append(
            Entry(
                event=event,
                client_order_id=report.client_order_id,
                venue_order_id=report.broker_order_id,
                exec_id=report.exec_id,
                qty=report.last_qty,
                price=report.last_price,
                at=self._clock.now(),
                status=REPORT_STATUS[report.status],
                number=number,
            )
        )
