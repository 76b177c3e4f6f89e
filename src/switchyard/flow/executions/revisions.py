"""Corrections and busts, and confirmations of executions that were reported without an id of their own.

Reads the events of the order to find what counts of the execution; records the revision with the account's position
after it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import structlog
from msgspec.structs import asdict

from switchyard.domain import decisions
from switchyard.domain.accounts.positions import ACCOUNT_TOTAL, account_total
from switchyard.domain.errors import GroupRejected
from switchyard.domain.ids import OrderId, VenueClientOrderId, VenueName
from switchyard.domain.journal.changes import Change, Committed, Conflict, Cursor
from switchyard.domain.journal.events import report_fact
from switchyard.domain.journal.executed import Executed
from switchyard.domain.journal.facts import RevisionFact
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OrderState
from switchyard.domain.orders.reports import ExecutionReport, revises_execution
from switchyard.domain.risk.claims import TradingDay
from switchyard.domain.values import EXACT
from switchyard.flow.commit.groups import Decided, Decision, Failed, Positions
from switchyard.flow.commit.sequencer import TRIES_MAX, Contention, Sequencer
from switchyard.flow.executions.strays import Strays, VenueGate, unstorable_field
from switchyard.flow.lost_history import LostAmends
from switchyard.ports.clock import Clock
from switchyard.ports.journal import PAGE_MAX, Journal
from switchyard.ports.queries import Queries
from switchyard.ports.venue import Venue, VenueUnavailable, to_find
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()


class Revisions:
    """Records the revisions of one venue."""

    def __init__(
        self,
        venue: VenueName,
        *,
        journal: Journal,
        queries: Queries,
        sequencer: Sequencer,
        clock: Clock,
        metrics: Metrics,
        strays: Strays,
        trading_day: TradingDay | None = None,
    ) -> None:
        self._venue = venue
        self._journal = journal
        self._queries = queries
        self._sequencer = sequencer
        self._clock = clock
        self._metrics = metrics
        self._strays = strays
        self._trading_day = trading_day
        self.may_wait = False
        """Whether a revision may wait for an execution, as far as this process knows."""

    async def file(self, reports: Sequence[ExecutionReport], states: Mapping[VenueClientOrderId, OrderState]) -> None:
        """Record revisions of executions of known orders, also of one that has not come yet.

        They come after the executions of their page were applied. One that names no execution, or one of another order,
        is set aside.
        """
        if not reports:
            return
        named = {name for report in reports for name in _names(report)}
        recorded = dict(await self._queries.executions(self._venue, sorted(named)))
        for report in reports:
            order = states[report.venue_client_order_id].order
            if report.ref_exec_id is None:
                await self._strays.set_aside(report, f"{report.exec_type} without refExecId", is_stray=False)
                continue
            referred, known = recorded.get(report.ref_exec_id), recorded.get(report.exec_id)
            if referred is not None and referred.order_id != order.order_id:
                error = f"{report.exec_type} of the execution {report.ref_exec_id}, which is one of another order"
                await self._strays.set_aside(report, error, is_stray=False)
            elif known is None:
                await self._record(order, report)
            elif known.order_id != order.order_id:
                await self._strays.set_aside(report, "its execution id is that of another order", is_stray=False)
            if decisions.early_mark(report.ref_exec_id) in recorded:
                self.may_wait = True  # recorded by another process

    async def settle(self, reports: Sequence[ExecutionReport], states: Mapping[VenueClientOrderId, OrderState]) -> None:
        """Carry out revisions that came before these executions, which are applied now."""
        marks = {
            decisions.early_mark(report.exec_id): states[report.venue_client_order_id].order
            for report in reports
            if report.last_qty and not revises_execution(report) and report.venue_client_order_id in states
        }
        marked = await self._queries.executions(self._venue, list(marks)) if marks else {}
        for order in {marks[mark].order_id: marks[mark] for mark in marked}.values():
            await self._settle(order)

    async def read_mark(self) -> None:
        """Read whether the venue ever revised an execution before it reported it.

        Read after the cursor of its reports: a process reads every later revision itself. For an execution that does
        not come from the reports it is read again, because another process may have read its revision before.
        """
        if not self.may_wait:
            self.may_wait = await self._journal.cursor(self._cursor_name) is not None

    @property
    def _cursor_name(self) -> str:
        return f"early-revisions:{self._venue}"

    async def _record(self, order: Order, report: ExecutionReport) -> None:
        fact = RevisionFact(**asdict(report_fact(report, order)))
        assert fact.ref_exec_id is not None, "the caller has looked"
        for _ in range(TRIES_MAX):
            executed = await self._executed(order)
            counted, is_early = executed.counted(fact.ref_exec_id), not executed.is_known(fact.ref_exec_id)
            mark = decisions.early_mark(fact.ref_exec_id)
            names = [fact.exec_id, mark] if is_early else [fact.exec_id]
            recorded = await self._queries.executions(self._venue, names)
            if fact.exec_id in recorded:
                await self.read_mark()  # recorded by another process
                return
            if is_early:
                await self._note_early()
            changed = _with(fact, revised=counted, early=is_early)
            answer = await self._propose(order, changed, is_marked=mark in recorded)
            if isinstance(answer, Failed):
                if not isinstance(answer.error, GroupRejected | ArithmeticError):
                    raise answer.error
                await self._strays.set_aside(report, repr(answer.error), is_stray=False)
                return
            if isinstance(answer, Decided):
                self._note(order, changed)
                await self._settle(order)  # a correction may be what another revision waited for
                return
        raise Contention(f"revision {report.exec_id} could not be written in {TRIES_MAX} tries")

    async def _settle(self, order: Order) -> None:
        """Carry out the order's revisions that waited, the earliest first."""
        for _ in range(PAGE_MAX):
            executed = await self._executed(order)
            due = executed.due()
            if due is None or due.ref_exec_id is None:
                return
            due = _with(due, revised=executed.counted(due.ref_exec_id))
            answer = await self._propose(order, due, is_marked=True)
            if isinstance(answer, Failed):
                raise answer.error
            if isinstance(answer, Decided):
                self._note(order, due)

    async def _propose(
        self, order: Order, fact: RevisionFact, *, is_marked: bool
    ) -> Decided | Conflict | Failed | None:
        position, total = (order.account_id, order.symbol), (order.account_id, ACCOUNT_TOTAL)
        now = self._clock.now()
        day = None if self._trading_day is None else self._trading_day.of(now)

        def decision(state: OrderState, held: Positions) -> Change:
            results = held[total] or account_total(order.account_id, now)
            return decisions.revise_execution(
                state.order, held[position], results, fact, now, is_marked=is_marked, day=day
            )

        [answer] = await self._sequencer.propose([Decision(order.order_id, decision, (position, total))])
        assert not isinstance(answer, Committed), "a decision on an order is answered with what was decided"
        return answer

    async def _executed(self, order: Order) -> Executed:
        """What the order's events tell of its executions."""
        executed, seq = Executed(order), 0
        while page := await self._queries.events_after(seq, order_id=order.order_id, limit=PAGE_MAX):
            for event in page:
                executed.take(event)
            seq = page[-1].seq
        return executed

    async def _note_early(self) -> None:
        """Have every later start look for executions that were revised before they came.

        Before the revision is recorded: a process that ends in between must not leave one that nobody looks for.
        """
        await self.read_mark()
        if not self.may_wait:
            await self._sequencer.commit(Change(cursors=(Cursor(name=self._cursor_name, epoch=0, seq=1, hash=""),)))
            self.may_wait = True

    def _note(self, order: Order, fact: RevisionFact) -> None:
        self._metrics.reports.labels("revised").inc()
        log.error(
            "execution_revised",
            venue=self._venue,
            order_id=order.order_id,
            exec_type=fact.exec_type,
            exec_id=fact.exec_id,
            ref_exec_id=fact.ref_exec_id,
        )


