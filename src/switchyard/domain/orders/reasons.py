"""The closed sets of reason codes: why a send failed or is in doubt, and why an order ended.

`OutboxRow.last_error` holds one of `SendCode`; the text for people is in `OutboxRow.error_detail`. `Order.reason` holds
one of `EndReason`, or the venue's own words. Behaviour depends on codes, never on the text.
"""

from typing import Final, Literal, get_args

RejectCode = Literal[
    "BAD_REQUEST",  # HTTP 400 or 422 with the venue's error in the body
    "UNAUTHORIZED",  # HTTP 401 or 403: wrong credentials, or credentials without the permission
    "CONFLICT",  # a conflict that the venue's documents call a final rejection
    "BROKER_REJECTED",  # the venue's own rules reject the order; the detail is the venue's own code, if it gave one
    "UNKNOWN_ORDER",  # a cancel or an amend: the venue does not have the order
    "ORDER_FINAL",  # a cancel or an amend: the order has already ended
]
"""A venue rejected the request, and its documents call that final."""

UnsentCode = Literal[
    "BROKER_DOWN",  # no connection: refused, failed name lookup, connect time-out, exhausted pool
    "VENUE_DOWN",  # the venue adapter is not started, is closed, or does not know the venue's clock that it needs
    "VENUE_BUSY",  # the venue has no room for more orders right now
    "RATE_LIMITED",  # HTTP 429: the dispatcher slows down for this venue
    "TURN_TIMEOUT",  # the previous order of the same account and symbol did not leave within TURN_LIMIT
    "ATTEMPT_STALE",  # the process was paused, or the order amended, between committing the attempt and sending it
    "DEADLINE_PASSED",  # the order's send deadline passed while the attempt waited for its turn
    "KILL_SWITCH",  # a kill was set after the attempt was committed and before it was sent
    "CREDENTIAL_PAUSED",  # the venue rejected our credential for another message: this one waits for one that works
    "REPLACED",  # a cancel of an order that an amend has replaced at the venue: sent again under the new id
]
"""An attempt ended without a byte at the venue."""

HELD_BACK: Final[frozenset[UnsentCode]] = frozenset({"ATTEMPT_STALE", "CREDENTIAL_PAUSED"})
"""The order keeps its place among those of its account and symbol, and its tries; it is due again at once."""

AmbiguousCode = Literal[
    "NETWORK_TIMEOUT",  # the request left, and no answer came in time
    "NETWORK_DISCONNECTED",  # the request left, and the connection broke before a whole answer came
    "BROKER_5XX",  # HTTP 5xx: the venue may or may not have processed the request
    "CONFLICT",  # HTTP 409 that does not show this order, or an amend that was carried out before
    "REQUEST_EXPIRED",  # this copy of the request came too late; a proxy may have delivered another one in time
    "UNKNOWN",  # an answer that cannot be read, is about another order, or has an undocumented status
    "ADAPTER_FAILED",  # the venue adapter raised: a defect
]
"""An attempt ended, and the venue may or may not have the order."""

DoubtCode = Literal[
    "SENDER_DIED",  # the worker that made the attempt is gone, and the outcome with it
    "STUCK",  # a live worker has been sending for longer than OUTBOX_STUCK_THRESHOLD_MIN
    "EXECUTED_BEFORE",  # never sent from this database, but the venue has reported on this client order id
    "RESTORED",  # the row was unfinished when an older backup was restored
    "LOOKUP_EXPIRED",  # in doubt for so long that a lookup which finds nothing does not prove absence any more
    "TOO_LATE_TO_RESEND",  # in doubt, and the order's send deadline has passed: the venue can only be asked
]
"""A row came into doubt without an outcome from the venue."""

RequeueCode = Literal[
    "ABSENT_AT_VENUE",  # the venue does not have the order, and it can no longer arrive there
    "NOT_SENT_BY_DECISION",  # an operator decided that the venue did not get it
    "CANCEL_IN_DOUBT",  # a cancel in doubt whose order is at the venue: repeating a cancel is harmless
]
"""A doubt ended, and the row may be sent again."""

