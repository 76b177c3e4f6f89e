"""The resolver: asks one venue about its rows in doubt, adopts the orders it has, requeues those proven absent.

Reads rows in doubt and the workers' liveness, asks the venue, writes through `Commit`. It never sends an order. All
waiting is on the monotonic clock and in memory: a restart starts it anew.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import structlog

from switchyard.domain import decisions
from switchyard.domain.journal.changes import Change
from switchyard.domain.orders.amends import amend_of, amend_rows, current_id
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OrderState, OutboxKey, OutboxRow
from switchyard.flow.commit.sequencer import Commit, decide
from switchyard.flow.commit.states import after
from switchyard.flow.lost_amends import LostAmends
from switchyard.flow.sending.answering import VenueWatch
from switchyard.flow.sending.doubts import Doubt, Doubts
from switchyard.flow.sending.lost_keys import Found, LostKeys
from switchyard.flow.sending.moved import log_moved
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal, Liveness
from switchyard.ports.outbox import Due, OutboxQueries
from switchyard.ports.venue import Capabilities, VenueOrder, VenueUnavailable
from switchyard.telemetry.metrics import Metrics
from switchyard.telemetry.traces import resumed

log = structlog.get_logger()

# Short enough that a doubt ends soon after its waiting time.
PAUSE_SECONDS = 0.5
PAGE = 200
# Lookups at the same time at this venue; half of an HTTP adapter's connections for queries, so that probes get through.
LOOKUPS_MAX = 8
# With request expiry: the lead that venues allow a request's time, the error of the measured skew, and the delay of
# the venue's engine behind its gateway.
EXPIRY_MARGIN = timedelta(seconds=2)


def arrival_time(capabilities: Capabilities, send_lingers: timedelta) -> timedelta:
    """How long a venue must have been answering, after a sender gave up, before its request can no longer arrive.

    As far as the venue documents it: without an acceptance window, only the time on the way counts.
    """
    window = capabilities.acceptance_window or timedelta()
    if capabilities.request_expiry:
        # Neither a slow sender nor a proxy can prolong this: the venue itself rejects the request after its expiry.
        return window + EXPIRY_MARGIN
    return window + send_lingers + capabilities.hop_hold


def waiting_time(capabilities: Capabilities, send_lingers: timedelta) -> timedelta | None:
    """How long a venue must have been answering, after the sender gave up, before 'absent' proves absence.

    None where 'absent' never proves it, so that only a report, a found order or an operator ends a doubt.
    """
    return arrival_time(capabilities, send_lingers) if capabilities.proves_absence else None


class Resolver:
    """Asks one venue about its rows in doubt until each is settled; several processes may do so at once."""

    def __init__(
        self,
        watch: VenueWatch,
        *,
        journal: Journal,
        queries: OutboxQueries,
        liveness: Liveness,
        commit: Commit,
        clock: Clock,
        metrics: Metrics,
        note_found: Callable[[Order, VenueOrder], None] | None = None,
        amends: LostAmends | None = None,
        lost_keys: LostKeys | None = None,
    ) -> None:
        self._lost_keys = lost_keys
        self._amends = amends
        self._watch = watch
        self._note_found = note_found
        self._venue = watch.venue
        self._journal = journal
        self._queries = queries
        self._liveness = liveness
        self._commit = commit
        self._clock = clock
        self._metrics = metrics
        self._lookups = asyncio.Semaphore(LOOKUPS_MAX)
        self._after: OutboxKey | None = None
        self._doubts = Doubts()

    async def run(self) -> None:
        """Resolve for as long as the process lives."""
        while True:
            await self.run_once()
            await asyncio.sleep(PAUSE_SECONDS)

    async def run_once(self) -> int:
        """Ask about the next page of this venue's rows in doubt; returns how many were settled."""
        if self._venue.capabilities.lookup == "none":
            return 0  # only a report or an operator ends a doubt
        page = await self._queries.unsettled("uncertain", PAGE, venue=self._venue.name, after=self._after)
        # The next pass continues behind this page, so that rows that cannot be settled do not keep others waiting.
        self._after = page[-1].row.key if len(page) == PAGE else None
        doubts = await self._tracked(page)
        if self._after is None:
            self._doubts.end_round()
        if not self._watch.can_be_asked:
            return 0
        now = self._clock.monotonic()
        asked = [
            self._ask(due, doubt) for due, doubt in doubts if doubt.ask_at <= now or self._is_decisive(due.row, doubt)
        ]
        return sum(await asyncio.gather(*asked))

    async def _tracked(self, page: list[Due]) -> list[tuple[Due, Doubt]]:
        """The page's rows with what is known about each; the waiting time of a row starts when its sender is gone."""
        workers = {due.row.worker for due in page if due.row.worker is not None}
        dead = await self._liveness.dead(sorted(workers)) if workers else frozenset()
        tracked = []
        for due in page:
            doubt = self._doubts.of(due.row)
            sender_gone = due.row.worker is None or due.row.worker in dead
            if not sender_gone and not self._venue.capabilities.request_expiry:
                doubt.gave_up = None  # also where it has taken its lock again
            elif doubt.gave_up is None:
                doubt.gave_up = self._watch.mark()
            tracked.append((due, doubt))
        return tracked

    def _is_decisive(self, row: OutboxRow, doubt: Doubt) -> bool:
        """Whether 'absent' would prove absence if the venue were asked now."""
        if row.kind == "cancel":
            return False  # the order's own row is settled first
        if row.last_error == "EXECUTED_BEFORE":
            return False  # the venue has reported on it: 'absent' then only means that it no longer shows the order
        wait = waiting_time(self._venue.capabilities, self._liveness.send_lingers)
        if wait is None or doubt.gave_up is None:
            return False
        return self._watch.answered_since(doubt.gave_up) >= wait.total_seconds()

    async def _ask(self, due: Due, doubt: Doubt) -> bool:
        async with self._lookups:
            # 'Absent' is true of the time of the question: the order may have arrived since.
            decisive = self._is_decisive(due.row, doubt)
            doubt.asked(self._clock.monotonic())
            try:
                at = await self._find(due)
            except VenueUnavailable:
                return False
        found = None if at is None else at.order
        if found is not None and due.row.kind == "new" and not _shows(found, due.state.order):
            self._metrics.contradictions.labels(self._venue.name).inc()
            log.error("venue_contradiction", order_id=due.row.order_id, venue=self._venue.name, found=repr(found))
            return False

        before = due.state

        def decision(newest: OrderState) -> Change | None:
            nonlocal before
            before, row = newest, newest.row(due.row.kind, due.row.number)
            if row.status != "uncertain" or row.attempt != due.row.attempt:
                return None  # already settled by a report, another resolver or an operator
            if at is not None and at[:2] != (row.venue, row.venue_client_order_id):
                shown = at.order
                return decisions.adopt_order(
                    newest, at.venue, at.client_id, self._clock.now(), shown.venue_order_id, shown.qty
                )
            return self._verdict(newest, row, found, decisive)

        change = await decide(self._journal, self._commit, due.row.order_id, decision, due.state)
        if change is None:
            return False
        if found is not None and self._amends is not None:
            await self._amends.adopt(after(before, change.orders[-1], change), found)
        verdict = "absent" if found is None else "found"
        if at is not None and found is not None and at.venue == self._venue.name and self._note_found is not None:
            self._note_found(due.state.order, found)
        self._metrics.resolved.labels(verdict).inc()
        trace_id = due.state.order.trace_id
        with resumed(due.row.traceparent):
            log_moved(due.row, change.outbox[0], change.orders[0] if change.orders else due.state.order)
            log.info("order_resolved", order_id=due.row.order_id, trace_id=trace_id, kind=due.row.kind, verdict=verdict)
        return True

    async def _find(self, due: Due) -> Found | None:
        """Look up what the row asked for; a lost history may have sent an order to another venue, or under a later id.

        A venue may not answer about an amend in place that a later one followed: then its order shows that.
        """
        row = due.row
        is_restored = self._amends is not None and self._amends.is_restored
        if row.kind == "new" and is_restored and self._lost_keys is not None and decisions.may_be_elsewhere(due.state):
            return await self._lost_keys.find(due.state.order)
        found = await self._find_row(due)
        return None if found is None else Found(row.venue, row.venue_client_order_id, found)

    async def _find_row(self, due: Due) -> VenueOrder | None:
        try:
            return await self._venue.find_by_client_order_id(due.row.venue_client_order_id)
        except VenueUnavailable:
            if due.row.kind != "amend" or amend_of(due.row).replaces:
                raise
            found = await self._venue.find_by_client_order_id(current_id(due.state.order))
            if found is None or not _is_overtaken(due.state, due.row, found):
                raise
            return found

    def _verdict(self, state: OrderState, row: OutboxRow, found: VenueOrder | None, decisive: bool) -> Change | None:
        now = self._clock.now()
        if found is not None:
            if row.kind == "cancel":
                return decisions.record_unsent(state, row, "CANCEL_IN_DOUBT", now, now)
            if not _is_overtaken(state, row, found):
                # The id of an amend finds its order only if the amend was carried out.
                return decisions.record_sent(state, row, found.venue_order_id, now)
        return decisions.record_absent(state, row, now) if decisive else None


def _shows(found: VenueOrder, order: Order) -> bool:
    """Whether the venue shows this order: none of the terms that it shows differs, apart from what it amended."""
    # A close has the quantity that was decided when it was sent, which a lost history may have done.
    shown_qty = None if found.amends or order.reduce_only else found.qty
    pairs = (found.symbol, order.symbol), (found.side, order.side), (shown_qty, order.qty)
    return all(theirs is None or theirs == ours for theirs, ours in pairs)


def _is_overtaken(state: OrderState, row: OutboxRow, found: VenueOrder) -> bool:
    """Whether the venue shows an amend in place that was sent after this one, which then has no effect, done or not.

    An order has one open amend at a time, so each one that was sent from here precedes this one.
    """
    if row.kind != "amend" or amend_of(row).replaces or not found.amends:
        return False
    sent_from_here = {other.venue_client_order_id for other in amend_rows(state) if other.last_error != "RESTORED"}
    return found.amends[-1].client_order_id not in {row.venue_client_order_id, *sent_from_here}
