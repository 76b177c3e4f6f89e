"""What is committed instead of an attempt, where an order must not be sent. Decides only, and writes nothing.

A resend is an execution: deadline, kill switch and price collar are checked again before it, and for an order that
closes a position, whether it still only reduces it.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal, assert_never

from switchyard.domain import decisions
from switchyard.domain.journal.changes import Change
from switchyard.domain.orders.amends import amend_of
from switchyard.domain.orders.lifecycle import is_final
from switchyard.domain.orders.outbox import MayBeLost, OrderState, OutboxKey, OutboxRow, never_lost
from switchyard.domain.orders.reasons import SendCode, described
from switchyard.domain.risk.checks import Violation
from switchyard.flow.active_kills import ActiveKills
from switchyard.flow.sending.resend import FirstSends

# The statuses in which an order's own row may be sent: no evidence shows that the venue has the order.
SENDABLE = ("ACCEPTED", "UNKNOWN", "CANCEL_REQUESTED")


class PreSendChecks:
    """Decides whether a claimed order may be sent, and what becomes of it otherwise."""

    def __init__(
        self,
        first_sends: FirstSends,
        kills: ActiveKills,
        retries: decisions.RetryLimits,
        may_be_lost: MayBeLost = never_lost,
    ) -> None:
        self._may_be_lost = may_be_lost
        self._first_sends = first_sends
        self._kills = kills
        self._retries = retries

    def of_message(
        self, state: OrderState, row: OutboxRow, breaches: Mapping[OutboxKey, Violation], now: datetime
    ) -> Change | None:
        """The change to commit where the message must not be sent; none where it may be sent."""
        match row.kind:
            case "new":
                change = self.of_sending(state, row, breaches, now)
            case "amend":
                change = self.of_amending(state, row, breaches, now)
            case "cancel":
                return None
            case unreachable:
                assert_never(unreachable)
        return None if change is None else decisions.unless_lost(change, state, row, self._may_be_lost, now)

    def of_amending(
        self, state: OrderState, row: OutboxRow, breaches: Mapping[OutboxKey, Violation], now: datetime
    ) -> Change | None:
        """The change to commit where the amend must not be sent; none where it may be sent."""
        order, breach = state.order, breaches.get(row.key)
        if is_final(order.status):
            return decisions.record_amend_refused(state, row, "ORDER_FINAL", now)
        if order.status == "CANCEL_REQUESTED":
            return decisions.record_amend_refused(state, row, "CANCEL_REQUESTED", now)
        kill = self._kills.covering(order)
        if kill is not None:
            return decisions.record_amend_refused(state, row, "KILL_SWITCH", now, detail=kill.kill_id)
        if amend_of(row).qty <= order.filled_qty:
            return decisions.record_amend_refused(state, row, "QTY_FILLED", now)
        if breach is not None and breach.reason in ("COLLAR", "NOT_REDUCING"):
            return decisions.record_amend_refused(state, row, _code(breach), now, detail=breach.detail)
        return None

    def of_sending(
        self, state: OrderState, row: OutboxRow, breaches: Mapping[OutboxKey, Violation], now: datetime
    ) -> Change | None:
        """The change to commit where the order must not be sent; none where it may be sent.

        `breaches`: the orders to be sent again whose price is outside its collar now, and closes without a position.
        """
        order = state.order
        if order.status not in SENDABLE:
            # A report has shown that the venue has the order.
            return decisions.record_sent(state, row, order.venue_order_id, now)
        kill = self._kills.covering(order)
        if kill is not None:
            if order.status == "ACCEPTED":
                return decisions.end_killed(state, kill, now)
            return self._ask_only(state, row, "KILL_SWITCH", now)
        is_late = decisions.is_past_deadline(order, now)
        breach = breaches.get(row.key)
        if order.status == "UNKNOWN":
            if is_late or not self._first_sends.may_resend(row):
                return self._ask_only(state, row, "TOO_LATE_TO_RESEND", now)
            return None if breach is None else self._ask_only(state, row, _code(breach), now)
        if is_late:
            return _expired(state, row, now)
        if self._retries.is_too_old(order, row, now):
            return decisions.end_too_old(state, row, self._retries, now)
        if breach is not None and order.status == "ACCEPTED":
            return decisions.end_unsent(state, _code(breach), breach.detail, now)
        return None

    def _ask_only(self, state: OrderState, row: OutboxRow, code: SendCode, now: datetime) -> Change:
        """An order in doubt that is not sent again: only the venue can tell."""
        self._first_sends.settle(row)
        return decisions.record_doubt(state, row, row.last_error or code, None, now, detail=row.error_detail)


def _code(breach: Violation) -> Literal["COLLAR", "NOT_REDUCING"]:
    return "NOT_REDUCING" if breach.reason == "NOT_REDUCING" else "COLLAR"


def _expired(state: OrderState, row: OutboxRow, now: datetime) -> Change:
    if row.last_error == "ABSENT_AT_VENUE":
        return decisions.record_expired(state, row, "ABSENT_AT_VENUE", now)
    detail = None if row.last_error is None else described(row.last_error, row.error_detail)
    return decisions.record_expired(state, row, "BROKER_DOWN" if row.attempt else "BROKER_TIMEOUT", now, detail=detail)
