"""When an order may still be sent, and how long a failed attempt waits before the next one."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from switchyard.domain.orders import Order, TimeInForce

# How long after acceptance an IOC or FOK order may still be sent: as long as a venue may take to answer one (seed 000).
SEND_DEADLINES: Mapping[TimeInForce, timedelta] = {"IOC": timedelta(seconds=2.5), "FOK": timedelta(seconds=5)}


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
