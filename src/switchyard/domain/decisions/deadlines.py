"""How long an order may be sent after its acceptance, and how long a failed attempt waits before the next one."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from switchyard.domain.orders import Order, TimeInForce
from switchyard.domain.outbox import OutboxRow
from switchyard.domain.reasons import SendCode

# How long after acceptance an IOC or FOK order may still be sent: as long as a venue may take to answer one (seed 000).
SEND_DEADLINES: Mapping[TimeInForce, timedelta] = {"IOC": timedelta(seconds=2.5), "FOK": timedelta(seconds=5)}

# The ends of a doubt after which an order is sent again: the time that it was in doubt was no waiting.
_DOUBT_ENDED: Final[frozenset[SendCode]] = frozenset({"ABSENT_AT_VENUE", "NOT_SENT_BY_DECISION"})


def is_past_deadline(order: Order, at: datetime) -> bool:
    """Whether the order must not be sent at that time any more; a GTC order has no deadline.

    A DAY order that was not sent on its trading day must not be valid on the next one.
    """
    if order.expires_at is not None:
        return at >= order.expires_at
    deadline = SEND_DEADLINES.get(order.time_in_force)
    return deadline is not None and at >= order.accepted_at + deadline


def backoff(attempt: int, jitter: float) -> timedelta:
    """2, 4 … 256 seconds; `jitter` in [-1, 1] moves it by up to a tenth."""
    seconds = 2.0 ** min(max(attempt, 1), 8)
    return timedelta(seconds=seconds * (1 + jitter / 10))


def _as_it_is(time: datetime) -> datetime:
    return time


class RetryLimits(msgspec.Struct, frozen=True):
    """How often, and for how long after its acceptance, an order that is proven unsent is sent again.

    The time is counted whether attempts are made or not: while a circuit breaker is open or a venue is closed, none
    are made. It is counted around the clock: venues have no trading session here, whose closed hours would not count.
    """

    retries_max: int
    wait_max: timedelta
    counted_from: Callable[[datetime], datetime] = _as_it_is
    """When the wait of an order of that time began: later, if the clock was stepped ahead since."""
    ends_by_time_only: bool = False
    """Whether orders are sent again for as long as they may wait, however often; cancels and amends are counted."""

    def are_used_up(self, row: OutboxRow) -> bool:
        """Whether the row's last attempt was its last retry."""
        return row.attempt > self.retries_max and not (self.ends_by_time_only and row.kind == "new")

    def is_too_old(self, order: Order, row: OutboxRow, at: datetime) -> bool:
        """Whether the order is proven unsent and has waited for too long at that time; never one in doubt.

        An order that was in doubt counts from the end of the doubt, until its next attempt.
        """
        if order.status != "ACCEPTED":
            return False
        since = row.updated_at if row.last_error in _DOUBT_ENDED else order.accepted_at
        return at >= self.counted_from(since) + self.wait_max


def retry_limits(
    retries_max: int,
    wait_max: timedelta | None = None,
    counted_from: Callable[[datetime], datetime] = _as_it_is,
) -> RetryLimits:
    """The limits of an order that cannot be sent; without a `wait_max`, it may wait as long as all retries take.

    That is the sum of their backoffs with the largest jitter: 561 s for 8 retries. At least the longest send deadline,
    because orders wait in a queue without any failure, too.
    """
    if wait_max is not None:
        return RetryLimits(retries_max, wait_max, counted_from, ends_by_time_only=True)
    retries = sum((backoff(attempt, 1) for attempt in range(1, retries_max + 1)), timedelta())
    return RetryLimits(retries_max, max(retries, *SEND_DEADLINES.values()), counted_from)
