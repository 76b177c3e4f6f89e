"""Strays: reports on orders, and open orders, that are not in this database; and reports that must be set aside.

Records them, so that an order that is accepted later under the same client order id is not sent. Closes the venue
for sending if it knows an order of this installation that the database does not.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal

import msgspec
import structlog
from msgspec.structs import replace

from switchyard.domain import decisions
from switchyard.domain.errors import GroupRejected
from switchyard.domain.ids import OrderId, VenueClientOrderId, VenueName
from switchyard.domain.journal.changes import Committed, Execution
from switchyard.domain.journal.lines import data_of, decode_order_fact
from switchyard.domain.orders.lifecycle import is_final
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OrderState
from switchyard.domain.orders.reports import ExecutionReport, is_storable, qualified
from switchyard.flow.commit.sequencer import Commit
from switchyard.flow.health.venues import VenueBreaker
from switchyard.ports.clock import Clock
from switchyard.ports.journal import PAGE_MAX, RESTORED, Journal
from switchyard.ports.queries import Queries
from switchyard.telemetry.metrics import Metrics

States = Mapping[VenueClientOrderId, OrderState]


def unstorable_field(report: ExecutionReport) -> str | None:
    """The report's first id that no engine can store; none if all can be stored."""
    for name in ("exec_id", "venue_client_order_id", "venue_order_id", "ref_exec_id", "fee_currency"):
        text = getattr(report, name)
        if text is not None and not (text.isascii() and text.isprintable()) and not is_storable(text):
            return name
    return None


def of_order(report: ExecutionReport, state: OrderState | None) -> ExecutionReport:
    """The report under its order's own id; the id of an amend, under which the venue reports, is kept beside it."""
    if state is None or state.order.venue_client_order_id == report.venue_client_order_id:
        return report
    return replace(
        report,
        venue_client_order_id=state.order.venue_client_order_id,
        leg_client_order_id=report.venue_client_order_id,
    )


def is_known_end(report: ExecutionReport, order: Order) -> bool:
    """Whether the report only repeats an end that is recorded already."""
    return not report.last_qty and is_final(order.status) and order.status == report.status


async def new_reports(
    queries: Queries, venue: VenueName, reports: Sequence[ExecutionReport], states: States
) -> dict[int, ExecutionReport]:
    """The reports that were not recorded before, by their place in `reports`, each under the id to record it with.

    An id that was recorded for another order is not a repeat: the report gets an id that names its own order.
    """
    if not reports:
        return {}
    recorded = await queries.executions(venue, [report.exec_id for report in reports])
    reused = {
        number: qualified(report)
        for number, report in enumerate(reports)
        if report.exec_id in recorded and not _is_same_order(recorded[report.exec_id], report, states)
    }
    if reused:
        recorded = {**recorded, **await queries.executions(venue, [report.exec_id for report in reused.values()])}
    named = {number: reused.get(number, report) for number, report in enumerate(reports)}
    return {number: report for number, report in named.items() if not _is_repeat(recorded, report, states)}


def _is_same_order(execution: Execution, report: ExecutionReport, states: States) -> bool:
    if not execution.order_id:
        return execution.stray_client_order_id in (report.venue_client_order_id, report.leg_client_order_id)
    state = states.get(report.venue_client_order_id)
    return state is not None and state.order.order_id == execution.order_id


def _is_repeat(recorded: Mapping[str, Execution], report: ExecutionReport, states: States) -> bool:
    execution = recorded.get(report.exec_id)
    if execution is None:
        return False
    # A stray's report whose order exists now is applied to it.
    return bool(execution.order_id) or report.venue_client_order_id not in states


log = structlog.get_logger()

# A start takes a moment: a venue that is not synchronised yet is a problem only after this time.
SYNC_SECONDS = 5.0


ProblemCode = Literal[
    "BREAKER_OPEN",
    "CREDENTIAL_PAUSED",
    "NOT_SYNCHRONISED",
    "CLOSED",
    "REPORTS_UNREADABLE",
    "REPORTS_WAIT",
    "ENDED_ORDERS_OPEN",
]


class VenueProblem(msgspec.Struct, frozen=True):
    """Why a venue is closed, or open but not heard."""

    venue: VenueName
    is_open: bool
    code: ProblemCode
    reason: str
    """For operators: it may name addresses and quote the venue's client library."""


def _nothing() -> None:
    pass


