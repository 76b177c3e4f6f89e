"""A journal with its audit file, for suites that write the file, damage it and look at it."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Literal

from switchyard.adapters.memory.clock import START, ManualClock
from switchyard.adapters.memory.journal import MemoryJournal
from switchyard.adapters.sqlite.database import SqliteDatabase
from switchyard.domain import decisions
from switchyard.domain.changes import Change, Outcome
from switchyard.domain.errors import JournalUnavailable
from switchyard.domain.ids import VenueClientOrderId, VenueName
from switchyard.domain.reports import ExecutionReport
from switchyard.flow.history.verify import verify_audit
from switchyard.flow.readers import audit
from switchyard.flow.readers.audit import AuditWriter
from switchyard.ports.journal import Journal
from switchyard.telemetry.metrics import Metrics

KEY = b"a key that only the operators have"


class House:
    """A journal with an audit file beside it, and writers that come and go."""

    def __init__(self, journal: Journal, path: Path) -> None:
        self.journal = journal
        self.path = path
        self.clock = ManualClock()
        self.metrics = Metrics()
        self.is_away = False
        self._groups = count(1)
        self._writers: list[AuditWriter] = []

    async def commit(self, change: Change) -> Outcome:
        if self.is_away:
            raise JournalUnavailable("the database is away")
        [outcome] = await self.journal.append(0, str(next(self._groups)), [change], START)
        return outcome

    async def happen(self, number: int, prefix: str = "report") -> None:
        """That many events, the same ones in the same order for every house."""
        for _ in range(number):
            report = ExecutionReport(
                exec_id=f"{prefix}-{next(self._groups)}",
                venue=VenueName("sim"),
                venue_client_order_id=VenueClientOrderId("nobody's"),
                venue_order_id="v-1",
                status="WORKING",
                at=START,
            )
            await self.commit(decisions.unmatched_report(report))

    def writer(self) -> AuditWriter:
        made = AuditWriter(
            self.path, key=KEY, journal=self.journal, commit=self.commit, clock=self.clock, metrics=self.metrics
        )
        self._writers.append(made)
        return made

    async def write(self, writer: AuditWriter) -> None:
        while await writer.run_once():
            pass

    async def write_and_close(self) -> None:
        writer = self.writer()
        await self.write(writer)
        await writer.close()

    async def expected(self) -> bytes:
        lines: list[str] = []
        while page := await self.journal.read(0, len(lines), 1_000):
            lines += [event.line + "\n" for event in page]
        return "".join(lines).encode()

    async def check(self) -> None:
        """No line twice, none missing, and the chain holds."""
        assert self.path.read_bytes() == await self.expected()
        assert verify_audit(self.path).holds

    def rest(self) -> None:
        self.clock.advance(timedelta(seconds=audit.REST_SECONDS))

    def kill(self, writer: AuditWriter) -> None:
        """What a SIGKILL leaves: the locks are gone, and nothing was said goodbye to."""
        writer._file.close()
        writer._last = None

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    async def aclose(self) -> None:
        for writer in self._writers:
            self.kill(writer)


@asynccontextmanager
async def audit_house(engine: Literal["memory", "sqlite"], folder: Path) -> AsyncIterator[House]:
    """A house whose journal is on that engine, with its file somewhere below the folder."""
    path = folder / "gateway" / "audit.log"
    if engine == "memory":
        async with aclosing(House(MemoryJournal(), path)) as house:
            yield house
        return
    await SqliteDatabase.upgrade(folder / "switchyard.db")
    database = await SqliteDatabase.open(folder / "switchyard.db")
    try:
        async with aclosing(House(database.journal, path)) as house:
            yield house
    finally:
        await database.close()
