"""The tree of errors that Switchyard raises on purpose. Each carries its data; HTTP maps them once, at the edge.

SwitchyardError
├── RequestError              the request is rejected as it is (4xx)
│   ├── InvalidJson           not JSON, a duplicate member, NaN, bad UTF-8
│   ├── BodyTooLarge
│   ├── InvalidField          one named field is wrong
│   │   ├── UnknownSymbol     the symbol is not in the instrument catalogue
│   │   └── InvalidHeader     a header is malformed (entrypoints/http/errors.py)
│   │       └── InvalidHost
│   ├── InvalidKey            the Idempotency-Key header is malformed or repeated
│   ├── Unauthorized          no token, or an invalid one
│   ├── Forbidden             a token without the scope that the request needs
│   ├── KillCleared           the kill was cleared before
│   ├── TooManyKills          the number of active kills is at its bound
│   ├── BreakChanged          the break is not in a state for this decision (domain/reconcile/breaks.py)
│   ├── NotFound              missing, or another account's: callers cannot tell which
│   ├── IdempotencyConflict   the same key with another body
│   │   └── ManualConflict    the same key with another entry by a person (domain/books/manual.py)
│   ├── KeyMismatch           the header's key and the body's differ
│   ├── ConstraintViolated    one of the request's own risk constraints does not hold
│   ├── RiskRejected          a pre-trade check rejects the order
│   ├── TooManyRequests       the client is over its rate
│   │   └── TooManyStreams, TooManyConnections, TooManyBadTokens (entrypoints/http/errors.py)
│   ├── HostNotAllowed, OriginNotAllowed, UnsupportedMediaType, UnknownTransferCoding
│   │                         rejected before it is routed (entrypoints/http/errors.py)
│   ├── NotAmendable          the order, or its venue, does not allow amends
│   ├── NoChange              an amend to the amounts that the order has
│   ├── QtyFilled             an amend to a quantity that is filled already
│   ├── AmendPending          another amend of the order is not settled
│   ├── CancelPending         a cancel of the order is under way: it cannot be amended
│   ├── TooManyAmends         the order was amended as often as it may be
│   ├── VersionMismatch       the order's version is not the one in `If-Match`
│   ├── PositionClosing       open orders may already close more of the position than the request leaves to them
│   └── OrderFinal            the order has ended: it cannot be cancelled or amended
├── Unbookable                an event that the books cannot take (domain/books/entries.py)
├── LedgerBroken              the books' file failed (ports/books.py)
├── OwnershipLost             another process has claimed the source (ports/books.py)
├── LeaseLost                 another relay publishes to the topic now (ports/bus.py)
├── TooManyStrategies         the registry of strategies is at its bound (ports/strategies.py)
├── UnknownStrategies         a recheck of strategies that are not registered (ports/strategies.py)
├── LostFence                 a recheck ended, or was claimed by another worker (ports/strategies.py)
├── RunConflict               the runner has another run under the id of a request (ports/strategies.py)
├── CannotRecheck             a recheck ends without a result (flow/pdca/recheck.py)
├── NotInDoubt                an operator's decision on a row that is not in doubt
├── ContradictsEvidence       an operator's decision against a fill or a venue order id
├── LookupPending             an operator's decision that the venue's own lookup can still make
├── Unavailable               nothing was written or sent; repeat the request later (503)
│   ├── QueueFull             the sequencer's queue is at its bound
│   ├── QueueDelayed          the order would be accepted or sent too late
│   ├── CredentialPaused      the venue rejects its credential: nothing is sent to it
│   ├── BrokerFailed          the broker did not answer a question that the request depends on
│   ├── PositionMoved         the position changed at every try to close it
│   ├── NoQuote               the venue has no quote for the symbol, or only a stale one
│   ├── LedgerUnavailable     the books could not be written; repeated by itself (ports/books.py)
│   ├── BusUnavailable        the message broker rejected something or cannot be used (ports/bus.py)
│   ├── PdcaUnavailable       the PDCA store could not be read or written (ports/strategies.py)
│   ├── RunnerDown            a recheck is stored, and its runner could not be told yet (502)
│   └── JournalUnavailable    the database rejected the write or cannot be reached, and nothing was written
│       ├── NotReplicated     what was read may be lost by a failover: a write may have met its own first attempt
│       └── GroupRejected     the database rejected a group's data: the sequencer splits the group to find the change
├── OutcomeUnknown            the write may or may not be committed: repeat with the same key (503)
│   └── JournalBroken         a commit failed on the disk: the process must end
├── ReplayMismatch            an audit file's events do not follow from each other (domain/journal/replay.py)
├── ChainBroken               a line of an audit file was changed (flow/history/replay.py)
├── NotEmpty                  a rebuild needs an empty database (flow/history/replay.py)
├── VenueUnavailable          a venue did not answer a question (ports/venue.py)
├── UnreadableRecord          a file of recorded quotes cannot be replayed (adapters/files/recorded_quotes.py)
├── LogBroken                 the simulator's log cannot be written (adapters/venues/simulator/log.py)
├── DemoFailed                the demo cannot go on (entrypoints/cli/demo/processes.py)
├── ClientError               what the SDK raises (client/errors.py)
│   ├── ApiError              the gateway answered with an error
│   ├── NotReachable          no answer, in spite of retries
│   └── UnreadableResponse    the answer is not one of this API
└── CannotStart               the process must not run; the message says what to do
    ├── SettingError          a setting has a wrong value
    ├── SchemaMismatch        the database's schema is too old or too new
    ├── AlreadyRunning        another process holds the database
    ├── DifferentDeclarations another worker runs with other settings of a venue
    ├── TopicResized          the topic has another number of partitions (ports/bus.py)
    └── HistoryMismatch       the journal and a reader's record of it have different histories

Defects are not in the tree: `ImpossibleStep` (domain/orders/lifecycle.py), `Contention` (flow/commit/sequencer.py).
"""

