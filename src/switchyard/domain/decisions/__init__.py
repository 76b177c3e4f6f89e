"""Decisions: pure functions from an order's state and something that happened to the `Change` to commit.

They read no clock and no database; the caller commits the change, and decides again when a row has moved on.
"""

from switchyard.domain.decisions.absent import record_absent
from switchyard.domain.decisions.accept import accept
from switchyard.domain.decisions.amend import (
    adopt_amend,
    check_amendable,
    record_amend_refused,
    record_amended,
    request_amend,
)
from switchyard.domain.decisions.at_venue import is_at_venue
from switchyard.domain.decisions.attempts import (
    begin_attempt,
    end_too_old,
    end_unsent,
    record_doubt,
    record_exhausted,
    record_expired,
    record_rejected,
    record_sent,
    record_unsent,
    unless_lost,
)
from switchyard.domain.decisions.cancel import repeat_cancel, request_cancel
from switchyard.domain.decisions.deadlines import SEND_DEADLINES, RetryLimits, backoff, is_past_deadline, retry_limits
from switchyard.domain.decisions.kill import cancel_killed, clear_kill, end_killed, set_kill
from switchyard.domain.decisions.moves import adopt_order, adopt_qty, may_be_elsewhere, may_move, reroute
from switchyard.domain.decisions.operator import decide_by_hand
from switchyard.domain.decisions.reports import apply_report, set_aside_report, unmatched_report
from switchyard.domain.decisions.results import record_result
from switchyard.domain.decisions.revise import early_mark, revise_execution

__all__ = [
    "SEND_DEADLINES",
    "RetryLimits",
    "accept",
    "adopt_amend",
    "adopt_order",
    "adopt_qty",
    "apply_report",
    "backoff",
    "begin_attempt",
    "cancel_killed",
    "check_amendable",
    "clear_kill",
    "decide_by_hand",
    "early_mark",
    "end_killed",
    "end_too_old",
    "end_unsent",
    "is_at_venue",
    "is_past_deadline",
    "may_be_elsewhere",
    "may_move",
    "record_absent",
    "record_amend_refused",
    "record_amended",
    "record_doubt",
    "record_exhausted",
    "record_expired",
    "record_rejected",
    "record_result",
    "record_sent",
    "record_unsent",
    "repeat_cancel",
    "request_amend",
    "request_cancel",
    "reroute",
    "retry_limits",
    "revise_execution",
    "set_aside_report",
    "set_kill",
    "unless_lost",
    "unmatched_report",
]
