"""Doubts: takes over attempts of dead workers, asks the venue about rows in doubt, requeues those proven absent.

Reads rows in doubt and the workers' liveness, asks the venue, writes through `Commit`. It never sends an order. All
waiting is by the monotonic clock, and counts only while the venue answers a probe.
"""

import asyncio
from collections.abc import Awaitable, Callable, Container, Mapping
from datetime import datetime, timedelta

import msgspec
import structlog
from msgspec.structs import replace

from switchyard.domain import decisions
from switchyard.domain.ids import VenueName, WorkerId
from switchyard.domain.journal.changes import Change, Committed
from switchyard.domain.orders.amends import Amounts, amend_of, amend_rows
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import MayBeLost, OrderState, OutboxKey, OutboxRow
from switchyard.domain.orders.reasons import AMBIGUOUS, bounded_detail
from switchyard.flow.commit.sequencer import Commit, decide
from switchyard.flow.commit.states import after
from switchyard.flow.health.venues import VenueBreaker
from switchyard.flow.lost_history import LostAmends
from switchyard.flow.sending.lanes import HeldLanes
from switchyard.flow.sending.lost_keys import Found, LostKeys
from switchyard.flow.sending.outcomes import AttemptOutcome, Ended, OutcomeWriter, SenderDied, log_moved
from switchyard.flow.sending.sends import Sends
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal, Liveness
from switchyard.ports.outbox import Due, OutboxQueries
from switchyard.ports.venue import (
    Capabilities,
    NeverReceived,
    OrderToFind,
    ProbeResult,
    ProvesUnreceived,
    Unsent,
    Venue,
    VenueOrder,
    VenueUnavailable,
    to_find,
)
from switchyard.telemetry.metrics import Metrics
from switchyard.telemetry.traces import resumed

log = structlog.get_logger()

PROBE_SECONDS = 1.0
# A venue that takes longer is not working through its input as it arrives.
ANSWER_SECONDS_MAX = 1.0
# The probe itself waits longer, so that a slow venue is not taken for one that does not answer.
WAIT_SECONDS_MAX = 5.0
# A probe without an answer for so long holds up the sending at once: what is sent meanwhile would come into doubt.
HANGING_SECONDS = 2.0
# A timer that is later than this shows that this process stood still meanwhile.
PAUSED_SECONDS = 0.5
# With a longer gap between two good probes, this process was paused or stalled: nothing is known about the time
# between. Two probes, each with the longest good answer.
GAP_SECONDS_MAX = 2 * (PROBE_SECONDS + ANSWER_SECONDS_MAX)


class Mark(msgspec.Struct, frozen=True):
    """A moment in a venue's time of answering, from which `VenueWatch.answered_since` counts."""

    run: int
    answered: float


