"""Everything that can go wrong in a way a caller can act upon.

SwitchyardError
├── RequestError              the caller's request cannot be taken (4xx)
│   ├── InvalidJson           not JSON, a duplicate member, NaN, bad UTF-8
│   ├── BodyTooLarge
│   ├── InvalidField          one named field is wrong
│   │   └── Unsupported       in the contract, not built yet
│   ├── InvalidKey            the Idempotency-Key header is malformed or repeated
│   ├── Unauthorized          no token, or a bad one
│   ├── NotFound              missing, or another account's: the two look alike
│   ├── IdempotencyConflict   the same key with another body
│   ├── KeyMismatch           the header's key and the body's differ
│   ├── ConstraintViolated    a condition of the request's own does not hold
│   ├── TooManyRequests       a client is over its rate
│   └── OrderFinal            nothing left to cancel
├── NotInDoubt                there is nothing for a person to decide
├── Unavailable               the request was not taken; repeat it later (503)
│   ├── QueueFull             the sequencer's queue is at its bound
│   ├── QueueDelayed          it would leave for its venue after its deadline
│   ├── BrokerFailed          the broker cannot be asked what the request needs to know
│   └── JournalUnavailable    the database did not take it, and certainly so
│       └── GroupRejected      one of a group's changes cannot be written; which one is to be found out
├── OutcomeUnknown            it may or may not be written: repeat with the same key (503)
│   └── JournalBroken         a commit failed on the disk: the process must end
├── ReplayMismatch            an audit file's events do not follow from each other (domain/replay.py)
├── ChainBroken               a line of an audit file was changed (flow/verify.py)
├── NotEmpty                  a rebuild needs an empty database (flow/replay.py)
├── VenueUnavailable          a venue cannot be asked right now (ports/venue.py)
├── ClientError               what the SDK raises (client/errors.py)
└── CannotStart              the process must not run like this
    ├── SettingError          a setting is wrong; names it
    ├── SchemaMismatch        the database's schema is too old or too new
    ├── AlreadyRunning        another process holds the database
    └── HistoryMismatch       a reader and the journal disagree about the past
"""

from datetime import timedelta


class SwitchyardError(Exception):
    """Base of every error that Switchyard raises on purpose."""


class RequestError(SwitchyardError):
    """The caller's request cannot be taken as it is."""

    reason = "REJECTED"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class InvalidJson(RequestError):
    """The body is not one JSON object that reads the same for everyone."""

    reason = "INVALID_JSON"


class BodyTooLarge(RequestError):
    """The body is over the bound."""

    reason = "BODY_TOO_LARGE"


class InvalidField(RequestError):
    """One field is missing, unknown or out of range; `field` names it."""

    reason = "VALIDATION_ERROR"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}", field=field)


class Unsupported(InvalidField):
    """The contract has it, this version does not do it yet."""

    reason = "UNSUPPORTED"


class InvalidKey(RequestError):
    """The Idempotency-Key header cannot name an intent."""

    reason = "INVALID_IDEMPOTENCY_KEY"

    def __init__(self, message: str) -> None:
        super().__init__(f"Idempotency-Key: {message}", field="Idempotency-Key")


class Unauthorized(RequestError):
    """No token, or one that proves nothing."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class NotFound(RequestError):
    """There is no such thing, or none that this account may know of."""

    reason = "NOT_FOUND"

    def __init__(self) -> None:
        super().__init__("not found")


class IdempotencyConflict(RequestError):
    """The key was used before with another body."""

    reason = "IDEMPOTENCY_CONFLICT"

    def __init__(self, key: str) -> None:
        super().__init__("the Idempotency-Key was used with another body", field="Idempotency-Key")
        self.key = key


class KeyMismatch(RequestError):
    """The header must carry the same key as the body."""

    reason = "IDEMPOTENCY_MISMATCH"

    def __init__(self) -> None:
        super().__init__("the Idempotency-Key header must equal idempotency_key", field="idempotency_key")


class ConstraintViolated(RequestError):
    """A condition that the request sets for itself does not hold."""

    reason = "VALIDATION_ERROR"

    def __init__(self, constraint: str, message: str) -> None:
        super().__init__(f"risk_constraints.{constraint}: {message}", field=f"risk_constraints.{constraint}")
        self.reason_code = constraint.upper()


class TooManyRequests(RequestError):
    """The client is over its rate; `retry_after` tells when there is room again."""

    reason = "RATE_LIMITED"

    def __init__(self, retry_after: timedelta) -> None:
        super().__init__("too many requests")
        self.retry_after = retry_after


class OrderFinal(RequestError):
    """The order has ended; there is nothing left to cancel."""

    reason = "ORDER_FINAL"

    def __init__(self) -> None:
        super().__init__("the order is in a final state")


class NotInDoubt(SwitchyardError):
    """The row is settled or on its way; only a doubt is decided by hand."""

    def __init__(self, status: str) -> None:
        super().__init__(f"the row is {status}, not uncertain: there is nothing to decide")


class Unavailable(SwitchyardError):
    """The request was certainly not taken; the same request may be repeated later."""

    reason = "UNAVAILABLE"


class QueueFull(Unavailable):
    """The queue in front of the journal is at its bound."""

    reason = "QUEUE_REJECT"


class QueueDelayed(Unavailable):
    """Orders wait so long to be sent that this one would leave after its deadline."""

    reason = "QUEUE_DELAY"


class BrokerFailed(Unavailable):
    """Nothing was sent, because the broker could not be asked first."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.reason = "BROKER_DOWN"


class JournalUnavailable(Unavailable):
    """The database rejected the group before anything was committed."""

    reason = "JOURNAL_UNAVAILABLE"


class GroupRejected(JournalUnavailable):
    """The database rejected the group's data; nothing of it was written."""


class OutcomeUnknown(SwitchyardError):
    """The commit's answer was lost: the request may or may not be written."""

    reason = "OUTCOME_UNKNOWN"


class JournalBroken(OutcomeUnknown):
    """A commit failed in a way after which nothing this process writes can be trusted."""


class CannotStart(SwitchyardError):
    """The process must not run in this condition; the message says what to do."""


class SettingError(CannotStart):
    """A setting has a value that cannot be meant."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class SchemaMismatch(CannotStart):
    """The database's schema is not the one this version needs."""


class AlreadyRunning(CannotStart):
    """Another process holds what only one may hold."""


class HistoryMismatch(CannotStart):
    """A reader's own record and the journal tell different histories."""
