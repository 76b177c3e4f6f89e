"""What can go wrong between a client and a gateway.

SwitchyardError
└── ClientError            base; carries the key of an order that may have been placed all the same
    ├── ApiError           the gateway answered, and the answer is no
    ├── NotReachable       no answer came, in spite of retries
    └── UnreadableResponse   something answered that does not speak this API
"""

from switchyard.domain.errors import SwitchyardError

# Statuses of a gateway, or of a proxy before it, that say 'later', not 'no'.
LATER = frozenset({502, 503, 504})


class ClientError(SwitchyardError):
    """A request did not come to a good end."""

    repeatable = False
    """Whether the same request may fare better in a moment."""
    in_doubt = True
    """Whether the request may have been carried out all the same."""
    retry_after_seconds = 0.0
    """How long the gateway asks to be left alone."""
    idempotency_key: str | None = None
    """Set when an order is in doubt: repeating it with this key is safe, with another it is not."""


class ApiError(ClientError):
    """The gateway's rejection, as it worded it."""

    def __init__(self, status: int, reason: str, message: str, field: str | None = None) -> None:
        super().__init__(f"{reason}: {message}" if message else reason)
        self.status = status
        self.reason = reason
        self.message = message
        self.field = field
        self.repeatable = status in LATER
        self.in_doubt = status >= 500


class NotReachable(ClientError):
    """The gateway, or the way to it, gave no answer."""

    repeatable = True

    def __init__(self, message: str, *, in_doubt: bool = True) -> None:
        super().__init__(message)
        self.in_doubt = in_doubt


class UnreadableResponse(ClientError):
    """The answer is not one that a gateway gives: the address may belong to something else."""