class VenueWatch:
    """How long a venue has been answering every probe in time.

    The time counts up to the start of the last good probe. A failed or slow probe starts it anew; a busy venue (429)
    pauses it.
    """

    def __init__(self, venue: Venue, *, clock: Clock, metrics: Metrics, breaker: VenueBreaker | None = None) -> None:
        self._venue = venue
        self._clock = clock
        self._breaker = breaker
        self._seconds = metrics.venue_answering.labels(venue.name)
        self._run = 0
        """Counts the times that the answering time started anew."""
        self._answered = 0.0
        self._last_good: float | None = None
        """When the last probe started, if it was answered in time."""
        self._can_be_asked = False
        self._is_answering: bool | None = None
        """None until the first good probe: a start with a venue that is down is logged by its synchronisation."""
        self._seconds.set(0)

    @property
    def venue(self) -> Venue:
        """The watched venue."""
        return self._venue

    @property
    def can_be_asked(self) -> bool:
        """Whether the last probe was answered, and the venue is not busy; also where the answer came late."""
        return self._can_be_asked

    async def run(self) -> None:
        """Probe for as long as the process lives."""
        while True:
            started_at = self._clock.monotonic()
            await self.probe_once()
            elapsed = self._clock.monotonic() - started_at
            await asyncio.sleep(max(PROBE_SECONDS - elapsed, 0.0))

    async def probe_once(self) -> None:
        """Ask the venue once, and count the time since the last good probe."""
        started_at = self._clock.monotonic()
        result: ProbeResult | None = None
        failure = f"no answer within {WAIT_SECONDS_MAX} s"
        self._watch_for_hanging()
        try:
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                result = await self._venue.probe()
        except TimeoutError:
            pass
        except VenueUnavailable as error:
            failure = str(error)
        except Exception as error:  # an adapter that raises has a defect; the venue has not answered
            log.exception("venue_adapter_failed", venue=self._venue.name)
            failure = repr(error)
        finally:
            self._hanging.cancel()
        took = self._clock.monotonic() - started_at
        self._can_be_asked = result == "answered"
        if result is None:
            self._start_anew(failure)
        elif took > ANSWER_SECONDS_MAX:
            self._start_anew(f"the answer took {took:.1f} s")
        elif result == "busy":
            self._last_good = None
        else:
            self._count(started_at)
        self._seconds.set(self._answered)
        if self._breaker is not None:
            if result == "busy":
                failure = "busy (HTTP 429)"
            elif result == "answered":
                failure = f"the answer took {took:.1f} s"
            self._breaker.note_probe(None if result == "answered" and took <= ANSWER_SECONDS_MAX else failure)

    def mark(self) -> Mark:
        """The present moment."""
        since = 0.0 if self._last_good is None else self._clock.monotonic() - self._last_good
        return Mark(self._run, self._answered + since)

    def answered_since(self, mark: Mark) -> float:
        """For how many seconds since the mark the venue has been answering without a break."""
        return self._answered - mark.answered if mark.run == self._run else self._answered

    async def answered_for(self, seconds: float) -> None:
        """Return once the venue has been answering without a break for this time, counted from now."""
        mark = self.mark()
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            if self.answered_since(mark) >= seconds:
                return

    def _watch_for_hanging(self) -> None:
        loop = asyncio.get_running_loop()
        due_at = loop.time() + HANGING_SECONDS

        def note() -> None:
            if loop.time() - due_at > PAUSED_SECONDS:
                self._watch_for_hanging()  # this process was paused, not the venue: its answer may be waiting
            elif self._breaker is not None:
                self._breaker.note_hanging(HANGING_SECONDS)

        self._hanging = loop.call_at(due_at, note)

    def _count(self, started_at: float) -> None:
        if self._is_answering is False:
            log.info("venue_answering_again", venue=self._venue.name)
        self._is_answering = True
        if self._last_good is not None:
            gap = started_at - self._last_good
            if gap > GAP_SECONDS_MAX:
                self._start_anew(f"no probe for {gap:.1f} s")
            else:
                self._answered += gap
        self._last_good = started_at

    def _start_anew(self, why: str) -> None:
        if self._is_answering:
            self._is_answering = False
            log.warning("venue_not_answering", venue=self._venue.name, error=why, answered_seconds=self._answered)
        self._run += 1
        self._answered = 0.0
        self._last_good = None


# An entry takes about 300 bytes. Rows beyond this number are looked up, but their waiting time starts only when others
# have been settled.
TRACKED_MAX = 10_000
# Lookups of one row: the first at once, then twice as far apart each time, so that doubts which cannot be settled yet
# do not use up a venue's rate limit. A lookup that can prove absence does not wait for this.
ASK_SECONDS_MIN = 0.5
ASK_SECONDS_MAX = 30.0


