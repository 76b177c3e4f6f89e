"""`POST /orders` with a key that is derived from the order's content.

The key store's key has the form of the specification's key: 64 hexadecimal digits. Its first half is that of the
specification's key without the time window, its second half that of a digest of the whole order. So each content has
one row from its first request on, and the commit finds a repeat. The age of that row is judged by
the database's clock: a minute boundary or a gateway with a wrong clock does not let a duplicate through.
Reads the key store and orders; places through `OrderIntake`.
"""

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec
import structlog

from switchyard.domain.errors import Unavailable
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.orders.closing import CloseRequest
from switchyard.domain.orders.keys import (
    DERIVED_CLOSE,
    DERIVED_ORDER,
    KeyEntry,
    counted_from,
    generate_idempotency_key,
    is_lost_key_alive,
)
from switchyard.domain.orders.lifecycle import is_final
from switchyard.domain.orders.order import Order, OrderRequest, ended_unsent, order_digest
from switchyard.domain.orders.outbox import is_proven_unsent
from switchyard.flow.intake.order_intake import IdempotentRequest, KeyCache, OrderIntake, Placement, request_id
from switchyard.ports.cache import CacheEntry
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.queries import KeyId, KeyStore, Queries
from switchyard.settings import IdempotencySettings
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

# Hexadecimal digits of each half of a key: 128 bits, too many for a collision by chance or by search.
HALF = 32

DerivedStatus = Literal["placed", "duplicate_detected", "processing", "failed"]


class DerivedResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The answer to a request with a derived key."""

    success: bool
    status: DerivedStatus
    message: str
    order_id: OrderId
    from_cache: bool
    request_id: str | None = None
    original_request_id: str | None = None


class DerivedOrderService:
    """Places orders that are recognised by their content; the `KeyRules` of derived keys."""

    def __init__(
        self,
        settings: IdempotencySettings,
        *,
        intake: OrderIntake,
        journal: Journal,
        queries: Queries,
        keys: KeyStore,
        key_cache: KeyCache,
        clock: Clock,
        metrics: Metrics,
        restored_at: datetime | None,
    ) -> None:
        self._restored_at = restored_at
        self._settings = settings
        self._resolution = timedelta(milliseconds=settings.key_generation.timestamp_resolution_ms)
        self._intake = intake
        self._journal = journal
        self._queries = queries
        self._keys = keys
        self._key_cache = key_cache
        self._clock = clock
        self._metrics = metrics

    async def place(self, account: AccountId, body: Mapping[str, Any]) -> DerivedResult:
        """Make the order durable, or say which earlier request this one repeats; raises RiskRejected."""
        order = self._intake.checked_order(body)
        derived_key = self._derived_key(account, order)
        content_digest = order_digest(order)
        intent = IdempotentRequest(
            account_id=account,
            operation=DERIVED_ORDER,
            key=derived_key[:HALF] + content_digest.removeprefix("sha256:")[:HALF],
            digest=content_digest,
            created_at=self._clock.now(),
            # The row must last as long as a repeat of it counts as a duplicate.
            ttl=max(self._settings.cache.ttl, self._resolution),
        )
        placement = await self._intake.place(intent, order, self)
        result = await self.result(intent, placement)
        if result.status == "placed":
            await self._report_collision(intent, derived_key)
        return result

    def close_intent(self, account: AccountId, request: CloseRequest) -> IdempotentRequest:
        """Return the intent of a close that is recognised by its content: the key covers all of it."""
        return IdempotentRequest(
            account_id=account,
            operation=DERIVED_CLOSE,
            key=request.derived_key(account, self._settings.secret),
            digest=request.digest,
            created_at=self._clock.now(),
            ttl=max(self._settings.cache.ttl, self._resolution),
        )

    async def result(self, intent: IdempotentRequest, placement: Placement) -> DerivedResult:
        """Return the answer to a request with a derived key; raises RiskRejected."""
        rejection = await self._intake.rejection(placement)
        if rejection is not None:
            raise rejection
        if placement.cached is not None:
            return _duplicate_result(placement.order_id, "duplicate_detected", from_cache=True)
        if placement.replayed:
            return await self._duplicate(intent, placement)
        return DerivedResult(
            success=True,
            status="placed",
            message="Order placed successfully",
            order_id=placement.order_id,
            from_cache=False,
            request_id=request_id(placement.order_id),
        )

    def may_answer_from_cache(self, intent: IdempotentRequest, cached: CacheEntry) -> bool:
        """Within one resolution of the first request."""
        return intent.created_at - cached.created_at < self._resolution

    async def may_reuse_key(self, intent: IdempotentRequest, entry: KeyEntry) -> bool:
        """One resolution after the first request; before that, if its order was provably never sent.

        The settings can forbid both: without reuse after expiry the same content never places a second order.
        """
        behavior = self._settings.behavior
        jumped_at = self._clock.jumped_at
        age = intent.created_at - counted_from(entry.created_at, jumped_at)
        if behavior.allow_retry_after_expiry and age >= self._resolution:
            return True
        if not behavior.allow_retry_after_failure:
            return False
        if is_lost_key_alive(self._restored_at, self._resolution, intent.created_at, jumped_at):
            return False  # the first request may have been executed in a history that a restore has lost
        states = await self._journal.load([entry.order_id])
        return entry.order_id in states and is_proven_unsent(states[entry.order_id])

    async def ended_order(self, intent: IdempotentRequest, entry: KeyEntry) -> Order | None:
        """Return the first request's order if it has ended; None while it has not, or while a restore may hide that."""
        if is_lost_key_alive(self._restored_at, self._resolution, intent.created_at, self._clock.jumped_at):
            return None
        state = (await self._journal.load([entry.order_id])).get(entry.order_id)
        return state.order if state is not None and is_final(state.order.status) else None

    def _derived_key(self, account: AccountId, order: OrderRequest) -> str:
        generation = self._settings.key_generation
        started = self._clock.monotonic()
        key = generate_idempotency_key(
            account,
            order.symbol,
            order.side,
            order.qty,
            0,  # no time window: the age of the key's row takes its place
            order.type,
            order.price,
            order.stop_price,
            generation.timestamp_resolution_ms,
            secret=self._settings.secret,
            parts=generation.parts,
        )
        if self._settings.monitoring.track_key_generation:
            self._metrics.key_generation.observe((self._clock.monotonic() - started) * 1000)
        return key

    async def _report_collision(self, intent: IdempotentRequest, derived_key: str) -> None:
        """Log and count another content with the same derived key; the new order is placed all the same."""
        with contextlib.suppress(Unavailable):  # the order is placed, so a failed check must not fail the request
            entries = await self._keys.entries(
                intent.account_id,
                DERIVED_ORDER,
                derived_key[:HALF] + "0" * HALF,
                derived_key[:HALF] + "f" * HALF,
                intent.created_at - self._resolution,
                2,  # the new order's own entry, and one more
            )
            if any(entry.idempotency_key != intent.key for entry in entries):
                self._metrics.collisions.inc()
                log.critical("derived_key_collision", account_id=intent.account_id, idempotency_key=derived_key)

    async def _duplicate(self, intent: IdempotentRequest, placement: Placement) -> DerivedResult:
        order = None
        with contextlib.suppress(Unavailable):  # without the order's row the answer is 'processing'
            order = await self._queries.order(placement.order_id)
        status = _progress(order)
        # Only final orders are cached: an order that rests at its venue can still be rejected there.
        if (
            order is not None
            and placement.entry is not None
            and is_final(order.status)
            and status == "duplicate_detected"
        ):
            self._key_cache.keep(placement.entry, "completed", now=intent.created_at)
        reason = order.reason if order is not None else None
        if status == "failed" and placement.entry is not None:
            self._key_cache.keep(placement.entry, "failed", now=intent.created_at, error=reason)
        return _duplicate_result(placement.order_id, status, from_cache=False, reason=reason)