from datetime import timedelta
from typing import Literal


class SwitchyardError(Exception):
    """Base of every error that Switchyard raises on purpose."""


class RequestError(SwitchyardError):
    """The request is rejected as it is; `reason` is its code over HTTP, `field` the wrong field."""

    reason = "REJECTED"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class InvalidJson(RequestError):
    """The body is not exactly one JSON object that every parser reads the same way."""

    reason = "INVALID_JSON"


class BodyTooLarge(RequestError):
    """The body is larger than its bound."""

    reason = "BODY_TOO_LARGE"


class InvalidField(RequestError):
    """One field is missing, unknown or out of range; `field` names it."""

    reason = "VALIDATION_ERROR"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}", field=field)


class UnknownSymbol(InvalidField):
    """The symbol is not in the instrument catalogue; the message has a hint."""

    reason = "UNKNOWN_SYMBOL"


class InvalidKey(RequestError):
    """The Idempotency-Key header is malformed or repeated."""

    reason = "INVALID_IDEMPOTENCY_KEY"

    def __init__(self, message: str) -> None:
        super().__init__(f"Idempotency-Key: {message}", field="Idempotency-Key")


class Unauthorized(RequestError):
    """The request has no token, or an invalid one."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class NotFound(RequestError):
    """It does not exist, or it belongs to another account."""

    reason = "NOT_FOUND"

    def __init__(self, message: str = "not found") -> None:
        super().__init__(message)


class Forbidden(RequestError):
    """The token is valid, and does not have the scope that the request needs."""

    reason = "FORBIDDEN"

    def __init__(self, scope: str) -> None:
        super().__init__(f"the token needs the scope {scope}: `switchyard token --scope {scope}`")


class KillCleared(RequestError):
    """The kill was cleared before."""

    reason = "KILL_CLEARED"

    def __init__(self, kill_id: str, by: str) -> None:
        super().__init__(f"kill {kill_id} was cleared before, by {by}")


class TooManyKills(RequestError):
    """The number of active kills is at its bound."""

    reason = "TOO_MANY_KILLS"

    @classmethod
    def of(cls, count_max: int, set_by: Literal["people", "programs"], next_step: str) -> "TooManyKills":
        """The error with its usual message."""
        return cls(f"{count_max} kills set by {set_by} are active, the maximum: {next_step}")


class IdempotencyConflict(RequestError):
    """The idempotency key was used before with another body."""

    reason = "IDEMPOTENCY_CONFLICT"

    def __init__(self, key: str) -> None:
        super().__init__("the Idempotency-Key was used with another body", field="Idempotency-Key")
        self.key = key


class KeyMismatch(RequestError):
    """The Idempotency-Key header differs from `idempotency_key` in the body."""

    reason = "IDEMPOTENCY_MISMATCH"

    def __init__(self) -> None:
        super().__init__("the Idempotency-Key header must equal idempotency_key", field="idempotency_key")


class ConstraintViolated(RequestError):
    """One of the request's own `risk_constraints` does not hold; `reason_code` names it."""

    reason = "VALIDATION_ERROR"

    def __init__(self, constraint: str, message: str) -> None:
        super().__init__(f"risk_constraints.{constraint}: {message}", field=f"risk_constraints.{constraint}")
        self.reason_code = constraint.upper()