class Doubt:
    """One attempt in doubt."""

    def __init__(self) -> None:
        self.gave_up: Mark | None = None
        """When this process first saw the row in doubt with its sender gone."""
        self.is_sender_gone = False
        """Whether it is gone; with request expiry, `gave_up` does not wait for that."""
        self.ask_at = float("-inf")
        self.round = 0
        self._pause = ASK_SECONDS_MIN

    def asked(self, now: float) -> None:
        """The venue was asked about it at this monotonic time."""
        self.ask_at = now + self._pause
        self._pause = min(2 * self._pause, ASK_SECONDS_MAX)


class Doubts:
    """The doubts of one venue, by row and attempt: a new attempt is a new doubt."""

    def __init__(self) -> None:
        self._doubts: dict[tuple[OutboxKey, int], Doubt] = {}
        self._round = 0

    def of(self, row: OutboxRow) -> Doubt:
        """What is known about the row's attempt."""
        key = (row.key, row.attempt)
        doubt = self._doubts.get(key)
        if doubt is None:
            doubt = Doubt()
            if len(self._doubts) < TRACKED_MAX:
                self._doubts[key] = doubt
        doubt.round = self._round
        return doubt

    def end_round(self) -> None:
        """All rows have been seen: remove those that were settled since the last round."""
        self._doubts = {key: doubt for key, doubt in self._doubts.items() if doubt.round == self._round}
        self._round += 1


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
        capabilities = self._venue.capabilities
        if capabilities.lookup == "none" and not capabilities.sequence_proof:
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
            sender_gone = doubt.is_sender_gone = due.row.worker is None or due.row.worker in dead
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
        if row.last_error in ("EXECUTED_BEFORE", "LOOKUP_EXPIRED"):
            return (
                False  # the venue had it, or may have had it: 'absent' only means that it does not show the order now
            )
        wait = waiting_time(self._venue.capabilities, self._liveness.send_lingers)
        if wait is None or doubt.gave_up is None:
            return False
        return self._watch.answered_since(doubt.gave_up) >= wait.total_seconds()

    async def _ask(self, due: Due, doubt: Doubt) -> bool:
        async with self._lookups:
            # 'Absent' is true of the time of the question: the order may have arrived since.
            decisive = self._is_decisive(due.row, doubt)
            counts_proof = self._counts_proof(due, doubt)
            doubt.asked(self._clock.monotonic())
            try:
                at = await self._find(due)
                if isinstance(at, NeverReceived):
                    if counts_proof:
                        return await self._settle_unreceived(due, at)
                    at = None  # the venue does not have it; that no copy can arrive any more needs the waiting time
                # By now: the answer is older.
                is_remembered = at is not None or not decisive or await self._is_remembered(due)
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
                    newest, at.venue, at.client_id, self._clock.now(), shown.venue_order_id, shown.amounts
                )
            if not is_remembered:
                now = self._clock.now()
                return decisions.record_doubt(newest, row, "LOOKUP_EXPIRED", None, now, suspect=row.worker)
            return self._verdict(newest, row, found, decisive)

        change = await decide(self._journal, self._commit, due.row.order_id, decision, due.state)
        if change is None:
            return False
        if found is not None and self._amends is not None:
            await self._amends.adopt(after(before, change.orders[-1], change), found)
        if not is_remembered:
            order = due.state.order
            log.error("lookup_expired", order_id=order.order_id, venue=order.venue, kind=due.row.kind)
            log_moved(due.row, change.outbox[0], change.orders[0] if change.orders else order)
            return False
        verdict = "absent" if found is None else "found"
        if at is not None and found is not None and at.venue == self._venue.name and self._note_found is not None:
            self._note_found(due.state.order, found)
        self._metrics.resolved.labels(verdict).inc()
        trace_id = due.state.order.trace_id
        with resumed(due.row.traceparent):
            log_moved(due.row, change.outbox[0], change.orders[0] if change.orders else due.state.order)
            log.info("order_resolved", order_id=due.row.order_id, trace_id=trace_id, kind=due.row.kind, verdict=verdict)
        return True

    def _counts_proof(self, due: Due, doubt: Doubt) -> bool:
        """Whether the venue's proof that it never received the message would settle the doubt now.

        Nobody may still send the message afterwards: its sender has told the outcome itself, or is gone for as long as
        a process without its lock may linger. A lost history may have sent copies that the proof does not cover.
        """
        row = due.row
        if row.kind == "cancel" or not doubt.is_sender_gone or row.last_error in ("EXECUTED_BEFORE", "RESTORED"):
            return False
        keys = self._lost_keys
        if keys is not None and keys.history.may_have_sent(due.state.order, row):
            return False
        if row.attempt == 1 and row.last_error in AMBIGUOUS:
            return True
        lingers = self._liveness.send_lingers.total_seconds()
        return doubt.gave_up is not None and self._watch.answered_since(doubt.gave_up) >= lingers

    async def _settle_unreceived(self, due: Due, proof: NeverReceived) -> bool:
        """End a doubt about a message that the venue has proven never to have received."""

        def decision(newest: OrderState) -> Change | None:
            row = newest.row(due.row.kind, due.row.number)
            if row.status != "uncertain" or row.attempt != due.row.attempt:
                return None  # already settled
            evidence = bounded_detail(f"never received: {proof.evidence}")
            return decisions.record_absent(newest, row, self._clock.now(), evidence=evidence)

        order, row = due.state.order, due.row
        change = await decide(self._journal, self._commit, order.order_id, decision, due.state)
        if change is None:
            return False
        self._metrics.resolved.labels("absent").inc()
        with resumed(row.traceparent):
            log_moved(row, change.outbox[0], change.orders[0] if change.orders else order)
            evidence = proof.evidence
            log.info("order_never_received", order_id=order.order_id, venue=row.venue, kind=row.kind, evidence=evidence)
        return True

    async def _is_remembered(self, due: Due) -> bool:
        """Whether the venue would still show what the row asked for, had it ever had it.

        An order that it shows as open is remembered, so the amend that it does not show was not carried out.
        """
        order, row, clock = due.state.order, due.row, self._clock
        keys = self._lost_keys
        is_lost = row.kind == "new" and keys is not None and keys.history.may_have_sent(order, row)
        is_kept = self._venue.capabilities.remembers(order.accepted_at, clock.now(), clock.jumped_at)
        if is_kept and (not is_lost or keys is None or keys.are_remembering(order)):
            return True
        if row.kind != "amend":
            return False
        shown = await self._venue.find(to_find(order))
        if shown is None or shown.status not in ("WORKING", "PARTIALLY_FILLED"):
            return False
        return all(amend.client_order_id != row.venue_client_order_id for amend in shown.amends)

    async def _find(self, due: Due) -> Found | NeverReceived | None:
        """Look up what the row asked for; a lost history may have sent an order to another venue, or under a later id.

        A venue may not answer about an amend in place that a later one followed: then its order shows that.
        """
        row = due.row
        is_restored = self._amends is not None and self._amends.is_restored
        if row.kind == "new" and is_restored and self._lost_keys is not None and decisions.may_be_elsewhere(due.state):
            return await self._lost_keys.find(due.state.order)
        found = await self._find_row(due)
        if found is None or isinstance(found, NeverReceived):
            return found
        return Found(row.venue, row.venue_client_order_id, found)

    async def _find_row(self, due: Due) -> VenueOrder | NeverReceived | None:
        row, order = due.row, due.state.order
        asked = to_find(order, row.venue_client_order_id, attempts=row.attempt)
        find: Callable[[OrderToFind], Awaitable[VenueOrder | NeverReceived | None]] = self._venue.find
        if isinstance(self._venue, ProvesUnreceived) and row.kind != "cancel":
            find = self._venue.find_or_proof
        try:
            found = await find(asked)
        except VenueUnavailable:
            if row.kind != "amend" or amend_of(row).replaces:
                raise
            found = await self._venue.find(to_find(order))
            if found is None or not _is_overtaken(due.state, row, found):
                raise
            return found
        if not isinstance(found, VenueOrder) or row.kind != "amend" or _is_overtaken(due.state, row, found):
            return found
        if _amounts(found, row) is not None:
            return found
        # Another amend has followed it, so its own amounts are only in the answer about the first id of the order.
        found = await self._venue.find(to_find(order, order.venue_client_order_id))
        if found is None or _amounts(found, row) is None:
            raise VenueUnavailable(f"{self._venue.name} does not show the amounts of {row.venue_client_order_id}")
        return found

    def _verdict(self, state: OrderState, row: OutboxRow, found: VenueOrder | None, decisive: bool) -> Change | None:
        now = self._clock.now()
        if found is not None:
            if row.kind == "cancel":
                return decisions.record_unsent(state, row, "CANCEL_IN_DOUBT", now, now)
            if row.kind == "new":
                return decisions.record_sent(state, row, found.venue_order_id, now)
            if not _is_overtaken(state, row, found):
                # The id of an amend finds its order only if the amend was carried out.
                amounts = _amounts(found, row)
                if amounts is None:
                    return None  # it was overtaken when the venue was asked
                return decisions.record_amended(state, row, found.venue_order_id, now, amounts)
        return decisions.record_absent(state, row, now) if decisive else None


