"""Requests without a key: an equal one shortly after the first is its duplicate, whoever repeats it wherever.

The key store's key is derived from the content alone: the specification's key, followed by a digest of everything else
that the order says, so that each content has a place of its own from the first request on. How long ago that was is
judged by the database's clock, so that neither the border of a minute nor a gateway whose clock is off opens a gap.
"""

import contextlib
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Literal

import msgspec
import structlog

from switchyard.domain.canonical import digest
from switchyard.domain.errors import Unavailable
from switchyard.domain.idempotency import KeyEntry, generate_idempotency_key
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.instruments import Catalogue
from switchyard.domain.lifecycle import is_final
from switchyard.domain.orders import Order, OrderRequest, checked, is_proven_unsent
from switchyard.flow.intake.duplicates import DuplicateWatch
from switchyard.flow.intake.key_cache import KeyCache, request_id
from switchyard.flow.intake.orders import order_request
from switchyard.flow.intake.placing import Intent, OrderWriter, Placed
from switchyard.flow.routing.route import Routes
from switchyard.ports.clock import Clock
from switchyard.ports.keys import KeyStore
from switchyard.ports.queries import Queries
from switchyard.settings import IdempotencySettings
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

DERIVED = "orders.derived"
# Hexadecimal digits that keep the contents apart that share a key: 128 bits, which nobody hits by trying.
CONTENT_LENGTH = 32

DerivedStatus = Literal["placed", "duplicate_detected", "processing", "failed"]


class DerivedResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What became of a request without a key of its own."""

    success: bool
    status: DerivedStatus
    message: str
    order_id: OrderId
    from_cache: bool
    request_id: str | None = None
    original_request_id: str | None = None


class DerivedDesk:
    """Places orders that are recognised by their content."""

    def __init__(
        self,
        settings: IdempotencySettings,
        *,
        placing: OrderWriter,
        queries: Queries,
        keys: KeyStore,
        catalogue: Catalogue,
        routes: Routes,
        remembered: KeyCache,
        duplicates: DuplicateWatch,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._resolution = timedelta(milliseconds=settings.key_generation.timestamp_resolution_ms)
        self._writer = placing
        self._queries = queries
        self._keys = keys
        self._catalogue = catalogue
        self._routes = routes
        self._key_cache = remembered
        self._duplicates = duplicates
        self._clock = clock
        self._metrics = metrics

    async def place(self, account: AccountId, body: Mapping[str, Any]) -> DerivedResult:
        """Make the order durable, or say which earlier request it repeats."""
        request = checked(order_request(body), self._catalogue)
        derived = self._derived_key(account, request)
        content = digest(msgspec.structs.asdict(request))
        intent = Intent(
            account_id=account,
            operation=DERIVED,
            key=derived + content.removeprefix("sha256:")[:CONTENT_LENGTH],
            digest=content,
            created_at=self._clock.now(),
            # As long as a repeat is recognised, the key store must have what it repeats.
            ttl=max(self._settings.cache.ttl, self._resolution),
        )
        known = await self._key_cache.find(account, DERIVED, intent.key, intent.digest)
        if known is not None and intent.created_at - known.created_at < self._resolution:
            self._duplicates.found(account, intent.key, known.order_id)
            return _repeat(known.order_id, "duplicate_detected", from_cache=True)
        placed = await self._writer.place_or_find(
            intent, request, self._routes.open_way, partial(self._begins_anew, intent)
        )
        self._duplicates.judge(placed)
        if placed.replayed:
            return await self._duplicate(intent, placed)
        await self._look_for_collision(intent, derived)
        return DerivedResult(
            success=True,
            status="placed",
            message="Order placed successfully",
            order_id=placed.order_id,
            from_cache=False,
            request_id=request_id(placed.order_id),
        )

    def _derived_key(self, account: AccountId, request: OrderRequest) -> str:
        generation = self._settings.key_generation
        begun = self._clock.monotonic()
        key = generate_idempotency_key(
            account,
            request.symbol,
            request.side,
            request.qty,
            0,  # not the time: see above
            request.type,
            request.price,
            request.stop_price,
            generation.timestamp_resolution_ms,
            secret=self._settings.secret,
            parts=generation.parts,
        )
        if self._settings.monitoring.track_key_generation:
            self._metrics.key_generation.observe((self._clock.monotonic() - begun) * 1000)
        return key

    async def _begins_anew(self, intent: Intent, taken: KeyEntry) -> bool:
        behavior = self._settings.behavior
        if intent.created_at - taken.created_at >= self._resolution:
            return intent.created_at < taken.expires_at or behavior.allow_retry_after_expiry
        if not behavior.allow_retry_after_failure:
            return False
        order = await self._queries.order(taken.order_id)
        return order is not None and is_proven_unsent(order)

    async def _look_for_collision(self, intent: Intent, derived: str) -> None:
        """Raise the alarm when another content has the same derived key; the order is a new one all the same."""
        with contextlib.suppress(Unavailable):  # it is placed, whether or not anybody can look
            sharing = await self._keys.entries(
                intent.account_id,
                DERIVED,
                derived + "0" * CONTENT_LENGTH,
                derived + "f" * CONTENT_LENGTH,
                intent.created_at - self._resolution,
                2,  # itself, and one more
            )
            if any(entry.idempotency_key != intent.key for entry in sharing):
                self._metrics.collisions.inc()
                log.critical(
                    "different orders share a derived key", account_id=intent.account_id, idempotency_key=derived
                )

    async def _duplicate(self, intent: Intent, placed: Placed) -> DerivedResult:
        order = None
        with contextlib.suppress(Unavailable):  # a duplicate it is, whether or not anybody can look
            order = await self._queries.order(placed.order_id)
        status = _progress(order)
        # Only what cannot change any more: an order that rests at its venue may still be rejected there.
        if order is not None and placed.entry is not None and is_final(order.status) and status == "duplicate_detected":
            self._key_cache.keep(placed.entry, "completed", now=intent.created_at)
        reason = order.reason if order is not None else None
        return _repeat(placed.order_id, status, from_cache=False, reason=reason)


_MESSAGES: Mapping[DerivedStatus, str] = {
    "duplicate_detected": "Order already placed",
    "processing": "Order placement in progress",
    "failed": "Order placement failed",
}


def _repeat(order: OrderId, status: DerivedStatus, *, from_cache: bool, reason: str | None = None) -> DerivedResult:
    message = _MESSAGES[status]
    return DerivedResult(
        success=status == "duplicate_detected",
        status=status,
        message=f"{message}: {reason}" if status == "failed" and reason else message,
        order_id=order,
        from_cache=from_cache,
        original_request_id=request_id(order),
    )


def _progress(order: Order | None) -> DerivedStatus:
    """How far the first request's order has come; what is in doubt is still being worked on."""
    if order is None or order.status in ("ACCEPTED", "SENDING", "UNKNOWN"):
        return "processing"
    return "failed" if order.status == "REJECTED" or is_proven_unsent(order) else "duplicate_detected"