def _names(report: ExecutionReport) -> list[str]:
    ref = report.ref_exec_id
    return [report.exec_id] if ref is None else [report.exec_id, ref, decisions.early_mark(ref)]


def _with(fact: RevisionFact, **changes: object) -> RevisionFact:
    return RevisionFact(**{**asdict(fact), **changes})


# Lookups at the same time, as of a sweep.
LOOKUPS_MAX = 8
# Reports that wait for a lookup. Beyond this number their page is read again later.
WAITING_MAX = 10_000

States = Mapping[VenueClientOrderId, OrderState]
LoadStates = Callable[[Sequence[ExecutionReport]], Awaitable[tuple[Sequence[ExecutionReport], States]]]
"""Returns the reports, each under its order's own id, and the orders by these ids."""


class ConfirmedEnds:
    """Confirms the ends that one venue reports."""

    def __init__(
        self,
        venue: Venue,
        amends: LostAmends,
        gate: VenueGate,
        journal: Journal,
        load_states: LoadStates,
        clock: Clock,
    ) -> None:
        self._venue = venue
        self._clock = clock
        self._journal = journal
        self._amends = amends
        self._gate = gate
        self._load_states = load_states
        self._waiting: list[ExecutionReport] = []

    @property
    def is_waiting(self) -> bool:
        """Whether reports wait until the venue can be asked about their orders."""
        return bool(self._waiting)

    def take_waiting(self) -> list[ExecutionReport]:
        """The reports that wait, to be applied again."""
        waiting, self._waiting = self._waiting, []
        return waiting

    async def of(self, reports: Sequence[ExecutionReport]) -> tuple[Sequence[ExecutionReport], States]:
        """The reports that may be applied now, with their orders as they were read last; the others wait.

        What is asked takes time: a key that is repeated meanwhile makes an order of which an end must be asked about,
        too. An order that is not among those returned was not known when the last one was asked about. Raises
        VenueUnavailable where too many reports wait.
        """
        asked: set[VenueClientOrderId] = set()
        while True:
            named, states = await self._load_states(reports)
            if not self._amends.is_restored or self._venue.capabilities.lookup == "none":
                return named, states
            doubtful = [
                place for place in self._doubtful(named, states) if named[place].venue_client_order_id not in asked
            ]
            if not doubtful:
                self._gate.note_waiting(len(self._waiting))
                return named, states
            legs = {
                named[place].venue_client_order_id: self._asked_id(named[place], states) for place in reversed(doubtful)
            }
            unasked = await self._ask(legs, states)
            asked |= legs.keys() - unasked
            waiting = {place for place in doubtful if named[place].venue_client_order_id in unasked}
            if len(self._waiting) + len(waiting) > WAITING_MAX:
                raise VenueUnavailable(
                    f"{self._venue.name}: too many reports wait until it can be asked about their orders"
                )
            self._waiting += [reports[place] for place in sorted(waiting)]
            reports = [report for place, report in enumerate(reports) if place not in waiting]

    def _doubtful(self, reports: Sequence[ExecutionReport], states: States) -> list[int]:
        """The places of the reports that may end an order which is not the same at the venue."""
        filled = {client_id: state.order.filled_qty for client_id, state in states.items()}
        doubtful = []
        for place, report in enumerate(reports):
            client_id = report.venue_client_order_id
            if client_id not in states or revises_execution(report) or unstorable_field(report) is not None:
                continue
            filled[client_id] = EXACT.add(filled[client_id], report.last_qty)
            if self._amends.must_ask(states[client_id], report, filled[client_id]):
                doubtful.append(place)
        return doubtful

    def _asked_id(self, report: ExecutionReport, states: States) -> VenueClientOrderId:
        """The id that has ended: from there on the venue shows every amend, also those before one known here.

        An amend that is not settled here is shown, with its amounts, only from the first id on. Where the venue does
        not find that any more, the answer about the amend itself is all there is.
        """
        own, leg = report.venue_client_order_id, report.leg_client_order_id
        if leg is None:
            return own
        row = next(row for row in states[own].outbox if row.venue_client_order_id == leg)
        return own if row.status != "sent" and self._venue.capabilities.lookup == "all" else leg

    async def _ask(
        self, legs: Mapping[VenueClientOrderId, VenueClientOrderId], states: States
    ) -> set[VenueClientOrderId]:
        """Ask about these orders and record their lost amends; returns those of which not all is known yet."""
        unasked = sorted(legs)
        while unasked:
            asked = unasked[:LOOKUPS_MAX]
            errors = await asyncio.gather(
                *(self._ask_one(states[client_id].order.order_id, legs[client_id]) for client_id in asked)
            )
            failed = [client_id for client_id, error in zip(asked, errors, strict=True) if error is not None]
            unasked = failed + unasked[LOOKUPS_MAX:]
            if failed:
                error = str(next(filter(None, errors)))
                log.warning("report_waits", venue=self._venue.name, orders=len(unasked), error=error)
                break
        return set(unasked)

    async def _ask_one(self, order_id: OrderId, leg: VenueClientOrderId) -> VenueUnavailable | None:
        # From the journal: another process may have changed the order since it was last read here.
        state = (await self._journal.load([order_id]))[order_id]
        try:
            found = await self._venue.find(to_find(state.order, leg))
        except VenueUnavailable as error:
            return error
        capabilities, clock = self._venue.capabilities, self._clock
        is_kept = capabilities.remembers(state.order.accepted_at, clock.now(), clock.jumped_at)
        if found is None and capabilities.lookup == "all" and is_kept:
            # It shows ended orders too, so it contradicts its own report: what became of the order is not known yet.
            return VenueUnavailable(f"{self._venue.name} reports on {order_id} and does not show it")
        if found is None:
            return None
        if found.side not in (None, state.order.side):
            # A repeated close, decided by another position than the lost one.
            return VenueUnavailable(f"{self._venue.name} has {order_id} as an order to {found.side}")
        if not await self._amends.adopt(state, found):
            return VenueUnavailable(f"an amend of {order_id} that {self._venue.name} shows is being sent")
        return None