def _shows(found: VenueOrder, order: Order) -> bool:
    """Whether the venue shows this order: none of the terms that it shows differs, apart from what it amended."""
    pairs = (found.symbol, order.symbol), (found.side, order.side)
    if not all(theirs is None or theirs == ours for theirs, ours in pairs):
        return False
    # A close has the quantity that was decided when it was sent, which a lost history may have done.
    shown = replace(found.amounts, qty=None) if order.reduce_only else found.amounts
    return bool(found.amends) or not shown.differ(order.qty, order.price, order.stop_price)


def _amounts(found: VenueOrder, row: OutboxRow) -> Amounts | None:
    """The amounts that the amend of this row has given to the order; None if the answer shows another amend only."""
    listed = [amend.amounts for amend in found.amends if amend.client_order_id == row.venue_client_order_id]
    return next(iter(listed), None if found.amends else found.amounts)


def _is_overtaken(state: OrderState, row: OutboxRow, found: VenueOrder) -> bool:
    """Whether the venue shows an amend in place that was sent after this one, which then has no effect, done or not.

    An order has one open amend at a time, so each one that was sent from here precedes this one.
    """
    if row.kind != "amend" or amend_of(row).replaces or not found.amends:
        return False
    sent_from_here = {other.venue_client_order_id for other in amend_rows(state) if other.last_error != "RESTORED"}
    return found.amends[-1].client_order_id not in {row.venue_client_order_id, *sent_from_here}


