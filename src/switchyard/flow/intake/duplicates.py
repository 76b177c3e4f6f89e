"""How many placements are repeats of earlier ones: a few are the network's, many are somebody's mistake."""

import msgspec
import structlog

from switchyard.domain.ids import AccountId, OrderId
from switchyard.flow.intake.placing import Placed
from switchyard.ports.clock import Clock
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

WINDOW_SECONDS = 300
# The window moves in steps of this length, so what counts is between 290 and 300 seconds long.
SLOT_SECONDS = 10
SLOTS = WINDOW_SECONDS // SLOT_SECONDS


class HighDuplicateRate(msgspec.Struct, frozen=True, kw_only=True):
    """Something for the error log: more duplicates than the threshold allows."""

    duplicates: int
    placements: int
    """New orders and duplicates together."""
    threshold: float

    @property
    def share(self) -> float:
        """Duplicates among the placements."""
        return self.duplicates / self.placements


class DuplicateRate:
    """The share of duplicates among the placements of the last 5 minutes, in a fixed amount of memory."""

    def __init__(self, threshold: float, clock: Clock) -> None:
        self._threshold = threshold
        self._clock = clock
        # Counts per slot; the slot of a number lies at that number modulo SLOTS.
        self._placements = [0] * SLOTS
        self._duplicates = [0] * SLOTS
        self._slot = self._now()
        self._told_slot: int | None = None

    def record(self, *, is_duplicate: bool) -> HighDuplicateRate | None:
        """Count a placement; what to raise the alarm about, at most once per window."""
        self._forget()
        place = self._slot % SLOTS
        self._placements[place] += 1
        self._duplicates[place] += is_duplicate
        if not is_duplicate:
            return None  # it can only have lowered the share
        if self._told_slot is not None and self._slot - self._told_slot < SLOTS:
            return None
        found = HighDuplicateRate(
            duplicates=sum(self._duplicates), placements=sum(self._placements), threshold=self._threshold
        )
        if found.share <= self._threshold:
            return None
        self._told_slot = self._slot
        return found

    def share(self) -> float:
        """The share as of now; 0 while nothing was placed."""
        self._forget()
        placements = sum(self._placements)
        return sum(self._duplicates) / placements if placements else 0.0

    def _forget(self) -> None:
        """Empty the slots that have left the window since somebody last looked."""
        now = self._now()
        for slot in range(max(self._slot + 1, now - SLOTS + 1), now + 1):
            self._placements[slot % SLOTS] = self._duplicates[slot % SLOTS] = 0
        self._slot = now

    def _now(self) -> int:
        # Monotonic: a step of the wall clock must neither hide duplicates nor count old ones again.
        return int(self._clock.monotonic() // SLOT_SECONDS)


class DuplicateWatch:
    """Counts placements and the duplicates that were prevented, and raises the alarm when there are too many."""

    def __init__(self, metrics: Metrics, *, rate: DuplicateRate | None, logs: bool) -> None:
        """Without a rate there is no alarm."""
        self._metrics = metrics
        self._rate = rate
        self._logs = logs

    def placed(self) -> None:
        """A new order."""
        self._metrics.accepted.inc()
        self._metrics.placed.inc()
        if self._rate is not None:
            self._rate.record(is_duplicate=False)

    def judge(self, placed: Placed) -> None:
        """What a request with a key came to: a repeat, or a new order, perhaps under a key that was used before."""
        entry = placed.entry
        assert entry is not None, "it has a key"
        if placed.replayed:
            self.found(entry.account_id, entry.idempotency_key, entry.order_id)
            return
        self.placed()
        if placed.reuses_expired_key:
            # No duplicate, and worth a look.
            log.warning(
                "an expired key is used again", account_id=entry.account_id, idempotency_key=entry.idempotency_key
            )
            self._metrics.expired_reuse.inc()

    def found(self, account: AccountId, key: str, order: OrderId) -> None:
        """A repeat of an earlier request, which made no order."""
        self._metrics.replayed.inc()
        self._metrics.prevented.inc()
        if self._logs:
            log.info("a duplicate made no order", account_id=account, idempotency_key=key, order_id=order)
        high = self._rate.record(is_duplicate=True) if self._rate is not None else None
        if high is not None:
            log.error(
                "too many duplicates", duplicates=high.duplicates, placements=high.placements, threshold=high.threshold
            )
