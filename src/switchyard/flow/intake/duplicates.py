"""Count new orders and prevented duplicates, and log an error when there are too many duplicates per order.

A network causes a few repeats; many point to a defect in a client. Writes metrics and log lines only.
"""

import math

import msgspec
import structlog

from switchyard.domain.ids import AccountId, OrderId
from switchyard.flow.intake.requests import Placement
from switchyard.ports.clock import Clock
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

WINDOW_SECONDS = 300
# The window moves in steps of this length, so it covers the last 290 to 300 seconds.
SLOT_SECONDS = 10
SLOTS = WINDOW_SECONDS // SLOT_SECONDS
# With fewer requests a rate says nothing: at the default threshold of 5 %, one repeated request would be an alarm.
REQUESTS_MIN = 20


class HighDuplicateRate(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of an alarm: the rate is above the threshold."""

    duplicates: int
    orders: int
    threshold: float


class DuplicateRate:
    """Duplicates divided by orders placed in the last 5 minutes, in a fixed amount of memory."""

    def __init__(self, threshold: float, clock: Clock) -> None:
        self._threshold = threshold
        self._clock = clock
        # A ring of counts: slot number n is at index n modulo SLOTS.
        self._orders = [0] * SLOTS
        self._duplicates = [0] * SLOTS
        self._slot = self._current_slot()
        self._alarm_slot: int | None = None

    def record(self, *, is_duplicate: bool) -> HighDuplicateRate | None:
        """Count a request; returns an alarm if the rate is too high, at most one per window."""
        self._clear_old_slots()
        index = self._slot % SLOTS
        self._orders[index] += not is_duplicate
        self._duplicates[index] += is_duplicate
        if not is_duplicate:
            return None  # a new order can only lower the rate
        if self._alarm_slot is not None and self._slot - self._alarm_slot < SLOTS:
            return None
        orders, duplicates = sum(self._orders), sum(self._duplicates)
        if orders + duplicates < REQUESTS_MIN or self.rate() <= self._threshold:
            return None
        self._alarm_slot = self._slot
        return HighDuplicateRate(duplicates=duplicates, orders=orders, threshold=self._threshold)

    def rate(self) -> float:
        """Return the current rate; infinite if there are duplicates only, as from a client that repeats without end."""
        self._clear_old_slots()
        orders, duplicates = sum(self._orders), sum(self._duplicates)
        if not orders:
            return math.inf if duplicates else 0.0
        return duplicates / orders

    def _clear_old_slots(self) -> None:
        """Set the slots to zero that have left the window since the last call."""
        current = self._current_slot()
        if current == self._slot:
            return
        for slot in range(max(self._slot + 1, current - SLOTS + 1), current + 1):
            self._orders[slot % SLOTS] = self._duplicates[slot % SLOTS] = 0
        self._slot = current

    def _current_slot(self) -> int:
        # Monotonic, so that a step of the wall clock neither drops duplicates nor counts old ones again.
        return int(self._clock.monotonic() // SLOT_SECONDS)


class DuplicateWatch:
    """Counts placements in the metrics and logs duplicates."""

    def __init__(self, metrics: Metrics, *, rate: DuplicateRate | None, logs: bool) -> None:
        """Without `rate` there is no alarm; `logs` enables a log line per duplicate."""
        self._metrics = metrics
        self._rate = rate
        self._logs = logs

    def count_new_order(self) -> None:
        """Count a new order."""
        self._metrics.accepted.inc()
        self._metrics.placed.inc()
        if self._rate is not None:
            self._rate.record(is_duplicate=False)

    def count(self, placement: Placement) -> None:
        """Count a request: a duplicate or a new order, perhaps under a reused key."""
        entry = placement.entry
        if entry is None:  # a request without a key
            self.count_new_order()
            return
        if placement.replayed:
            self.count_duplicate(entry.account_id, entry.idempotency_key, entry.order_id)
            return
        self.count_new_order()
        if placement.reuses_expired_key:
            # Not a duplicate, but a client that reuses keys may have a defect.
            log.warning("expired_key_reused", account_id=entry.account_id, idempotency_key=entry.idempotency_key)
            self._metrics.expired_reuse.inc()

    def count_duplicate(self, account: AccountId, key: str, order_id: OrderId) -> None:
        """Count a repeat of an earlier request, for which no second order was placed."""
        self._metrics.replayed.inc()
        self._metrics.prevented.inc()
        if self._logs:
            log.info("duplicate_prevented", account_id=account, idempotency_key=key, order_id=order_id)
        alarm = self._rate.record(is_duplicate=True) if self._rate is not None else None
        if alarm is not None:
            log.error(
                "duplicate_rate_high",
                duplicates=alarm.duplicates,
                orders=alarm.orders,
                threshold=alarm.threshold,
            )
