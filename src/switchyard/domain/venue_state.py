"""The health of a venue, as workers report it and as the API shows it."""

from decimal import Decimal
from typing import Literal

import msgspec

from switchyard.domain.ids import VenueName

BreakerState = Literal["closed", "half_open", "open"]
SendState = Literal[
    "open",  # orders are sent
    "held",  # its circuit breaker is not closed: orders and cancels wait, or go elsewhere
    "closed",  # not read since the start, or locked
    "unknown",  # no worker has reported on it lately
]


class HealthRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker knows about a venue."""

    breaker: BreakerState
    reason: str | None = None
    """Why the breaker is not closed; for people."""
    faults: int = 0
    """Faults in a row."""
    latency_seconds: float | None = None
    reject_rate: float | None = None


class VenueState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A venue in the body of `GET /venues`."""

    venue: VenueName
    kind: Literal["paper", "http", "null"]
    state: SendState
    reason: str | None
    """Why orders are not sent, or what an operator should know: a text for operators, a code for others."""
    breaker: BreakerState | None
    faults: int | None
    rate_per_sec: Decimal | None
    """Orders and cancels per second (`VENUE_RATE_PER_SEC_`); none without a limit."""
    burst: int | None
    latency_ms: float | None
    reject_rate: float | None