class VenueGate:
    """One venue's gate; closed until `open`."""

    def __init__(
        self,
        venue: VenueName,
        *,
        clock: Clock,
        metrics: Metrics,
        on_open: Callable[[], None] = _nothing,
        on_close: Callable[[], None] = _nothing,
        breaker: VenueBreaker | None = None,
        paused: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`paused`: why nothing is sent with the venue's credential."""
        self._paused = paused
        self._venue = venue
        self._clock = clock
        self._metrics = metrics
        self._on_open = on_open
        self._on_close = on_close
        self._breaker = breaker
        self._made_at = clock.monotonic()
        self._closed: str | None = None
        self._unheard: str | None = None
        self._ended: frozenset[OrderId] = frozenset()
        self._waiting_count = 0
        self.is_open = False
        self.stands_by = False
        """Whether another worker holds the venue's session."""
        self.is_locked = False
        metrics.venue_state.labels(venue).set(0)
        for counter in (metrics.ended_open, metrics.contradictions, metrics.report_reads_failed):
            counter.labels(venue)  # an alert needs to see the first increase from 0

    @property
    def problem(self) -> VenueProblem | None:
        """What an operator should know; none while all is well."""
        if not self.is_locked and (paused := self._paused()) is not None:
            return VenueProblem(self._venue, False, "CREDENTIAL_PAUSED", paused)
        if self.is_open:
            held = None if self._breaker is None else self._breaker.reason
            if held is not None:
                return VenueProblem(self._venue, False, "BREAKER_OPEN", f"its circuit breaker is open: {held}")
            problems: list[tuple[ProblemCode, str | None]] = [
                ("REPORTS_UNREADABLE", self._unheard),
                ("REPORTS_WAIT", self._waiting),
                ("ENDED_ORDERS_OPEN", self._open_there),
            ]
            found = [(code, reason) for code, reason in problems if reason is not None]
            if not found:
                return None
            return VenueProblem(self._venue, True, found[0][0], "; ".join(reason for _, reason in found))
        if self.stands_by and not self.is_locked:
            return None
        waits = self._clock.monotonic() - self._made_at
        reason = self._closed or (f"not synchronised after {waits:.0f} s" if waits >= SYNC_SECONDS else None)
        code: ProblemCode = "CLOSED" if self.is_locked else "NOT_SYNCHRONISED"
        return None if reason is None else VenueProblem(self._venue, False, code, reason)

    def open(self) -> None:
        """Send to the venue from now on, unless it is locked."""
        if self.is_locked or self.is_open or self.stands_by:
            return
        self.is_open = True
        self._closed = None
        self._metrics.venue_state.labels(self._venue).set(1)
        self._on_open()

    def note_not_synced(self, error: str) -> None:
        """A synchronisation failed; the venue opens after one that succeeds. Only the first failure is logged."""
        if self.is_locked:
            return
        if self._closed is None:
            log.warning("venue_not_synced", venue=self._venue, error=error)
        self._closed = f"not synchronised: {error}"

    def stand_by(self) -> None:
        """Close the gate while another worker holds the venue's session: that is no problem of this process."""
        if self.stands_by:
            return
        self.is_open, self.stands_by = False, True
        self._metrics.venue_state.remove(self._venue)

    def begin(self) -> None:
        """This worker has the venue's session: the venue is read, and then opened."""
        self.is_open = self.stands_by = False
        self._closed, self._made_at = None, self._clock.monotonic()
        self._metrics.venue_state.labels(self._venue).set(0)

    def lock(self, reason: str) -> None:
        """Send nothing to the venue for as long as this process runs."""
        if self.is_locked:
            return
        self.is_locked, self._closed, self.is_open = True, reason, False
        self._metrics.venue_state.labels(self._venue).set(0)
        log.critical("venue_closed", venue=self._venue, reason=reason)
        self._on_close()

    def note_unheard(self, error: str) -> None:
        """A read of reports failed."""
        self._metrics.report_reads_failed.labels(self._venue).inc()
        if self._unheard is None:
            log.error("venue_unheard", venue=self._venue, error=error)
        if self._breaker is not None:
            self._breaker.note_reports(error)
        self._unheard = f"its reports cannot be read: {error}"

    def note_waiting(self, count: int) -> None:
        """So many reports wait until the venue can be asked about their orders, after a restore."""
        self._waiting_count = count

    @property
    def _waiting(self) -> str | None:
        if not self._waiting_count:
            return None
        return f"{self._waiting_count} report(s) that end orders of before the restore wait for a lookup"

    def note_ended(self, order_ids: Collection[OrderId]) -> None:
        """All orders that have ended here and that the venue shows open; each is counted and logged once."""
        for order_id in sorted(set(order_ids) - self._ended):
            self._metrics.ended_open.labels(self._venue).inc()
            log.error("ended_order_open_at_venue", venue=self._venue, order_id=order_id)
        self._ended = frozenset(order_ids)

    @property
    def _open_there(self) -> str | None:
        if not self._ended:
            return None
        return (
            f"it shows {len(self._ended)} order(s) open that have ended here, such as {min(self._ended)}: "
            "cancel them at the venue"
        )

    def note_heard(self) -> None:
        """A read of reports succeeded."""
        if self._unheard is not None:
            log.info("venue_heard_again", venue=self._venue)
        self._unheard = None
        if self._breaker is not None:
            self._breaker.note_reports(None)


IsOurs = Callable[[VenueClientOrderId], bool]


def is_never_ours(_client_id: VenueClientOrderId) -> bool:
    """The predicate of an installation without a tag."""
    return False


class Strays:
    """Records the strays of one venue."""

    def __init__(
        self,
        venue: VenueName,
        *,
        journal: Journal,
        queries: Queries,
        commit: Commit,
        metrics: Metrics,
        gate: VenueGate,
        is_ours: IsOurs,
    ) -> None:
        self._venue = venue
        self._journal = journal
        self._queries = queries
        self._commit = commit
        self._metrics = metrics
        self._gate = gate
        self._is_ours = is_ours

    async def file(self, report: ExecutionReport) -> bool:
        """Record a report on an unknown order; returns whether it is new."""
        try:
            return await self._file(report)
        except GroupRejected as error:
            await self.set_aside(report, str(error), is_stray=True)
            return True

    async def set_aside(self, report: ExecutionReport, error: str, *, is_stray: bool) -> None:
        """Record a report that cannot be stored; its order's id is kept where the order is unknown."""
        client_id = report.venue_client_order_id
        stray = client_id if is_stray and is_storable(client_id) else None
        await self.set_aside_text(_text(report), error, stray)

    async def set_aside_text(self, text: str, error: str, stray: VenueClientOrderId | None = None) -> None:
        """Record a report's text; a report that was set aside before is not recorded again."""
        change = decisions.set_aside_report(self._venue, text, error, stray)
        if isinstance(await self._commit(change), Committed):
            self._metrics.reports.labels("set_aside").inc()
            log.error("report_set_aside", venue=self._venue, error=error, text=ascii(text[:500]))

    async def lock_if_ours(self, client_ids: Iterable[VenueClientOrderId]) -> bool:
        """Close the venue if one of these unknown orders is this installation's and no restore explains it.

        Returns whether the venue was closed because of them.
        """
        ours = [client_id for client_id in client_ids if self._is_ours(client_id)]
        if not ours or await self._journal.cursor(RESTORED) is not None:
            return False
        self._gate.lock(
            f"it has {len(ours)} order(s) of this installation that are not in this database, such as {ours[0]}: "
            "this database may be older than what was sent; restore the newest one, or run `switchyard db restored`"
        )
        return True

    async def _file(self, report: ExecutionReport) -> bool:
        for named in (report, qualified(report)):
            if isinstance(await self._commit(decisions.unmatched_report(named)), Committed):
                if named is not report:
                    note_reused_id(self._metrics, named)
                self._metrics.reports.labels("unmatched").inc()
                log.error(
                    "report_unmatched",
                    venue=report.venue,
                    exec_id=named.exec_id,
                    client_order_id=report.venue_client_order_id,
                )
                return True
            recorded = (await self._queries.executions(self._venue, [named.exec_id])).get(named.exec_id)
            if recorded is not None and recorded.stray_client_order_id == report.venue_client_order_id:
                return False
        return False


def note_reused_id(metrics: Metrics, report: ExecutionReport) -> None:
    """Count and log an execution id that the venue had used for another order."""
    metrics.reused_execution_ids.inc()
    log.error(
        "execution_id_reused",
        venue=report.venue,
        recorded_as=report.exec_id,
        client_order_id=report.venue_client_order_id,
    )


def _text(report: ExecutionReport) -> str:
    """The report's members, readable also where JSON cannot encode them."""
    return repr(msgspec.structs.asdict(report))


# Reports on orders of other venues come only where two names lead to one broker; most orders have several reports.
REMEMBERED_MAX = 1_000


class LeftOrders:
    """Which orders left one venue."""

    def __init__(self, venue: VenueName, queries: Queries) -> None:
        self._venue = venue
        self._queries = queries
        self._known: dict[OrderId, bool] = {}

    async def has(self, order_id: OrderId) -> bool:
        """Whether the order was rerouted away from the venue."""
        if order_id not in self._known:
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            events = await self._queries.events_after(0, order_id=order_id, limit=PAGE_MAX)
            moves = [decode_order_fact(data_of(event)).reroute for event in events if event.type == "OrderRerouted"]
            self._known[order_id] = any(move is not None and move.from_venue == self._venue for move in moves)
        return self._known[order_id]
