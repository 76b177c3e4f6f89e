"""How healthy a venue and a process are: the states of a venue and the checks behind `/health/ready`. Pure."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Literal

import msgspec

from switchyard.domain.ids import AccountId, VenueName, WorkerId

CheckName = Literal[
    "process", "journal", "worker", "venues", "books", "reconcile", "bus", "cache", "pdca", "disk", "clock"
]
CheckStatus = Literal[
    "ok",
    "degraded",  # a part of the work waits or is slower; requests are still served
    "failed",  # requests should go to another process
]
ReadyStatus = Literal["ready", "degraded", "not_ready"]


class Check(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that the process depends on."""

    check: CheckName
    status: CheckStatus
    detail: str = ""
    """What was found; for operators, since it may name addresses and quote other systems."""


class Readiness(msgspec.Struct, frozen=True):
    """The body of `GET /health/ready`."""

    status: ReadyStatus
    checks: tuple[Check, ...]

    def without_details(self) -> "Readiness":
        """Return what everyone may see."""
        return Readiness(self.status, tuple([Check(each.check, each.status) for each in self.checks]))


def readiness_of(checks: Sequence[Check]) -> Readiness:
    """The checks and the worst of them."""
    found = {check.status for check in checks}
    status: ReadyStatus = "not_ready" if "failed" in found else "degraded" if "degraded" in found else "ready"
    return Readiness(status, tuple(checks))


BreakerState = Literal["closed", "half_open", "open"]
SendState = Literal[
    "open",  # orders are sent
    "held",  # its circuit breaker is not closed: orders and cancels wait, or go elsewhere
    "closed",  # not read since the start, or locked, or its credential is paused
    "unknown",  # no worker has reported on it lately
]


SwitchState = Literal[
    "set",  # the venue cancels all open orders unless the time is renewed
    "not_set",  # the venue has not acknowledged it in time, so it may have cancelled them, or may never do so
]


class VenueSession(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Who holds the one session that a venue admits."""

    worker: WorkerId
    since: datetime


class HealthRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker knows about a venue."""

    breaker: BreakerState
    reason: str | None = None
    """Why the breaker is not closed; for people."""
    faults: int = 0
    """Faults in a row."""
    latency_seconds: float | None = None
    reject_rate: float | None = None
    held: tuple[AccountId, ...] = ()
    """The accounts whose orders wait although the venue takes those of others."""
    switch: SwitchState | None = None
    """Of the venue's dead man's switch; none if it is not asked for."""
    session: VenueSession | None = None
    """Of a venue that admits one session."""


class VenueState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A venue in the body of `GET /venues`."""

    venue: VenueName
    kind: str
    """As in `VENUE_URL_`: `paper`, `http`, `null`, or that of an installed adapter."""
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
    cancel_all_after_sec: int | None
    """The time of the venue's dead man's switch (`VENUE_CANCEL_ALL_AFTER_`); none if it is not asked for."""
    cancel_all_after: SwitchState | None
    """None also if no worker has reported on it lately."""
    session: VenueSession | None = None
    """Of a venue that admits one session; None also if no worker holds it."""
