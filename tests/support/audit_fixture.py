"""A journal with its audit file, for tests that write the file, damage it and verify it."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Literal

from switchyard.adapters.files.audit_file import LocalAuditFile
from switchyard.adapters.files.head_file import LocalHeadFile, head_path_of
from switchyard.adapters.sqlite.database import SqliteDatabase
from switchyard.domain import decisions
from switchyard.domain.errors import JournalUnavailable
from switchyard.domain.ids import VenueClientOrderId, VenueName
from switchyard.domain.journal.changes import Change, Outcome
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.flow.history.replay import verify_audit
from switchyard.flow.readers import audit
from switchyard.flow.readers.audit import AuditWriter
from switchyard.ports.files import AuditFile
from switchyard.ports.journal import HeadFile, Journal
from switchyard.telemetry.metrics import Metrics
from tests.support.memory.clock import START, ManualClock
from tests.support.memory.journal import MemoryJournal

KEY = b"a key that only the operators have"


class AuditFixture:
    """A journal, the path of its audit file, and the writers of that file."""

    def __init__(self, journal: Journal, path: Path) -> None:
        self.journal = journal
        self.path = path
        self.head_path = head_path_of(path)
        self.clock = ManualClock()
        self.metrics = Metrics()
        self.is_unavailable = False
        self._groups = count(1)
        self._writers: list[AuditWriter] = []

    async def commit(self, change: Change) -> Outcome:
        if self.is_unavailable:
            raise JournalUnavailable("the database is unavailable")
        [outcome] = await self.journal.append(0, str(next(self._groups)), [change], START)
        return outcome

    async def add_events(self, number: int, prefix: str = "report") -> None:
        """Commit events; every fixture commits the same ones in the same order, so their hashes are equal."""
        for _ in range(number):
            report = ExecutionReport(
                exec_id=f"{prefix}-{next(self._groups)}",
                venue=VenueName("sim"),
                venue_client_order_id=VenueClientOrderId("unknown"),
                venue_order_id="v-1",
                status="WORKING",
                at=START,
            )
            await self.commit(decisions.unmatched_report(report))

    def writer(self) -> AuditWriter:
        file: AuditFile = LocalAuditFile(self.path)
        head_file: HeadFile = LocalHeadFile(self.head_path)
        writer = AuditWriter(
            file,
            head_file,
            key=KEY,
            journal=self.journal,
            commit=self.commit,
            clock=self.clock,
            metrics=self.metrics,
        )
        self._writers.append(writer)
        return writer

    async def write_all(self, writer: AuditWriter) -> None:
        while await writer.run_once():
            pass

    async def write_and_close(self) -> None:
        writer = self.writer()
        await self.write_all(writer)
        await writer.close()

    async def expected(self) -> bytes:
        lines: list[str] = []
        last_seq = 0
        while page := await self.journal.read(0, last_seq, 1_000):
            lines += [event.line + "\n" for event in page]
            last_seq = page[-1].seq
        return "".join(lines).encode()

    async def check(self) -> None:
        """The file has every event exactly once, and its chain is valid."""
        assert self.path.read_bytes() == await self.expected()
        assert verify_audit(LocalAuditFile(self.path)).holds

    def head_holds(self) -> bool:
        """Whether the file is valid and contains its signed head."""
        return verify_audit(LocalAuditFile(self.path), LocalHeadFile(self.head_path), KEY).holds

    async def cursor_seq(self) -> int | None:
        cursor = await self.journal.cursor("audit")
        return None if cursor is None else cursor.seq

    def pass_retry_pause(self) -> None:
        self.clock.advance(timedelta(seconds=audit.RETRY_SECONDS))

    def kill(self, writer: AuditWriter) -> None:
        """Leave what a SIGKILL leaves: the lock is released, nothing is synced or signed."""
        writer._file.close()
        writer._last = None

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    async def aclose(self) -> None:
        for writer in self._writers:
            self.kill(writer)


@asynccontextmanager
async def audit_fixture(engine: Literal["memory", "sqlite"], folder: Path) -> AsyncIterator[AuditFixture]:
    """A fixture whose journal is on that engine, with its audit file in a folder that does not exist yet."""
    path = folder / "gateway" / "audit.log"
    if engine == "memory":
        async with aclosing(AuditFixture(MemoryJournal(), path)) as fixture:
            yield fixture
        return
    await SqliteDatabase.upgrade(folder / "switchyard.db")
    database = await SqliteDatabase.open(folder / "switchyard.db")
    try:
        async with aclosing(AuditFixture(database.journal, path)) as fixture:
            yield fixture
    finally:
        await database.close()