_MESSAGES: Mapping[DerivedStatus, str] = {
    "duplicate_detected": "Order already placed",
    "processing": "Order placement in progress",
    "failed": "Order placement failed",
}


def _duplicate_result(
    order_id: OrderId, status: DerivedStatus, *, from_cache: bool, reason: str | None = None
) -> DerivedResult:
    message = _MESSAGES[status]
    return DerivedResult(
        success=status == "duplicate_detected",
        status=status,
        message=f"{message}: {reason}" if status == "failed" and reason else message,
        order_id=order_id,
        from_cache=from_cache,
        original_request_id=request_id(order_id),
    )


def _progress(order: Order | None) -> DerivedStatus:
    """The state of the first request's order; an uncertain order is still in progress."""
    if order is None or order.status in ("ACCEPTED", "SENDING", "UNKNOWN"):
        return "processing"
    return "failed" if order.status == "REJECTED" or ended_unsent(order) else "duplicate_detected"


PAGE = 500
# A page takes a millisecond or two; the pause leaves the database to the incoming orders.
PAUSE_SECONDS = 0.2
# Pause between two walks. Keys live for at least an hour, so a minute more does not matter.
REST_SECONDS = 60.0


class Reaper:
    """Walks through the key store again and again."""

    def __init__(self, keys: KeyStore, clock: Clock, metrics: Metrics, *, kept: Collection[str] = ()) -> None:
        """`kept`: operations whose keys are never removed."""
        self._keys = keys
        self._kept = frozenset(kept)
        # The database's clock: a gateway whose own clock is an hour ahead must not remove valid keys.
        self._clock = clock
        self._metrics = metrics
        self._after: KeyId | None = None

    async def run(self) -> None:
        """Remove keys until cancelled."""
        while True:
            await self.run_once()
            await asyncio.sleep(PAUSE_SECONDS if self._after is not None else REST_SECONDS)

    async def run_once(self) -> int:
        """Process one page; returns how many keys were removed."""
        reaped = await self._keys.reap(self._clock.now(), self._clock.jumped_at, self._after, PAGE, self._kept)
        self._after = reaped.after
        if reaped.count:
            self._metrics.reaped.inc(reaped.count)
            log.info("expired_keys_removed", count=reaped.count)
        return reaped.count
