"""Records the outcomes of attempts: decides what each means for its row and its order, and commits that.

Proposes a page of outcomes at a time, so that they share a commit with the reports on their orders. Used by the
dispatcher and by recovery.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol, assert_never

import msgspec
import structlog

from switchyard.domain import decisions
from switchyard.domain.errors import GroupRejected, OutcomeUnknown, Unavailable
from switchyard.domain.ids import VenueName, WorkerId
from switchyard.domain.journal.changes import Change, Committed, merged
from switchyard.domain.orders.amends import is_stale
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import SETTLED, MayBeLost, OrderState, OutboxRow, never_lost
from switchyard.domain.orders.reasons import HELD_BACK, DoubtCode, SendCode, described
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.flow.commit.groups import Answer, Decided, Decision, Failed, Positions
from switchyard.flow.commit.sequencer import Sequencer, decide_all
from switchyard.flow.commit.states import after
from switchyard.flow.sending.pre_send_checks import FirstSends
from switchyard.ports.clock import Clock, Randomness
from switchyard.ports.outbox import Due
from switchyard.ports.venue import Accepted, Ambiguous, SendOutcome, Unsent, Venue, VenueRejected
from switchyard.telemetry.metrics import Metrics
from switchyard.telemetry.traces import call_for, resumed

log = structlog.get_logger()


def log_moved(before: OutboxRow, after: OutboxRow, order: Order) -> None:
    """Log a row's step: one line for every send, after its outcome was committed."""
    if not log.bind().is_enabled_for(logging.INFO):
        return  # making the fields costs more than asking
    log.info(
        "outbox_row_moved",
        outbox_id=after.outbox_id,
        status_from=before.status,
        status_to=after.status,
        retry_count=after.retry_count,
        last_error=after.last_error,
        order_id=order.order_id,
        venue=after.venue,
        idempotency_key=order.idempotency_key,
        trace_id=order.trace_id,
        broker_order_id=order.venue_order_id,
    )


# While the database is away, an outcome waits in memory and occupies its slot; once a second is often enough to retry.
RECORD_AGAIN_SECONDS = 1.0


class SenderDied(msgspec.Struct, frozen=True):
    """The worker that made the attempt is gone, and the attempt's outcome with it."""


AttemptOutcome = SendOutcome | SenderDied


class Ended(NamedTuple):
    """An attempt that has ended: its row as it was committed before the send, and the outcome."""

    row: OutboxRow
    outcome: AttemptOutcome


class AppliesReports(Protocol):
    """Applies the reports that came with a venue's answers; part of the recorder of a venue."""

    def begin(self, order: Order, reports: Sequence[ExecutionReport], now: datetime) -> list[Decision]:
        """Return the decisions that apply the reports on the order, or none; otherwise `end` must follow."""
        ...

    def end(self, reports: Sequence[ExecutionReport], applied: Sequence[Decided]) -> None:
        """Take note that the first of these reports were applied."""
        ...


NoteAnswer = Callable[[Order, OutboxRow, Accepted], None]
"""Told about an order that a venue has confirmed, and the attempt that it answered."""


def ignore_answer(_order: Order, _row: OutboxRow, _answer: Accepted) -> None:
    """The default `note_answer`: do nothing."""


def _never(_order: Order) -> bool:
    return False