class RiskRejected(RequestError):
    """A pre-trade check rejects the order; `order_id` names the rejected order where one was stored."""

    def __init__(
        self,
        reason: str,
        detail: str,
        *,
        order_id: str | None = None,
        retry_after: timedelta | None = None,
        replayed: bool = False,
    ) -> None:
        super().__init__(detail)
        self.reason = reason
        self.order_id = order_id
        self.retry_after = retry_after
        self.replayed = replayed
        """Whether an earlier request with the same key was rejected, and this one gets its answer."""


class TooManyRequests(RequestError):
    """The client is over its rate; `retry_after` is when the next request is allowed."""

    reason = "RATE_LIMITED"

    def __init__(self, retry_after: timedelta) -> None:
        super().__init__("too many requests")
        self.retry_after = retry_after


class NotAmendable(RequestError):
    """The order cannot be amended, whatever the new amounts are."""

    reason = "NOT_AMENDABLE"


class NoChange(RequestError):
    """The order has the amounts of the amend already."""

    reason = "NO_CHANGE"

    def __init__(self) -> None:
        super().__init__("the order has this quantity and these prices already")


class QtyFilled(RequestError):
    """The new total quantity does not exceed what is filled."""

    reason = "QTY_FILLED"

    def __init__(self, filled: str) -> None:
        super().__init__(
            f"qty: must be above {filled}, which is filled already; to end the order, cancel it", field="qty"
        )


class AmendPending(RequestError):
    """Another amend of the order is not settled; an order has one at a time."""

    reason = "AMEND_PENDING"

    def __init__(self) -> None:
        super().__init__("another amend of the order is not settled yet: repeat the request when it is")


class CancelPending(RequestError):
    """A cancel of the order is under way."""

    reason = "CANCEL_PENDING"

    def __init__(self) -> None:
        super().__init__("a cancel of the order is under way, so it cannot be amended")


class TooManyAmends(RequestError):
    """The order was amended as often as it may be."""

    reason = "TOO_MANY_AMENDS"

    def __init__(self, count_max: int) -> None:
        super().__init__(f"the order has {count_max} amends, the maximum: cancel it and place a new one")


class VersionMismatch(RequestError):
    """The order has another version than the request expects."""

    reason = "VERSION_MISMATCH"

    def __init__(self, version: int) -> None:
        super().__init__(f"If-Match: the order has version {version}: read it again", field="If-Match")
        self.version = version


class OrderFinal(RequestError):
    """The order has ended and cannot be cancelled or amended."""

    reason = "ORDER_FINAL"

    def __init__(self) -> None:
        super().__init__("the order is in a final state")


class PositionClosing(RequestError):
    """Open orders may already close so much of the position that the rest is less than the request wants."""

    reason = "POSITION_CLOSING"

    def __init__(self, symbol: str, position: str, side: str, open_qty: str, rest: str) -> None:
        super().__init__(
            f"the position in {symbol} is {position} and open {side} orders have {open_qty} left to fill, so at most "
            f"{rest} can be closed: wait for these orders, cancel them or close less"
        )


