"""Requests without a key: an equal one shortly after the first is its duplicate, whoever repeats it wherever.

The ledger's key is derived from the content alone. How long ago the first request was is judged by the database's
clock, so that neither the border of a minute nor a gateway whose clock is off opens a gap.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal

import msgspec
import structlog

from switchyard.domain.canonical import digest
from switchyard.domain.idempotency import LedgerEntry, generate_idempotency_key
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.instruments import Catalogue
from switchyard.domain.lifecycle import is_final
from switchyard.domain.orders import Order, OrderRequest, checked, is_proven_unsent
from switchyard.flow.accept import order_request
from switchyard.flow.database_clock import DatabaseClock
from switchyard.flow.duplicates import DuplicateWatch
from switchyard.flow.intents import Intent, Placed, Placing
from switchyard.flow.metrics import Metrics
from switchyard.flow.remember import Remembered, request_id
from switchyard.flow.routes import Routes
from switchyard.ports.clock import Clock
from switchyard.ports.queries import Queries
from switchyard.settings import IdempotencySettings

log = structlog.get_logger()

DERIVED = "orders.derived"
# Enough of a digest to keep two requests apart that share a key.
DIGEST_SHOWN = 16

DerivedStatus = Literal["placed", "duplicate_detected", "processing", "failed"]


class DerivedAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
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
        placing: Placing,
        queries: Queries,
        catalogue: Catalogue,
        routes: Routes,
        remembered: Remembered,
        duplicates: DuplicateWatch,
        database_clock: DatabaseClock,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._resolution = timedelta(milliseconds=settings.key_generation.timestamp_resolution_ms)
        self._placing = placing
        self._queries = queries
        self._catalogue = catalogue
        self._routes = routes
        self._remembered = remembered
        self._duplicates = duplicates
        self._database_clock = database_clock
        self._clock = clock
        self._metrics = metrics

    async def place(self, account: AccountId, body: Mapping[str, Any]) -> DerivedAnswer:
        """Make the order durable, or say which earlier request it repeats."""
        request = checked(order_request(body), self._catalogue)
        intent = await self._intent(account, request)
        known = await self._remembered.find(account, DERIVED, intent.key, intent.digest)
        if known is not None and intent.created_at - known.created_at < self._resolution:
            self._duplicates.found(account, intent.key, known.order_id)
            return _repeat(known.order_id, "duplicate_detected", from_cache=True)
        placed = await self._place(intent, request)
        if placed.replayed and placed.entry is not None and placed.entry.request_digest != intent.digest:
            log.critical("different orders share a derived key", account_id=account, idempotency_key=intent.key)
            self._metrics.collisions.inc()
            # Each content has a place of its own from here on, in which its own repeats are found.
            mark = intent.digest.removeprefix("sha256:")[:DIGEST_SHOWN]
            intent = msgspec.structs.replace(intent, key=f"{intent.key}:{mark}")
            placed = await self._place(intent, request)
        if not placed.replayed:
            self._duplicates.placed()
            return DerivedAnswer(
                success=True,
                status="placed",
                message="Order placed successfully",
                order_id=placed.order_id,
                from_cache=False,
                request_id=request_id(placed.order_id),
            )
        self._duplicates.found(account, intent.key, placed.order_id)
        return await self._duplicate(intent, placed)

    async def _intent(self, account: AccountId, request: OrderRequest) -> Intent:
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
        return Intent(
            account_id=account,
            operation=DERIVED,
            key=key,
            digest=digest(msgspec.structs.asdict(request)),
            created_at=await self._database_clock.now(),
            ttl=self._settings.cache.ttl,
        )

    async def _place(self, intent: Intent, request: OrderRequest) -> Placed:
        async def renews(taken: LedgerEntry) -> bool:
            return await self._begins_anew(intent, taken)

        return await self._placing.place_once(intent, request, self._routes.open_way(request), renews)

    async def _begins_anew(self, intent: Intent, taken: LedgerEntry) -> bool:
        behavior = self._settings.behavior
        if intent.created_at - taken.created_at >= self._resolution:
            if intent.created_at < taken.expires_at:
                return True
            if not behavior.allow_retry_after_expiry:
                return False
            log.warning("an expired key is used again", account_id=intent.account_id, idempotency_key=intent.key)
            self._metrics.expired_reuse.inc()
            return True
        if taken.request_digest != intent.digest or not behavior.allow_retry_after_failure:
            return False
        order = await self._queries.order(taken.order_id)
        return order is not None and is_proven_unsent(order)

    async def _duplicate(self, intent: Intent, placed: Placed) -> DerivedAnswer:
        order = await self._queries.order(placed.order_id)
        status = _progress(order)
        if placed.entry is not None and order is not None and status == "duplicate_detected":
            stage = "completed" if is_final(order.status) else "submitted"
            self._remembered.keep(placed.entry, stage, now=intent.created_at)  # type: ignore[arg-type]
        return _repeat(placed.order_id, status, from_cache=False)


_MESSAGES: Mapping[DerivedStatus, str] = {
    "duplicate_detected": "Order already placed",
    "processing": "Order placement in progress",
    "failed": "Order placement failed",
}


def _repeat(order: OrderId, status: DerivedStatus, *, from_cache: bool) -> DerivedAnswer:
    return DerivedAnswer(
        success=status == "duplicate_detected",
        status=status,
        message=_MESSAGES[status],
        order_id=order,
        from_cache=from_cache,
        original_request_id=request_id(order),
    )


def _progress(order: Order | None) -> DerivedStatus:
    """How far the first request's order has come; what is in doubt is still being worked on."""
    if order is None or order.status in ("ACCEPTED", "SENDING", "UNKNOWN"):
        return "processing"
    return "failed" if order.status == "REJECTED" or is_proven_unsent(order) else "duplicate_detected"