RECOVERY_PAGE = 1_000

WasRead = Callable[[VenueName], Awaitable[bool]]
"""Whether a venue was read since this database was last restored: before that, it may have executed orders that were
never sent from here."""


async def always_read(_venue: VenueName) -> bool:
    """For a database that was never restored."""
    return True


class Recovery:
    """One worker's recovery; several workers may run it at once, since every write expects the row's version."""

    def __init__(
        self,
        *,
        worker: WorkerId,
        queries: OutboxQueries,
        liveness: Liveness,
        lanes: HeldLanes,
        commit: Commit,
        outcomes: OutcomeWriter,
        venues: Mapping[VenueName, Venue],
        clock: Clock,
        stuck_after: timedelta,
        retries: decisions.RetryLimits,
        was_read: WasRead,
        may_be_lost: MayBeLost,
    ) -> None:
        self._worker = worker
        self._queries = queries
        self._liveness = liveness
        self._lanes = lanes
        self._commit = commit
        self._outcomes = outcomes
        self._venues = venues
        self._clock = clock
        self._stuck_after = stuck_after
        self._retries = retries
        self._was_read = was_read
        self._may_be_lost = may_be_lost
        self._after = 0
        """The journal number behind which the next page begins: orders that may wait do not hide those behind."""

    async def run_once(self, sends: Sends, open_venues: Container[VenueName], locked: Container[VenueName]) -> int:
        """Recover one page; returns how many rows there were.

        `sends` are the sends under way in this worker, `open_venues` the venues that it sends to. At a `locked` venue
        an order that was never sent from here may have been sent from a lost history.
        """
        return await self._recover_attempts(sends) + await self._end_at_closed_venues(open_venues, locked)

    async def _recover_attempts(self, sends: Sends) -> int:
        """Bring attempts without a live sender into doubt, and those that have been under way for too long.

        A row under this worker's own name that it is not sending is one whose claim was committed, but whose answer was
        lost. A stuck row of a live worker keeps that worker as its suspect, so nothing is sent in its place.
        """
        unsure = sends.unsure
        unsettled = await self._queries.unsettled("sending", RECOVERY_PAGE)
        others = {due.row.worker for due in unsettled if due.row.worker not in (None, self._worker)}
        dead = await self._liveness.dead([worker for worker in others if worker is not None])
        orphans = [
            due
            for due in unsettled
            if due.row.worker in dead or (due.row.worker == self._worker and due.row.key not in sends)
        ]
        # A row that the database rejects must not be tried again at once: only those that changed count.
        written = await self._outcomes.write([Ended(due.row, self._outcome(due.row, sends)) for due in orphans])
        sends.looked_for(unsure)
        stuck_before = self._clock.now() - self._stuck_after
        stuck = [due for due in unsettled if due not in orphans and due.row.updated_at < stuck_before]
        await asyncio.gather(*(self._outcomes.write_doubt(due, "STUCK", suspect=due.row.worker) for due in stuck))
        return written + len(stuck)

    def _outcome(self, row: OutboxRow, sends: Sends) -> AttemptOutcome:
        """What is known of an attempt without a sender; this worker knows which of its own it did not send."""
        if row.worker == self._worker and sends.has_never_left(row.key):
            return Unsent("ATTEMPT_STALE")
        return SenderDied()

    async def _end_at_closed_venues(self, open_venues: Container[VenueName], locked: Container[VenueName]) -> int:
        """End one page of orders whose deadline or waiting time passed while their venue got none; returns how many."""
        closed = [name for name in self._venues if name not in open_venues and await self._was_read(name)]
        lanes = self._lanes.filter()
        if not closed or lanes == []:
            self._after = 0
            return 0
        now = self._clock.now()
        page = await self._queries.due(now, RECOVERY_PAGE, closed, lanes, kind="new", after=self._after)
        self._after = page[-1].row.seq if len(page) == RECOVERY_PAGE else 0
        # One that the venue has reported on, or whose key it may know, may have been executed: that is judged when the
        # venue opens.
        unsent = [
            due
            for due in page
            if due.state.order.status == "ACCEPTED"
            and not due.reported_before
            and not self._may_be_lost(due.state.order, due.row)
        ]
        ends = [(due, end) for due in unsent if (end := self._end(due, locked, now)) is not None]
        outcomes = await asyncio.gather(*(self._commit(end) for _, end in ends))
        ended = [end for end, outcome in zip(ends, outcomes, strict=True) if isinstance(outcome, Committed)]
        for due, end in ended:
            log_moved(due.row, end.outbox[0], end.orders[0])
        return len(ended)

    def _end(self, due: Due, locked: Container[VenueName], now: datetime) -> Change | None:
        """The end of an order that was not sent in time; none while it may wait."""
        order, row = due.state.order, due.row
        if decisions.is_past_deadline(order, now):
            return decisions.record_expired(due.state, row, "BROKER_DOWN", now)
        if row.venue not in locked and self._retries.is_too_old(order, row, now):
            return decisions.end_too_old(due.state, row, self._retries, now)
        return None
