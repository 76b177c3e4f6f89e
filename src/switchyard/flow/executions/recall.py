"""Applies reports that were filed as strays once their order exists: its key was repeated after a restore.

Reads the filed reports from the journal; applies them through the recorder, which counts each once.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import structlog
from msgspec.structs import replace

from switchyard.domain.ids import VenueClientOrderId
from switchyard.domain.journal.events import SYSTEM_ACCOUNT
from switchyard.domain.journal.facts import ReportFact
from switchyard.domain.journal.lines import data_of, decode_report_fact
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.flow.executions.record import Recorder
from switchyard.flow.executions.sync import FOUND_OPEN
from switchyard.ports.queries import Queries
from switchyard.ports.venue import Venue

log = structlog.get_logger()

# An order of a filed report is not sent, so nothing is urgent; an operator who decides sees the fill soon afterwards.
PAUSE_SECONDS = 2.0
PAGE = 500
# Strays that stay strays, such as reports that were set aside. Beyond this they are tried again, which changes nothing.
TRIED_MAX = 10_000


class StrayRecall:
    """Watches one venue's strays; several may run at once."""

    def __init__(self, venue: Venue, recorder: Recorder, *, queries: Queries) -> None:
        self._venue = venue
        self._recorder = recorder
        self._queries = queries
        self._tried: set[str] = set()

    async def run(self) -> None:
        """Watch for as long as the process lives."""
        while True:
            await self.run_once()
            await asyncio.sleep(PAUSE_SECONDS)

    async def run_once(self) -> int:
        """Apply the filed reports whose order exists now; returns how many changed an order."""
        wanted: dict[str, VenueClientOrderId] = {}
        page = await self._queries.matched_strays(self._venue.name, limit=PAGE)
        while page:
            for stray in page:
                if stray.exec_id not in self._tried and stray.stray_client_order_id is not None:
                    wanted[stray.exec_id] = stray.stray_client_order_id
            page = await self._queries.matched_strays(self._venue.name, after=page[-1].exec_id, limit=PAGE)
        # Of the others an order has an earlier id of the same key, and was sent from here or has ended.
        known = await self._recorder.amends.adopt_reported(self._venue.name, set(wanted.values())) if wanted else set()
        wanted = {exec_id: client_id for exec_id, client_id in wanted.items() if client_id in known}
        if not wanted:
            return 0
        applied = await self._recorder.apply(await self._filed(wanted))
        # A report that changes nothing, such as a known end, and a report that was set aside stay strays.
        if len(self._tried) > TRIED_MAX:
            self._tried.clear()
        self._tried.update(wanted)
        log.warning("stray_reports_applied", venue=self._venue.name, reports=applied, strays=len(wanted))
        return applied

    async def _filed(self, wanted: Mapping[str, VenueClientOrderId]) -> list[ExecutionReport]:
        """The reports with these ids, from the events that filed them, each under the id that the venue gave it."""
        reports, seq = [], 0
        while events := await self._queries.events_after(seq, account_id=SYSTEM_ACCOUNT, limit=PAGE):
            seq = events[-1].seq
            facts = [decode_report_fact(data_of(event)) for event in events if event.type == "ReportUnmatched"]
            reports += [
                self._as_reported(fact)
                for fact in facts
                if fact.venue == self._venue.name and wanted.get(fact.exec_id) == fact.venue_client_order_id
            ]
        return reports

    def _as_reported(self, fact: ReportFact) -> ExecutionReport:
        fields: dict[str, Any] = {name: getattr(fact, name) for name in ExecutionReport.__struct_fields__}
        report = ExecutionReport(**fields)
        if self._venue.capabilities.execution_ids == "venue" or fact.reason == FOUND_OPEN:
            return report
        # Filed under its client order id; the recorder qualifies it again, now that the symbol is known.
        prefix = f"{report.venue_client_order_id}:"
        referred = None if report.ref_exec_id is None else report.ref_exec_id.removeprefix(prefix)
        return replace(report, exec_id=report.exec_id.removeprefix(prefix), ref_exec_id=referred)
