"""The errors that the client raises.

SwitchyardError
└── ClientError             base; carries the idempotency key of an order that may have been placed
    ├── ApiError            the gateway responded with an error
    ├── NotReachable        no response arrived, after all retries
    └── UnreadableResponse  the response is not one of a gateway
"""

from typing import Self

from switchyard.domain.errors import SwitchyardError

# Temporary failures of a gateway or of a proxy in front of it.
RETRYABLE_STATUSES = frozenset({502, 503, 504})


class ClientError(SwitchyardError):
    """A request failed."""

    retryable = False
    """Whether the same request may succeed later."""
    in_doubt = True
    """Whether the gateway may have carried out the request."""
    retry_after_seconds = 0.0
    """The pause that the gateway requested before the next attempt."""
    idempotency_key: str | None = None
    """Set if an order is in doubt. Retry with this key: the same key never places a second order, a new key may."""


class ApiError(ClientError):
    """An error response of the gateway: HTTP status, error code (`reason`), message, and the field it names.

    An order that a pre-trade check rejected has the status 422, the check's code as `reason` and its detail as
    `message`; `order_id` names the order that was stored as rejected. On `/do/order` the code is in `reason_code`.
    """

    order_id: str | None = None
    reason_code: str | None = None

    def __init__(self, status: int, reason: str, message: str, field: str | None = None) -> None:
        super().__init__(f"{reason}: {message}" if message else reason)
        self.status = status
        self.reason = reason
        self.message = message
        self.field = field
        self.retryable = status in RETRYABLE_STATUSES
        self.in_doubt = status >= 500


class NotReachable(ClientError):
    """No response: the connection failed, was lost or timed out."""

    retryable = True

    def __init__(self, message: str, *, in_doubt: bool = True) -> None:
        super().__init__(message)
        self.in_doubt = in_doubt

    @classmethod
    def unsent(cls, url: str, cause: str) -> Self:
        """No connection could be made, so the request was not sent."""
        return cls(f"no connection to {url}: {cause}", in_doubt=False)

    @classmethod
    def no_tls(cls, url: str, error: Exception) -> Self:
        """No TLS connection could be made, so the request was not sent."""
        step = "use http:// if it has no certificate" if "WRONG_VERSION" in str(error) else "check its certificate"
        return cls(f"no TLS connection to {url}: {step}", in_doubt=False)

    @classmethod
    def lost(cls, url: str, error: Exception) -> Self:
        """The connection was lost or timed out before the response was complete."""
        return cls(f"no response from {url}: {str(error) or type(error).__name__}")


class UnreadableResponse(ClientError):
    """The response does not follow this API: the URL may belong to another service."""

    @classmethod
    def not_a_stream(cls, content_type: str) -> Self:
        """The response to a stream's request is something else."""
        return cls(f"the stream has content type {content_type}, not text/event-stream")
