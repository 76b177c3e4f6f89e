"""`POST /orders` with and without an Idempotency-Key, and cancels.

Reads the journal's order rows; places through `OrderIntake` and commits cancels.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from switchyard.domain import decisions
from switchyard.domain.errors import NotFound
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.journal.changes import Change
from switchyard.domain.orders.keys import PLACE_ORDER, KeyEntry
from switchyard.domain.orders.lifecycle import is_final
from switchyard.domain.orders.order import order_digest
from switchyard.domain.orders.outbox import MayBeLost, OrderState
from switchyard.domain.risk.checks import DryRun
from switchyard.flow.commit.sequencer import Commit, decide
from switchyard.flow.intake.order_intake import OrderIntake
from switchyard.flow.intake.requests import IdempotentRequest, KeyCache, Placement
from switchyard.ports.cache import CacheEntry
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal


class OrderService:
    """Places and cancels orders of `/orders`; the `KeyRules` of keys that the client sends."""

    def __init__(
        self,
        *,
        intake: OrderIntake,
        journal: Journal,
        commit: Commit,
        clock: Clock,
        key_cache: KeyCache,
        key_ttl: timedelta,
        may_be_lost: MayBeLost,
    ) -> None:
        self._may_be_lost = may_be_lost
        self._intake = intake
        self._journal = journal
        self._commit = commit
        self._clock = clock
        self._key_cache = key_cache
        self._key_ttl = key_ttl

    async def place(self, account: AccountId, body: Mapping[str, Any], key: str | None) -> Placement:
        """Make the order durable; with a key, at most one order however often this is called.

        Raises RiskRejected for an order that was stored as rejected.
        """
        order = self._intake.checked_order(body)
        request = IdempotentRequest(
            account_id=account,
            operation=PLACE_ORDER,
            key=key or "",
            digest=order_digest(order) if key else "",
            created_at=self._clock.now(),
            ttl=self._key_ttl,
        )
        placement = await self._intake.place(request, order, self)
        if placement.replayed or placement.violation is not None:
            await self.check_accepted(request, placement)
        return placement

    async def check_accepted(self, request: IdempotentRequest, placement: Placement) -> None:
        """Raise RiskRejected if the placement's order was rejected; cache a repeat."""
        rejection = await self._intake.rejection(placement)
        if rejection is not None:
            raise rejection
        if placement.replayed and placement.entry is not None:
            # Cached from the first repeat on: most requests are never repeated, and a cache write for each of them
            # would slow down every order for the sake of the few repeats.
            self._key_cache.keep(placement.entry, "submitted", now=request.created_at)

    async def dry_run(self, account: AccountId, body: Mapping[str, Any]) -> DryRun:
        """Return what every pre-trade check says about the order; places nothing."""
        return await self._intake.dry_run(account, self._intake.checked_order(body))

    async def cancel(self, account: AccountId, order_id: OrderId) -> None:
        """Request a cancel; raises NotFound for a missing order and for another account's."""
        state = (await self._journal.load([order_id])).get(order_id)
        if state is None or state.order.account_id != account:
            raise NotFound
        await decide(self._journal, self._commit, order_id, self._cancel_decision, state)

    def may_answer_from_cache(self, intent: IdempotentRequest, cached: CacheEntry) -> bool:
        """Until the key expires by the database's clock; a cache server expires its entries by its own clock."""
        return intent.created_at < cached.expires_at

    async def may_reuse_key(self, intent: IdempotentRequest, entry: KeyEntry) -> bool:
        """After the key has expired, but never before its order is final."""
        if self._clock.now() < entry.expiry(self._clock.jumped_at):
            return False
        state = (await self._journal.load([entry.order_id])).get(entry.order_id)
        return state is None or is_final(state.order.status)

    def _cancel_decision(self, state: OrderState) -> Change | None:
        return decisions.request_cancel(state, self._clock.now(), self._may_be_lost)