class OutcomeWriter:
    """Writes the outcomes of attempts, each only while its attempt is the row's current one."""

    def __init__(
        self,
        *,
        worker: WorkerId,
        sequencer: Sequencer,
        venues: Mapping[VenueName, Venue],
        clock: Clock,
        randomness: Randomness,
        metrics: Metrics,
        retries: decisions.RetryLimits,
        first_sends: FirstSends,
        inline_reports: Mapping[VenueName, AppliesReports],
        can_move: Callable[[Order], bool] = _never,
        note_answer: NoteAnswer = ignore_answer,
        may_be_lost: MayBeLost = never_lost,
    ) -> None:
        """`can_move`: whether an order that is proven unsent leaves its venue at once."""
        self._note_answer = note_answer
        self._may_be_lost = may_be_lost
        self._worker = worker
        self._sequencer = sequencer
        self._venues = venues
        self._clock = clock
        self._randomness = randomness
        self._metrics = metrics
        self._retries = retries
        self._first_sends = first_sends
        self._inline_reports = inline_reports
        self._can_move = can_move

    async def write(self, ended: Sequence[Ended]) -> int:
        """Commit the outcomes, and return how many changed a row; one of an attempt that was superseded is dropped.

        Goes on however long the database is away: the venue's answer is stored nowhere else.
        """
        written = 0
        waiting = list(ended)
        while waiting:
            try:
                answers = await self._proposed(waiting)
            except (Unavailable, OutcomeUnknown) as unread:
                answers = [Failed(unread)] * len(waiting)
            failed: list[Ended] = []
            for attempt, answer in zip(waiting, answers, strict=True):
                match answer:
                    case Decided(_, change):
                        call_for(attempt.row.traceparent, self._note, attempt.row, attempt.outcome, change)
                        written += 1
                    case Failed(Unavailable() | OutcomeUnknown() as error) if not isinstance(error, GroupRejected):
                        log.warning("send_outcome_waiting", order_id=attempt.row.order_id, error=str(error))
                        failed.append(attempt)
                    case Failed(error):
                        # The row stays `sending` under this worker's name, and the next recovery brings it into doubt.
                        self._metrics.stage_failures.labels("dispatch").inc()
                        log.error("send_outcome_lost", order_id=attempt.row.order_id, error=repr(error))
                    case None:
                        self._metrics.stale_writes.inc()
            waiting = failed
            if waiting:
                await asyncio.sleep(RECORD_AGAIN_SECONDS)
        return written

    async def _proposed(self, ended: Sequence[Ended]) -> list[Decided | Failed | None]:
        """Propose the outcomes, each with the reports that came with it; returns the answers to the outcomes."""
        now = self._clock.now()
        page: list[Decision] = []
        inline: list[tuple[int, _Settlement, AppliesReports, Sequence[ExecutionReport]]] = []
        for row, outcome in ended:
            decision = self._decision(row, outcome, now)
            reports: Sequence[ExecutionReport] = outcome.reports if isinstance(outcome, Accepted) else ()
            state = self._sequencer.states.orders.get(row.order_id) if reports else None
            applier = self._inline_reports.get(row.venue)
            if applier is not None and state is not None and (steps := applier.begin(state.order, reports, now)):
                settlement = _Settlement(decision, steps)
                inline.append((len(page), settlement, applier, reports))
                decision = settlement.decision
            page.append(decision)
        answers: Sequence[Answer] = ()
        try:
            answers = await self._sequencer.propose(page)
        finally:
            for place, settlement, applier, reports in inline:
                is_committed = bool(answers) and isinstance(answers[place], Decided)
                applier.end(reports, settlement.applied if is_committed else ())
        for place, settlement, _, _ in inline:
            page[place] = settlement.outcome  # after a conflict the reports are left to the recorder
        return await decide_all(self._sequencer.propose, page, answers)

    def _decision(self, row: OutboxRow, outcome: AttemptOutcome, now: datetime) -> Decision:
        def decision(newest: OrderState, _: Positions) -> Change | None:
            current = newest.find(row.kind, row.number)
            if current is None or current.attempt != row.attempt:
                return None
            if current.status == "sending" or self._may_correct(current, outcome):
                return self._outcome_change(newest, current, outcome, now)
            return None

        return Decision(row.order_id, decision)

    async def write_doubt(self, due: Due, code: DoubtCode, suspect: WorkerId | None = None) -> None:
        """Bring a row into doubt without an outcome; a version conflict means that one was recorded after all."""
        with resumed(due.row.traceparent):
            log.error(
                "order_uncertain",
                order_id=due.row.order_id,
                trace_id=due.state.order.trace_id,
                venue=due.row.venue,
                error=code,
                worker=suspect,
            )
        change = decisions.record_doubt(due.state, due.row, code, None, self._clock.now(), suspect=suspect)
        if isinstance(await self._sequencer.commit(change), Committed):
            self._metrics.uncertain.inc()
            log_moved(due.row, change.outbox[0], due.state.order)

    def _may_correct(self, row: OutboxRow, outcome: AttemptOutcome) -> bool:
        """Whether the row was taken for stuck, and this is what became of the attempt after all.

        Nothing was sent in place of the suspected sender. It must say that its attempt has ended, also if it knows no
        more: the row waits for the end of a suspect, and this worker may live on for ever.
        """
        is_own = row.status == "uncertain" and row.worker == self._worker
        return is_own and not isinstance(outcome, SenderDied)

    def _outcome_change(self, state: OrderState, row: OutboxRow, outcome: AttemptOutcome, now: datetime) -> Change:
        if isinstance(outcome, Accepted):
            if row.kind == "amend" and self._may_be_overtaken(state, row, outcome):
                return decisions.record_doubt(
                    state, row, "CONFLICT", None, now, detail="it may be the answer to an earlier copy"
                )
            return decisions.record_sent(
                state, row, outcome.venue_order_id, now, processed_before=outcome.already_processed
            )
        is_exhausted = self._retries.are_used_up(row)
        retry_at = now + decisions.backoff(row.attempt, self._randomness.jitter())
        # An amend in doubt is looked up and never sent again: the order may have been filled or amended since.
        is_safe_to_repeat = row.kind != "amend" and self._first_sends.may_resend(row)
        # An outcome is about its own attempt: after an earlier attempt in doubt, only Accepted ends the doubt. A row
        # that was taken for stuck is in doubt about this attempt itself, except where an attempt may begin in doubt.
        may_begin_in_doubt = self._venues[row.venue].capabilities.dedupe in ("permanent", "ttl")
        in_doubt = (
            row.kind == "new" and state.order.status == "UNKNOWN" and (row.status == "sending" or may_begin_in_doubt)
        )
        match outcome:
            case VenueRejected(code, detail):
                if in_doubt:
                    return decisions.record_doubt(state, row, code, None, now, detail=detail)
                return decisions.record_rejected(state, row, code, now, detail=detail)
            case Unsent(code, detail, retry_after, bytes_sent):
                if code in HELD_BACK:
                    # It was not sent because of this process or its database: the venue is not known to be in trouble,
                    # and an order that was never tried there does not run out of tries. Nor because of a credential.
                    retry_at, is_exhausted = now, False
                if retry_after is not None:
                    retry_at = max(retry_at, now + retry_after)
                if not bytes_sent and not row.bytes_sent and row.kind == "new" and self._can_move(state.order):
                    retry_at, is_exhausted = now, False  # the backoff is for the venue that it leaves
                if code == "KILL_SWITCH":
                    # Claimed again at once: the kill then ends the order, or has been cleared.
                    retry_at, is_exhausted, is_safe_to_repeat = now, False, False
                if in_doubt:
                    resend_at = retry_at if is_safe_to_repeat and not is_exhausted else None
                    return decisions.record_doubt(state, row, code, resend_at, now, detail=detail)
                if is_exhausted or self._would_be_too_late(state.order, row, code, retry_at):
                    reason = described(code, detail)
                    unsent = decisions.record_exhausted(state, row, now, detail=reason, bytes_sent=bytes_sent)
                else:
                    unsent = decisions.record_unsent(
                        state, row, code, retry_at, now, detail=detail, bytes_sent=bytes_sent
                    )
                return decisions.unless_lost(unsent, state, row, self._may_be_lost, now)
            case Ambiguous(code, detail, address):
                resend_at = retry_at if is_safe_to_repeat and not is_exhausted else None
                return decisions.record_doubt(state, row, code, resend_at, now, detail=detail, address=address)
            case SenderDied():
                # No backoff: the worker is gone, the venue is not known to be in trouble.
                resend_at = now if is_safe_to_repeat and not is_exhausted else None
                return decisions.record_doubt(state, row, "SENDER_DIED", resend_at, now)
            case unreachable:
                assert_never(unreachable)

    def _may_be_overtaken(self, state: OrderState, row: OutboxRow, answer: Accepted) -> bool:
        """Whether the venue may have carried out another amend after this one, which its answer does not show.

        It may answer a repeated amend as it did the first time. Only a lookup shows the order's present amounts.
        """
        return answer.already_processed or is_stale(state, row) or self._may_be_lost(state.order, row)

    def _would_be_too_late(self, order: Order, row: OutboxRow, code: SendCode, retry_at: datetime) -> bool:
        """Whether the order would end before its next attempt; one past its send deadline expires instead."""
        if row.kind != "new" or code in (*HELD_BACK, "KILL_SWITCH") or decisions.is_past_deadline(order, retry_at):
            return False
        return retry_at >= self._retries.waits_since(order.accepted_at, row.venue) + self._retries.wait_max

    def _note(self, row: OutboxRow, outcome: AttemptOutcome, change: Change) -> None:
        order, written = change.orders[0], change.outbox[0]
        log_moved(row, written, order)
        if written.status in SETTLED or written.status == "uncertain":
            self._first_sends.settle(row)
        if written.status in SETTLED:
            self._metrics.retries.observe(row.attempt - 1)
        if row.kind == "new" and isinstance(outcome, Accepted):
            self._note_answer(order, row, outcome)
            waited = order.updated_at - order.accepted_at
            self._metrics.accept_to_sent.observe(waited.total_seconds() * 1000)
        if written.last_error == "CONTRADICTED":
            self._metrics.contradictions.labels(row.venue).inc()
            log.error("venue_contradiction", order_id=order.order_id, venue=row.venue, rejection=written.error_detail)
        if written.kind == "amend" and written.status == "uncertain":
            self._metrics.uncertain.inc()
            log.error(
                "amend_uncertain",
                order_id=order.order_id,
                venue=row.venue,
                amend_id=written.venue_client_order_id,
                error=written.last_error,
                detail=written.error_detail,
            )
        if order.status == "UNKNOWN":
            self._metrics.uncertain.inc()
            log.error(
                "order_uncertain",
                order_id=order.order_id,
                trace_id=order.trace_id,
                venue=row.venue,
                error=written.last_error,
                detail=written.error_detail,
            )


class _Settlement:
    """The outcome of an attempt and the reports that came with it, as one decision."""

    def __init__(self, outcome: Decision, reports: Sequence[Decision]) -> None:
        self.outcome = outcome
        self._reports = reports
        self.applied: list[Decided] = []
        """What the first reports changed, and the states before them."""
        positions = tuple(dict.fromkeys([key for report in reports for key in report.positions]))
        self.decision = Decision(outcome.order_id, self._decide, positions)

    def _decide(self, state: OrderState, positions: Positions) -> Change | None:
        self.applied = []
        change = None if self.outcome.decide is None else self.outcome.decide(state, positions)
        if change is None:
            return None
        changes, held = [change], dict(positions)
        for report in self._reports:
            state = after(state, changes[-1].orders[-1], changes[-1])
            try:
                applied = None if report.decide is None else report.decide(state, held)
            except ArithmeticError:
                break  # the recorder sets it aside
            if applied is None or applied.executions in [other.executions for other in changes]:
                break
            self.applied.append(Decided(state, applied))
            changes.append(applied)
            for position in applied.positions:
                held[position.account_id, position.symbol] = position
        return merged(changes)