class NotInDoubt(SwitchyardError):
    """The outbox row is not `uncertain`, so there is nothing for an operator to decide."""

    def __init__(self, status: str, decided: str | None = None) -> None:
        earlier = "" if decided is None else f" ({decided})"
        super().__init__(f"the row is {status}, not uncertain: there is nothing to decide{earlier}")
        self.status = status


class ContradictsEvidence(SwitchyardError):
    """The venue has shown that it has the order: a decision that it does not would be wrong."""


class LookupPending(SwitchyardError):
    """The venue can still be asked whether it has the order: its answer decides, not a person."""


class Unavailable(SwitchyardError):
    """Nothing was written or sent; the same request may be repeated later."""

    reason = "UNAVAILABLE"


class QueueFull(Unavailable):
    """The sequencer's queue is at its bound."""

    reason = "QUEUE_REJECT"


class QueueDelayed(Unavailable):
    """So many orders are before this one that it would be accepted or sent too late."""

    reason = "QUEUE_DELAY"


class CredentialPaused(Unavailable):
    """The order would go to a venue that rejects its credential."""

    reason = "CREDENTIAL_PAUSED"

    def __init__(self, venue: str) -> None:
        super().__init__(
            f"{venue} rejects the credential that is configured for it, so no orders are sent there; nothing was placed"
        )


class BrokerFailed(Unavailable):
    """Nothing was sent, because the broker did not answer a question that the request depends on."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.reason = "BROKER_DOWN"


class PositionMoved(Unavailable):
    """The position or its open orders changed between the decision to close it and the commit."""

    reason = "POSITION_MOVED"

    def __init__(self) -> None:
        super().__init__("the position changed while the close was written, and nothing was placed: repeat the request")


class NoQuote(Unavailable):
    """The venue has no quote for the symbol, or only a stale one."""

    reason = "NO_QUOTE"

    def __init__(self, venue: str, symbol: str) -> None:
        super().__init__(f"{venue} has no quote for {symbol}, or only one older than SWITCHYARD_QUOTE_AGE_MAX_SEC")


class RunnerDown(Unavailable):
    """The runner of rechecks could not be told of a request, which is stored: it is told later, without a repeat."""

    reason = "AIRFLOW_DOWN"


class JournalUnavailable(Unavailable):
    """The database rejected the group or cannot be reached; this request has committed nothing."""

    reason = "JOURNAL_UNAVAILABLE"


class NotReplicated(JournalUnavailable):
    """The synchronous standby has not confirmed what was read.

    To a request that writes, this is `OutcomeUnknown`: what it was not shown may be its own first attempt.
    """


class GroupRejected(JournalUnavailable):
    """The database rejected the data of one or more of the group's changes; nothing of the group was written."""


class OutcomeUnknown(SwitchyardError):
    """The answer to the commit was lost: the change may or may not be written."""

    reason = "OUTCOME_UNKNOWN"


class JournalBroken(OutcomeUnknown):
    """A commit failed on the disk: after a failed fsync the process cannot know what is stored, so it must end."""


class CannotStart(SwitchyardError):
    """The process must not run; the message says what to do."""


class SettingError(CannotStart):
    """A setting has a wrong value; the message says what is allowed."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class DifferentDeclarations(CannotStart):
    """Another worker runs with other settings of a venue: one of them may send again what the other must not."""

    def __init__(self, venue: str, worker: str, theirs: str, ours: str) -> None:
        super().__init__(
            f"venue {venue}: worker {worker}, which is running, declares {theirs}; this one declares {ours}. Set the "
            f"VENUE_..._{venue.upper()} settings of all workers alike; to change them, stop every worker before the "
            "first one starts with the new ones"
        )
        self.venue = venue
        self.worker = worker


class SchemaMismatch(CannotStart):
    """The database's schema is too old or too new for this version."""


class AlreadyRunning(CannotStart):
    """Another process holds the database's lock."""


class HistoryMismatch(CannotStart):
    """The journal and a reader's own record of it have different histories."""