ExpiryReason = Literal[
    "BROKER_DOWN",  # the venue could not be reached before the send deadline
    "BROKER_TIMEOUT",  # the order waited in the outbox until its send deadline had passed
    "NOT_PROCESSED",  # one of both, but an attempt had written bytes, which the venue did not process (429, absent)
]
"""An order ended EXPIRED and is not at the venue; its key can be tried again, except with NOT_PROCESSED."""

EndReason = Literal[
    ExpiryReason,
    "RETRY_EXHAUSTED",  # proven unsent, and OUTBOX_RETRY_MAX is reached, or the time that so many retries take
    "CANCELED_BEFORE_SENDING",  # cancelled while nothing was at the venue
    "NOT_SENT_BY_DECISION",  # an operator decided that the venue did not get it
    "FOUND_ENDED_AT_VENUE",  # a lookup shows that the order has ended, and no report said so
    "ABSENT_AT_VENUE",  # a send was in doubt, the order is proven absent, and it is cancelled or past its deadline
    "KILL_SWITCH",  # a kill covered it while nothing was at the venue
    "COLLAR",  # to be sent again while nothing was at the venue, and its price was outside of its collar by then
    "NOT_REDUCING",  # a close to be sent while nothing was at the venue, and the position was too small for it by then
]
"""`Order.reason` where Switchyard itself ended the order."""

SendCode = Literal[
    RejectCode,
    UnsentCode,
    AmbiguousCode,
    DoubtCode,
    RequeueCode,
    ExpiryReason,
    "RETRY_EXHAUSTED",  # as in EndReason; the detail has the last attempt's error
    "CANCELED_BEFORE_SENDING",  # as in EndReason
    "AMENDED_BEFORE_SENDING",  # an amend of an order of which nothing was at the venue: it was changed here
    "CANCEL_REQUESTED",  # an amend that was not sent, because the order is to be cancelled
    "QTY_FILLED",  # an amend that was not sent, because its quantity was filled by then
    "COLLAR",  # as in EndReason; of an order in doubt: it is not sent again, and only the venue can tell
    "NOT_REDUCING",  # the same
    "CONFLICT_PROCESSED",  # HTTP 409: the venue shows that it processed this order before; the row is `sent`
    "CONTRADICTED",  # rejected, but a fill or a venue order id shows that the venue has it; the row is `sent`
]
"""`OutboxRow.last_error`: the last thing that kept a row from being sent, or that was special about its sending."""

AMBIGUOUS: Final[frozenset[str]] = frozenset(get_args(AmbiguousCode))
"""Codes that only the sender of an attempt records: it has given up."""

PROVEN_UNSENT: Final[frozenset[EndReason]] = frozenset(
    {"BROKER_DOWN", "BROKER_TIMEOUT", "NOT_PROCESSED", "RETRY_EXHAUSTED"}
)
"""Ends of orders that no venue processed; whether a byte was ever written is in `OutboxRow.bytes_sent`."""

# Enough for a venue's error message; a whole HTML page in every event would bloat the journal.
DETAIL_LENGTH_MAX: Final = 500

_END_REASONS: Final = frozenset(get_args(EndReason))
_SEPARATOR: Final = ": "


def bounded_detail(detail: str | None) -> str | None:
    """The detail as it is stored: cut to its bound, and printable, since PostgreSQL rejects a NUL in a text."""
    if detail is None:
        return None
    return printable(detail[:DETAIL_LENGTH_MAX])


def printable(text: str) -> str:
    """The text with every character replaced that is not printable."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def described(code: str, detail: str | None) -> str:
    """A code with its detail, for people."""
    return code if detail is None else f"{code}{_SEPARATOR}{detail}"


def split_reason(reason: str) -> tuple[str, str]:
    """The code and the detail of `described`; an empty detail where there is none."""
    code, _, detail = reason.partition(_SEPARATOR)
    return code, detail


def rejection_reason(code: RejectCode, detail: str | None) -> str:
    """`Order.reason` after a venue's rejection: the code and the venue's words, or the venue's own code alone.

    A venue's code that equals an `EndReason` is prefixed: a venue's text must not make a sent order look unsent.
    """
    if code == "BROKER_REJECTED" and detail is not None and detail not in _END_REASONS:
        return detail
    return described(code, detail)


def is_conflict(reason: str | None) -> bool:
    """Whether an order's `reason` has the code CONFLICT."""
    code: RejectCode = "CONFLICT"
    return reason is not None and split_reason(reason)[0] == code
